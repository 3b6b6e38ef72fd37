//! `slice.vm_provision`: a guest on the slots of an allocation, in 17 phases, or nothing at all.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::Digest;
use crate::id::AllocationId;
use crate::slice::{Holder, InterfaceName, LeasedSlot, SshPublicKey, UserName, VmName};

/// Most keys of a guest.
pub const MAX_KEYS: usize = 32;
/// Most bytes of all keys together: everything must fit into an envelope.
pub const MAX_KEY_BYTES: usize = 12 * 1024;
/// Longest URL of an image.
pub const MAX_URL: usize = 2048;
/// Longest path of an image.
pub const MAX_PATH: usize = 255;

/// The phases, in order.
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

/// How the GPU's driver gets into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DriverStrategy {
    /// Installed at the first boot.
    CloudInit,
    /// The image has it.
    Preinstalled,
    /// The tenant sees to it.
    #[default]
    None,
}

/// What an image is said to be. It is looked at before it is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// qcow2.
    #[default]
    Qcow2,
    /// The bytes of a disk.
    Raw,
}

/// What the guest shall be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Its fencing number; the same as in the envelope.
    pub lease_epoch: u64,
    /// The name the guest gives itself.
    pub vm_name: VmName,
    /// A file under one of the host's image folders, as a name relative to it. Looked for before `image_url`.
    #[serde(default)]
    #[schemars(length(max = MAX_PATH))]
    pub image_path: Option<String>,
    /// Where the image comes from if the host does not have it: `https://…` or `http://…`. The host's policy must allow it.
    #[serde(default)]
    #[schemars(length(max = MAX_URL))]
    pub image_url: Option<String>,
    /// Digest of the image file. Always checked.
    pub image_sha256: Digest,
    /// What the image is said to be.
    #[serde(default)]
    pub image_format: ImageFormat,
    /// The operator vouches for the image. It is checked all the same.
    #[serde(default)]
    pub image_trusted: bool,
    /// How the GPU's driver gets into the guest.
    #[serde(default)]
    pub driver_strategy: DriverStrategy,
    /// The user whom the keys let in.
    pub default_username: UserName,
    /// Keys of that user.
    #[schemars(length(max = MAX_KEYS))]
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// The slots.
    pub slots: Vec<LeasedSlot>,
    /// The Open vSwitch bridge of the guest, if an operator names one. The host's policy must list it, and chooses one otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ovs_bridge: Option<InterfaceName>,
    /// How long the guest may take to shut down, brought into 30 to 900 s.
    #[serde(default = "default_grace")]
    pub graceful_timeout_seconds: u32,
    /// A virtual screen. Nobody sees it but over the gateway.
    #[serde(default)]
    pub graphics: bool,
}

pub(crate) fn default_grace() -> u32 {
    120
}

impl Params {
    /// Whose it is.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }

    /// The guest's address: that of its first slot.
    pub fn private_ip(&self) -> Option<Ipv4Addr> {
        self.slots.first().map(|slot| slot.spec.private_ip)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        LeasedSlot::check_all(&self.slots)?;
        if self.lease_epoch == 0 {
            return Err("lease_epoch counts from 1".to_owned());
        }
        if self.ssh_public_keys.len() > MAX_KEYS {
            return Err(format!("ssh_public_keys: at most {MAX_KEYS} are allowed"));
        }
        if self.ssh_public_keys.iter().map(|key| key.as_str().len()).sum::<usize>() > MAX_KEY_BYTES {
            return Err(format!(
                "ssh_public_keys: more than {MAX_KEY_BYTES} bytes together; use fewer or shorter ones (ed25519)"
            ));
        }
        if matches!(self.default_username.as_str(), "root" | "gpuaas") {
            return Err("default_username: `root` and `gpuaas` are taken; choose another name".to_owned());
        }
        match (&self.image_path, &self.image_url) {
            (None, None) => return Err("image_path or image_url must say where the image is".to_owned()),
            (path, url) => {
                path.as_deref().map_or(Ok(()), check_path)?;
                url.as_deref().map_or(Ok(()), check_url)?;
            }
        }
        Ok(())
    }
}

/// A path below a folder, part by part: nothing that leads up or away.
fn check_path(path: &str) -> Result<(), String> {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.starts_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+'))
    };
    if path.len() <= MAX_PATH && path.split('/').all(plain) {
        return Ok(());
    }
    Err("image_path must be a plain path below the image folder, without `..` and without a leading `/`".to_owned())
}

fn check_url(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    let printable = url.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'<' | b'>' | b'\\' | b'`' | b'#'));
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if url.len() <= MAX_URL && printable && !authority.is_empty() && !authority.contains('@') {
        return Ok(());
    }
    Err("image_url must be a plain http:// or https:// address without a user".to_owned())
}

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
