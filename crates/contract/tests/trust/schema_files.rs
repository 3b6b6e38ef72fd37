//! The schemas in `testdata/schema`, checked against the types.

use gpuaas_contract::schema::{self, TaskSchema};
use gpuaas_contract::task::TaskType;
use serde_json::{Value, json};

/// Sorts keys, so that the text depends on the types alone and not on the features of the JSON library.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<_> = fields.keys().collect();
            names.sort();
            Value::Object(names.into_iter().map(|name| (name.clone(), sorted(&fields[name]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// All schema files, by name.
pub(crate) fn made() -> Vec<(String, Value)> {
    let file_of = |kind: TaskType| {
        let TaskSchema { params, output, .. } = schema::of(kind);
        let both = json!({ "output": sorted(output.as_value()), "params": sorted(params.as_value()) });
        (format!("schema/{kind}.json"), both)
    };
    TaskType::ALL.into_iter().map(file_of).collect()
}

#[test]
fn there_is_no_schema_of_a_task_that_does_not_exist() {
    let folder = crate::vector_files::testdata().join("schema");
    for entry in std::fs::read_dir(&folder).expect("the schema folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("a file name in UTF-8");
        let kind = name.strip_suffix(".json");
        assert!(kind.and_then(TaskType::parse).is_some(), "testdata/schema/{name} belongs to no task: delete it");
    }
}

#[test]
fn every_params_schema_refuses_unknown_fields() {
    for kind in TaskType::ALL {
        let params = schema::of(kind).params;
        assert_eq!(params.get("additionalProperties"), Some(&Value::Bool(false)), "params of {kind} need deny_unknown_fields");
    }
}
