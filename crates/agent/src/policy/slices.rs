//! What the owner lets guests have: the section `[slices]`.

use std::time::Duration;

use gpuaas_contract::address::Network;
use gpuaas_contract::guest::{DriverStrategy, ImageFormat};
use gpuaas_contract::slice::{InterfaceName, grace};

use super::pattern::Pattern;

/// Every list is empty unless written, and an empty list allows nothing; `"*"` in a list allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SliceRules {
    /// Functions on the bus that may go to guests.
    pub(super) pci_addresses: Vec<String>,
    /// Drives that may be written and wiped.
    pub(super) nvme_serials: Vec<String>,
    /// Beginnings of URLs that images may come from; `file` allows images of the host's own folders.
    pub(super) image_sources: Vec<String>,
    /// Networks that are not the public internet and that images may come from all the same.
    pub(crate) image_private_networks: Vec<Network>,
    /// What images may be.
    pub(super) image_formats: Vec<ImageFormat>,
    /// Open vSwitch bridges that guests may be on. The first one is that of a guest for which nobody names one.
    pub(super) bridges: Bridges,
    /// Names of the user inside a guest.
    pub(super) usernames: Vec<Pattern>,
    /// How a GPU's driver may get into a guest; `none` needs no permission.
    pub(super) driver_strategies: Vec<DriverStrategy>,
    /// Guests may have a virtual screen.
    pub(super) allow_graphics: bool,
    /// Longest time that a guest may ask for to shut down.
    max_shutdown_seconds: ShutdownLimit,
    /// Guests without the processor's help: `never`, `fallback` where `/dev/kvm` does not work, or `always`.
    pub(crate) emulation: Emulation,
    /// The agent may install what guests need.
    pub(crate) install_packages: bool,
    /// Most tasks per hour that end a guest or wipe a drive.
    pub(super) destroys_per_hour: Option<u32>,
    /// Drives that become slots without a GPU, by stable path.
    pub(crate) drives_without_gpu: Vec<String>,
}

/// When a guest may be emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Emulation {
    /// Never.
    #[default]
    Never,
    /// Where the processor does not help.
    Fallback,
    /// Always, even if it would.
    Always,
}

/// Bridges by name, and whether any other will do as well.
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

/// Seconds, within what any guest may have.
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
    /// Beginnings of URLs that images may come from.
    pub(crate) fn image_sources(&self) -> &[String] {
        &self.image_sources
    }

    /// The bridge of a guest: the one that was named, if it is listed, or the host's own choice.
    pub(crate) fn bridge(&self, named: Option<&InterfaceName>) -> Result<InterfaceName, String> {
        match named {
            Some(name) if self.bridges.any || self.bridges.named.contains(name) => Ok(name.clone()),
            Some(name) => Err(format!("bridges does not list {name}")),
            None => {
                self.bridges.named.first().cloned().ok_or_else(|| "bridges names none, so there is none for guests".to_owned())
            }
        }
    }

    /// The time a guest gets to shut down.
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
