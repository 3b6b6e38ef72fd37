//! The closed catalog of tasks.
//!
//! A task that is not a variant of [`Task`] does not exist: the control plane cannot ask for it and the agent cannot
//! run it. Every variant has a handler in the agent. See `docs/adding-a-task.md`.

pub mod allocation_deprovision_user;
pub mod allocation_provision_user;
pub mod diag_health_probe;
pub mod diag_ping;
pub mod package_list;
pub mod slice_console_read;
pub mod slice_topology_discover;
pub mod slice_vm_power;
pub mod slice_vm_provision;
pub mod slice_vm_release;

use serde_json::value::RawValue;

use crate::slice::{Holder, LeasedSlot};

/// Everything that can be asked of a node, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// `diag.ping`: leave a mark on the host and answer, to prove the whole path.
    DiagPing(diag_ping::Params),
    /// `diag.health_probe`: report what state the host is in.
    DiagHealthProbe(diag_health_probe::Params),
    /// `package.list`: list installed packages.
    PackageList(package_list::Params),
    /// `slice.topology_discover`: report what of the host could become slots.
    SliceTopologyDiscover(slice_topology_discover::Params),
    /// `slice.vm_provision`: put a guest on leased slots.
    SliceVmProvision(slice_vm_provision::Params),
    /// `slice.vm_release`: end a guest and prove that nothing is left.
    SliceVmRelease(slice_vm_release::Params),
    /// `slice.vm_power`: stop, start or reboot a guest.
    SliceVmPower(slice_vm_power::Params),
    /// `slice.console_read`: read a guest's serial console.
    SliceConsoleRead(slice_console_read::Params),
    /// `allocation.provision_user`: give a tenant who leases the whole host a user on it.
    AllocationProvisionUser(allocation_provision_user::Params),
    /// `allocation.deprovision_user`: end that user and prove that nothing of it is left.
    AllocationDeprovisionUser(allocation_deprovision_user::Params),
}

/// The kind of a task, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskType {
    /// `diag.ping`
    DiagPing,
    /// `diag.health_probe`
    DiagHealthProbe,
    /// `package.list`
    PackageList,
    /// `slice.topology_discover`
    SliceTopologyDiscover,
    /// `slice.vm_provision`
    SliceVmProvision,
    /// `slice.vm_release`
    SliceVmRelease,
    /// `slice.vm_power`
    SliceVmPower,
    /// `slice.console_read`
    SliceConsoleRead,
    /// `allocation.provision_user`
    AllocationProvisionUser,
    /// `allocation.deprovision_user`
    AllocationDeprovisionUser,
}

/// What a task may destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destroys {
    /// A guest with its drives.
    Guest,
    /// A tenant of the whole host with their files.
    Tenant,
}

impl Destroys {
    /// What was done to many of them, for people.
    pub const fn past(self) -> &'static str {
        match self {
            Self::Guest => "guests were ended",
            Self::Tenant => "tenants were ended",
        }
    }
}

/// What a successful task answers.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Output {
    /// Answer to `diag.ping`.
    DiagPing(diag_ping::Output),
    /// Answer to `diag.health_probe`.
    DiagHealthProbe(diag_health_probe::Output),
    /// Answer to `package.list`.
    PackageList(package_list::Output),
    /// Answer to `slice.topology_discover`.
    SliceTopologyDiscover(slice_topology_discover::Output),
    /// Answer to `slice.vm_provision`.
    SliceVmProvision(slice_vm_provision::Output),
    /// Answer to `slice.vm_release`.
    SliceVmRelease(slice_vm_release::Output),
    /// Answer to `slice.vm_power`.
    SliceVmPower(slice_vm_power::Output),
    /// Answer to `slice.console_read`.
    SliceConsoleRead(slice_console_read::Output),
    /// Answer to `allocation.provision_user`.
    AllocationProvisionUser(allocation_provision_user::Output),
    /// Answer to `allocation.deprovision_user`.
    AllocationDeprovisionUser(allocation_deprovision_user::Output),
}

/// Why parameters were not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadParams {
    /// A field that this task does not have.
    #[error("params of {task_type}: {detail}")]
    UnknownField {
        /// The task.
        task_type: TaskType,
        /// What the parser said.
        detail: String,
    },
    /// Wrong type, missing field or a value outside its limits.
    #[error("params of {task_type}: {detail}")]
    Invalid {
        /// The task.
        task_type: TaskType,
        /// What is wrong with it.
        detail: String,
    },
}

impl TaskType {
    /// Every kind there is, in the order of the catalog.
    pub const ALL: [Self; 10] = [
        Self::DiagPing,
        Self::DiagHealthProbe,
        Self::PackageList,
        Self::SliceTopologyDiscover,
        Self::SliceVmProvision,
        Self::SliceVmRelease,
        Self::SliceVmPower,
        Self::SliceConsoleRead,
        Self::AllocationProvisionUser,
        Self::AllocationDeprovisionUser,
    ];

    /// Name on the wire, in policies and in the CLI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DiagPing => "diag.ping",
            Self::DiagHealthProbe => "diag.health_probe",
            Self::PackageList => "package.list",
            Self::SliceTopologyDiscover => "slice.topology_discover",
            Self::SliceVmProvision => "slice.vm_provision",
            Self::SliceVmRelease => "slice.vm_release",
            Self::SliceVmPower => "slice.vm_power",
            Self::SliceConsoleRead => "slice.console_read",
            Self::AllocationProvisionUser => "allocation.provision_user",
            Self::AllocationDeprovisionUser => "allocation.deprovision_user",
        }
    }

    /// One sentence for people.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::DiagPing => "Leave one line in the host's ping log and answer: proves the whole path.",
            Self::DiagHealthProbe => "Report kernel, memory, disks, KVM, VFIO, IOMMU, GPUs and fabric links of the host.",
            Self::PackageList => "List the packages installed on the host (dpkg or rpm).",
            Self::SliceTopologyDiscover => "Report GPUs, drives, fabric and what of them could become slots. Changes nothing.",
            Self::SliceVmProvision => {
                "Put a guest on leased slots: image, cloud-init, devices, network; undone completely if it fails."
            }
            Self::SliceVmRelease => "End a guest, reset its devices, wipe its drives and prove it.",
            Self::SliceVmPower => "Stop, start or reboot a guest; it keeps its disk and address.",
            Self::SliceConsoleRead => "Read a guest's serial console into the task's log, and follow it. Changes nothing.",
            Self::AllocationProvisionUser => {
                "Give a tenant who leases the whole host a user on it, with keys; undone completely if it fails."
            }
            Self::AllocationDeprovisionUser => {
                "End a tenant's user with its processes and files, and prove that nothing is left."
            }
        }
    }

    /// Whether running it changes anything on the host.
    pub const fn changes_host(self) -> bool {
        match self {
            Self::DiagPing
            | Self::SliceVmProvision
            | Self::SliceVmRelease
            | Self::SliceVmPower
            | Self::AllocationProvisionUser
            | Self::AllocationDeprovisionUser => true,
            Self::DiagHealthProbe | Self::PackageList | Self::SliceTopologyDiscover | Self::SliceConsoleRead => false,
        }
    }

    /// Whether it acts on what an allocation holds, slots or the whole host: then it is made by the control plane out of its own records,
    /// never by hand.
    pub const fn needs_lease(self) -> bool {
        match self {
            Self::SliceVmProvision
            | Self::SliceVmRelease
            | Self::SliceVmPower
            | Self::SliceConsoleRead
            | Self::AllocationProvisionUser
            | Self::AllocationDeprovisionUser => true,
            Self::DiagPing | Self::DiagHealthProbe | Self::PackageList | Self::SliceTopologyDiscover => false,
        }
    }

    /// Whether it undoes what it began when it fails or is told to stop: then it must be let go on until it has.
    pub const fn undoes_itself(self) -> bool {
        match self {
            Self::SliceVmProvision | Self::SliceVmRelease | Self::AllocationProvisionUser | Self::AllocationDeprovisionUser => {
                true
            }
            Self::DiagPing
            | Self::DiagHealthProbe
            | Self::PackageList
            | Self::SliceTopologyDiscover
            | Self::SliceVmPower
            | Self::SliceConsoleRead => false,
        }
    }

    /// What it takes away that nobody can bring back, if it does: such tasks have a budget per hour.
    pub const fn destroys(self) -> Option<Destroys> {
        match self {
            Self::SliceVmRelease => Some(Destroys::Guest),
            Self::AllocationDeprovisionUser => Some(Destroys::Tenant),
            Self::DiagPing
            | Self::DiagHealthProbe
            | Self::PackageList
            | Self::SliceTopologyDiscover
            // Only what the host's own lease gives to the new holder, which is clean by proof.
            | Self::SliceVmProvision
            | Self::SliceVmPower
            | Self::SliceConsoleRead
            | Self::AllocationProvisionUser => None,
        }
    }

    /// Whether its receipt may carry a proof of cleanup.
    pub const fn may_prove_cleanup(self) -> bool {
        matches!(self, Self::SliceVmProvision | Self::SliceVmRelease)
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl std::fmt::Display for TaskType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for TaskType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for TaskType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
        Self::parse(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown task type `{name}`")))
    }
}

impl Task {
    /// Its kind.
    pub const fn task_type(&self) -> TaskType {
        match self {
            Self::DiagPing(_) => TaskType::DiagPing,
            Self::DiagHealthProbe(_) => TaskType::DiagHealthProbe,
            Self::PackageList(_) => TaskType::PackageList,
            Self::SliceTopologyDiscover(_) => TaskType::SliceTopologyDiscover,
            Self::SliceVmProvision(_) => TaskType::SliceVmProvision,
            Self::SliceVmRelease(_) => TaskType::SliceVmRelease,
            Self::SliceVmPower(_) => TaskType::SliceVmPower,
            Self::SliceConsoleRead(_) => TaskType::SliceConsoleRead,
            Self::AllocationProvisionUser(_) => TaskType::AllocationProvisionUser,
            Self::AllocationDeprovisionUser(_) => TaskType::AllocationDeprovisionUser,
        }
    }

    /// The allocation on whose slots or host it acts, if it does. The envelope must name the same.
    pub fn holder(&self) -> Option<Holder> {
        match self {
            Self::DiagPing(_) | Self::DiagHealthProbe(_) | Self::PackageList(_) | Self::SliceTopologyDiscover(_) => None,
            Self::SliceVmProvision(params) => Some(params.holder()),
            Self::SliceVmRelease(params) => Some(params.holder()),
            Self::SliceVmPower(params) => Some(params.holder()),
            Self::SliceConsoleRead(params) => Some(params.holder()),
            Self::AllocationProvisionUser(params) => Some(params.holder()),
            Self::AllocationDeprovisionUser(params) => Some(params.holder()),
        }
    }

    /// The slots it acts on.
    pub fn slots(&self) -> &[LeasedSlot] {
        match self {
            Self::DiagPing(_)
            | Self::DiagHealthProbe(_)
            | Self::PackageList(_)
            | Self::SliceTopologyDiscover(_)
            | Self::SliceConsoleRead(_)
            | Self::AllocationProvisionUser(_)
            | Self::AllocationDeprovisionUser(_) => &[],
            Self::SliceVmProvision(params) => &params.slots,
            Self::SliceVmRelease(params) => &params.slots,
            Self::SliceVmPower(params) => &params.slots,
        }
    }

    /// Strict parse of the parameters of a task of this kind.
    pub fn parse(task_type: TaskType, params: &str) -> Result<Self, BadParams> {
        match task_type {
            TaskType::DiagPing => params_of(task_type, params, diag_ping::Params::check).map(Self::DiagPing),
            TaskType::DiagHealthProbe => params_of(task_type, params, |_| Ok(())).map(Self::DiagHealthProbe),
            TaskType::PackageList => params_of(task_type, params, package_list::Params::check).map(Self::PackageList),
            TaskType::SliceTopologyDiscover => {
                params_of(task_type, params, slice_topology_discover::Params::check).map(Self::SliceTopologyDiscover)
            }
            TaskType::SliceVmProvision => {
                params_of(task_type, params, slice_vm_provision::Params::check).map(Self::SliceVmProvision)
            }
            TaskType::SliceVmRelease => params_of(task_type, params, slice_vm_release::Params::check).map(Self::SliceVmRelease),
            TaskType::SliceVmPower => params_of(task_type, params, slice_vm_power::Params::check).map(Self::SliceVmPower),
            TaskType::SliceConsoleRead => {
                params_of(task_type, params, slice_console_read::Params::check).map(Self::SliceConsoleRead)
            }
            TaskType::AllocationProvisionUser => {
                params_of(task_type, params, allocation_provision_user::Params::check).map(Self::AllocationProvisionUser)
            }
            TaskType::AllocationDeprovisionUser => {
                params_of(task_type, params, allocation_deprovision_user::Params::check).map(Self::AllocationDeprovisionUser)
            }
        }
    }

    /// The parameters as the JSON that goes into the envelope.
    pub fn params_json(&self) -> Box<RawValue> {
        let raw = match self {
            Self::DiagPing(params) => serde_json::value::to_raw_value(params),
            Self::DiagHealthProbe(params) => serde_json::value::to_raw_value(params),
            Self::PackageList(params) => serde_json::value::to_raw_value(params),
            Self::SliceTopologyDiscover(params) => serde_json::value::to_raw_value(params),
            Self::SliceVmProvision(params) => serde_json::value::to_raw_value(params),
            Self::SliceVmRelease(params) => serde_json::value::to_raw_value(params),
            Self::SliceVmPower(params) => serde_json::value::to_raw_value(params),
            Self::SliceConsoleRead(params) => serde_json::value::to_raw_value(params),
            Self::AllocationProvisionUser(params) => serde_json::value::to_raw_value(params),
            Self::AllocationDeprovisionUser(params) => serde_json::value::to_raw_value(params),
        };
        // Plain structs of strings and numbers always serialize.
        raw.unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

impl Output {
    /// Strict parse of the output of a task of this kind.
    pub fn parse(task_type: TaskType, output: &str) -> Result<Self, serde_json::Error> {
        match task_type {
            TaskType::DiagPing => serde_json::from_str(output).map(Self::DiagPing),
            TaskType::DiagHealthProbe => serde_json::from_str(output).map(Self::DiagHealthProbe),
            TaskType::PackageList => serde_json::from_str(output).map(Self::PackageList),
            TaskType::SliceTopologyDiscover => serde_json::from_str(output).map(Self::SliceTopologyDiscover),
            TaskType::SliceVmProvision => serde_json::from_str(output).map(Self::SliceVmProvision),
            TaskType::SliceVmRelease => serde_json::from_str(output).map(Self::SliceVmRelease),
            TaskType::SliceVmPower => serde_json::from_str(output).map(Self::SliceVmPower),
            TaskType::SliceConsoleRead => serde_json::from_str(output).map(Self::SliceConsoleRead),
            TaskType::AllocationProvisionUser => serde_json::from_str(output).map(Self::AllocationProvisionUser),
            TaskType::AllocationDeprovisionUser => serde_json::from_str(output).map(Self::AllocationDeprovisionUser),
        }
    }
}

fn params_of<P: serde::de::DeserializeOwned>(
    task_type: TaskType,
    params: &str,
    check: impl FnOnce(&P) -> Result<(), String>,
) -> Result<P, BadParams> {
    let parsed: P = serde_json::from_str(params).map_err(|error| {
        let detail = error.to_string();
        if is_unknown_field(&error) {
            BadParams::UnknownField { task_type, detail }
        } else {
            BadParams::Invalid { task_type, detail }
        }
    })?;
    check(&parsed).map_err(|detail| BadParams::Invalid { task_type, detail })?;
    Ok(parsed)
}

/// serde reports an unknown field only through its message; a test holds it to that wording.
pub(crate) fn is_unknown_field(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("unknown field ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_their_kind() {
        for kind in TaskType::ALL {
            assert_eq!(TaskType::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(TaskType::parse("shell.exec"), None);
    }

    #[test]
    fn unknown_fields_and_bad_values_are_told_apart() {
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"shell":"rm"}"#), Err(BadParams::UnknownField { .. })));
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"hold_ms":-1}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"hold_ms":99999999}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::PackageList, r#"{"limit":0}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::DiagHealthProbe, r#"{"x":1}"#), Err(BadParams::UnknownField { .. })));
    }

    #[test]
    fn params_survive_the_envelope() {
        let task = Task::parse(TaskType::DiagPing, r#"{"message":"hi"}"#).expect("parses");
        assert_eq!(Task::parse(task.task_type(), task.params_json().get()).expect("parses again"), task);
    }
}
