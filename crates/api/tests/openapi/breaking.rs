//! Finds changes of the API that break its clients.
//!
//! A new version may require less in requests and send more in responses; the opposite breaks clients.

use std::collections::BTreeSet;

use serde_json::Value;

/// The direction in which a document is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the client: everything that was accepted before must still be accepted.
    Request,
    /// From the server: it must not send values that were impossible before, and must still send what was always there.
    Answer,
}

/// Describes all changes that break clients of `before`.
pub(crate) fn breaking_changes(before: &Value, now: &Value) -> Vec<String> {
    let mut compare = Compare { before, now, found: Vec::new(), open: Vec::new() };
    for (path, methods) in fields(&before["paths"]) {
        for (method, operation) in fields(methods) {
            let place = format!("{} {path}", method.to_uppercase());
            match now["paths"].get(path).and_then(|methods| methods.get(method)) {
                Some(after) => compare.operation(&place, operation, after),
                None => compare.found.push(format!("{place}: removed")),
            }
        }
    }
    compare.found
}

struct Compare<'d> {
    before: &'d Value,
    now: &'d Value,
    found: Vec<String>,
    /// Pairs of references that are being compared, because documents can be recursive.
    open: Vec<(&'d str, &'d str)>,
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn resolve<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null),
        None => value,
    }
}

impl<'d> Compare<'d> {
    fn say(&mut self, place: &str, what: &str) {
        self.found.push(format!("{place}: {what}"));
    }

    fn operation(&mut self, place: &str, before: &'d Value, now: &'d Value) {
        self.parameters(place, &before["parameters"], &now["parameters"]);
        let (body_before, body_now) = (&before["requestBody"], &now["requestBody"]);
        match (body_before.is_null(), body_now.is_null()) {
            (true, true) => {}
            (true, false) if body_now["required"] == true => self.say(place, "a body is newly required"),
            (true, false) => {}
            (false, true) => self.say(place, "the body was removed"),
            (false, false) => self.contents(&format!("{place} body"), body_before, body_now, Direction::Request),
        }
        for (status, response) in fields(&before["responses"]).filter(|(status, _)| status.starts_with(['1', '2'])) {
            match now["responses"].get(status) {
                Some(after) => self.contents(&format!("{place} {status}"), response, after, Direction::Answer),
                None => self.say(place, &format!("answer {status} was removed")),
            }
        }
        for (status, _) in fields(&now["responses"]).filter(|(status, _)| status.starts_with(['1', '2'])) {
            if before["responses"].get(status).is_none() {
                self.say(place, &format!("answer {status} is new, and clients do not expect it"));
            }
        }
    }

    fn parameters(&mut self, place: &str, before: &'d Value, now: &'d Value) {
        let after: Vec<&Value> = items(now).map(|parameter| resolve(self.now, parameter)).collect();
        let known: Vec<&Value> = items(before).map(|parameter| resolve(self.before, parameter)).collect();
        let same = |left: &Value, right: &Value| left["name"] == right["name"] && left["in"] == right["in"];
        for old in &known {
            let name = old["name"].as_str().unwrap_or_default();
            match after.iter().find(|new| same(old, new)) {
                Some(new) => {
                    self.schema(&format!("{place} parameter {name}"), &old["schema"], &new["schema"], Direction::Request)
                }
                None => self.say(place, &format!("parameter {name} was removed")),
            }
        }
        for new in after.iter().filter(|new| new["required"] == true) {
            if !known.iter().any(|old| same(old, new) && old["required"] == true) {
                self.say(place, &format!("parameter {} is newly required", new["name"].as_str().unwrap_or_default()));
            }
        }
    }

    fn contents(&mut self, place: &str, before: &'d Value, now: &'d Value, direction: Direction) {
        for (kind, content) in fields(&before["content"]) {
            let Some(after) = now["content"].get(kind) else {
                self.say(place, &format!("{kind} was removed"));
                continue;
            };
            self.schema(place, &content["schema"], &after["schema"], direction);
            for (event, schema) in fields(&content["x-gpuaas-events"]) {
                match after["x-gpuaas-events"].get(event) {
                    Some(after) => self.schema(&format!("{place} event {event}"), schema, after, direction),
                    None => self.say(place, &format!("event {event} was removed")),
                }
            }
        }
        self.schema(&format!("{place} message"), &before["x-gpuaas-message"], &now["x-gpuaas-message"], direction);
    }

    fn schema(&mut self, place: &str, before: &'d Value, now: &'d Value, direction: Direction) {
        if let (Some(left), Some(right)) = (before["$ref"].as_str(), now["$ref"].as_str()) {
            if self.open.contains(&(left, right)) {
                return;
            }
            self.open.push((left, right));
            self.resolved(place, resolve(self.before, before), resolve(self.now, now), direction);
            self.open.pop();
        } else {
            self.resolved(place, resolve(self.before, before), resolve(self.now, now), direction);
        }
    }

    fn resolved(&mut self, place: &str, before: &'d Value, now: &'d Value, direction: Direction) {
        let (old, new) = (alternatives(before), alternatives(now));
        if old.len() > 1 || new.len() > 1 {
            return self.alternatives(place, &old, &new, direction);
        }
        // The values of the narrow side must all be possible on the wide side.
        let (narrow, wide) = match direction {
            Direction::Request => (before, now),
            Direction::Answer => (now, before),
        };
        if !is_within(&kinds(narrow), &kinds(wide)) {
            return self.say(place, &format!("the type changed from {} to {}", before["type"], now["type"]));
        }
        if before["format"] != now["format"] {
            self.say(place, &format!("the format changed from {} to {}", before["format"], now["format"]));
        }
        let values = |schema: &Value| -> Option<BTreeSet<String>> {
            let one = schema.get("const").map(|value| BTreeSet::from([value.to_string()]));
            one.or_else(|| schema["enum"].as_array().map(|values| values.iter().map(ToString::to_string).collect()))
        };
        match (values(narrow), values(wide)) {
            (_, None) => {}
            (Some(narrow), Some(wide)) if narrow.is_subset(&wide) => {}
            (Some(_) | None, Some(_)) => self.say(place, "the possible values changed"),
        }
        if direction == Direction::Request {
            self.limits(place, before, now);
        }
        self.properties(place, before, now, direction);
        if !before["items"].is_null() && !now["items"].is_null() {
            self.schema(&format!("{place}[]"), &before["items"], &now["items"], direction);
        }
        if before["additionalProperties"].is_object() && now["additionalProperties"].is_object() {
            self.schema(&format!("{place}{{}}"), &before["additionalProperties"], &now["additionalProperties"], direction);
        }
    }

    /// Finds limits on requests that became stricter.
    fn limits(&mut self, place: &str, before: &Value, now: &Value) {
        if !now["pattern"].is_null() && now["pattern"] != before["pattern"] {
            self.say(place, &format!("the pattern changed to {}", now["pattern"]));
        }
        for (name, larger_is_stricter) in [
            ("minimum", true),
            ("minLength", true),
            ("minItems", true),
            ("maximum", false),
            ("maxLength", false),
            ("maxItems", false),
        ] {
            let Some(limit) = now[name].as_f64() else { continue };
            let stricter = before[name].as_f64().is_none_or(|old| if larger_is_stricter { limit > old } else { limit < old });
            if stricter {
                self.say(place, &format!("{name} is stricter: {limit}"));
            }
        }
    }

    fn properties(&mut self, place: &str, before: &'d Value, now: &'d Value, direction: Direction) {
        let required =
            |schema: &'d Value| -> BTreeSet<&'d str> { items(&schema["required"]).filter_map(Value::as_str).collect() };
        let (was, is) = (required(before), required(now));
        for (name, old) in fields(&before["properties"]) {
            match now["properties"].get(name) {
                Some(new) => self.schema(&format!("{place}.{name}"), old, new, direction),
                None => self.say(&format!("{place}.{name}"), "the field was removed"),
            }
        }
        let closed = |schema: &Value| schema["additionalProperties"] == false;
        match direction {
            Direction::Request => {
                for name in is.difference(&was) {
                    self.say(&format!("{place}.{name}"), "the field is newly required");
                }
                if closed(now) && !closed(before) {
                    self.say(place, "unknown fields are newly refused");
                }
            }
            Direction::Answer => {
                for name in was.difference(&is).filter(|name| now["properties"].get(**name).is_some()) {
                    self.say(&format!("{place}.{name}"), "the field may be absent now");
                }
            }
        }
    }

    /// Checks that each alternative of the narrow side fits one of the wide side.
    fn alternatives(&mut self, place: &str, old: &[&'d Value], new: &[&'d Value], direction: Direction) {
        let fits = |compare: &Self, before: &'d Value, now: &'d Value| {
            let mut trial = Compare { before: compare.before, now: compare.now, found: Vec::new(), open: compare.open.clone() };
            trial.schema(place, before, now, direction);
            trial.found
        };
        let real = |alternatives: &[&'d Value]| -> Vec<&'d Value> {
            alternatives.iter().copied().filter(|schema| schema["type"] != "null").collect()
        };
        let nullable = |alternatives: &[&'d Value]| alternatives.iter().any(|schema| schema["type"] == "null");
        // The usual case, a value or null, is reported in detail.
        if let ([before], [now]) = (real(old).as_slice(), real(new).as_slice()) {
            let problem = match direction {
                Direction::Request => nullable(old) && !nullable(new),
                Direction::Answer => !nullable(old) && nullable(new),
            };
            if problem {
                self.say(place, if direction == Direction::Request { "null is no longer taken" } else { "it may be null now" });
            }
            let found = fits(self, before, now);
            self.found.extend(found);
            return;
        }
        let lost = match direction {
            Direction::Request => old.iter().any(|before| !new.iter().any(|now| fits(self, before, now).is_empty())),
            Direction::Answer => new.iter().any(|now| !old.iter().any(|before| fits(self, before, now).is_empty())),
        };
        if lost {
            self.say(place, "the possible forms changed");
        }
    }
}

/// The alternatives of a schema, or just the schema itself.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let several = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
    several.map_or_else(|| vec![schema], |several| several.iter().collect())
}

/// The JSON types that a value can have. Empty if all are possible.
fn kinds(schema: &Value) -> BTreeSet<&str> {
    match &schema["type"] {
        Value::String(kind) => BTreeSet::from([kind.as_str()]),
        other => items(other).filter_map(Value::as_str).collect(),
    }
}

fn is_within(narrow: &BTreeSet<&str>, wide: &BTreeSet<&str>) -> bool {
    let has = |kind: &&str| wide.contains(kind) || (*kind == "integer" && wide.contains("number"));
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(has))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "paths": { "/things": {
                "get": {
                    "parameters": [{ "name": "limit", "in": "query", "required": false, "schema": { "type": "integer", "maximum": 9 } }],
                    "responses": { "200": { "content": { "application/json": { "schema": { "$ref": "#/schemas/Thing" } } } } },
                },
                "post": {
                    "requestBody": { "required": true, "content": { "application/json": { "schema": { "$ref": "#/schemas/Order" } } } },
                    "responses": { "201": { "content": { "application/json": { "schema": { "$ref": "#/schemas/Thing" } } } } },
                },
            } },
            "schemas": {
                "Thing": {
                    "type": "object", "required": ["id"],
                    "properties": {
                        "id": { "type": "string" }, "note": { "type": ["string", "null"] },
                        "parts": { "type": "array", "items": { "$ref": "#/schemas/Thing" } },
                        "owner": { "anyOf": [{ "$ref": "#/schemas/Thing" }, { "type": "null" }] },
                    },
                },
                "Order": {
                    "type": "object", "required": ["name"], "additionalProperties": false,
                    "properties": { "name": { "type": "string" }, "kind": { "type": "string", "enum": ["a", "b"] } },
                },
            },
        })
    }

    /// The breaking changes if the value at `pointer` is replaced.
    fn after(pointer: &str, value: Value) -> Vec<String> {
        let mut now = document();
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let (parent, name) = (now.pointer_mut(parent).expect("there"), name.replace("~1", "/"));
        match (parent, value) {
            (Value::Object(fields), Value::Null) => drop(fields.remove(&name)),
            (Value::Array(items), value) => items[name.parse::<usize>().expect("a number")] = value,
            (parent, value) => parent[name] = value,
        }
        breaking_changes(&document(), &now)
    }

    #[test]
    fn what_takes_something_away_is_found() {
        let thing = "/schemas/Thing";
        let request = "/schemas/Order";
        for (pointer, value) in [
            ("/paths/~1things".to_owned(), Value::Null),
            ("/paths/~1things/post".to_owned(), Value::Null),
            ("/paths/~1things/post/responses".to_owned(), json!({ "202": {} })),
            ("/paths/~1things/get/parameters".to_owned(), json!([])),
            ("/paths/~1things/get/parameters/0/required".to_owned(), json!(true)),
            ("/paths/~1things/get/parameters/0/schema".to_owned(), json!({ "type": "string" })),
            ("/paths/~1things/get/parameters/0/schema/maximum".to_owned(), json!(8)),
            ("/paths/~1things/get/requestBody".to_owned(), json!({ "required": true })),
            (format!("{thing}/properties/note"), Value::Null),
            (format!("{thing}/properties/id/type"), json!("integer")),
            (format!("{thing}/properties/id/type"), json!(["string", "null"])),
            (format!("{thing}/properties/owner/anyOf"), json!([{ "type": "string" }, { "type": "null" }])),
            (format!("{thing}/required"), json!([])),
            (format!("{request}/properties/kind"), Value::Null),
            (format!("{request}/properties/kind/enum"), json!(["a"])),
            (format!("{request}/properties/name/pattern"), json!("^x$")),
            (format!("{request}/required"), json!(["name", "kind"])),
        ] {
            assert!(!after(&pointer, value.clone()).is_empty(), "{pointer} = {value}");
        }
    }

    #[test]
    fn what_only_adds_something_breaks_nobody() {
        let thing = "/schemas/Thing";
        let request = "/schemas/Order";
        for (pointer, value) in [
            ("/paths/~1more".to_owned(), json!({ "get": {} })),
            ("/paths/~1things/get/responses/404".to_owned(), json!({})),
            ("/paths/~1things/get/parameters/0/schema".to_owned(), json!({ "type": "number", "maximum": 10 })),
            (format!("{thing}/properties/color"), json!({ "type": "string" })),
            (format!("{thing}/required"), json!(["id", "note"])),
            (format!("{thing}/properties/note/type"), json!("string")),
            (format!("{thing}/description"), json!("A thing.")),
            (format!("{request}/properties/color"), json!({ "type": "string" })),
            (format!("{request}/properties/kind/enum"), json!(["a", "b", "c"])),
            (format!("{request}/properties/name/type"), json!(["string", "null"])),
            (format!("{request}/required"), json!([])),
        ] {
            let found = after(&pointer, value.clone());
            assert!(found.is_empty(), "{pointer} = {value}: {found:?}");
        }
    }

    #[test]
    fn a_finding_says_where_it_is() {
        let found = after("/schemas/Thing/properties/note", Value::Null);
        assert!(found.contains(&"GET /things 200.note: the field was removed".to_owned()), "{found:?}");
        assert!(found.contains(&"POST /things 201.note: the field was removed".to_owned()), "{found:?}");
    }
}
