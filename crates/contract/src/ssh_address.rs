//! The address that tenants connect to with SSH.

use std::fmt;
use std::str::FromStr;

const DEFAULT_PORT: u16 = 22;
/// Maximum length of a DNS name.
const MAX_HOST: usize = 253;

/// A host and a port, as `host`, `host:port` or `[address]:port`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SshAddress {
    host: String,
    port: u16,
}

/// The text is not an SSH address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a name or an address to sign in to, such as gpu7.example.com or 192.0.2.7:2222")]
pub struct BadSshAddress;

impl SshAddress {
    /// Host name or IP address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for SshAddress {
    type Err = BadSshAddress;

    fn from_str(text: &str) -> Result<Self, BadSshAddress> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or(BadSshAddress)?;
                address.parse::<std::net::Ipv6Addr>().map_err(|_| BadSshAddress)?;
                (address, rest.strip_prefix(':').or(rest.is_empty().then_some("22")).ok_or(BadSshAddress)?)
            }
            None => text.split_once(':').unwrap_or((text, "22")),
        };
        let is_name = |character: char| character.is_ascii_alphanumeric() || ".-".contains(character);
        let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
        let starts_well = host.starts_with(|character: char| character.is_ascii_alphanumeric());
        if !is_address && (host.len() > MAX_HOST || !starts_well || !host.chars().all(is_name)) {
            return Err(BadSshAddress);
        }
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(BadSshAddress)?;
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for SshAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.host.contains(':'), self.port) {
            (false, DEFAULT_PORT) => f.write_str(&self.host),
            (false, port) => write!(f, "{}:{port}", self.host),
            (true, port) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

impl TryFrom<String> for SshAddress {
    type Error = BadSshAddress;

    fn try_from(text: String) -> Result<Self, BadSshAddress> {
        text.parse()
    }
}

impl From<SshAddress> for String {
    fn from(address: SshAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, host, port) in [
            ("gpu7.example.com", "gpu7.example.com", 22),
            ("192.0.2.7:2222", "192.0.2.7", 2222),
            ("[2001:db8::7]:22", "2001:db8::7", 22),
        ] {
            let address: SshAddress = text.parse().expect(text);
            assert_eq!((address.host(), address.port()), (host, port));
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        assert_eq!("[2001:db8::7]".parse::<SshAddress>().map(|address| address.port()), Ok(22));
    }

    #[test]
    fn what_could_be_an_option_or_a_command_is_refused() {
        for text in ["", "-oProxyCommand=x", "a b", "a:0", "a:99999", "a:b", "a;b", "[a]:22", "[::1", "a/b", "user@a", "a:22:22"]
        {
            assert_eq!(text.parse::<SshAddress>(), Err(BadSshAddress), "{text}");
        }
    }
}
