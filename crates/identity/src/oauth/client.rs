//! The clients that may sign users in, and their redirect addresses.

use std::str::FromStr;

use reqwest::Url;

use super::error::{OauthError, OauthFailure};

/// Maximum number of redirect addresses of the console.
const MAX_REDIRECTS: usize = 16;
/// Maximum size of an address, in bytes.
pub(super) const MAX_REDIRECT_BYTES: usize = 1024;

/// The closed list of clients. Both are public: neither can keep a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum ClientId {
    /// The command line. Listens on a loopback address with a temporary port.
    #[serde(rename = "gpuaas-cli")]
    Cli,
    /// The web console.
    #[serde(rename = "gpuaas-console")]
    Console,
}

impl ClientId {
    /// Returns its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "gpuaas-cli",
            Self::Console => "gpuaas-console",
        }
    }

    /// Returns its name for users.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Cli => "the gpuaas command line",
            Self::Console => "the gpuaas console",
        }
    }
}

impl FromStr for ClientId {
    type Err = OauthFailure;

    fn from_str(text: &str) -> Result<Self, OauthFailure> {
        match text {
            "gpuaas-cli" => Ok(Self::Cli),
            "gpuaas-console" => Ok(Self::Console),
            _ => Err(OauthFailure::new(OauthError::InvalidClient, "`client_id` must be `gpuaas-cli` or `gpuaas-console`")),
        }
    }
}

/// A configured redirect address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRedirect {
    /// The address is not allowed as a redirect.
    #[error(
        "the redirect address `{0}` cannot be used: write an https:// address (http:// for loopback) without `#` and user name"
    )]
    Address(String),
    /// There are too many addresses.
    #[error("more than {MAX_REDIRECTS} redirect addresses are configured; remove some")]
    TooMany,
}

/// The clients and their addresses.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    console_redirects: Vec<String>,
}

impl Clients {
    /// Creates the list of clients, with the exact addresses of the console.
    pub fn new(console_redirects: Vec<String>) -> Result<Self, BadRedirect> {
        if console_redirects.len() > MAX_REDIRECTS {
            return Err(BadRedirect::TooMany);
        }
        match console_redirects.iter().find(|address| !is_sound(address)) {
            Some(bad) => Err(BadRedirect::Address(bad.clone())),
            None => Ok(Self { console_redirects }),
        }
    }

    /// Returns whether this client may redirect to this address. The comparison is exact: no patterns, no prefixes.
    pub fn allows_redirect(&self, client: ClientId, address: &str) -> bool {
        match client {
            ClientId::Cli => is_loopback_callback(address),
            ClientId::Console => self.console_redirects.iter().any(|allowed| allowed == address),
        }
    }
}

/// Checks for `http://127.0.0.1:{port}/callback` or `http://[::1]:{port}/callback`, and nothing similar (RFC 8252, section 7.3).
/// `localhost` is not allowed: it may resolve to another machine.
fn is_loopback_callback(address: &str) -> bool {
    let rest = address.strip_prefix("http://127.0.0.1:").or_else(|| address.strip_prefix("http://[::1]:"));
    let Some(port) = rest.and_then(|rest| rest.strip_suffix("/callback")) else { return false };
    let canonical = !port.starts_with('0') && port.bytes().all(|b| b.is_ascii_digit());
    canonical && port.parse::<u16>().is_ok()
}

fn is_sound(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let scheme = url.scheme() == "https" || url.scheme() == "http" && loopback;
    let plain = url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
    scheme && plain && address.len() <= MAX_REDIRECT_BYTES && address.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_listens_on_loopback_addresses_only() {
        let clients = Clients::default();
        for good in ["http://127.0.0.1:1/callback", "http://127.0.0.1:65535/callback", "http://[::1]:49152/callback"] {
            assert!(clients.allows_redirect(ClientId::Cli, good), "{good}");
        }
        for bad in [
            "http://127.0.0.1/callback",
            "http://127.0.0.1:/callback",
            "http://127.0.0.1:0/callback",
            "http://127.0.0.1:080/callback",
            "http://127.0.0.1:65536/callback",
            "http://127.0.0.1:+80/callback",
            "http://127.0.0.1:80/callback/",
            "http://127.0.0.1:80/callback?x=1",
            "http://127.0.0.1:80/callback#x",
            "http://127.0.0.1:80/x/callback",
            "http://127.0.0.1:80@evil.example/callback",
            "http://127.0.0.1.evil.example:80/callback",
            "http://127.0.0.2:80/callback",
            "https://127.0.0.1:80/callback",
            "HTTP://127.0.0.1:80/callback",
            "http://localhost:80/callback",
            "http://[::1]/callback",
            "http://[::2]:80/callback",
            "",
        ] {
            assert!(!clients.allows_redirect(ClientId::Cli, bad), "{bad}");
        }
    }

    #[test]
    fn the_console_has_exactly_the_configured_addresses() {
        let clients = Clients::new(vec!["https://console.example/signed-in".to_owned()]).expect("clients");
        assert!(clients.allows_redirect(ClientId::Console, "https://console.example/signed-in"));
        for bad in [
            "https://console.example/signed-in/",
            "https://console.example/signed-in?x",
            "https://console.example/",
            "https://CONSOLE.example/signed-in",
            "http://127.0.0.1:80/callback",
        ] {
            assert!(!clients.allows_redirect(ClientId::Console, bad), "{bad}");
        }
        assert!(!clients.allows_redirect(ClientId::Cli, "https://console.example/signed-in"));
    }

    #[test]
    fn addresses_that_leak_answers_cannot_be_configured() {
        for bad in ["http://console.example/x", "https://a@b/x", "https://a/x#y", "javascript:alert(1)", "/x", "https://a/ x"] {
            assert_eq!(Clients::new(vec![bad.to_owned()]).err(), Some(BadRedirect::Address(bad.to_owned())), "{bad}");
        }
        assert!(Clients::new(vec!["http://localhost:5173/signed-in".to_owned()]).is_ok());
    }
}
