//! What the sources must not contain.

use crate::expect_none;
use crate::files::{FILES, TextFile};
use crate::rust_code::{code_only, has_word};

/// Longest source file, in lines. A file should answer one question; a longer one answers several.
const MOST_LINES: usize = 800;

/// Returns `path:line` of every line of code in `file` for which `matches` returns true.
fn code_lines(file: &TextFile, matches: impl Fn(&str) -> bool) -> Vec<String> {
    let code = code_only(&file.text);
    let lines = code.lines().enumerate().filter(|(_, line)| matches(line));
    lines.map(|(index, _)| format!("{}:{}", file.path, index + 1)).collect()
}

fn rust_files() -> impl Iterator<Item = &'static TextFile> {
    FILES.iter().filter(|file| file.is_rust())
}

#[test]
fn only_the_host_crate_starts_processes() {
    let may = |file: &TextFile| {
        // In the product, only the host crate. The others are tools for developers and are never shipped.
        ["crates/host/", "crates/testkit/", "crates/bench/", "xtask/"].iter().any(|folder| file.path.starts_with(folder))
    };
    let starts = |line: &str| line.contains("process::Command") || has_word(line, "Command::new") || has_word(line, "CommandExt");
    let broken: Vec<String> =
        rust_files().filter(|file| !may(file) && !file.is_test()).flat_map(|file| code_lines(file, starts)).collect();
    expect_none(
        &broken,
        "Use gpuaas_host::exec: absolute path, argument vector, cleared environment, deadline, output cap, kill on drop.",
    );
}

#[test]
fn nothing_is_unsafe() {
    let broken: Vec<String> = rust_files().flat_map(|file| code_lines(file, |line| has_word(line, "unsafe"))).collect();
    expect_none(&broken, "Use rustix for system calls, and crates whose safety is somebody's main work for the rest.");
}

#[test]
fn no_test_is_ignored() {
    let broken: Vec<String> = rust_files()
        .flat_map(|file| code_lines(file, |line| line.contains("#[ignore") || line.contains("ignore =") && line.contains("#[")))
        .collect();
    expect_none(&broken, "Make the test run, or delete it. A test that needs a part of the machine asks the testkit for it.");
}

#[test]
fn nothing_is_left_to_do() {
    let macros = ["todo!", "unimplemented!"];
    // Split in two, so that this file passes its own test.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let in_code = rust_files().flat_map(|file| code_lines(file, |line| macros.iter().any(|name| line.contains(name))));
    let in_text = FILES.iter().flat_map(|file| {
        let lines = file.lines().filter(|(_, line)| marks.iter().any(|mark| has_word(line, mark)));
        lines.map(|(number, _)| format!("{}:{number}", file.path)).collect::<Vec<_>>()
    });
    let broken: Vec<String> = in_code.chain(in_text).collect();
    expect_none(&broken, "Do it, or open an issue and take the mark out.");
}

#[test]
fn no_source_file_is_too_long() {
    let broken: Vec<String> = rust_files()
        .filter(|file| !file.is_test() && !file.path.contains("/generated/"))
        .filter(|file| file.text.lines().count() > MOST_LINES)
        .map(|file| format!("{}: {} lines", file.path, file.text.lines().count()))
        .collect();
    expect_none(&broken, &format!("At most {MOST_LINES} lines: split the file by the questions it answers."));
}

#[test]
fn no_path_of_a_developers_machine_is_in_a_file() {
    // Split in two, so that this file passes its own test.
    let folders = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let absolute = |line: &str| {
        folders.iter().any(|folder| {
            line.match_indices(folder).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '*'))
            })
        })
    };
    let broken: Vec<String> = FILES
        .iter()
        .flat_map(|file| {
            let lines = file.lines().filter(|(_, line)| absolute(line));
            lines.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim())).collect::<Vec<_>>()
        })
        .collect();
    expect_none(&broken, "Use a path relative to the repository, a temporary folder, or a place where the product really lives.");
}

#[test]
fn every_file_ends_with_one_line_break_and_has_no_trailing_space() {
    let mut broken = vec![];
    for file in FILES.iter().filter(|file| !file.text.is_empty() && file.path != "LICENSE") {
        if !file.text.ends_with('\n') || file.text.ends_with("\n\n") {
            broken.push(format!("{}: end the file with exactly one line break", file.path));
        }
        for (number, line) in file.lines().filter(|(_, line)| line.ends_with([' ', '\t', '\r'])) {
            broken.push(format!("{}:{number}: `{}` ends in white space", file.path, line.trim()));
        }
    }
    expect_none(&broken, "Most editors can do this on saving.");
}

#[test]
fn use_cases_know_nothing_of_http() {
    let is_http = |line: &str| ["axum", "http", "hyper", "tower", "tower_http"].iter().any(|name| has_word(line, name));
    let use_cases = || rust_files().filter(|file| file.path.starts_with("crates/control/src/app/"));
    assert!(use_cases().count() > 20, "the use cases are in crates/control/src/app");
    // The modules that write are below the use cases, and must not depend on HTTP either.
    let writers = ["crates/control/src/transact.rs", "crates/control/src/commit.rs", "crates/control/src/resources.rs"];
    let below = rust_files().filter(|file| writers.contains(&file.path.as_str()));
    let broken: Vec<String> = use_cases().chain(below).flat_map(|file| code_lines(file, is_http)).collect();
    expect_none(
        &broken,
        "Handlers call use cases with plain values and turn what they return into responses, not the other way round.",
    );
}

#[test]
fn handlers_leave_deciding_to_use_cases() {
    let decides = |line: &str| line.contains("transact(") || line.contains("crate::transact");
    let handlers = rust_files().filter(|file| file.path.starts_with("crates/control/src/http/"));
    let broken: Vec<String> = handlers.flat_map(|file| code_lines(file, decides)).collect();
    expect_none(&broken, "Put what loads, decides and commits into a function of crates/control/src/app, and call that.");
}
