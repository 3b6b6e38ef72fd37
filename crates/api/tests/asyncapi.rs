//! The AsyncAPI document in `docs/` has every kind of event that is recorded, and no other.
//!
//! After a new kind, add it to `crates/api/src/asyncapi.rs`; `UPDATE_ASYNCAPI=1 cargo test -p gpuaas-api --test asyncapi` then writes the
//! document anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpuaas_api::asyncapi::{EVENT_KINDS, document};
use serde_json::Value;

/// The crates that decide what happened.
const RECORDING: [&str; 2] = ["domain", "control"];

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/asyncapi.json")
}

/// The kinds of events in the text of a program: `"gpuaas.<what>.<happened>.v<number>"`, in quotes.
fn kinds_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').filter(|literal| {
        let parts: Vec<&str> = literal.split('.').collect();
        let word = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        matches!(parts.as_slice(), ["gpuaas", middle @ .., version]
            if middle.len() == 2 && middle.iter().all(word) && version.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok()))
    })
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("sources can be read") {
        let path = entry.expect("sources can be read").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("sources can be read");
            found.extend(kinds_in(&text).map(str::to_owned));
        }
    }
}

#[test]
fn every_kind_that_is_recorded_is_in_the_document_and_no_other() {
    let mut recorded = BTreeSet::new();
    for name in RECORDING {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut recorded);
    }
    assert!(recorded.len() > 50, "the sources were not found");
    let known: BTreeSet<String> = EVENT_KINDS.iter().map(|event| event.kind.to_owned()).collect();
    let missing: Vec<&String> = recorded.difference(&known).collect();
    assert!(missing.is_empty(), "recorded, and missing in crates/api/src/asyncapi.rs: {missing:?}");
    let stale: Vec<&String> = known.difference(&recorded).collect();
    assert!(stale.is_empty(), "in crates/api/src/asyncapi.rs, and recorded by nobody: {stale:?}");
    assert!(EVENT_KINDS.is_sorted_by(|one, next| one.kind < next.kind), "kinds are listed by name, each once");
}

#[test]
fn a_kind_is_found_wherever_it_stands_in_the_text() {
    let text =
        r#"x("gpuaas.node.online.v1", "gpuaas.node.v1", "gpuaas.", "gpuaas.Node.on.v1", "gpuaas.a_b.c_d.v12", "gpuaas.a.b.vx")"#;
    assert_eq!(kinds_in(text).collect::<Vec<_>>(), ["gpuaas.node.online.v1", "gpuaas.a_b.c_d.v12"]);
}

#[test]
fn the_document_in_docs_is_the_one_that_the_program_makes() {
    let now = document();
    let before: Value =
        std::fs::read(path()).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).expect("docs/asyncapi.json is JSON"));
    if before == now {
        return;
    }
    assert!(
        std::env::var("UPDATE_ASYNCAPI").is_ok_and(|update| update == "1"),
        "events have changed: write the document with `UPDATE_ASYNCAPI=1 cargo test -p gpuaas-api --test asyncapi`, and look at the diff"
    );
    // Whoever reads meanwhile sees the old document or the new one.
    let draft = path().with_extension("json.new");
    let text = serde_json::to_string_pretty(&now).expect("JSON") + "\n";
    std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, path())).expect("docs/asyncapi.json can be written");
}

#[test]
fn nothing_in_the_document_points_nowhere() {
    fn references<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if name == "$ref" => found.push(text),
                        other => references(other, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}
