//! Types shared by all slice tasks: device addresses, network names, and the reasons why a slot cannot be used.

use std::net::Ipv4Addr;

use crate::id::{AllocationId, SlotId};

/// Serializes a type as its text form, and rejects text that does not parse.
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

/// Address of a function on the PCI bus, such as `0000:17:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PciAddress(String);

impl PciAddress {
    /// The address as the kernel writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The address without its function number; all functions of a device share it.
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

/// Name of a network interface or bridge: a name that the kernel allows and that no program can mistake for an option.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Maximum length that the kernel accepts.
    pub const MAX: usize = 15;

    /// The name as text.
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

/// The IPv4 network of the guests on one host, such as `10.77.0.0/24`. The first address is the host's; the next ones belong to the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Subnet {
    network: u32,
    prefix: u8,
}

impl Subnet {
    /// Prefix lengths that make sense for one host.
    const PREFIXES: std::ops::RangeInclusive<u8> = 16..=28;

    /// The network address and the prefix length.
    pub const fn parts(self) -> (Ipv4Addr, u8) {
        (Ipv4Addr::from_bits(self.network), self.prefix)
    }

    /// The host's own address in the network.
    pub const fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network + 1)
    }

    /// The address that belongs to a slot; `None` if the network has no room for it.
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
    /// Index among the host's GPUs, in the order of their PCI addresses.
    pub slot_index: u32,
    /// PCI address of the GPU. Slots without a GPU exist only where the host's owner configured them.
    pub pci_address: Option<PciAddress>,
    /// Other functions of the GPU, which are passed through with it.
    pub companions: Vec<PciAddress>,
    /// The fabric function, if the host has a fabric.
    pub fabric_device: Option<PciAddress>,
    /// Stable path of the NVMe namespace.
    pub nvme_device: String,
    /// Serial number of that drive. It decides if the path leads to another drive.
    pub nvme_serial: String,
    /// NUMA node of the GPU; -1 if unknown.
    pub numa_node: i32,
    /// Number of vCPUs.
    pub vcpu_count: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// MAC address of the guest.
    pub mac_address: String,
    /// IP address of the guest.
    pub private_ip: Ipv4Addr,
}

impl SlotSpec {
    /// Maximum number of companion functions of a slot.
    pub const MAX_COMPANIONS: usize = 7;

    /// All PCI functions that are passed through to the guest.
    pub fn functions(&self) -> impl Iterator<Item = &PciAddress> {
        self.pci_address.iter().chain(&self.companions).chain(&self.fabric_device)
    }

    /// The device or address that both slots claim, if any.
    pub fn collides_with(&self, other: &Self) -> Option<String> {
        if let Some(shared) = self.functions().find(|function| other.functions().any(|theirs| theirs == *function)) {
            return Some(shared.to_string());
        }
        if self.nvme_serial == other.nvme_serial {
            return Some(format!("drive {}", self.nvme_serial));
        }
        (self.mac_address == other.mac_address || self.private_ip == other.private_ip).then(|| self.private_ip.to_string())
    }

    /// Checks that every text and number is valid, regardless of where the spec comes from.
    pub fn check(&self) -> Result<(), String> {
        let slot = self.slot_index;
        let path = self.nvme_device.strip_prefix(DRIVE_FOLDER).unwrap_or_default();
        let checks = [
            (self.companions.len() > Self::MAX_COMPANIONS, "companions: at most 7 functions go along".to_owned()),
            (
                path.is_empty() || path.len() > 200 || path.starts_with('.') || !path.bytes().all(is_plain),
                format!("nvme_device must be a plain name under {DRIVE_FOLDER}"),
            ),
            (
                self.nvme_serial.is_empty() || self.nvme_serial.len() > 64 || !self.nvme_serial.bytes().all(is_plain_or_space),
                "nvme_serial must have 1 to 64 plain characters".to_owned(),
            ),
            (!is_mac(&self.mac_address), "mac_address must be written like 02:00:5e:10:00:01".to_owned()),
            (!(-1..=1023).contains(&self.numa_node), "numa_node must be -1 to 1023".to_owned()),
            (!(1..=MAX_VCPUS).contains(&self.vcpu_count), format!("vcpu_count must be 1 to {MAX_VCPUS}")),
            (!(512..=MAX_MEMORY_MIB).contains(&self.memory_mib), format!("memory_mib must be 512 to {MAX_MEMORY_MIB}")),
            (!self.private_ip.is_private(), "private_ip must be a private address".to_owned()),
        ];
        match checks.into_iter().find(|(broken, _)| *broken) {
            Some((_, what)) => Err(format!("slot {slot}: {what}")),
            None => Ok(()),
        }
    }
}

/// Folder with the stable paths of drives.
pub const DRIVE_FOLDER: &str = "/dev/disk/by-id/";
/// Maximum number of vCPUs per slot.
pub const MAX_VCPUS: u32 = 1_024;
/// Maximum memory per slot, in MiB.
pub const MAX_MEMORY_MIB: u64 = 16 * 1024 * 1024;
/// Maximum number of slots per slice.
pub const MAX_SLOTS: usize = 16;

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'+' | b'#' | b'=' | b'@')
}

fn is_plain_or_space(byte: u8) -> bool {
    is_plain(byte) || byte == b' ' || byte == b'/'
}

fn is_mac(text: &str) -> bool {
    let pair = |part: &str| part.len() == 2 && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = text.split(':').collect();
    // The lowest bit of the first byte marks a multicast address.
    let single = parts.first().and_then(|first| u8::from_str_radix(first, 16).ok()).is_some_and(|first| first & 1 == 0);
    parts.len() == 6 && single && parts.iter().all(|part| pair(part))
}

/// A slot that is leased to an allocation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeasedSlot {
    /// The slot.
    #[schemars(with = "String")]
    pub slot_id: SlotId,
    /// Devices and size of the slot.
    pub spec: SlotSpec,
}

impl LeasedSlot {
    /// Checks that these can be the slots of one slice: the count is within limits, no slot or device occurs twice, and every spec is
    /// valid.
    pub fn check_all(slots: &[Self]) -> Result<(), String> {
        if slots.is_empty() || slots.len() > MAX_SLOTS {
            return Err(format!("slots: {} are given; choose 1 to {MAX_SLOTS}", slots.len()));
        }
        for (place, slot) in slots.iter().enumerate() {
            slot.spec.check()?;
            for other in slots.iter().take(place) {
                if other.slot_id == slot.slot_id {
                    return Err(format!("slots: {} is given twice", slot.slot_id));
                }
                if let Some(what) = other.spec.collides_with(&slot.spec) {
                    return Err(format!("slots: {} and {} share {what}", other.slot_id, slot.slot_id));
                }
            }
        }
        Ok(())
    }
}

/// Who holds a slice or a machine. The lease epoch grows with every lease of a slot, so orders for an earlier lease can be recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The allocation that holds the lease.
    pub allocation_id: AllocationId,
    /// The epoch of that lease.
    pub lease_epoch: u64,
}

/// Bounds on the time a guest has to shut down; requests outside of them are clamped.
pub const GRACE_SECONDS: std::ops::RangeInclusive<u32> = 30..=900;

/// The time a guest has to shut down: `seconds`, clamped to [`GRACE_SECONDS`].
pub fn grace(seconds: u32) -> std::time::Duration {
    std::time::Duration::from_secs(seconds.clamp(*GRACE_SECONDS.start(), *GRACE_SECONDS.end()).into())
}

macro_rules! plain_names {
    ($($(#[$doc:meta])* $name:ident, $max:literal, $what:literal, $first:expr, $rest:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                let first: fn(u8) -> bool = $first;
                let rest: fn(u8) -> bool = $rest;
                let good = text.len() <= $max && text.bytes().all(rest) && text.bytes().next().is_some_and(first) && !text.ends_with('-');
                if good { Ok(Self(text.to_owned())) } else { Err(BadName { what: $what, text: shown(text) }) }
            }
        }

        written_as_text!($name);
        shown_as_it_is!($name);
    )*};
}

plain_names! {
    /// Host name of a guest: one label.
    VmName, 63, "a host name: 1 to 63 lower-case letters, digits and dashes, beginning with a letter",
        |b| b.is_ascii_lowercase(), |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    /// A user inside a guest.
    UserName, 32, "a user name: 1 to 32 lower-case letters, digits, dashes and underscores, beginning with a letter",
        |b| b.is_ascii_lowercase(), |b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
}

/// A public SSH key: its type and its bytes, without the options and the comment of its line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SshPublicKey(String);

impl SshPublicKey {
    /// Accepted key types. DSA keys and short RSA keys are refused.
    const KINDS: [&str; 6] = [
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "ssh-rsa",
        "sk-ssh-ed25519@openssh.com",
    ];
    /// Maximum length of a key line.
    const MAX: usize = 4096;

    /// The key as a line of an `authorized_keys` file.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for SshPublicKey {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        use base64::Engine as _;
        let bad = || BadName { what: "a public SSH key like `ssh-ed25519 AAAA…` without options", text: shown(text) };
        if text.len() > Self::MAX || text.contains(['\n', '\r', '\0']) {
            return Err(bad());
        }
        let mut words = text.split_ascii_whitespace();
        let (kind, body) = (words.next().ok_or_else(bad)?, words.next().ok_or_else(bad)?);
        let bytes = base64::engine::general_purpose::STANDARD.decode(body).map_err(|_| bad())?;
        // The decoded bytes repeat the key type, as a length and a string.
        let named = bytes.get(4..).and_then(|rest| rest.get(..kind.len())) == Some(kind.as_bytes())
            && bytes.get(..4) == Some(&u32::try_from(kind.len()).unwrap_or(0).to_be_bytes());
        let long_enough = kind != "ssh-rsa" || bytes.len() >= 250;
        if !Self::KINDS.contains(&kind) || !named || !long_enough {
            return Err(bad());
        }
        Ok(Self(format!("{kind} {body}")))
    }
}

written_as_text!(SshPublicKey);
shown_as_it_is!(SshPublicKey);

/// The text is not a valid value of its type.
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
    /// A blocker with this code and message.
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
