//! `cargo xtask lab`: tests on one machine with the real components that other tests simulate: libvirt, QEMU, Open vSwitch, DHCP,
//! cloud-init, VFIO.
//!
//! Only the hardware is emulated, because developers' machines and CI have no GPU, no spare NVMe drive and often no KVM.

mod bare;
mod cleanup;
mod cluster;
mod daemon;
mod drive;
mod guest;
mod guest_image;
mod image_server;
mod initrd;
mod kernel;
mod libvirt;
mod machine;
mod network;
mod program;
mod requirements;
mod slice;
mod tenant;
mod vfio;
mod vfio_host;

use std::path::PathBuf;

use crate::cargo;

/// Options of `cargo xtask lab`.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    lab: Lab,
}

#[derive(clap::Subcommand)]
enum Lab {
    /// Run the commands of the README in a bare Debian, with nothing but Rust and a C compiler
    Bare(bare::Options),
    /// Lease a guest on this machine as a tenant, through the real server and agent, with a loop device as its drive
    Slice(slice::Options),
    /// Boot an emulated host with an IOMMU, in which devices move between their drivers and vfio-pci
    Vfio,
}

/// Runs a lab. Returns true if it succeeded.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    match &options.lab {
        Lab::Bare(options) => bare::run(options),
        Lab::Slice(options) => slice::run(options),
        Lab::Vfio => vfio::run(),
    }
}

/// Returns the folder that keeps files that are expensive to build between runs.
fn cache() -> Result<PathBuf, String> {
    let folder = cargo::workspace().join("target/lab");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}
