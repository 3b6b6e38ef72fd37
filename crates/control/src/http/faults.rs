//! Finds all faults of a request body, each with its location.
//!
//! Bodies are parsed by serde, which stops at the first fault. When that fails, the body is compared with its schema, so that the caller
//! learns of all faults at once. A fault that a schema cannot express, such as an invalid name, is reported alone, by serde.

use gpuaas_api::dto::Fault;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

/// Maximum number of faults in a response.
const MAX_FAULTS: usize = 32;
/// Maximum number of characters of a value that are quoted in a response.
const MAX_SHOWN: usize = 60;

/// Returns what is wrong with `body` as a document with this schema: [`schemars::JsonSchema::json_schema`] of its type.
pub(super) fn of(schema: fn(&mut SchemaGenerator) -> Schema, body: &Value) -> Vec<Fault> {
    let mut generator = SchemaGenerator::default();
    let root = schema(&mut generator);
    let definitions = generator.take_definitions(false);
    let mut found = Found { definitions: &definitions, faults: Vec::new() };
    found.compare(root.as_value(), body, "");
    found.faults
}

/// The location of a key as a JSON pointer (RFC 6901).
pub(super) fn pointer_to(parent: &str, key: &str) -> String {
    format!("{parent}/{}", key.replace('~', "~0").replace('/', "~1"))
}

struct Found<'a> {
    definitions: &'a Map<String, Value>,
    faults: Vec<Fault>,
}

impl<'a> Found<'a> {
    fn tell(&mut self, pointer: &str, detail: String) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { pointer: pointer.to_owned(), detail });
        }
    }

    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix("#/$defs/"));
        name.and_then(|name| self.definitions.get(name)).unwrap_or(schema)
    }

    fn compare(&mut self, schema: &'a Value, value: &Value, pointer: &str) {
        let schema = self.resolve(schema);
        if let Some(choices) = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key).and_then(Value::as_array)) {
            return self.compare_any(choices, value, pointer);
        }
        if let Some(expected) = types_of(schema).filter(|types| !types.iter().any(|wanted| is_of(value, wanted))) {
            return self.tell(pointer, format!("expected {}, not {}", one_of(&expected), kind_of(value)));
        }
        let constant = schema.get("const").map(std::slice::from_ref);
        if let Some(names) = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).or(constant)
            && !names.contains(value)
        {
            let known: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            return self.tell(pointer, format!("{} is none of {}", shown(value), known.join(", ")));
        }
        match value {
            Value::Object(fields) => self.compare_fields(schema, fields, pointer),
            Value::Array(items) => {
                if let Some(of_items) = schema.get("items") {
                    for (index, item) in items.iter().enumerate() {
                        self.compare(of_items, item, &format!("{pointer}/{index}"));
                    }
                }
            }
            Value::Number(number) => self.compare_number(schema, number, pointer),
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }

    fn compare_any(&mut self, choices: &'a [Value], value: &Value, pointer: &str) {
        // An enum whose variants have descriptions of their own.
        let names: Option<Vec<&str>> =
            choices.iter().map(|choice| self.resolve(choice).get("const").and_then(Value::as_str)).collect();
        if let Some(names) = names {
            if !value.as_str().is_some_and(|value| names.contains(&value)) {
                self.tell(pointer, format!("{} is none of {}", shown(value), names.join(", ")));
            }
            return;
        }
        let mut nearest: Option<Vec<Fault>> = None;
        for choice in choices {
            let mut found = Found { definitions: self.definitions, faults: Vec::new() };
            found.compare(choice, value, pointer);
            if found.faults.is_empty() {
                return;
            }
            // A choice that fits the value itself, with faults only inside it, is the one that was meant.
            let is_meant = found.faults.iter().all(|fault| fault.pointer != pointer);
            if is_meant || nearest.is_none() {
                nearest = Some(found.faults);
            }
        }
        for fault in nearest.unwrap_or_default() {
            self.tell(&fault.pointer, fault.detail);
        }
    }

    fn compare_fields(&mut self, schema: &'a Value, fields: &Map<String, Value>, pointer: &str) {
        let known = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for name in required.iter().filter_map(Value::as_str).filter(|name| !fields.contains_key(*name)) {
            self.tell(&pointer_to(pointer, name), "is missing".to_owned());
        }
        for (name, value) in fields {
            let at = pointer_to(pointer, name);
            match (known.and_then(|known| known.get(name)), schema.get("additionalProperties")) {
                (Some(of_field), _) => self.compare(of_field, value, &at),
                (None, Some(Value::Bool(false))) => self.tell(&at, "is not a field of this document".to_owned()),
                (None, Some(of_value @ Value::Object(_))) => self.compare(of_value, value, &at),
                (None, Some(_) | None) => {}
            }
        }
    }

    fn compare_number(&mut self, schema: &Value, number: &serde_json::Number, pointer: &str) {
        let Some(value) = number.as_f64() else { return };
        let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
        if let Some(least) = limit("minimum").filter(|least| value < *least) {
            self.tell(pointer, format!("{number} is less than {least}"));
        }
        if let Some(most) = limit("maximum").filter(|most| value > *most) {
            self.tell(pointer, format!("{number} is more than {most}"));
        }
    }
}

fn types_of(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(one) => Some(vec![one]),
        Value::Array(some) => Some(some.iter().filter_map(Value::as_str).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

fn is_of(value: &Value, wanted: &str) -> bool {
    match value {
        Value::Null => wanted == "null",
        Value::Bool(_) => wanted == "boolean",
        Value::Number(number) => wanted == "number" || (wanted == "integer" && !number.is_f64()),
        Value::String(_) => wanted == "string",
        Value::Array(_) => wanted == "array",
        Value::Object(_) => wanted == "object",
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn one_of(types: &[&str]) -> String {
    let named = types.iter().map(|name| match *name {
        "null" => "null".to_owned(),
        name @ ("integer" | "array" | "object") => format!("an {name}"),
        name => format!("a {name}"),
    });
    named.collect::<Vec<_>>().join(" or ")
}

fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let short: String = text.chars().filter(|character| !character.is_control()).take(MAX_SHOWN).collect();
    format!("`{short}`")
}

#[cfg(test)]
mod tests {
    use gpuaas_api::dto::{AllocationCreate, MemberAdd, SkuCreate, SliceCreate};
    use schemars::JsonSchema;
    use serde_json::json;

    use super::*;

    fn told<T: JsonSchema>(body: &Value) -> Vec<(String, String)> {
        of(T::json_schema, body).into_iter().map(|fault| (fault.pointer, fault.detail)).collect()
    }

    #[test]
    fn all_faults_are_told_with_where_they_are() {
        let body = json!({ "name": 7, "kind": "slise", "price_per_hour": { "amount": 2.5, "curency": "USD" }, "min_vcpus": -1, "a/b": 1 });
        let faults = told::<SkuCreate>(&body);
        for (pointer, detail) in [
            ("/name", "expected a string, not a number"),
            ("/kind", "`slise` is none of slice, bare_metal"),
            ("/price_per_hour/amount", "expected a string, not a number with a fraction"),
            ("/price_per_hour/currency", "is missing"),
            ("/price_per_hour/curency", "is not a field of this document"),
            ("/min_vcpus", "-1 is less than 0"),
            ("/a~1b", "is not a field of this document"),
        ] {
            assert!(faults.contains(&(pointer.to_owned(), detail.to_owned())), "{pointer}: {faults:?}");
        }
        assert_eq!(faults.len(), 7, "{faults:?}");
    }

    #[test]
    fn what_is_right_has_no_fault() {
        let price = json!({ "amount": "2.50", "currency": "USD" });
        assert_eq!(told::<SkuCreate>(&json!({ "name": "a", "kind": "slice", "slots": 1, "price_per_hour": price })), []);
        assert_eq!(told::<MemberAdd>(&json!({ "email": null, "role": "owner" })), []);
    }

    #[test]
    fn of_several_forms_the_one_that_was_meant_is_looked_at() {
        let body = json!({ "node": "n", "slots": [0, "slot_1", true], "vm_name": "a", "image": { "sha256": 1 } });
        let faults = told::<SliceCreate>(&body);
        assert!(faults.iter().any(|(pointer, _)| pointer == "/slots/2"), "{faults:?}");
        assert!(faults.iter().any(|(pointer, _)| pointer == "/image/sha256"), "{faults:?}");
    }

    #[test]
    fn their_number_is_bounded() {
        let many: Map<String, Value> = (0..1000).map(|number| (format!("field{number}"), Value::Null)).collect();
        assert_eq!(of(AllocationCreate::json_schema, &Value::Object(many)).len(), MAX_FAULTS);
    }
}
