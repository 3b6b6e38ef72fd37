//! Interfaces, addresses and routes, through `ip`.

use std::net::Ipv4Addr;
use std::time::Duration;

use gpuaas_contract::slice::InterfaceName;

use crate::exec::{Exec, ExecError, first_installed};

const IP: &[&str] = &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"];
const DEADLINE: Duration = Duration::from_secs(20);
/// A host with thousands of routes prints a few megabytes.
const STDOUT_CAP: usize = 16 * 1024 * 1024;

/// Why `ip` failed.
#[derive(Debug, thiserror::Error)]
pub enum IpError {
    /// It is not installed.
    #[error("ip is not installed; install iproute2")]
    Missing,
    /// It failed.
    #[error("cannot {what}")]
    Exec {
        /// The requested operation.
        what: String,
        /// The cause.
        #[source]
        source: ExecError,
    },
    /// Its output is not the expected one.
    #[error("ip printed something that is not a list of {what}")]
    Malformed {
        /// The expected content.
        what: &'static str,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

/// An interface with its IPv4 addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<(Ipv4Addr, u8)>,
}

/// A route. Default routes have the prefix length 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its destination.
    pub destination: Ipv4Addr,
    /// The prefix length of the destination.
    pub prefix: u8,
    /// The interface; empty for routes without one.
    pub interface: String,
}

/// Lists the interfaces of this network namespace.
pub async fn interfaces() -> Result<Vec<Interface>, IpError> {
    let printed = call("list the addresses of this host", &["-json", "address", "show"]).await?;
    parse_interfaces(&printed)
}

/// Lists the IPv4 routes of all tables.
pub async fn routes() -> Result<Vec<Route>, IpError> {
    let printed = call("list the routes of this host", &["-json", "-4", "route", "show", "table", "all"]).await?;
    parse_routes(&printed)
}

/// Adds an address to an interface. Nothing changes if it already has it.
pub async fn add_address(interface: &InterfaceName, address: Ipv4Addr, prefix: u8) -> Result<(), IpError> {
    let network = format!("{address}/{prefix}");
    let what = format!("give {interface} the address {network}");
    call(&what, &["address", "replace", &network, "dev", interface.as_str()]).await.map(drop)
}

/// Removes an address from an interface.
pub async fn remove_address(interface: &InterfaceName, address: Ipv4Addr, prefix: u8) -> Result<(), IpError> {
    let network = format!("{address}/{prefix}");
    let what = format!("remove the address {network} from {interface}");
    call(&what, &["address", "delete", &network, "dev", interface.as_str()]).await.map(drop)
}

/// Sets an interface up.
pub async fn set_up(interface: &InterfaceName) -> Result<(), IpError> {
    call(&format!("switch {interface} on"), &["link", "set", "dev", interface.as_str(), "up"]).await.map(drop)
}

async fn call(what: &str, args: &[&str]) -> Result<Vec<u8>, IpError> {
    let program = first_installed(IP).ok_or(IpError::Missing)?;
    let exec = args.iter().fold(Exec::new(program).deadline(DEADLINE).stdout_cap(STDOUT_CAP), |exec, arg| exec.arg(arg));
    let finished = exec.run().await.map_err(|source| IpError::Exec { what: what.to_owned(), source })?;
    Ok(finished.stdout)
}

/// Parses the output of `ip -json address show`.
pub fn parse_interfaces(printed: &[u8]) -> Result<Vec<Interface>, IpError> {
    #[derive(serde::Deserialize)]
    struct Link {
        // Absent where `ip` prints an empty object for an interface that disappeared in the meantime.
        ifname: Option<String>,
        #[serde(default)]
        flags: Vec<String>,
        #[serde(default)]
        addr_info: Vec<Address>,
    }
    #[derive(serde::Deserialize)]
    struct Address {
        local: Option<String>,
        prefixlen: Option<u8>,
    }
    let links: Vec<Link> = serde_json::from_slice(printed).map_err(|source| IpError::Malformed { what: "interfaces", source })?;
    let of_ipv4 = |address: Address| Some((address.local?.parse::<Ipv4Addr>().ok()?, address.prefixlen?));
    Ok(links
        .into_iter()
        .filter_map(|link| {
            Some(Interface {
                name: link.ifname?,
                up: link.flags.iter().any(|flag| flag == "UP"),
                addresses: link.addr_info.into_iter().filter_map(of_ipv4).collect(),
            })
        })
        .collect())
}

/// Parses the output of `ip -json -4 route show table all`.
pub fn parse_routes(printed: &[u8]) -> Result<Vec<Route>, IpError> {
    #[derive(serde::Deserialize)]
    struct Line {
        dst: Option<String>,
        dev: Option<String>,
    }
    // Without any route, the output is empty.
    if printed.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let lines: Vec<Line> = serde_json::from_slice(printed).map_err(|source| IpError::Malformed { what: "routes", source })?;
    Ok(lines
        .into_iter()
        .filter_map(|line| {
            let (destination, prefix) = parse_destination(&line.dst?)?;
            Some(Route { destination, prefix, interface: line.dev.unwrap_or_default() })
        })
        .collect())
}

fn parse_destination(text: &str) -> Option<(Ipv4Addr, u8)> {
    if text == "default" {
        return Some((Ipv4Addr::UNSPECIFIED, 0));
    }
    match text.split_once('/') {
        Some((address, prefix)) => Some((address.parse().ok()?, prefix.parse().ok().filter(|prefix| *prefix <= 32)?)),
        None => Some((text.parse().ok()?, 32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_their_ipv4_addresses_only() {
        let found = parse_interfaces(include_bytes!("../testdata/ip-address.json")).expect("parses");
        assert_eq!(
            found,
            [
                Interface { name: "lo".to_owned(), up: true, addresses: vec![(Ipv4Addr::LOCALHOST, 8)] },
                Interface { name: "br-slices".to_owned(), up: false, addresses: vec![] },
                Interface { name: "eth0".to_owned(), up: true, addresses: vec![(Ipv4Addr::new(192, 168, 7, 20), 24)] },
            ]
        );
        assert!(matches!(parse_interfaces(b"eth0"), Err(IpError::Malformed { .. })));
        assert_eq!(parse_interfaces(b"[{}]").expect("parses"), []);
    }

    #[test]
    fn routes_are_networks_single_addresses_and_defaults() {
        let found = parse_routes(include_bytes!("../testdata/ip-route.json")).expect("parses");
        let shown: Vec<String> =
            found.iter().map(|route| format!("{}/{} {}", route.destination, route.prefix, route.interface)).collect();
        assert_eq!(
            shown,
            ["0.0.0.0/0 eth0", "10.8.0.0/16 wg0", "192.168.7.0/24 eth0", "172.16.9.0/24 ", "127.0.0.1/32 lo", "127.0.0.0/8 lo"]
        );
        assert_eq!(parse_routes(b"\n").expect("parses"), []);
        assert!(matches!(parse_routes(b"default via"), Err(IpError::Malformed { .. })));
    }

    #[tokio::test]
    async fn this_machine_has_a_loopback_interface() {
        match interfaces().await {
            Ok(found) => assert!(found.iter().any(|interface| interface.name == "lo")),
            Err(error) => assert!(matches!(error, IpError::Missing), "{error}"),
        }
    }
}
