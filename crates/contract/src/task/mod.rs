//! The closed catalog of tasks.
//!
//! A task that is not in the table below does not exist: the control plane cannot create it and no agent can run it. The table is the only
//! place that lists the kinds and their fixed properties; all other code looks them up there. See `docs/adding-a-task.md`.

pub mod allocation_deprovision_user;
pub mod allocation_provision_user;
mod catalog;
pub mod diag_health_probe;
pub mod diag_ping;
pub mod package_list;
pub mod slice_console_read;
pub mod slice_topology_discover;
pub mod slice_vm_power;
pub mod slice_vm_provision;
pub mod slice_vm_release;

use std::time::Duration;

use serde_json::value::RawValue;

use crate::slice::{Holder, LeasedSlot};

catalog::tasks! {
    DiagPing(diag_ping) {
        name: "diag.ping",
        summary: "Write one line to the host's ping log and answer, to test the whole path to the host.",
        changes_host: true,
        lease: None,
        decides_lease: false,
        undoes_itself: false,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(5),
        taken_in_maintenance: false,
        by_hand: ByHand::Allowed,
    }
    DiagHealthProbe(diag_health_probe) {
        name: "diag.health_probe",
        summary: "Report kernel, memory, disks, KVM, VFIO, IOMMU, GPUs and fabric links of the host.",
        changes_host: false,
        lease: None,
        decides_lease: false,
        undoes_itself: false,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(5),
        taken_in_maintenance: false,
        by_hand: ByHand::Allowed,
    }
    PackageList(package_list) {
        name: "package.list",
        summary: "List the packages installed on the host (dpkg or rpm).",
        changes_host: false,
        lease: None,
        decides_lease: false,
        undoes_itself: false,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(5),
        taken_in_maintenance: false,
        by_hand: ByHand::Allowed,
    }
    SliceTopologyDiscover(slice_topology_discover) {
        name: "slice.topology_discover",
        summary: "Report GPUs, drives and fabric devices, and which of them could become slots. Changes nothing.",
        changes_host: false,
        lease: None,
        decides_lease: false,
        undoes_itself: false,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(5),
        taken_in_maintenance: false,
        by_hand: ByHand::Allowed,
    }
    SliceVmProvision(slice_vm_provision) {
        name: "slice.vm_provision",
        summary: "Create a guest on leased slots: image, cloud-init, devices, network. Rolled back completely if it fails.",
        changes_host: true,
        lease: Some(Leased::Slots),
        decides_lease: true,
        undoes_itself: true,
        // It overwrites only what the host's lease gives to the new holder, which was proven to be clean.
        destroys: None,
        proves_cleanup: true,
        // Time for a large image over a slow line, and for a driver that is built at the first boot.
        timeout: minutes(2 * 60),
        taken_in_maintenance: false,
        by_hand: ByHand::Instead("gpuaas slice create"),
    }
    SliceVmRelease(slice_vm_release) {
        name: "slice.vm_release",
        summary: "Remove a guest, reset its devices, wipe its drives and prove it.",
        changes_host: true,
        lease: Some(Leased::Slots),
        decides_lease: true,
        undoes_itself: true,
        destroys: Some(Destroys::Guest),
        proves_cleanup: true,
        // Time for a drive that can only be wiped by overwriting all of it.
        timeout: minutes(6 * 60),
        taken_in_maintenance: true,
        by_hand: ByHand::Instead("gpuaas slice release"),
    }
    SliceVmPower(slice_vm_power) {
        name: "slice.vm_power",
        summary: "Stop, start or reboot a guest; it keeps its disk and address.",
        changes_host: true,
        lease: Some(Leased::Slots),
        decides_lease: false,
        undoes_itself: false,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(30),
        taken_in_maintenance: true,
        by_hand: ByHand::Instead("gpuaas slice stop`, `start` or `reboot"),
    }
    SliceConsoleRead(slice_console_read) {
        name: "slice.console_read",
        summary: "Read a guest's serial console into the task's log, and follow it. Changes nothing.",
        changes_host: false,
        lease: Some(Leased::Slots),
        decides_lease: false,
        undoes_itself: false,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(2),
        taken_in_maintenance: true,
        by_hand: ByHand::Instead("gpuaas slice console"),
    }
    AllocationProvisionUser(allocation_provision_user) {
        name: "allocation.provision_user",
        summary: "Create a user with SSH keys for a tenant who leases the whole host. Rolled back completely if it fails.",
        changes_host: true,
        lease: Some(Leased::Host),
        decides_lease: true,
        undoes_itself: true,
        destroys: None,
        proves_cleanup: false,
        timeout: minutes(15),
        taken_in_maintenance: false,
        by_hand: ByHand::Instead("gpuaas alloc create"),
    }
    AllocationDeprovisionUser(allocation_deprovision_user) {
        name: "allocation.deprovision_user",
        summary: "Remove a tenant's user with its processes and files, and prove that nothing is left.",
        changes_host: true,
        lease: Some(Leased::Host),
        decides_lease: true,
        undoes_itself: true,
        destroys: Some(Destroys::Tenant),
        proves_cleanup: false,
        timeout: minutes(60),
        taken_in_maintenance: true,
        by_hand: ByHand::Instead("gpuaas alloc release"),
    }
}

/// The fixed properties of a kind of task: its row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Name on the wire, in host policies and in the CLI.
    pub name: &'static str,
    /// One sentence for people.
    pub summary: &'static str,
    /// Whether running it changes anything on the host.
    pub changes_host: bool,
    /// What the task acts on, if it acts on a lease. The control plane then creates the task from its own records.
    pub lease: Option<Leased>,
    /// Whether the outcome of the task decides what happens to the lease.
    pub decides_lease: bool,
    /// Whether the task rolls back when it fails or is canceled. It must then be allowed to run until the rollback is done.
    pub undoes_itself: bool,
    /// What the task destroys beyond recovery, if anything. Such tasks are limited to a budget per hour.
    pub destroys: Option<Destroys>,
    /// Whether the receipt may carry a cleanup proof.
    pub proves_cleanup: bool,
    /// How long the task may run, in addition to the waiting time that its parameters ask for.
    pub timeout: Duration,
    /// Whether a draining or quarantined node still accepts the task, because tenants must be able to leave.
    pub taken_in_maintenance: bool,
    /// Whether an operator may create it with `gpuaas task run`.
    pub by_hand: ByHand,
}

/// What a task with a lease acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leased {
    /// The slots of the allocation.
    Slots,
    /// The whole host.
    Host,
}

/// Whether an operator may create a task of this kind directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByHand {
    /// `gpuaas task run` may create it.
    Allowed,
    /// This command creates it instead, because the control plane must consult and update its records.
    Instead(&'static str),
}

/// Implemented by the parameters of every kind of task.
trait Parameters {
    /// Checks all limits; the error names the field.
    fn check(&self) -> Result<(), String>;

    /// The lease that the task acts on. Implemented by all kinds that have a lease in the table.
    fn lease(&self) -> Option<Holder> {
        None
    }

    /// The slots that the task acts on.
    fn slots(&self) -> &[LeasedSlot] {
        &[]
    }

    /// How long the parameters tell the task to wait, in addition to its work.
    fn waits(&self) -> Duration {
        Duration::ZERO
    }
}

/// Example parameters and outputs of a kind as JSON, for tests, fuzzing and scripted nodes. A test checks them against the parser.
#[derive(Clone, Copy, Debug)]
pub struct Examples {
    /// Parameters that are accepted; at least one.
    pub params: &'static [&'static str],
    /// Parameters that are rejected because of a value, not because of an unknown field; at least one.
    pub refused_params: &'static [&'static str],
    /// Outputs that are accepted; at least one.
    pub outputs: &'static [&'static str],
    /// Outputs that are rejected.
    pub refused_outputs: &'static [&'static str],
}

/// A leased slot, for examples.
macro_rules! example_slot {
    () => {
        concat!(
            r#"{"slot_id":"slot_0198f0000000700080000000000000bb","spec":{"slot_index":0,"pci_address":"0000:17:00.0","#,
            r#""companions":["0000:17:00.1"],"fabric_device":null,"nvme_device":"/dev/disk/by-id/nvme-x","nvme_serial":"S 1","#,
            r#""numa_node":-1,"vcpu_count":12,"memory_mib":65536,"mac_address":"02:00:00:00:00:01","private_ip":"10.77.0.2"}}"#
        )
    };
}
use example_slot;

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// What a task may destroy beyond recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destroys {
    /// A guest, together with its drives.
    Guest,
    /// A tenant's user on a whole host, together with their files.
    Tenant,
}

impl Destroys {
    /// What happened to many of them, as part of a sentence for people.
    pub const fn past(self) -> &'static str {
        match self {
            Self::Guest => "guests were ended",
            Self::Tenant => "tenants were ended",
        }
    }
}

/// Why parameters were rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadParams {
    /// The kind of task has no such field.
    #[error("params of {task_type}: {detail}")]
    UnknownField {
        /// The kind of task.
        task_type: TaskType,
        /// The parser's error.
        detail: String,
    },
    /// A wrong type, a missing field, or a value outside its limits.
    #[error("params of {task_type}: {detail}")]
    Invalid {
        /// The kind of task.
        task_type: TaskType,
        /// Which field is wrong, and why.
        detail: String,
    },
}

impl TaskType {
    /// Name on the wire, in host policies and in the CLI.
    pub const fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// One sentence for people.
    pub const fn summary(self) -> &'static str {
        self.facts().summary
    }

    /// Whether running it changes anything on the host.
    pub const fn changes_host(self) -> bool {
        self.facts().changes_host
    }

    /// Whether the task acts on a lease, of slots or of a whole host.
    pub const fn needs_lease(self) -> bool {
        self.facts().lease.is_some()
    }

    /// Whether the task rolls back when it fails or is canceled.
    pub const fn undoes_itself(self) -> bool {
        self.facts().undoes_itself
    }

    /// What the task destroys beyond recovery, if anything.
    pub const fn destroys(self) -> Option<Destroys> {
        self.facts().destroys
    }

    /// Whether the receipt may carry a cleanup proof.
    pub const fn may_prove_cleanup(self) -> bool {
        self.facts().proves_cleanup
    }

    /// The names of these kinds as a TOML or JSON list, as in host policies.
    pub fn list(kinds: impl IntoIterator<Item = Self>) -> String {
        let names: Vec<String> = kinds.into_iter().map(|kind| format!("\"{kind}\"")).collect();
        format!("[{}]", names.join(", "))
    }

    /// Looks a kind up by name.
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
    /// The lease that the task acts on, if any. The envelope must name the same one.
    pub fn holder(&self) -> Option<Holder> {
        self.parameters().lease()
    }

    /// The slots that the task acts on.
    pub fn slots(&self) -> &[LeasedSlot] {
        self.parameters().slots()
    }

    /// How long the task may run, including the time that its parameters tell it to wait.
    pub fn timeout(&self) -> Duration {
        self.task_type().facts().timeout + self.parameters().waits()
    }
}

fn params_of<P: serde::de::DeserializeOwned + Parameters>(task_type: TaskType, params: &str) -> Result<P, BadParams> {
    let parsed: P = serde_json::from_str(params).map_err(|error| {
        let detail = error.to_string();
        if is_unknown_field(&error) {
            BadParams::UnknownField { task_type, detail }
        } else {
            BadParams::Invalid { task_type, detail }
        }
    })?;
    parsed.check().map_err(|detail| BadParams::Invalid { task_type, detail })?;
    Ok(parsed)
}

/// serde reports an unknown field only in the text of its error; a test pins that wording.
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
    fn every_row_of_the_table_agrees_with_itself() {
        for kind in TaskType::ALL {
            let Facts { lease, decides_lease, undoes_itself, destroys, proves_cleanup, changes_host, by_hand, .. } =
                *kind.facts();
            assert_eq!(by_hand == ByHand::Allowed, lease.is_none(), "{kind}: what acts on a lease comes out of the records");
            assert!(lease.is_some() || !(decides_lease || proves_cleanup), "{kind}: there is no lease to decide about");
            assert!(changes_host || !(undoes_itself || destroys.is_some() || proves_cleanup), "{kind}: it changes nothing");
            assert!(!proves_cleanup || lease == Some(Leased::Slots), "{kind}: a proof of cleanup is about slots");
        }
    }

    #[test]
    fn the_examples_of_every_kind_are_what_they_say() {
        for kind in TaskType::ALL {
            let examples = kind.examples();
            assert!(!examples.params.is_empty() && !examples.refused_params.is_empty() && !examples.outputs.is_empty(), "{kind}");
            for text in examples.params {
                let task = Task::parse(kind, text).expect(text);
                assert_eq!(task.holder().is_some(), kind.needs_lease(), "{kind} names whose slots or host it is about: {text}");
                let given: serde_json::Value = serde_json::from_str(text).expect("JSON");
                assert_eq!(task.slots().len(), given["slots"].as_array().map_or(0, Vec::len), "{kind} names its slots: {text}");
                assert!(task.timeout() >= kind.facts().timeout, "{kind}");
                assert_eq!(Task::parse(kind, task.params_json().get()), Ok(task), "{kind}: it survives the envelope");
            }
            for text in examples.refused_params {
                assert!(matches!(Task::parse(kind, text), Err(BadParams::Invalid { .. })), "{kind}: {text}");
            }
            for text in examples.outputs {
                assert_eq!(Output::parse(kind, text).expect(text).task_type(), kind);
            }
            for text in examples.refused_outputs {
                assert!(Output::parse(kind, text).is_err(), "{kind}: {text}");
            }
        }
    }

    #[test]
    fn a_console_that_is_followed_has_the_time_for_it() {
        let params = r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"follow_seconds":5}"#;
        let task = Task::parse(TaskType::SliceConsoleRead, params).expect("parses");
        assert_eq!(task.timeout(), Duration::from_secs(125));
    }

    #[test]
    fn unknown_fields_and_bad_values_are_told_apart() {
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"shell":"rm"}"#), Err(BadParams::UnknownField { .. })));
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"hold_ms":-1}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"hold_ms":99999999}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::DiagHealthProbe, r#"{"x":1}"#), Err(BadParams::UnknownField { .. })));
    }
}
