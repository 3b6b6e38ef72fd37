//! Which columns a table has: those the user names, by header or by field of the document; and as wide as the terminal.

use serde_json::Value;

/// Narrowest a column becomes when a table does not fit.
const MIN_WIDTH: usize = 8;
/// Between two columns.
pub(super) const GAP: usize = 2;

/// The items that the rows of a table show, if the document is a list of them.
pub(super) fn items(document: &Value) -> Option<&Vec<Value>> {
    document.as_array().or_else(|| document.get("items").and_then(Value::as_array))
}

/// What a document has at `path`, such as `facts.kernel`.
pub(super) fn field<'v>(document: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(document, |value, key| match value {
        Value::Array(items) => key.parse::<usize>().ok().and_then(|index| items.get(index)),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.get(key),
    })
}

/// A value as one cell.
pub(super) fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// What names a document: its id, or else its name.
pub(super) fn name_of(document: &Value) -> String {
    let own = ["id", "key_id", "allocation_id", "node_id", "name"].iter().find_map(|key| document.get(*key));
    // What was just created comes with its secret beside it.
    let inner = || document.as_object().into_iter().flat_map(|fields| fields.values()).find_map(|value| value.get("id"));
    cell(own.or_else(inner))
}

/// How wide columns may be so that the table fits: the widest give way first.
pub(super) fn fitting(mut widths: Vec<usize>, terminal: usize) -> Vec<usize> {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > terminal {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > MIN_WIDTH) else { break };
        *widest -= 1;
    }
    widths
}

/// The text, cut to so many characters.
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
