//! Words that all slice tasks share: device addresses, network names, and why a slot cannot be used.

use std::net::Ipv4Addr;

/// Documents have the text of such a value, and a text that is none is an error.
macro_rules! written_as_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

macro_rules! shown_as_it_is {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// A function on the PCI bus, `0000:17:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PciAddress(String);

impl PciAddress {
    /// As the kernel writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Everything but the function: functions of one device share it.
    pub fn device(&self) -> &str {
        self.0.rsplit_once('.').map_or(&self.0, |(device, _)| device)
    }
}

impl std::str::FromStr for PciAddress {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = || BadName { what: "a PCI address like 0000:17:00.0", text: shown(text) };
        let parts: Vec<&str> = text.split([':', '.']).collect();
        let [domain, bus, device, function] = parts.as_slice() else { return Err(bad()) };
        let hex =
            |part: &str, digits: usize| part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let numbers = hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1);
        if !numbers
            || text != format!("{domain}:{bus}:{device}.{function}")
            || !matches!(*function, "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7")
        {
            return Err(bad());
        }
        Ok(Self(text.to_owned()))
    }
}

written_as_text!(PciAddress);
shown_as_it_is!(PciAddress);

/// The name of a network interface or bridge, as the kernel allows it and nothing that a program could take for an option.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Longest name the kernel takes.
    pub const MAX: usize = 15;

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for InterfaceName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let good = !text.is_empty()
            && text.len() <= Self::MAX
            && text.bytes().all(plain)
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadName { what: "an interface name of 1 to 15 plain characters", text: shown(text) })
        }
    }
}

written_as_text!(InterfaceName);
shown_as_it_is!(InterfaceName);

/// The IPv4 network of the guests on one host, `10.77.0.0/24`. The first address is the host's, the next ones belong to the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Subnet {
    network: u32,
    prefix: u8,
}

impl Subnet {
    /// The widest and the narrowest that make sense for one host.
    const PREFIXES: std::ops::RangeInclusive<u8> = 16..=28;

    /// The network's own address and the length of its prefix.
    pub const fn parts(self) -> (Ipv4Addr, u8) {
        (Ipv4Addr::from_bits(self.network), self.prefix)
    }

    /// The host's address in it.
    pub const fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network + 1)
    }

    /// The address of a slot, if the network has room for it.
    pub fn address(self, slot_index: u32) -> Option<Ipv4Addr> {
        let broadcast = self.network | (u32::MAX >> self.prefix);
        let address = self.network.checked_add(slot_index)?.checked_add(2)?;
        (address < broadcast).then(|| Ipv4Addr::from_bits(address))
    }
}

impl std::str::FromStr for Subnet {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = || BadName { what: "an IPv4 network like 10.77.0.0/24, with a prefix of 16 to 28", text: shown(text) };
        let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
        let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let private = address.is_private();
        if !private || !Self::PREFIXES.contains(&prefix) || address.to_bits() & (u32::MAX >> prefix) != 0 {
            return Err(BadName {
                what: "a private IPv4 network like 10.77.0.0/24, with a prefix of 16 to 28 and no host part",
                ..bad()
            });
        }
        Ok(Self { network: address.to_bits(), prefix })
    }
}

written_as_text!(Subnet);

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.network), self.prefix)
    }
}

/// The devices and the size of a slot, as an operator approved them. A guest gets exactly these.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotSpec {
    /// Its place among the host's GPUs, by address.
    pub slot_index: u32,
    /// The GPU.
    pub pci_address: PciAddress,
    /// The GPU's other functions, which go along.
    pub companions: Vec<PciAddress>,
    /// The fabric function, if the host has a fabric.
    pub fabric_device: Option<PciAddress>,
    /// Stable path of the NVMe namespace.
    pub nvme_device: String,
    /// Serial number of that drive: what counts if the path should lie.
    pub nvme_serial: String,
    /// NUMA node of the GPU, or -1.
    pub numa_node: i32,
    /// vCPUs.
    pub vcpu_count: u32,
    /// Memory.
    pub memory_mib: u64,
    /// The guest's hardware address.
    pub mac_address: String,
    /// The guest's address.
    pub private_ip: Ipv4Addr,
}

impl SlotSpec {
    /// Whether two slots would fight over a device or an address.
    pub fn collides_with(&self, other: &Self) -> Option<String> {
        let functions = |spec: &Self| -> Vec<PciAddress> {
            [&spec.pci_address].into_iter().chain(&spec.companions).chain(&spec.fabric_device).cloned().collect()
        };
        let theirs = functions(other);
        if let Some(shared) = functions(self).into_iter().find(|function| theirs.contains(function)) {
            return Some(shared.to_string());
        }
        if self.nvme_serial == other.nvme_serial {
            return Some(format!("drive {}", self.nvme_serial));
        }
        (self.mac_address == other.mac_address || self.private_ip == other.private_ip).then(|| self.private_ip.to_string())
    }
}

/// A text that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct BadName {
    what: &'static str,
    text: String,
}

fn shown(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Why something cannot be used: a stable code, and a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Blocker {
    /// Stable code.
    pub code: String,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Blocker {
    /// A blocker.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_as_the_kernel_writes_them_are_addresses() {
        for good in ["0000:17:00.0", "10de:ff:1f.7"] {
            assert_eq!(good.parse::<PciAddress>().expect("an address").as_str(), good);
        }
        for bad in [
            "",
            "17:00.0",
            "0000:17:00.8",
            "0000:17:00",
            "0000:17.00:0",
            "0000:1G:00.0",
            "0000:17:00.0\n",
            "../../0000:17:00.0",
            "0000:AB:00.0",
        ] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
        assert_eq!("0000:17:00.1".parse::<PciAddress>().expect("an address").device(), "0000:17:00");
    }

    #[test]
    fn an_interface_name_is_never_an_option_or_a_path() {
        for good in ["br-slices", "ib0", "eth0.100"] {
            assert!(good.parse::<InterfaceName>().is_ok(), "{good}");
        }
        for bad in ["", "-x", "--help", ".", "..", "a/b", "a b", "a\0", "sixteen-chars-ab", "é"] {
            assert!(bad.parse::<InterfaceName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_subnet_has_addresses_for_its_slots_and_none_beyond() {
        let subnet: Subnet = "10.77.0.0/28".parse().expect("a network");
        assert_eq!(subnet.gateway(), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(subnet.address(0), Some(Ipv4Addr::new(10, 77, 0, 2)));
        assert_eq!(subnet.address(12), Some(Ipv4Addr::new(10, 77, 0, 14)));
        assert_eq!((subnet.address(13), subnet.address(u32::MAX)), (None, None), "the last address is for everybody");
        for bad in ["10.77.0.1/24", "8.8.8.0/24", "10.0.0.0/8", "10.77.0.0/29", "10.77.0.0", "10.77.0.0/x", "10.77.0/24"] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
        assert_eq!(subnet.to_string(), "10.77.0.0/28");
    }
}
