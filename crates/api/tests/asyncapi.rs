//! Checks that the AsyncAPI document in `docs/` matches the events in `crates/contract/src/event`.
//!
//! After a change of the events, `UPDATE_ASYNCAPI=1 cargo test -p gpuaas-api --test asyncapi` updates the document.

use std::path::{Path, PathBuf};

use gpuaas_api::asyncapi::document;
use gpuaas_contract::event::EventKind;
use serde_json::Value;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/asyncapi.json")
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
    // Renamed into place, so that a concurrent reader sees either the old document or the new one.
    let draft = path().with_extension("json.new");
    let text = serde_json::to_string_pretty(&now).expect("JSON") + "\n";
    std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, path())).expect("docs/asyncapi.json can be written");
}

#[test]
fn every_message_describes_its_data_field_by_field() {
    let document = document();
    let messages = document["components"]["messages"].as_object().expect("messages");
    assert_eq!(messages.len(), EventKind::ALL.len());
    for (kind, message) in messages {
        let reference = message["payload"]["allOf"][1]["properties"]["data"]["$ref"].as_str().expect("a named schema");
        let schema = document.pointer(reference.trim_start_matches('#')).expect("in the document");
        let properties = schema["properties"].as_object().unwrap_or_else(|| panic!("{kind} has fields"));
        for (field, property) in properties {
            let described = property["description"].is_string() || property["$ref"].is_string();
            assert!(described, "{kind}: say what {field} is");
        }
    }
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
