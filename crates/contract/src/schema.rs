//! JSON Schema of every task's parameters and output, generated from the types.

use crate::task::TaskType;

/// Schemas of one kind of task.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TaskSchema {
    /// The kind.
    pub task_type: TaskType,
    /// One sentence for people.
    pub summary: &'static str,
    /// Whether it changes the host.
    pub changes_host: bool,
    /// Schema of the parameters.
    pub params: schemars::Schema,
    /// Schema of the output.
    pub output: schemars::Schema,
}

/// The schemas of one kind.
pub fn of(task_type: TaskType) -> TaskSchema {
    let (params, output) = task_type.schemas();
    TaskSchema { task_type, summary: task_type.summary(), changes_host: task_type.changes_host(), params, output }
}

/// The whole catalog.
pub fn catalog() -> Vec<TaskSchema> {
    TaskType::ALL.map(of).into()
}
