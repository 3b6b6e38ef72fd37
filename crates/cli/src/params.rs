//! Task parameters from the command line: `--param name=value` and `--params JSON|@file|-`.

use std::path::Path;

use gpuaas_contract::task::TaskType;
use serde_json::{Map, Value};

use crate::error::CliError;
use crate::files;

/// Largest size of parameters in bytes. More would not fit into an envelope.
const MAX_BYTES: u64 = 64 * 1024;

/// Combines the parameters: the document of `--params` first, then every `--param` on top of it.
pub(crate) fn collect(task_type: &str, document: Option<&str>, pairs: &[String]) -> Result<Value, CliError> {
    let mut params = match document {
        Some(source) => parse_document(source)?,
        None => Map::new(),
    };
    let mut given: Vec<&str> = Vec::new();
    for pair in pairs {
        let (name, value) = pair.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
            CliError::usage("param_invalid", format!("`--param {pair}` is not name=value"))
                .hint("for example --param message=hello")
        })?;
        if given.contains(&name) {
            return Err(CliError::usage("param_twice", format!("`--param {name}=…` is given twice")));
        }
        given.push(name);
        params.insert(name.to_owned(), parse_value(task_type, name, value)?);
    }
    Ok(Value::Object(params))
}

fn parse_document(source: &str) -> Result<Map<String, Value>, CliError> {
    let text = match source.strip_prefix('@') {
        Some(path) => read_text(Path::new(path))?,
        None if source == "-" => read_text(Path::new("-"))?,
        None => source.to_owned(),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err(CliError::usage("params_invalid", "--params must be a JSON object, such as {\"message\":\"hello\"}")),
        Err(error) => Err(CliError::usage("params_invalid", format!("--params is not JSON: {error}"))
            .hint("give JSON, @file, or - for stdin; or use --param name=value")),
    }
}

fn read_text(path: &Path) -> Result<String, CliError> {
    let bytes = files::read(path, MAX_BYTES)?;
    String::from_utf8(bytes).map_err(|_| CliError::usage("params_invalid", format!("{} is not UTF-8 text", path.display())))
}

/// Converts a value to the type that the catalog defines: `message=7` is a string, `hold_ms=7` a number. A parameter that this
/// program's catalog does not know (the server may be newer) is JSON if it parses as JSON, and a string otherwise.
fn parse_value(task_type: &str, name: &str, value: &str) -> Result<Value, CliError> {
    let known = TaskType::parse(task_type).and_then(|kind| {
        let schema = Value::from(gpuaas_contract::schema::of(kind).params);
        let field = schema.get("properties")?.get(name)?.clone();
        Some(types_of(&field))
    });
    let as_json = serde_json::from_str::<Value>(value).ok();
    match known {
        Some(types) if types.iter().any(|kind| kind == "string") => {
            // For an optional string, `null` means that it is absent.
            let absent = value == "null" && types.iter().any(|kind| kind == "null");
            Ok(if absent { Value::Null } else { Value::String(value.to_owned()) })
        }
        Some(types) if !types.is_empty() => as_json.ok_or_else(|| {
            let message = format!("`--param {name}={value}`: {name} must be {}", types.join(" or "));
            CliError::usage("param_invalid", message).hint(format!("see `gpuaas task types {task_type}`"))
        }),
        Some(_) | None => Ok(as_json.unwrap_or_else(|| Value::String(value.to_owned()))),
    }
}

fn types_of(field: &Value) -> Vec<String> {
    match field.get("type") {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(some)) => some.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(_) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pairs(task_type: &str, pairs: &[&str]) -> Result<Value, CliError> {
        collect(task_type, None, &pairs.iter().map(|pair| (*pair).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_catalog_decides_what_a_value_is() {
        assert_eq!(pairs("diag.ping", &["message=7", "hold_ms=7"]).expect("ok"), json!({ "message": "7", "hold_ms": 7 }));
        assert_eq!(
            pairs("diag.ping", &["message=true", "log_lines=0"]).expect("ok"),
            json!({ "message": "true", "log_lines": 0 })
        );
        assert_eq!(pairs("diag.ping", &["message=a=b="]).expect("ok"), json!({ "message": "a=b=" }));
        let failure = pairs("diag.ping", &["hold_ms=long"]).expect_err("refused");
        assert!(failure.message.contains("hold_ms must be integer"), "{}", failure.message);
    }

    #[test]
    fn what_the_catalog_does_not_know_is_json_or_text() {
        let params = pairs("new.kind", &["a=7", "b=x", "c=[1]", "d=\"7\"", "e="]).expect("ok");
        assert_eq!(params, json!({ "a": 7, "b": "x", "c": [1], "d": "7", "e": "" }));
        assert_eq!(pairs("diag.ping", &["shell=rm"]).expect("left to the server"), json!({ "shell": "rm" }));
    }

    #[test]
    fn pairs_go_on_top_of_the_document() {
        let params = collect("diag.ping", Some(r#"{"message":"a","hold_ms":1}"#), &["message=b".to_owned()]).expect("ok");
        assert_eq!(params, json!({ "message": "b", "hold_ms": 1 }));
    }

    #[test]
    fn malformed_input_is_refused() {
        for (document, pair) in [
            (Some("{"), None),
            (Some("[1]"), None),
            (Some("@/nonexistent/file"), None),
            (None, Some("novalue")),
            (None, Some("=x")),
        ] {
            let pairs: Vec<String> = pair.into_iter().map(str::to_owned).collect();
            assert_eq!(collect("diag.ping", document, &pairs).expect_err("refused").exit, crate::exit::Exit::Usage);
        }
        assert_eq!(pairs("diag.ping", &["message=a", "message=b"]).expect_err("refused").code, "param_twice");
    }

    #[test]
    fn a_file_holds_parameters_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.json");
        std::fs::write(&path, r#"{"message":"from file"}"#).expect("written");
        let params = collect("diag.ping", Some(&format!("@{}", path.display())), &[]).expect("ok");
        assert_eq!(params, json!({ "message": "from file" }));
    }
}
