//! The columns of a table: those that the user names, by header or by field of the document, fitted to the width of the terminal.

use serde_json::Value;

/// A column is never made narrower than this to fit the terminal.
const MIN_WIDTH: usize = 8;
/// Spaces between two columns.
pub(super) const GAP: usize = 2;

/// Returns the items that the rows of a table show, if the document is a list.
pub(super) fn items(document: &Value) -> Option<&Vec<Value>> {
    document.as_array().or_else(|| document.get("items").and_then(Value::as_array))
}

/// Returns the value at `path`, such as `facts.kernel`.
pub(super) fn field<'v>(document: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(document, |value, key| match value {
        Value::Array(items) => key.parse::<usize>().ok().and_then(|index| items.get(index)),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.get(key),
    })
}

/// Formats a value for a cell.
pub(super) fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Returns what identifies a document: its id, or else its name.
pub(super) fn name_of(document: &Value) -> String {
    let own = ["id", "key_id", "allocation_id", "node_id", "name"].iter().find_map(|key| document.get(*key));
    // A document that was just created may be nested, next to its secret.
    let inner = || document.as_object().into_iter().flat_map(|fields| fields.values()).find_map(|value| value.get("id"));
    cell(own.or_else(inner))
}

/// Returns column widths with which the table fits the terminal. The widest columns shrink first.
pub(super) fn fitting(mut widths: Vec<usize>, terminal: usize) -> Vec<usize> {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > terminal {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > MIN_WIDTH) else { break };
        *widest -= 1;
    }
    widths
}

/// Shortens a text to `width` characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_found_by_its_path() {
        let document = json!({ "facts": { "gpus": [{ "name": "H100" }], "cpus": 8 }, "note": null });
        assert_eq!(cell(field(&document, "facts.gpus.0.name")), "H100");
        assert_eq!(cell(field(&document, "facts.cpus")), "8");
        for absent in ["note", "facts.gpus.7", "facts.cpus.x", ""] {
            assert_eq!(cell(field(&document, absent)), "", "{absent}");
        }
    }

    #[test]
    fn a_document_is_named_by_its_id() {
        assert_eq!(name_of(&json!({ "name": "a", "id": "node_1" })), "node_1");
        assert_eq!(name_of(&json!({ "api_token": { "id": "apitok_1" }, "token": "x" })), "apitok_1");
        assert_eq!(name_of(&json!({ "name": "a" })), "a");
    }

    #[test]
    fn the_widest_column_gives_way_until_the_table_fits() {
        assert_eq!(fitting(vec![10, 40, 5], 80), [10, 40, 5]);
        assert_eq!(fitting(vec![10, 40, 5], 40), [10, 21, 5]);
        assert_eq!(fitting(vec![10, 40, 5], 10), [8, 8, 5], "nothing becomes unreadable");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
    }
}
