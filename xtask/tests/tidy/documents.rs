//! The documents exist, and their links are valid.

use crate::expect_none;
use crate::files::{FILES, exists, root};

#[test]
fn the_documents_of_the_repository_exist() {
    let documents = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "docs/adding-a-task.md",
        "docs/threat-model.md",
        "crates/contract/testdata/README.md",
        ".ci/run",
    ];
    let broken: Vec<String> = documents.into_iter().filter(|path| !exists(path)).map(str::to_owned).collect();
    expect_none(&broken, "Write these.");
}

#[test]
fn links_in_documents_lead_to_files_that_exist() {
    let mut broken = vec![];
    for file in FILES.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = root().join(&file.path).parent().expect("a folder").to_owned();
        let mut in_code = false;
        for (number, line) in file.lines() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            if in_code {
                continue;
            }
            for target in link_targets(line) {
                let path = target.split('#').next().unwrap_or_default();
                let elsewhere = target.contains("://") || target.starts_with("mailto:") || path.is_empty();
                if !elsewhere && !folder.join(path).exists() {
                    broken.push(format!("{}:{number}: {target}", file.path));
                }
            }
        }
    }
    expect_none(&broken, "Correct the link; paths count from the document's own folder.");
}

#[test]
fn files_named_in_documents_exist() {
    // `crates/…`, `docs/…` and `xtask/…` in backquotes must exist.
    let mut broken = vec![];
    for file in FILES.iter().filter(|file| file.path.ends_with(".md")) {
        for (number, line) in file.lines() {
            for name in line.split('`').skip(1).step_by(2) {
                let ours = ["crates/", "docs/", "xtask/", ".ci/"].iter().any(|folder| name.starts_with(folder));
                let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
                if ours && plain && !exists(name.trim_end_matches('/')) {
                    broken.push(format!("{}:{number}: {name}", file.path));
                }
            }
        }
    }
    expect_none(&broken, "The file was moved or never written; correct the name. (Use <placeholders> in patterns.)");
}

/// Every line of the threat model names the code that enforces it and the test that demonstrates it.
#[test]
fn the_threat_model_names_code_and_tests_that_exist() {
    let page = FILES.iter().find(|file| file.path == "docs/threat-model.md").expect("the threat model");
    let tests: Vec<&str> = FILES
        .iter()
        .filter(|file| file.is_rust())
        .flat_map(|file| file.text.match_indices("fn ").filter_map(|(at, word)| file.text[at + word.len()..].split('(').next()))
        .collect();
    let (mut broken, mut named) = (vec![], 0);
    for (number, line) in page.lines().filter(|(_, line)| line.starts_with('|')) {
        for name in line.split('`').skip(1).step_by(2) {
            let of_a_crate = name.split_once('/').is_some_and(|(first, _)| exists(&format!("crates/{first}")));
            named += usize::from(of_a_crate);
            if of_a_crate && !exists(&format!("crates/{name}")) {
                broken.push(format!("{}:{number}: {name}", page.path));
            }
        }
        for sentence in line.split('*').skip(1).step_by(2) {
            named += 1;
            let words = sentence.split('…').map(str::trim).filter(|part| !part.is_empty());
            let parts: Vec<String> = words.map(|part| part.to_lowercase().replace([' ', '-'], "_").replace(',', "")).collect();
            if !tests.iter().any(|test| parts.iter().all(|part| test.contains(part.as_str()))) {
                broken.push(format!("{}:{number}: no test is called *{sentence}*", page.path));
            }
        }
    }
    assert!(named > 50, "the page is written in another way; this test must learn it");
    expect_none(&broken, "A promise without code or without a test is none: correct the name, or the promise.");
}

/// Returns the targets of `[text](target)` in one line.
fn link_targets(line: &str) -> Vec<&str> {
    line.match_indices("](")
        .filter_map(|(at, _)| {
            let target = &line[at + 2..];
            target.find(')').map(|end| target[..end].split_whitespace().next().unwrap_or_default())
        })
        .collect()
}

#[test]
fn link_targets_are_found() {
    assert_eq!(link_targets("see [a](b.md), [c](d/e.md#f \"title\") and [g](https://h)"), ["b.md", "d/e.md#f", "https://h"]);
}

/// Longest line of prose.
const MOST_COLUMNS: usize = 100;

#[test]
fn prose_in_documents_is_wrapped() {
    let mut broken = Vec::new();
    for file in FILES.iter().filter(|file| file.path.ends_with(".md")) {
        let mut in_code = false;
        for (number, line) in file.lines() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            // Tables, code and single long words cannot be wrapped.
            let is_one_word = line.trim_start_matches(|c: char| !c.is_alphanumeric()).split(' ').count() < 2;
            let is_prose = !in_code && !line.trim_start().starts_with('|') && !is_one_word;
            if is_prose && line.chars().count() > MOST_COLUMNS {
                broken.push(format!("{}:{number}: {} columns", file.path, line.chars().count()));
            }
        }
    }
    expect_none(&broken, &format!("Wrap Markdown at {MOST_COLUMNS} columns, so that a change shows the sentence it changes."));
}
