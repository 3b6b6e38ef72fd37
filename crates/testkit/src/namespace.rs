//! A separate network for a program under test.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace with one virtual Ethernet cable to the host. Removed on drop.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    /// The host's end of the cable.
    host_interface: String,
    host_address: Ipv4Addr,
    address: Ipv4Addr,
}

impl NetNs {
    /// Creates a namespace. Returns `None` and prints why if that is not possible. Needs root and the program `ip`.
    #[allow(clippy::new_ret_no_self, reason = "a machine may not be able to")]
    pub fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let what = "a test in a network namespace";
        if !rustix::process::geteuid().is_root() {
            crate::skip(what, "only root can make one");
            return None;
        }
        // Chooses an unused one of the 16384 networks of four addresses in 10.213.0.0/16, starting at one that depends on the process id.
        let in_use = match ip(&["-oneline", "-4", "address", "show"]) {
            Ok(addresses) => addresses,
            Err(error) => {
                crate::skip(what, &error);
                return None;
            }
        };
        let (network, host_address) = (0..16_384)
            .map(|_| (std::process::id().wrapping_mul(61) + NUMBER.fetch_add(1, Ordering::Relaxed)) % 16_384)
            .map(|network| (network, address_in(network, 1)))
            .find(|(_, address)| !in_use.contains(&format!("{address}/30")))
            .expect("one of 16384 networks is free");
        let namespace = Self {
            name: format!("gpuaas-test-{network}"),
            host_interface: format!("gpuaas{network}"),
            host_address,
            address: address_in(network, 2),
        };
        if let Err(error) = ip(&["netns", "add", &namespace.name]) {
            crate::skip(what, &error);
            return None;
        }
        // From here on `drop` cleans up, even if a step below panics.
        namespace.connect();
        Some(namespace)
    }

    fn connect(&self) {
        let run = |arguments: &[&str]| ip(arguments).unwrap_or_else(|error| panic!("the namespace cannot be connected: {error}"));
        let (inside, host_end) = (self.name.as_str(), self.host_interface.as_str());
        let (address, host_address) = (format!("{}/30", self.address), format!("{}/30", self.host_address));
        run(&["link", "add", host_end, "type", "veth", "peer", "name", "eth0", "netns", inside]);
        run(&["address", "add", &host_address, "dev", host_end]);
        run(&["link", "set", host_end, "up"]);
        run(&["-netns", inside, "address", "add", &address, "dev", "eth0"]);
        run(&["-netns", inside, "link", "set", "eth0", "up"]);
        run(&["-netns", inside, "link", "set", "lo", "up"]);
    }

    /// Returns the name of the namespace in `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of the host on the cable.
    pub fn host_address(&self) -> Ipv4Addr {
        self.host_address
    }

    /// Returns the address of the namespace on the cable.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Cuts the cable. Open connections hang without an error; new ones find no route.
    pub fn cut(&self) {
        ip(&["link", "set", &self.host_interface, "down"]).expect("the cable can be pulled");
    }

    /// Restores the cable.
    pub fn restore(&self) {
        ip(&["link", "set", &self.host_interface, "up"]).expect("the cable can be plugged in");
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // Removing one end of the cable removes the other. It is missing if connecting failed.
        let _ = ip(&["link", "delete", &self.host_interface]);
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            eprintln!("the network namespace {} was not removed: {error}", self.name);
        }
    }
}

/// Returns address number `host` of network number `network`, with four addresses each.
fn address_in(network: u32, host: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 213, 0, 0)) + network * 4 + host)
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip cannot be started: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }
}
