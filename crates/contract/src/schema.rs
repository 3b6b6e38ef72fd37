//! JSON Schema of every task's parameters and output, generated from the types.

use crate::task::{TaskType, diag_health_probe, diag_ping, package_list, slice_topology_discover};

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
    use schemars::schema_for;
    let (params, output) = match task_type {
        TaskType::DiagPing => (schema_for!(diag_ping::Params), schema_for!(diag_ping::Output)),
        TaskType::DiagHealthProbe => (schema_for!(diag_health_probe::Params), schema_for!(diag_health_probe::Output)),
        TaskType::PackageList => (schema_for!(package_list::Params), schema_for!(package_list::Output)),
        TaskType::SliceTopologyDiscover => {
            (schema_for!(slice_topology_discover::Params), schema_for!(slice_topology_discover::Output))
        }
    };
    TaskSchema { task_type, summary: task_type.summary(), changes_host: task_type.changes_host(), params, output }
}

/// The whole catalogue.
pub fn catalogue() -> Vec<TaskSchema> {
    TaskType::ALL.map(of).into()
}
