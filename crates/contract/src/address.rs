//! Protection against server-side request forgery: the addresses that must not be dialed on behalf of someone else, and the networks that
//! an owner exempts. Pure functions: the caller resolves the name, checks every address here, and connects only to an address that passed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Cloud metadata services, which hand out a machine's credentials. Not all of them are private or link-local.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)),
];

/// Why an address must not be dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAddress {
    /// The machine itself.
    #[error("loopback")]
    Loopback,
    /// The directly attached network segment.
    #[error("link-local")]
    LinkLocal,
    /// A private IPv4 network, including carrier-grade NAT (100.64.0.0/10).
    #[error("private")]
    Private,
    /// A private IPv6 network.
    #[error("unique-local")]
    UniqueLocal,
    /// A multicast group.
    #[error("multicast")]
    Multicast,
    /// The unspecified address, `0.0.0.0` or `::`.
    #[error("unspecified")]
    Unspecified,
    /// An IPv4 address embedded in an IPv6 address, which routers and filters may interpret differently than this code does.
    #[error("an IPv4 address inside of an IPv6 address")]
    Embedded,
    /// A cloud metadata service, which hands out credentials.
    #[error("a cloud's metadata service")]
    Metadata,
    /// Reserved, for documentation, for benchmarking, or unassigned.
    #[error("reserved")]
    Reserved,
}

/// A network, such as `10.0.0.0/8` or `fd00::/8`. A single address parses as a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address or a network like 10.0.0.0/8 or fd00::/8, without bits behind its prefix")]
pub struct BadNetwork;

impl Network {
    /// Whether `address` is in this network. An IPv4-mapped IPv6 address never matches an IPv4 network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => masked_v4(address, self.prefix) == network,
            (IpAddr::V6(network), IpAddr::V6(address)) => masked_v6(address, self.prefix) == network,
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

fn masked_v4(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

fn masked_v6(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

impl std::str::FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| BadNetwork)?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) => digits.parse::<u8>().ok().filter(|prefix| *prefix <= longest).ok_or(BadNetwork)?,
            None => longest,
        };
        let network = Self { address, prefix };
        network.contains(address).then_some(network).ok_or(BadNetwork)
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl TryFrom<String> for Network {
    type Error = BadNetwork;

    fn try_from(text: String) -> Result<Self, BadNetwork> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

/// Like [`refusal`], but permits addresses in the networks that the owner listed. Metadata services, multicast and the unspecified address
/// are refused no matter what is listed.
pub fn refusal_outside(address: IpAddr, listed: &[Network]) -> Option<RefusedAddress> {
    match refusal(address)? {
        why @ (RefusedAddress::Metadata | RefusedAddress::Multicast | RefusedAddress::Unspecified) => Some(why),
        why @ (RefusedAddress::Loopback
        | RefusedAddress::LinkLocal
        | RefusedAddress::Private
        | RefusedAddress::UniqueLocal
        | RefusedAddress::Embedded
        | RefusedAddress::Reserved) => (!listed.iter().any(|network| network.contains(address))).then_some(why),
    }
}

/// Why this address must not be dialed on behalf of someone else; `None` for an address on the public internet.
pub fn refusal(address: IpAddr) -> Option<RefusedAddress> {
    if METADATA.contains(&address) {
        return Some(RefusedAddress::Metadata);
    }
    match address {
        IpAddr::V4(address) => refusal_v4(address),
        IpAddr::V6(address) => refusal_v6(address),
    }
}

fn refusal_v4(address: Ipv4Addr) -> Option<RefusedAddress> {
    let [a, b, c, _] = address.octets();
    if address.is_unspecified() {
        Some(RefusedAddress::Unspecified)
    } else if address.is_loopback() {
        Some(RefusedAddress::Loopback)
    } else if address.is_link_local() {
        Some(RefusedAddress::LinkLocal)
    } else if address.is_private() || (a == 100 && (64..128).contains(&b)) {
        Some(RefusedAddress::Private)
    } else if address.is_multicast() {
        Some(RefusedAddress::Multicast)
    } else if a == 0
        || a >= 240
        || address.is_documentation()
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || (a == 198 && (b == 18 || b == 19))
    {
        Some(RefusedAddress::Reserved)
    } else {
        None
    }
}

fn refusal_v6(address: Ipv6Addr) -> Option<RefusedAddress> {
    let segments = address.segments();
    if address.is_unspecified() {
        Some(RefusedAddress::Unspecified)
    } else if address.is_loopback() {
        Some(RefusedAddress::Loopback)
    } else if address.is_multicast() {
        Some(RefusedAddress::Multicast)
    } else if (segments[0] & 0xffc0) == 0xfe80 {
        Some(RefusedAddress::LinkLocal)
    } else if (segments[0] & 0xfe00) == 0xfc00 || (segments[0] & 0xffc0) == 0xfec0 {
        Some(RefusedAddress::UniqueLocal)
    } else if is_embedded_v4(segments) {
        Some(RefusedAddress::Embedded)
    } else if (segments[0] & 0xe000) != 0x2000
        // Documentation, and the special-purpose block (benchmarking, ORCHID).
        || (segments[0] == 0x2001 && (segments[1] == 0x0db8 || segments[1] < 0x0200))
        || (segments[0] == 0x3fff && segments[1] < 0x1000)
    {
        // Only 2000::/3 is assigned. Anything IANA assigns in the future is refused until this code is reviewed.
        Some(RefusedAddress::Reserved)
    } else {
        None
    }
}

/// IPv4-mapped and IPv4-compatible addresses, NAT64, 6to4 and Teredo.
fn is_embedded_v4(segments: [u16; 8]) -> bool {
    let first_five_are_zero = segments[..5].iter().all(|segment| *segment == 0);
    (first_five_are_zero && (segments[5] == 0xffff || segments[5] == 0))
        || (segments[..4].iter().all(|segment| *segment == 0) && segments[4] == 0xffff)
        || (segments[0] == 0x0064 && segments[1] == 0xff9b)
        || segments[0] == 0x2002
        || (segments[0] == 0x2001 && segments[1] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| text.parse().expect("a network")).collect()
    }

    #[test]
    fn a_network_contains_its_own_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.168.4.0/22", "192.168.7.255", "192.168.8.0"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("0.0.0.0/0", "8.8.8.8", "::"),
            ("fd00::/8", "fdff::1", "fc00::1"),
            ("::/0", "2606::1", "1.1.1.1"),
            ("10.0.0.0/8", "10.0.0.1", "::ffff:10.0.0.1"),
        ] {
            let network: Network = network.parse().expect("a network");
            assert!(network.contains(address(inside)), "{network} {inside}");
            assert!(!network.contains(address(outside)), "{network} {outside}");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
        for bad in ["", "10", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/-1", "fd00::1/8", "::/129", "localhost", "10.0.0.0/8/8"] {
            assert_eq!(bad.parse::<Network>(), Err(BadNetwork), "{bad}");
        }
    }

    #[test]
    fn listed_networks_open_private_addresses_but_never_what_gives_credentials_away() {
        let all = networks(&["0.0.0.0/0", "::/0"]);
        for text in ["127.0.0.1", "10.1.2.3", "169.254.7.7", "100.64.0.1", "::1", "fd12::1", "fe80::1"] {
            assert!(refusal_outside(address(text), &[]).is_some(), "{text}");
            assert_eq!(refusal_outside(address(text), &all), None, "{text}");
        }
        for text in ["169.254.169.254", "fd00:ec2::254", "224.0.0.1", "ff02::1", "0.0.0.0", "::"] {
            assert!(refusal_outside(address(text), &all).is_some(), "{text}");
        }
        let some = networks(&["10.0.0.0/8"]);
        assert_eq!(refusal_outside(address("10.1.1.1"), &some), None);
        for text in ["127.0.0.1", "192.168.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1"] {
            assert!(refusal_outside(address(text), &some).is_some(), "{text}");
        }
        assert_eq!(refusal_outside(address("1.1.1.1"), &[]), None);
    }
}
