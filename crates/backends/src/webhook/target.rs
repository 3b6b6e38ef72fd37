//! Allowed destinations of webhooks. A tenant chooses the address and the control plane connects to it from inside the operator's
//! network: without these checks a webhook could reach what only the control plane can (server-side request forgery).

use std::net::IpAddr;

use gpuaas_contract::address::{RefusedAddress, refusal};
use url::{Host, Url};

/// Longest URL.
pub const MAX_URL_BYTES: usize = 2048;

/// Maximum number of addresses of one name.
const MAX_ADDRESSES: usize = 64;

/// Names for this machine or for services of a cloud, whatever they resolve to.
const FORBIDDEN_NAMES: [&str; 3] = ["localhost", "internal", "local"];

/// Why a destination is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The URL cannot be parsed.
    #[error("the webhook's URL is not valid; write it as https://host/path")]
    Unreadable,
    /// The URL is too long.
    #[error("the webhook's URL is longer than {MAX_URL_BYTES} bytes; use a shorter one")]
    TooLong,
    /// Not HTTPS.
    #[error("the webhook's URL must start with https://")]
    NotHttps,
    /// Credentials or a fragment, which have no meaning here.
    #[error("the webhook's URL must not have a user name, a password or a fragment; the signature identifies the sender")]
    Decorated,
    /// A name for this machine or its network.
    #[error("the webhook's host `{0}` is a name of an internal network; use a public name")]
    Name(String),
    /// The name has no address.
    #[error("the webhook's host has no address; check its DNS records")]
    NoAddress,
    /// The name has too many addresses.
    #[error("the webhook's host has more than {MAX_ADDRESSES} addresses; use fewer DNS records")]
    TooManyAddresses,
    /// One of its addresses is not allowed.
    #[error("the webhook's host has the address {address}, which is {why}; use a public address")]
    Address {
        /// The address.
        address: IpAddr,
        /// Why it is refused.
        why: RefusedAddress,
    },
}

impl TargetError {
    /// Returns a stable code for problem documents.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable | Self::TooLong | Self::Decorated => "webhook_url_invalid",
            Self::NotHttps => "webhook_url_not_https",
            Self::Name(_) | Self::Address { .. } => "webhook_target_forbidden",
            Self::NoAddress | Self::TooManyAddresses => "webhook_host_unresolvable",
        }
    }
}

/// A checked destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL to request.
    pub url: Url,
    /// The only addresses to connect to. Resolving the name again would give an attacker's DNS a second chance to answer.
    pub addresses: Vec<IpAddr>,
}

/// Checks the destination of a webhook. Call this for every attempt, not only when the webhook is created. Redirects must not be
/// followed.
///
/// `resolved` has the current addresses of the host's name; one bad address among them refuses the destination. `allow_private`
/// is for operators whose tenants are in their own network: it accepts `http`, loopback and private networks, but never
/// link-local addresses, metadata services and multicast.
pub fn check_target(url: &str, resolved: &[IpAddr], allow_private: bool) -> Result<Target, TargetError> {
    if url.len() > MAX_URL_BYTES {
        return Err(TargetError::TooLong);
    }
    let url = Url::parse(url).map_err(|_| TargetError::Unreadable)?;
    match url.scheme() {
        "https" => {}
        "http" if allow_private => {}
        _ => return Err(TargetError::NotHttps),
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(TargetError::Decorated);
    }
    let addresses = match url.host().ok_or(TargetError::Unreadable)? {
        // An address in the URL is used as it is, whatever the caller resolved.
        Host::Ipv4(address) => vec![IpAddr::V4(address)],
        Host::Ipv6(address) => vec![IpAddr::V6(address)],
        Host::Domain(name) => {
            if !allow_private && is_internal_name(name) {
                return Err(TargetError::Name(name.to_owned()));
            }
            resolved.to_vec()
        }
    };
    if addresses.is_empty() {
        return Err(TargetError::NoAddress);
    }
    if addresses.len() > MAX_ADDRESSES {
        return Err(TargetError::TooManyAddresses);
    }
    for &address in &addresses {
        match refusal(address) {
            None => {}
            Some(RefusedAddress::Loopback | RefusedAddress::Private | RefusedAddress::UniqueLocal) if allow_private => {}
            Some(why) => return Err(TargetError::Address { address, why }),
        }
    }
    Ok(Target { url, addresses })
}

fn is_internal_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    // The resolver looks a name without a dot up in the search domains of this machine.
    !name.contains('.') || FORBIDDEN_NAMES.iter().any(|forbidden| name.rsplit('.').next() == Some(forbidden))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn refused(text: &str, allow_private: bool) -> Option<RefusedAddress> {
        match check_target("https://hooks.example.com/x", &[PUBLIC, address(text)], allow_private) {
            Ok(_) => None,
            Err(TargetError::Address { address: found, why }) => {
                assert_eq!(found, address(text));
                Some(why)
            }
            Err(other) => panic!("{text}: {other}"),
        }
    }

    #[test]
    fn public_addresses_are_taken_and_pinned() {
        let resolved = [PUBLIC, address("2606:2800:220:1:248:1893:25c8:1946")];
        let target = check_target("https://hooks.example.com:8443/x?y=1", &resolved, false).expect("a public target");
        assert_eq!(target.addresses, resolved);
        assert_eq!(target.url.as_str(), "https://hooks.example.com:8443/x?y=1");
        for public in
            ["1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "2a00:1450:4001::1", "3fff:1000::1"]
        {
            assert_eq!(refused(public, false), None, "{public}");
        }
    }

    #[test]
    fn one_bad_address_among_good_ones_refuses_a_target() {
        use RefusedAddress::{Embedded, LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, UniqueLocal, Unspecified};
        for (text, why) in [
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("::1", Loopback),
            ("0.0.0.0", Unspecified),
            ("::", Unspecified),
            ("0.1.2.3", Reserved),
            ("10.0.0.1", Private),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.168.1.1", Private),
            ("100.64.0.1", Private),
            ("100.127.255.255", Private),
            ("169.254.0.1", LinkLocal),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("169.254.169.254", Metadata),
            ("100.100.100.200", Metadata),
            ("168.63.129.16", Metadata),
            ("192.0.0.192", Metadata),
            ("fd00:ec2::254", Metadata),
            ("fc00::1", UniqueLocal),
            ("fdff::1", UniqueLocal),
            ("fec0::1", UniqueLocal),
            ("224.0.0.1", Multicast),
            ("239.255.255.255", Multicast),
            ("ff02::1", Multicast),
            ("::ffff:93.184.216.34", Embedded),
            ("::ffff:127.0.0.1", Embedded),
            ("::ffff:0:127.0.0.1", Embedded),
            ("::127.0.0.1", Embedded),
            ("64:ff9b::7f00:1", Embedded),
            ("64:ff9b:1::7f00:1", Embedded),
            ("2002:7f00:1::", Embedded),
            ("2001::1", Embedded),
            ("192.0.2.1", Reserved),
            ("198.51.100.1", Reserved),
            ("203.0.113.1", Reserved),
            ("198.18.0.1", Reserved),
            ("192.88.99.1", Reserved),
            ("240.0.0.1", Reserved),
            ("255.255.255.255", Reserved),
            ("2001:db8::1", Reserved),
            ("2001:2::1", Reserved),
            ("100::1", Reserved),
            ("4000::1", Reserved),
        ] {
            assert_eq!(refused(text, false), Some(why), "{text}");
        }
    }

    #[test]
    fn operators_may_open_their_private_network_but_never_what_gives_credentials_away() {
        for text in ["127.0.0.1", "10.1.2.3", "192.168.1.1", "::1", "fd12::1"] {
            assert_eq!(refused(text, true), None, "{text}");
        }
        for text in [
            "169.254.169.254",
            "169.254.1.1",
            "fe80::1",
            "fd00:ec2::254",
            "168.63.129.16",
            "224.0.0.1",
            "0.0.0.0",
            "::ffff:10.0.0.1",
        ] {
            assert!(refused(text, true).is_some(), "{text}");
        }
        assert!(check_target("http://hooks.example.com/", &[PUBLIC], true).is_ok());
        assert!(check_target("http://localhost:9000/", &[address("127.0.0.1")], true).is_ok());
    }

    #[test]
    fn an_address_in_the_url_is_checked_however_it_is_written() {
        for url in [
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f.0.0.1/",
            "https://0177.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://①②⑦.0.0.1/",
        ] {
            let outcome = check_target(url, &[PUBLIC], false);
            assert!(matches!(outcome, Err(TargetError::Address { .. })), "{url}: {outcome:?}");
        }
        let target = check_target("https://93.184.216.34/", &[], false).expect("an address needs no DNS");
        assert_eq!(target.addresses, [PUBLIC]);
    }

    #[test]
    fn names_of_internal_networks_are_refused_whatever_they_resolve_to() {
        for host in
            ["localhost", "LOCALHOST", "localhost.", "a.localhost", "metadata.google.internal", "printer.local", "intranet"]
        {
            let outcome = check_target(&format!("https://{host}/"), &[PUBLIC], false);
            assert!(matches!(outcome, Err(TargetError::Name(_))), "{host}: {outcome:?}");
        }
        assert!(check_target("https://internal.example.com/", &[PUBLIC], false).is_ok());
    }

    #[test]
    fn urls_that_are_not_plain_https_are_refused() {
        let error = |url: &str| check_target(url, &[PUBLIC], false).expect_err(url);
        assert_eq!(error("http://hooks.example.com/"), TargetError::NotHttps);
        assert_eq!(error("file:///etc/passwd"), TargetError::NotHttps);
        assert_eq!(error("gopher://hooks.example.com/"), TargetError::NotHttps);
        assert_eq!(error("hooks.example.com"), TargetError::Unreadable);
        assert_eq!(error("https://"), TargetError::Unreadable);
        assert_eq!(error("https://user@hooks.example.com/"), TargetError::Decorated);
        assert_eq!(error("https://hooks.example.com@127.0.0.1/"), TargetError::Decorated);
        assert_eq!(error("https://hooks.example.com/#x"), TargetError::Decorated);
        assert_eq!(error(&format!("https://hooks.example.com/{}", "x".repeat(MAX_URL_BYTES))), TargetError::TooLong);
        assert_eq!(check_target("https://hooks.example.com/", &[], false), Err(TargetError::NoAddress));
        assert_eq!(check_target("https://hooks.example.com/", &[PUBLIC; 65], false), Err(TargetError::TooManyAddresses));
    }
}
