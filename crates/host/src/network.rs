//! Network interfaces from sysfs, without loopback and short-lived virtual ones.

use std::path::Path;

use gpuaas_contract::telemetry::NetworkFact;

use crate::sysfs;

/// Maximum number of interfaces in a report: a host with many guests has hundreds of virtual ones.
const MAX: usize = 64;

/// Returns the interfaces under `sys` (normally `/sys`), by name: those of hardware first, then bridges and bonds.
pub fn interfaces(sys: &Path) -> Vec<NetworkFact> {
    sysfs::entries(sys.join("class/net"))
        .iter()
        .filter(|device| is_reported(&sysfs::name(device)))
        .take(MAX)
        .map(|device| NetworkFact {
            name: sysfs::name(device),
            mac: sysfs::text(device.join("address")),
            up: sysfs::text(device.join("operstate")) == "up",
            // The kernel reports -1 for an unknown speed.
            speed_mbit: sysfs::number(device.join("speed")).unwrap_or(0),
        })
        .collect()
}

/// Returns whether an interface is reported. The host ends of guests' and containers' links are not, because the facts would
/// change all the time.
fn is_reported(name: &str) -> bool {
    name != "lo" && !["veth", "vnet", "tap", "docker", "virbr", "cali"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_listed_and_guests_ends_are_not() {
        let sys = tempfile::tempdir().expect("folder");
        for (name, speed) in [("eth0", "25000"), ("lo", ""), ("veth12", "10000"), ("ib0", "-1")] {
            let folder = sys.path().join("class/net").join(name);
            std::fs::create_dir_all(&folder).expect("folder");
            std::fs::write(folder.join("address"), "02:00:00:00:00:01\n").expect("address");
            std::fs::write(folder.join("operstate"), "up\n").expect("state");
            std::fs::write(folder.join("speed"), speed).expect("speed");
        }
        let found: Vec<_> = interfaces(sys.path()).into_iter().map(|n| (n.name, n.speed_mbit, n.up)).collect();
        assert_eq!(found, [("eth0".to_owned(), 25_000, true), ("ib0".to_owned(), 0, true)]);
    }
}
