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

/// The guest, and what it gets.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Its fencing number; the same as in the envelope.
    pub lease_epoch: u64,
    /// What the guest is.
    pub guest: GuestSpec,
    /// The slots.
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

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// The guest's name.
    pub vm_name: VmName,
    /// Its user.
    pub default_user: UserName,
    /// Its address.
    pub private_ip: Ipv4Addr,
    /// Where SSH listens in it.
    pub ssh_port: u16,
    /// How many slots it holds.
    pub slot_count: u32,
    /// `kvm` or `emulation`.
    pub acceleration: Acceleration,
    /// Digest of the image it was made from.
    pub image_sha256: Digest,
    /// The host already had the image.
    pub image_was_cached: bool,
    /// The guest's own SSH host key: what it must show to be the guest.
    pub host_key: String,
    /// Public half of the key that terminals use; it lives as long as the guest.
    pub terminal_key: String,
    /// How it came up.
    pub readiness: Readiness,
    /// How fast it is.
    pub performance: Performance,
    /// Where its metrics come from.
    pub telemetry: GuestTelemetry,
    /// `<phase>_ms`.
    pub timings: BTreeMap<String, u64>,
    /// Always false: nobody reaches a screen past the gateway.
    pub raw_vnc: bool,
    /// Always `gateway_required`.
    pub console_model: String,
    /// The agent was restarted in between and went on.
    pub recovered: bool,
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Acceleration {
    /// The processor.
    Kvm,
    /// A program; slow. Only where the host's policy allows it.
    Emulation,
}

/// How the guest came up.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    /// It lets us in by SSH, and shows the right host key.
    pub ssh: bool,
    /// The file that says that cloud-init is through is there.
    pub marker: bool,
    /// How often it was asked.
    pub attempts: u32,
}

/// What the guest measured of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Performance {
    /// Whether it could.
    pub measured: bool,
    /// Why not.
    pub reason: String,
    /// Processors it sees.
    pub cpus: u32,
    /// Memory it sees.
    pub memory_mib: u64,
    /// GPUs it sees.
    pub gpus: u32,
    /// From its kernel's start to the readiness marker.
    pub boot_ms: u64,
    /// What its disk wrote per second.
    pub disk_write_mib_per_s: u64,
}

/// Where a guest's metrics come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TelemetrySource {
    /// The helper inside the guest.
    SliceGuest,
    /// What the host can see from outside.
    HostLocalProbe,
    /// Nowhere.
    Unavailable,
}

/// The same with a reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestTelemetry {
    /// Where they come from.
    pub source: TelemetrySource,
    /// Why not from the guest; empty if they do.
    pub reason: String,
}
