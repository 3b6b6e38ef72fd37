//! Compares the response of an example with a real one: both must have the same fields with the same types. Learns ids on the way.

use std::collections::BTreeMap;

use serde_json::Value;

/// Number of items of a list that an example shows.
const SHOWN_ITEMS: usize = 2;
/// Longest text that an example shows in full, and how much it shows of a longer one. Cut base64 is still base64.
const SHOWN_TEXT: usize = 600;
const CUT_TEXT: usize = 96;
/// Fields that contain a secret.
const SECRETS: [&str; 3] = ["token", "secret", "one_time_password"];

/// Maps the ids in the examples to the ids on this server.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Real ids, by the id in the examples.
    real: BTreeMap<String, String>,
}

impl Names {
    pub(super) fn insert(&mut self, example: &str, real: &str) {
        self.real.entry(example.to_owned()).or_insert_with(|| real.to_owned());
    }

    /// Learns the ids that are in the same places of both documents.
    pub(super) fn learn(&mut self, example: &Value, real: &Value) {
        match (example, real) {
            (Value::Object(fields), Value::Object(others)) => {
                for (name, field) in fields {
                    if let Some(other) = others.get(name) {
                        self.learn(field, other);
                    }
                }
            }
            (Value::Array(items), Value::Array(others)) => {
                for (place, item) in items.iter().enumerate() {
                    if let Some(other) = self.partner(place, item, others) {
                        self.learn(item, other);
                    }
                }
            }
            (Value::String(text), Value::String(other)) if is_id(text) && is_id(other) => self.insert(text, other),
            (_, _) => {}
        }
    }

    /// Returns the item of a real list that corresponds to an item of an example: the one with the same id or name, or the one in
    /// the same place.
    fn partner<'v>(&self, place: usize, item: &Value, others: &'v [Value]) -> Option<&'v Value> {
        let known = |name: &str| {
            let wanted = item.get(name)?.as_str()?;
            let wanted = self.real.get(wanted).map_or(wanted, String::as_str);
            others.iter().find(|other| other.get(name).and_then(Value::as_str) == Some(wanted))
        };
        known("id").or_else(|| known("name")).or_else(|| others.get(place)).or_else(|| others.last())
    }

    /// Replaces the ids of the examples in a text with those of this server.
    pub(super) fn to_real(&self, text: &str) -> String {
        self.real.iter().fold(text.to_owned(), |text, (example, real)| text.replace(example, real))
    }

    /// Turns a response of this server into an example: with the ids of the examples, without secrets, and shortened.
    pub(super) fn record(&self, real: &Value) -> Value {
        let mut secrets = Vec::new();
        find_secrets(real, &mut secrets);
        self.shortened(real, &secrets)
    }

    fn shortened(&self, real: &Value, secrets: &[String]) -> Value {
        match real {
            Value::Object(fields) => fields
                .iter()
                .map(|(name, field)| (name.clone(), self.shortened(field, secrets)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Array(items) => {
                items.iter().take(SHOWN_ITEMS).map(|item| self.shortened(item, secrets)).collect::<Vec<_>>().into()
            }
            Value::String(text) => {
                let text = secrets.iter().fold(text.clone(), |text, secret| text.replace(secret, &masked(secret)));
                let text = self.real.iter().fold(text, |text, (example, real)| text.replace(real, example));
                let is_cut = text.len() > SHOWN_TEXT && text.is_char_boundary(CUT_TEXT);
                Value::String(if is_cut { text[..CUT_TEXT].to_owned() } else { text })
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => real.clone(),
        }
    }
}

fn find_secrets(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if SECRETS.contains(&name.as_str()) => found.push(text.clone()),
                    other => find_secrets(other, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| find_secrets(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Masks a secret except for the prefix that tells what it is.
fn masked(secret: &str) -> String {
    let prefix = secret.split_inclusive('_').next().filter(|prefix| prefix.ends_with('_') && prefix.len() < 8);
    format!("{}example", prefix.unwrap_or_default())
}

/// Returns whether a text is a prefix and 32 hex digits.
fn is_id(text: &str) -> bool {
    text.rsplit_once('_').is_some_and(|(prefix, digits)| {
        !prefix.is_empty()
            && digits.len() == 32
            && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

/// Returns the fields that only the example has, and those that only the real response has.
pub(super) fn differences(example: &Value, real: &Value, names: &Names) -> Vec<String> {
    let mut found = Vec::new();
    compare(example, real, "", names, &mut found);
    found
}

fn compare(example: &Value, real: &Value, at: &str, names: &Names, found: &mut Vec<String>) {
    match (example, real) {
        (Value::Object(fields), Value::Object(others)) => {
            for (name, field) in fields {
                match others.get(name) {
                    Some(other) => compare(field, other, &format!("{at}/{name}"), names, found),
                    None => found.push(format!("the response has no {at}/{name}")),
                }
            }
            let missing = others.keys().filter(|name| !fields.contains_key(*name));
            found.extend(missing.map(|name| format!("the example has no {at}/{name}")));
        }
        (Value::Array(items), Value::Array(others)) => {
            for (place, item) in items.iter().enumerate() {
                match names.partner(place, item, others) {
                    Some(other) => compare(item, other, &format!("{at}/{place}"), names, found),
                    None => found.push(format!("the response has nothing in {at}")),
                }
            }
        }
        // A nullable field or a list may be empty in one run and not in the next, if it depends on time.
        (Value::Null, _) if !at.is_empty() => {}
        // A node has no metrics before its first sample arrives.
        (_, Value::Null) if at.ends_with("/metrics") => {}
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) => {}
        (_, _) => found.push(format!("{at} is {example} in the example and {real} in the response")),
    }
}
