//! What guests may have: the section `[slices]` of the policy.

use std::time::Duration;

use gpuaas_contract::address::Network;
use gpuaas_contract::guest::{DriverStrategy, ImageFormat};
use gpuaas_contract::slice::{InterfaceName, grace};

use super::pattern::Pattern;

/// The section `[slices]`. A list that is left out is empty, and an empty list allows nothing; `"*"` in a list allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SliceRules {
    /// PCI functions that may be passed through to guests.
    pub(super) pci_addresses: Vec<String>,
    /// Serial numbers of drives that may be written and wiped.
    pub(super) nvme_serials: Vec<String>,
    /// URL prefixes that images may be fetched from; `file` allows images from the host's own folders.
    pub(super) image_sources: Vec<String>,
    /// Networks outside the public internet that images may be fetched from nevertheless.
    pub(crate) image_private_networks: Vec<Network>,
    pub(super) image_formats: Vec<ImageFormat>,
    /// Open vSwitch bridges that guests may be connected to. The first one is the default.
    pub(super) bridges: Bridges,
    /// Patterns for the name of the user inside a guest.
    pub(super) usernames: Vec<Pattern>,
    /// How a GPU driver may be installed in a guest; `none` needs no permission.
    pub(super) driver_strategies: Vec<DriverStrategy>,
    /// Whether guests may have a virtual display.
    pub(super) allow_graphics: bool,
    /// Maximum time that a guest may take to shut down.
    max_shutdown_seconds: ShutdownLimit,
    /// Whether guests may run without hardware virtualization: `never`, `fallback` where `/dev/kvm` does not work, or `always`.
    pub(crate) emulation: Emulation,
    /// Whether the agent may install the packages that guests need.
    pub(crate) install_packages: bool,
    /// Maximum number of tasks per hour that remove a guest or wipe a drive.
    pub(super) destroys_per_hour: Option<u32>,
    /// Drives that become slots without a GPU, as stable device paths.
    pub(crate) drives_without_gpu: Vec<String>,
}

/// When a guest may be emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Emulation {
    #[default]
    Never,
    /// Only where `/dev/kvm` does not work.
    Fallback,
    /// Always, even where `/dev/kvm` works.
    Always,
}

/// Bridges by name, and whether any other bridge is allowed as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Vec<String>")]
pub(super) struct Bridges {
    pub(super) named: Vec<InterfaceName>,
    any: bool,
}

impl TryFrom<Vec<String>> for Bridges {
    type Error = String;

    fn try_from(list: Vec<String>) -> Result<Self, String> {
        let any = list.iter().any(|entry| entry == "*");
        let named = list.iter().filter(|entry| *entry != "*").map(|entry| entry.parse::<InterfaceName>());
        Ok(Self { named: named.collect::<Result<_, _>>().map_err(|error| error.to_string())?, any })
    }
}

/// A number of seconds within the bounds of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "u32")]
struct ShutdownLimit(u32);

impl Default for ShutdownLimit {
    fn default() -> Self {
        Self(120)
    }
}

impl TryFrom<u32> for ShutdownLimit {
    type Error = String;

    fn try_from(seconds: u32) -> Result<Self, String> {
        if grace(seconds) == Duration::from_secs(seconds.into()) {
            return Ok(Self(seconds));
        }
        Err("max_shutdown_seconds must be 30 to 900".to_owned())
    }
}

impl SliceRules {
    /// URL prefixes that images may be fetched from.
    pub(crate) fn image_sources(&self) -> &[String] {
        &self.image_sources
    }

    /// The bridge of a guest: the requested one, if the policy lists it, or the policy's first one.
    pub(crate) fn bridge(&self, named: Option<&InterfaceName>) -> Result<InterfaceName, String> {
        match named {
            Some(name) if self.bridges.any || self.bridges.named.contains(name) => Ok(name.clone()),
            Some(name) => Err(format!("bridges does not list {name}")),
            None => {
                self.bridges.named.first().cloned().ok_or_else(|| "bridges names none, so there is none for guests".to_owned())
            }
        }
    }

    /// How long a guest gets to shut down: the requested time, capped by the policy.
    pub(crate) fn shutdown_time(&self, seconds: u32) -> Duration {
        grace(seconds).min(Duration::from_secs(self.max_shutdown_seconds.0.into()))
    }

    pub(super) fn allows_shutdown_time(&self, seconds: u32) -> Result<(), String> {
        if self.shutdown_time(seconds) == grace(seconds) {
            return Ok(());
        }
        let limit = self.max_shutdown_seconds.0;
        Err(format!("max_shutdown_seconds is {limit} and the guest asks for {} s", grace(seconds).as_secs()))
    }
}
