//! JSON Schema of every task's parameters and output, generated from the types.

use crate::task::{
    TaskType, allocation_deprovision_user, allocation_provision_user, diag_health_probe, diag_ping, package_list,
    slice_console_read, slice_topology_discover, slice_vm_power, slice_vm_provision, slice_vm_release,
};

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
        TaskType::SliceVmProvision => (schema_for!(slice_vm_provision::Params), schema_for!(slice_vm_provision::Output)),
        TaskType::SliceVmRelease => (schema_for!(slice_vm_release::Params), schema_for!(slice_vm_release::Output)),
        TaskType::SliceVmPower => (schema_for!(slice_vm_power::Params), schema_for!(slice_vm_power::Output)),
        TaskType::SliceConsoleRead => (schema_for!(slice_console_read::Params), schema_for!(slice_console_read::Output)),
        TaskType::AllocationProvisionUser => {
            (schema_for!(allocation_provision_user::Params), schema_for!(allocation_provision_user::Output))
        }
        TaskType::AllocationDeprovisionUser => {
            (schema_for!(allocation_deprovision_user::Params), schema_for!(allocation_deprovision_user::Output))
        }
    };
    TaskSchema { task_type, summary: task_type.summary(), changes_host: task_type.changes_host(), params, output }
}

/// The whole catalog.
pub fn catalog() -> Vec<TaskSchema> {
    TaskType::ALL.map(of).into()
}
