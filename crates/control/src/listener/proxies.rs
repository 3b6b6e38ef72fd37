//! The operator's proxies, and the clients behind them.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderMap;

/// The header in which proxies write the client's address.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// Maximum number of hops that are considered.
const MAX_HOPS: usize = 32;

/// A trusted proxy or network: `192.0.2.7`, `192.0.2.0/24` or `2001:db8::/48`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedProxy {
    network: IpAddr,
    bits: u32,
}

/// The text is not an address or a network.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address or a network, as in 192.0.2.7, 192.0.2.0/24 or 2001:db8::/48")]
pub struct BadProxy(String);

impl FromStr for TrustedProxy {
    type Err = BadProxy;

    fn from_str(text: &str) -> Result<Self, BadProxy> {
        let bad = || BadProxy(text.to_owned());
        let (network, bits) = match text.split_once('/') {
            Some((network, bits)) => (network, Some(bits)),
            None => (text, None),
        };
        let network: IpAddr = network.parse().map_err(|_| bad())?;
        let most = width(network);
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(bad)?,
            None => most,
        };
        let proxy = Self { network, bits };
        // `192.0.2.7/24` could mean an address or a network, so it is refused.
        if prefix(network, bits) != number(network) { Err(bad()) } else { Ok(proxy) }
    }
}

fn width(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the first bits of an address, with zeros for the others.
fn prefix(address: IpAddr, bits: u32) -> u128 {
    let below = width(address) - bits;
    number(address).checked_shr(below).and_then(|kept| kept.checked_shl(below)).unwrap_or(0)
}

impl TrustedProxy {
    fn contains(&self, address: IpAddr) -> bool {
        width(address) == width(self.network) && prefix(address, self.bits) == number(self.network)
    }
}

/// All trusted proxies.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Arc<[TrustedProxy]>);

impl TrustedProxies {
    /// Creates the list.
    pub fn new(proxies: &[TrustedProxy]) -> Self {
        Self(proxies.into())
    }

    /// Returns whether the address is that of a proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|proxy| proxy.contains(address))
    }

    /// Returns the client of a connection: the last address in the chain that is not a proxy. Earlier addresses are claims of the
    /// client and not trusted.
    pub fn client(&self, peer: SocketAddr, headers: &HeaderMap) -> SocketAddr {
        if !self.contains(peer.ip()) {
            return peer;
        }
        let mut client = peer;
        let values = headers.get_all(FORWARDED_FOR).iter().collect::<Vec<_>>();
        let hops = values.into_iter().rev().filter_map(|value| value.to_str().ok()).flat_map(|value| value.rsplit(','));
        for hop in hops.take(MAX_HOPS) {
            // After an entry that cannot be parsed, the nearest valid address counts.
            let Some(address) = hop_address(hop.trim()) else { break };
            client = SocketAddr::new(address, 0);
            if !self.contains(address) {
                break;
            }
        }
        client
    }
}

/// Parses `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::7`, `[2001:db8::7]` or `[2001:db8::7]:4711`.
fn hop_address(hop: &str) -> Option<IpAddr> {
    let bare = hop.parse::<IpAddr>().ok();
    let with_port = || hop.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || hop.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    bare.or_else(with_port).or_else(in_brackets).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(texts: &[&str]) -> TrustedProxies {
        let parsed: Vec<TrustedProxy> = texts.iter().map(|text| text.parse().expect("a network")).collect();
        TrustedProxies::new(&parsed)
    }

    fn client(proxies: &TrustedProxies, peer: &str, forwarded: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().expect("a header"));
        }
        proxies.client(format!("{peer}:1000").parse().expect("an address"), &headers).ip().to_string()
    }

    #[test]
    fn the_last_address_that_is_not_a_proxy_is_the_client() {
        let known = proxies(&["192.0.2.0/24", "2001:db8::/48"]);
        for (peer, forwarded, expected) in [
            ("198.51.100.1", &["203.0.113.5"][..], "198.51.100.1"),
            ("192.0.2.9", &["203.0.113.5"], "203.0.113.5"),
            ("192.0.2.9", &["203.0.113.5, 192.0.2.8"], "203.0.113.5"),
            ("192.0.2.9", &["10.0.0.1, 203.0.113.5"], "203.0.113.5"),
            ("192.0.2.9", &["10.0.0.1", "203.0.113.5:99 , 192.0.2.8"], "203.0.113.5"),
            ("192.0.2.9", &["nonsense, 192.0.2.8"], "192.0.2.8"),
            ("192.0.2.9", &["nonsense"], "192.0.2.9"),
            ("192.0.2.9", &[], "192.0.2.9"),
            ("[2001:db8::1]", &["[2001:db9::5]:7"], "2001:db9::5"),
            ("[::ffff:192.0.2.9]", &["::ffff:203.0.113.5"], "203.0.113.5"),
        ] {
            assert_eq!(client(&known, peer, forwarded), expected, "{peer} {forwarded:?}");
        }
        assert_eq!(client(&TrustedProxies::default(), "127.0.0.1", &["203.0.113.5"]), "127.0.0.1");
    }

    #[test]
    fn a_network_is_read_strictly() {
        for bad in ["", "x", "192.0.2.7/24", "192.0.2.0/33", "192.0.2.0/-1", "2001:db8::1/48", "::/129", "192.0.2.0/24/8"] {
            assert!(bad.parse::<TrustedProxy>().is_err(), "{bad}");
        }
        assert!(proxies(&["0.0.0.0/0"]).contains("203.0.113.5".parse().expect("an address")));
        assert!(!proxies(&["0.0.0.0/0"]).contains("2001:db8::1".parse().expect("an address")));
        assert!(proxies(&["::/0"]).contains("2001:db8::1".parse().expect("an address")));
        assert!(proxies(&["192.0.2.7"]).contains("192.0.2.7".parse().expect("an address")));
    }
}
