//! The schemas in `testdata/schema`, as they follow from the types.

use gpuaas_contract::schema;
use gpuaas_contract::task::TaskType;
use serde_json::Value;

/// Sorted by key whatever the JSON library is built to do, so that the text depends on the types alone.
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

/// Every schema file by name.
pub(crate) fn made() -> Vec<(String, Value)> {
    let files_of = |kind: TaskType| {
        let schema = schema::of(kind);
        let name = |half| format!("schema/{kind}.{half}.json");
        [(name("params"), sorted(schema.params.as_value())), (name("output"), sorted(schema.output.as_value()))]
    };
    TaskType::ALL.into_iter().flat_map(files_of).collect()
}

#[test]
fn there_is_no_schema_of_a_task_that_does_not_exist() {
    let folder = crate::vector_files::testdata().join("schema");
    for entry in std::fs::read_dir(&folder).expect("the schema folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("a file name in UTF-8");
        let kind = name.strip_suffix(".params.json").or_else(|| name.strip_suffix(".output.json"));
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
