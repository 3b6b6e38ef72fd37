//! Writes a JSON value as YAML: in block style, with quotes wherever a plain scalar could be read as something else.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns the value as a YAML document.
pub(super) fn emit(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Array(items) if !items.is_empty() => sequence(items, 0, &mut text),
        Value::Object(fields) if !fields.is_empty() => mapping(fields, 0, &mut text),
        scalar => {
            text.push_str(&inline(scalar));
            text.push('\n');
        }
    }
    text
}

fn sequence(items: &[Value], indent: usize, text: &mut String) {
    for item in items {
        let _ = write!(text, "{:indent$}- ", "");
        match item {
            // A mapping starts on the line of its dash. Its other lines are indented to the same column.
            Value::Object(fields) if !fields.is_empty() => {
                let mut inner = String::new();
                mapping(fields, indent + 2, &mut inner);
                text.push_str(&inner[indent + 2..]);
            }
            Value::Array(items) if !items.is_empty() => {
                let mut inner = String::new();
                sequence(items, indent + 2, &mut inner);
                text.push_str(&inner[indent + 2..]);
            }
            scalar => {
                text.push_str(&inline(scalar));
                text.push('\n');
            }
        }
    }
}

fn mapping(fields: &serde_json::Map<String, Value>, indent: usize, text: &mut String) {
    for (name, value) in fields {
        let _ = write!(text, "{:indent$}{}:", "", string(name));
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                text.push('\n');
                mapping(fields, indent + 2, text);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                sequence(items, indent + 2, text);
            }
            scalar => {
                let _ = writeln!(text, " {}", inline(scalar));
            }
        }
    }
}

/// Returns a value that fits on its line.
fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        // YAML 1.1 requires a decimal point in a number with an exponent.
        Value::Number(number) => match number.to_string() {
            text if !text.contains('.') => text.replacen(['e', 'E'], ".0e", 1),
            text => text,
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn string(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text) }
}

/// Returns whether every YAML parser reads the unquoted text as exactly this string. Strict on purpose: quotes never hurt.
fn is_plain(text: &str) -> bool {
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    let all_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/'));
    let means_something = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    starts_well && all_plain && !means_something
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Characters that YAML considers not printable, or line breaks.
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn assert_reads_back(value: &Value) {
        let text = emit(value);
        let read: Value = serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{error} in:\n{text}"));
        assert_eq!(&read, value, "in:\n{text}");
    }

    #[test]
    fn every_awkward_string_reads_back_as_itself_as_value_key_and_item() {
        let strings = [
            "",
            " ",
            "a",
            "a b",
            "true",
            "True",
            "no",
            "NO",
            "y",
            "~",
            "null",
            "Null",
            "1",
            "1.5",
            "0x10",
            "0o7",
            "1e3",
            "1_000",
            "-",
            "- a",
            "a: b",
            "a:",
            ":",
            "#",
            "a #b",
            "[",
            "{",
            "}",
            "&a",
            "*a",
            "!x",
            "|",
            ">",
            "%",
            "@",
            "`",
            "'",
            "\"",
            "\\",
            "\n",
            "a\nb\n",
            "\r\n",
            "\t",
            "\u{0}",
            "\u{1b}[2J",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "\u{2029}",
            "\u{feff}x",
            "é",
            "😀",
            "2001-01-01",
            "12:30:45",
            ".inf",
            "nan",
            "<<",
            "=",
            "---",
            "...",
            "? a",
            " lead",
            "trail ",
            "key_0123",
            "sha256:00",
            "a/b.c-d_e",
            "\\u0041",
            "\u{ffff}",
        ];
        for text in strings {
            assert_reads_back(&json!(text));
            assert_reads_back(&json!({ text: text }));
            assert_reads_back(&json!([text, [text], { "a": text }]));
        }
    }

    #[test]
    fn nested_and_empty_things_read_back() {
        for value in [
            json!(null),
            json!([]),
            json!({}),
            json!([[], {}, [[]], [{}], [[1, [2]], 3]]),
            json!({ "a": {}, "b": [], "c": { "d": [{ "e": 1, "f": [true, null] }, "g"], "h": -1 } }),
            json!([{ "a": [{ "b": { "c": [1] } }] }]),
            json!([i64::MIN, u64::MAX, 0.5, 1e300, -1.5e-9]),
        ] {
            assert_reads_back(&value);
        }
    }

    #[test]
    fn it_looks_like_people_write_it() {
        let value = json!([{ "id": "node_1", "gpus": [{ "name": "H100 x" }], "online": true, "note": "" }]);
        let expected = "- gpus:\n    - name: \"H100 x\"\n  id: node_1\n  note: \"\"\n  online: true\n";
        let kept = "- id: node_1\n  gpus:\n    - name: \"H100 x\"\n  online: true\n  note: \"\"\n";
        let text = emit(&value);
        // The order of fields depends on the features that serde_json was built with.
        assert!(text == expected || text == kept, "{text}");
    }
}
