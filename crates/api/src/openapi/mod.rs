//! The OpenAPI 3.1 document of the API, generated from [`crate::endpoints`] and the schemas of the documents.

mod components;
mod operation;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::endpoints::ENDPOINTS;

/// The location of schemas in the document, as a JSON pointer.
const SCHEMAS: &str = "/components/schemas";

/// The whole document. Deterministic: the keys of every object are sorted.
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
        })
        .into_generator();
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let methods = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        methods[endpoint.method.as_str().to_lowercase()] = operation::of(endpoint, &mut generator);
    }
    generator.subschema_for::<crate::dto::Problem>();
    let schemas = generator.take_definitions(true);
    let mut resources: Vec<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.resource).collect();
    resources.dedup();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "gpuaas",
            "version": "v1",
            "summary": "Leases GPUs and operates their hosts.",
            "description": components::DESCRIPTION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }],
        "tags": resources.into_iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
        "paths": paths,
        "components": components::all(schemas),
    });
    speak_plainly(&mut document);
    sorted(document)
}

/// Turns doc comments into plain descriptions: links to other code become names.
pub(crate) fn speak_plainly(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let (Value::String(text), "description") = (&mut *value, name.as_str()) {
                    *text = plain(text);
                } else {
                    speak_plainly(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(speak_plainly),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((target, after)) = link.split_once("`]") else { break };
        out.push_str(before);
        match target.rsplit("::").next().unwrap_or(target) {
            "MAX_PAGE" => out.push_str(&crate::dto::MAX_PAGE.to_string()),
            name => {
                out.push('`');
                out.push_str(name);
                out.push('`');
            }
        }
        rest = after;
    }
    out.push_str(rest);
    // Single line breaks in comments have no meaning; blank lines separate paragraphs.
    out.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace("  ", "\n\n")
}

/// The same value with the keys of every object sorted, whatever order the JSON library keeps.
pub(crate) fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.sort_by(|(left, _), (right, _)| left.cmp(right));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_comments_become_names() {
        assert_eq!(plain("Most items; 1 to [`super::MAX_PAGE`]."), "Most items; 1 to 1000.");
        assert_eq!(plain("[`super::Page::next`] of\nthe page before."), "`next` of the page before.");
        assert_eq!(plain("One.\n\nTwo [`open"), "One.\n\nTwo [`open");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    // Examples are data: task schemas in them contain references of their own.
                    let described = fields.iter().filter(|(name, _)| !["example", "examples"].contains(&name.as_str()));
                    described.for_each(|(_, value)| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 500, "only {}", found.len());
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
    }
}
