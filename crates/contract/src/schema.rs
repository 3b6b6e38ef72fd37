//! JSON Schemas of all tasks' parameters and outputs, generated from the types.

use crate::task::TaskType;

/// The schemas of one kind of task.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TaskSchema {
    /// The kind of task.
    pub task_type: TaskType,
    /// One sentence for people.
    pub summary: &'static str,
    /// Whether running it changes the host.
    pub changes_host: bool,
    /// JSON Schema of the parameters.
    pub params: schemars::Schema,
    /// JSON Schema of the output.
    pub output: schemars::Schema,
}

/// The schemas of one kind of task.
pub fn of(task_type: TaskType) -> TaskSchema {
    let (params, output) = task_type.schemas();
    TaskSchema { task_type, summary: task_type.summary(), changes_host: task_type.changes_host(), params, output }
}

/// The schemas of all kinds, in the order of the catalog.
pub fn catalog() -> Vec<TaskSchema> {
    TaskType::ALL.map(of).into()
}
