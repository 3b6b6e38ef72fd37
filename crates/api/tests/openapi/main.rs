//! Checks that the OpenAPI document in `docs/` is the one that the program serves, and that it does not break clients.
//!
//! After a change of the API, `UPDATE_OPENAPI=1 cargo test -p gpuaas-api --test openapi` updates the document. It refuses to if the change
//! would break clients; `UPDATE_OPENAPI=breaking` forces it.

mod breaking;

use std::path::PathBuf;

use serde_json::Value;

use crate::breaking::breaking_changes;

/// Accepted breaking changes, as the test describes them. An entry that matches no change is an error, so the list can only shrink.
const ALLOWED: [&str; 0] = [];

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

/// The document that is checked in. Null if there is none yet.
fn checked_in() -> Value {
    match std::fs::read(path()) {
        Ok(bytes) => serde_json::from_slice(&bytes).expect("docs/openapi.json is JSON"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
        Err(error) => panic!("docs/openapi.json cannot be read: {error}"),
    }
}

/// Changes that break clients of the checked-in document, except for accepted ones.
fn broken(before: &Value, now: &Value) -> Vec<String> {
    breaking_changes(before, now).into_iter().filter(|change| !ALLOWED.contains(&change.as_str())).collect()
}

#[test]
fn the_document_in_docs_is_the_one_that_the_program_offers() {
    let (before, now) = (checked_in(), gpuaas_api::openapi::document());
    if before == now {
        return;
    }
    let update = std::env::var("UPDATE_OPENAPI").unwrap_or_default();
    assert!(
        matches!(update.as_str(), "1" | "breaking"),
        "the interface has changed: write the document with `UPDATE_OPENAPI=1 cargo test -p gpuaas-api --test openapi`, and look at the diff"
    );
    let broken = broken(&before, &now);
    assert!(
        broken.is_empty() || update == "breaking",
        "not written, because clients would break:\n{}\nIf that is decided, use UPDATE_OPENAPI=breaking.",
        broken.join("\n")
    );
    // Renamed into place, so that a concurrent reader sees either the old document or the new one.
    let draft = path().with_extension("json.new");
    let text = serde_json::to_string_pretty(&now).expect("JSON") + "\n";
    std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, path())).expect("docs/openapi.json can be written");
}

#[test]
fn nothing_that_clients_rely_on_is_taken_back() {
    let found = breaking_changes(&checked_in(), &gpuaas_api::openapi::document());
    let stale: Vec<&str> = ALLOWED.into_iter().filter(|allowed| !found.iter().any(|change| change == allowed)).collect();
    assert!(stale.is_empty(), "no longer needed in ALLOWED: {stale:?}");
    if std::env::var("UPDATE_OPENAPI").as_deref() == Ok("breaking") {
        return;
    }
    let broken: Vec<String> = found.into_iter().filter(|change| !ALLOWED.contains(&change.as_str())).collect();
    assert!(broken.is_empty(), "clients of docs/openapi.json would break:\n{}", broken.join("\n"));
}

#[test]
fn times_are_text_and_states_are_lists_of_names() {
    fn fields<'d>(schema: &'d serde_json::Value, found: &mut Vec<(&'d str, &'d serde_json::Value)>) {
        use serde_json::Value;
        match schema {
            Value::Object(entries) => {
                let properties = entries.get("properties").and_then(Value::as_object);
                found.extend(properties.into_iter().flatten().map(|(name, value)| (name.as_str(), value)));
                entries.values().for_each(|value| fields(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = gpuaas_api::openapi::document();
    let mut found = Vec::new();
    fields(&document["components"]["schemas"], &mut found);
    let times: Vec<_> = found.iter().filter(|(name, _)| name.ends_with("_at") || name.ends_with("_until")).collect();
    assert!(times.len() > 50, "{}", times.len());
    for (name, schema) in times {
        assert_eq!(schema["format"], "date-time", "{name}: {schema}");
    }
    for (name, schema) in found.iter().filter(|(name, _)| ["state", "service", "step", "transport"].contains(name)) {
        let is_named = ["$ref", "enum", "anyOf", "oneOf"].iter().any(|key| schema.get(*key).is_some());
        assert!(is_named, "{name}: {schema}");
    }
}
