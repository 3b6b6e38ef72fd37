//! `slice.vm_provision`: creates a guest on the slots of an allocation in 17 phases, or rolls everything back.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{Examples, Parameters, example_slot};
use crate::Digest;
use crate::guest::GuestSpec;
use crate::id::AllocationId;
use crate::slice::{Holder, LeasedSlot, UserName, VmName};

/// Names of the phases, in order.
pub const PHASES: [&str; 17] = [
    "lease_acquire",
    "host_dependencies",
    "host_passthrough_check",
    "vfio_bind_check",
    "image_stat_download",
    "image_digest_verify",
    "cloud_init_dir",
    "terminal_key",
    "guest_telemetry_register",
    "cloud_init_seed_files",
    "cloud_localds",
    "runtime_validate",
    "dhcp_reservation",
    "image_write_convert",
    "virt_install",
    "readiness",
    "performance_probe",
];

/// The guest to create, and its slots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation; the same as in the envelope.
    pub lease_epoch: u64,
    /// Specification of the guest.
    pub guest: GuestSpec,
    /// Slots of the guest.
    pub slots: Vec<LeasedSlot>,
}

impl Params {
    /// The allocation and lease that the task acts on.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }

    /// The guest's address, which is that of its first slot.
    pub fn private_ip(&self) -> Option<Ipv4Addr> {
        self.slots.first().map(|slot| slot.spec.private_ip)
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        LeasedSlot::check_all(&self.slots)?;
        if self.lease_epoch == 0 {
            return Err("lease_epoch counts from 1".to_owned());
        }
        self.guest.check()
    }

    fn lease(&self) -> Option<Holder> {
        Some(self.holder())
    }

    fn slots(&self) -> &[LeasedSlot] {
        &self.slots
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[concat!(
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"guest":{"vm_name":"a","image":{"#,
        r#""path":"debian/12.qcow2","url":"https://images.example/a.qcow2?x=1","sha256":"#,
        r#""sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","format":"raw","trusted":true},"#,
        r#""driver_strategy":"cloud-init","default_username":"u","ssh_public_keys":["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH c"],"#,
        r#""ovs_bridge":"br","graceful_timeout_seconds":30,"graphics":false},"slots":["#,
        example_slot!(),
        "]}"
    )],
    refused_params: &[r#"{"allocation_id":"somebody","lease_epoch":1}"#, r#"{"guest":{"vm_name":"<a/>"}}"#, "[1]"],
    outputs: &[concat!(
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","vm_name":"a","default_user":"u","private_ip":"10.77.0.2","#,
        r#""ssh_port":22,"slot_count":1,"acceleration":"kvm","image_sha256":"#,
        r#""sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","image_was_cached":false,"host_key":"k","#,
        r#""terminal_key":"t","readiness":{"ssh":true,"marker":true,"attempts":3},"performance":{"measured":false,"reason":"r","#,
        r#""cpus":0,"memory_mib":0,"gpus":0,"boot_ms":0,"disk_write_mib_per_s":0},"telemetry":{"source":"unavailable","reason":"x"},"#,
        r#""timings":{"readiness_ms":1},"raw_vnc":false,"console_model":"gateway_required","recovered":false}"#
    )],
    refused_outputs: &[],
};

/// The guest that was created.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Host name of the guest.
    pub vm_name: VmName,
    /// Default user of the guest.
    pub default_user: UserName,
    /// IP address of the guest.
    pub private_ip: Ipv4Addr,
    /// SSH port of the guest.
    pub ssh_port: u16,
    /// Number of its slots.
    pub slot_count: u32,
    /// `kvm` or `emulation`.
    pub acceleration: Acceleration,
    /// Digest of the image that it was created from.
    pub image_sha256: Digest,
    /// Whether the host already had the image.
    pub image_was_cached: bool,
    /// SSH host key of the guest, by which it is recognized.
    pub host_key: String,
    /// Public half of the SSH key for terminals, which is valid as long as the guest exists.
    pub terminal_key: String,
    /// Whether the guest became ready.
    pub readiness: Readiness,
    /// Measurements from inside the guest.
    pub performance: Performance,
    /// Source of the guest's metrics.
    pub telemetry: GuestTelemetry,
    /// Duration of each phase in milliseconds, as `<phase>_ms`.
    pub timings: BTreeMap<String, u64>,
    /// Always false: the display is reachable only through the gateway.
    pub raw_vnc: bool,
    /// Always `gateway_required`.
    pub console_model: String,
    /// Whether the agent was restarted in between and continued the task.
    pub recovered: bool,
}

/// How the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Acceleration {
    /// By the processor.
    Kvm,
    /// By an emulator, which is slow. Only if the host's policy allows it.
    Emulation,
}

/// Whether the guest became ready.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    /// Whether it accepts an SSH sign-in and has the right host key.
    pub ssh: bool,
    /// Whether the file that marks the end of cloud-init exists.
    pub marker: bool,
    /// Number of checks.
    pub attempts: u32,
}

/// Measurements from inside the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Performance {
    /// Whether the measurement succeeded.
    pub measured: bool,
    /// Why it failed; empty if it succeeded.
    pub reason: String,
    /// Number of CPUs that the guest sees.
    pub cpus: u32,
    /// Memory that the guest sees, in MiB.
    pub memory_mib: u64,
    /// Number of GPUs that the guest sees.
    pub gpus: u32,
    /// Milliseconds from the start of its kernel to the readiness marker.
    pub boot_ms: u64,
    /// Write speed of its disk.
    pub disk_write_mib_per_s: u64,
}

/// Source of a guest's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TelemetrySource {
    /// The helper program inside the guest.
    SliceGuest,
    /// What the host can observe from outside.
    HostLocalProbe,
    /// No source is available.
    Unavailable,
}

/// Source of a guest's metrics, with a reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestTelemetry {
    /// The source.
    pub source: TelemetrySource,
    /// Why they do not come from the guest; empty if they do.
    pub reason: String,
}
