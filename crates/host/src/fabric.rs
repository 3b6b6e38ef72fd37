//! Links of the fabric adapters, from sysfs: InfiniBand ports, and plain network interfaces of adapters without them.

use std::path::Path;

use gpuaas_contract::task::diag_health_probe::FabricLink;

use crate::pci::{self, PciFunction};
use crate::sysfs;

/// Maximum number of links in a report.
const MAX: usize = 256;

/// Returns the links of the adapters, by address. Virtual functions are left out, because they belong to the guests.
pub fn links(sys: &Path) -> Vec<FabricLink> {
    let adapters =
        pci::functions(sys).into_iter().filter(|function| function.is_fabric() && function.physical_function.is_none());
    adapters.flat_map(|adapter| links_of(sys, &adapter)).take(MAX).collect()
}

fn links_of(sys: &Path, adapter: &PciFunction) -> Vec<FabricLink> {
    let device = sys.join("bus/pci/devices").join(adapter.address.as_str());
    let ports = sysfs::entries(device.join("infiniband")).into_iter().flat_map(|device| sysfs::entries(device.join("ports")));
    let infiniband: Vec<FabricLink> = ports
        .map(|port| {
            let device = port.parent().and_then(Path::parent).map(sysfs::name).unwrap_or_default();
            // Such as `4: ACTIVE`.
            let state = sysfs::text(port.join("state"));
            let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name).to_ascii_lowercase();
            FabricLink {
                pci_address: adapter.address.to_string(),
                name: format!("{device}/{}", sysfs::name(&port)),
                up: state == "active",
                state,
                rate: sysfs::text(port.join("rate")),
            }
        })
        .collect();
    if !infiniband.is_empty() {
        return infiniband;
    }
    let interface = |interface: &std::path::PathBuf| {
        let state = sysfs::text(interface.join("operstate"));
        let speed = sysfs::number::<u64>(interface.join("speed")).filter(|speed| *speed > 0);
        FabricLink {
            pci_address: adapter.address.to_string(),
            name: sysfs::name(interface),
            up: state == "up",
            state,
            rate: speed.map_or_else(String::new, |speed| format!("{} Gb/sec", speed / 1000)),
        }
    };
    sysfs::entries(device.join("net")).iter().map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::tests::device;

    #[test]
    fn ports_and_interfaces_of_adapters_are_links_and_virtual_functions_are_not() {
        let sys = tempfile::tempdir().expect("folder");
        let write = |path: &str, text: &str| {
            let path = sys.path().join("devices/pci0000:16").join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, format!("{text}\n")).expect("written");
        };
        let at = |address: &str, more: &[(&str, &str)]| {
            let attributes: Vec<_> = [("vendor", "0x15b3"), ("class", "0x020700")].iter().chain(more).copied().collect();
            device(sys.path(), "pci0000:16", address, &attributes);
        };
        at("0000:1a:00.0", &[]);
        at("0000:1a:00.1", &[("physfn", "0000:1a:00.0")]);
        at("0000:3c:00.0", &[]);
        for (port, state) in [("1", "4: ACTIVE"), ("2", "1: DOWN")] {
            write(&format!("0000:1a:00.0/infiniband/mlx5_0/ports/{port}/state"), state);
            write(&format!("0000:1a:00.0/infiniband/mlx5_0/ports/{port}/rate"), "400 Gb/sec (4X NDR)");
        }
        write("0000:1a:00.1/infiniband/mlx5_1/ports/1/state", "1: DOWN");
        write("0000:3c:00.0/net/eth2/operstate", "up");
        write("0000:3c:00.0/net/eth2/speed", "200000");
        let found: Vec<_> = links(sys.path()).into_iter().map(|link| (link.name, link.state, link.up, link.rate)).collect();
        let link = |name: &str, state: &str, up, rate: &str| (name.to_owned(), state.to_owned(), up, rate.to_owned());
        assert_eq!(
            found,
            [
                link("mlx5_0/1", "active", true, "400 Gb/sec (4X NDR)"),
                link("mlx5_0/2", "down", false, "400 Gb/sec (4X NDR)"),
                link("eth2", "up", true, "200 Gb/sec"),
            ]
        );
    }
}
