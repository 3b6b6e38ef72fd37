//! URLs of images, parsed only as far as redirects need it.

/// An `http` or `https` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    https: bool,
    /// Lowercase; an IPv6 address in brackets.
    host: String,
    port: u16,
    /// With its query. No segment of it is `.` or `..`.
    path: String,
}

impl Url {
    /// Parses a URL. One with `..` is refused: its meaning depends on the server, so it cannot be compared with a prefix.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let url = Self::split(text)?;
        let plain = url.path.split('?').next().unwrap_or_default();
        if plain.split('/').any(is_dots) {
            return Err("it has a part `.` or `..`");
        }
        Ok(url)
    }

    /// Returns the target of a redirect from `self`.
    pub(super) fn follow(&self, location: &str) -> Result<Self, &'static str> {
        let scheme = location.split(['/', '?', '#']).next().unwrap_or_default();
        let here = self.path.split('?').next().unwrap_or_default();
        let absolute = if scheme.contains(':') {
            location.to_owned()
        } else if location.starts_with("//") {
            format!("{}:{location}", self.scheme())
        } else if location.starts_with('/') {
            format!("{}{location}", self.origin())
        } else if location.starts_with('?') {
            format!("{}{here}{location}", self.origin())
        } else {
            let folder = here.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{}{folder}/{location}", self.origin())
        };
        let mut url = Self::split(&absolute)?;
        url.path = without_dots(&url.path);
        // Dots that are left are written in another way.
        Self::parse(&url.to_string())
    }

    fn split(text: &str) -> Result<Self, &'static str> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
            return Err("it has characters that an address cannot have");
        }
        let uri: http::Uri = text.parse().map_err(|_| "it is not an address")?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("it is neither http:// nor https://"),
        };
        let authority = uri.authority().ok_or("it names no server")?;
        if authority.as_str().contains('@') {
            return Err("it names a user");
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err("it names no server");
        }
        let given = authority.as_str().get(host.len()..).unwrap_or_default();
        let port = match given.strip_prefix(':') {
            Some(digits) => digits.parse().map_err(|_| "its port is not a number")?,
            None => default_port(https),
        };
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { https, host, port, path })
    }

    pub(super) fn is_https(&self) -> bool {
        self.https
    }

    /// Returns the name or address to connect to.
    pub(super) fn host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the target for the request line.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of the `Host` header.
    pub(super) fn authority(&self) -> String {
        if self.port == default_port(self.https) { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// Returns the URL for messages, without its query, which may be a secret.
    pub(super) fn shown(&self) -> String {
        format!("{}{}", self.origin(), self.path.split('?').next().unwrap_or_default())
    }

    /// Returns whether it is below one of these.
    pub(super) fn is_allowed(&self, prefixes: &[String]) -> bool {
        let text = self.to_string();
        prefixes.iter().any(|prefix| prefix == "*" || is_below(&text, prefix))
    }

    fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    fn origin(&self) -> String {
        format!("{}://{}", self.scheme(), self.authority())
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

fn default_port(https: bool) -> u16 {
    if https { 443 } else { 80 }
}

/// Returns whether a URL begins with this one, and not in the middle of a name: `https://a.example` must not allow
/// `https://a.example.evil`.
fn is_below(url: &str, prefix: &str) -> bool {
    // A scheme alone, or less, is not a server.
    let names_a_server = prefix.split_once("://").is_some_and(|(_, rest)| !rest.is_empty() && !rest.starts_with('/'));
    names_a_server
        && url.strip_prefix(prefix).is_some_and(|rest| prefix.ends_with('/') || rest.is_empty() || rest.starts_with(['/', '?']))
}

/// Returns whether a segment of a path is `.` or `..`, in any encoding.
fn is_dots(part: &str) -> bool {
    let plain = part.to_ascii_lowercase().replace("%2e", ".");
    // Some servers treat what follows `;` as a parameter.
    matches!(plain.split(';').next(), Some("." | ".."))
}

/// Removes dot segments (RFC 3986, 5.2.4).
fn without_dots(path: &str) -> String {
    let (plain, query) = path.find('?').map_or((path, ""), |at| path.split_at(at));
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = plain.split('/').skip(1).peekable();
    while let Some(part) = rest.next() {
        match part {
            "." | ".." => {
                if part == ".." {
                    parts.pop();
                }
                if rest.peek().is_none() {
                    parts.push("");
                }
            }
            part => parts.push(part),
        }
    }
    format!("/{}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn an_address_is_taken_apart() {
        let url = parse("HTTPS://Images.Example:8443/a/b.qcow2?x=/../y");
        assert_eq!((url.is_https(), url.host(), url.port(), url.path()), (true, "images.example", 8443, "/a/b.qcow2?x=/../y"));
        assert_eq!(
            (url.authority().as_str(), url.shown().as_str()),
            ("images.example:8443", "https://images.example:8443/a/b.qcow2")
        );
        let url = parse("http://[2001:DB8::1]");
        assert_eq!((url.host(), url.port(), url.path(), url.authority().as_str()), ("2001:db8::1", 80, "/", "[2001:db8::1]"));
        assert_eq!(parse("http://a:80/b"), parse("http://a/b"));
        assert_eq!(parse("https://a:443?b").to_string(), "https://a/?b");
    }

    #[test]
    fn what_is_no_plain_address_is_refused() {
        for text in [
            "",
            "/a",
            "a/b",
            "ftp://a/b",
            "file:///etc/passwd",
            "http://",
            "http:///a",
            "http://u@a/b",
            "http://u:p@a/b",
            "http://a:x/b",
            "http://a:/b",
            "http://a:70000/b",
            "http://a/b c",
            "http://a/b\r\nX: y",
            "http://a\\b/c",
            "http://a/b/../c",
            "http://a/b/%2E./c",
            "http://a/./c",
            "http://a/b/..;x/c",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_server_can_send_on_in_every_usual_way() {
        let url = parse("https://a.example/x/y/z?q");
        for (location, target) in [
            ("http://b.example/c", "http://b.example/c"),
            ("//b.example/c", "https://b.example/c"),
            ("/c?d", "https://a.example/c?d"),
            ("c", "https://a.example/x/y/c"),
            ("?d", "https://a.example/x/y/z?d"),
            ("../c", "https://a.example/x/c"),
            ("../../../../c", "https://a.example/c"),
            ("/x/./c/..", "https://a.example/x/"),
            ("https://a.example/x/../secret", "https://a.example/secret"),
        ] {
            assert_eq!(url.follow(location).expect(location).to_string(), target, "{location}");
        }
        for location in ["ftp://b/c", "javascript:x", "http://u@b/c", "/%2e%2e/c", "//", "http://", "/a b"] {
            assert!(url.follow(location).is_err(), "{location}");
        }
    }

    #[test]
    fn a_prefix_ends_where_a_name_ends() {
        let allowed = |url: &str, prefix: &str| parse(url).is_allowed(&[prefix.to_owned()]);
        assert!(allowed("https://a.example/b", "https://a.example"));
        assert!(allowed("https://a.example/b", "https://a.example/"));
        assert!(allowed("https://A.example:443/b", "https://a.example/b"));
        assert!(allowed("https://a.example/b/c", "https://a.example/b"));
        assert!(allowed("https://a.example/b?c", "https://a.example/b"));
        assert!(allowed("http://anywhere/b", "*"));
        for prefix in [
            "https://a",
            "https://a.example/bb",
            "http://a.example/",
            "https://a.example:8443/",
            "file",
            "",
            "https://",
            "https:///",
        ] {
            assert!(!allowed("https://a.example/b", prefix), "{prefix}");
        }
        assert!(!allowed("https://a.example.evil/b", "https://a.example"));
        assert!(!allowed("https://a.example:444/b", "https://a.example"));
        assert!(!allowed("https://a.example/bad", "https://a.example/b"));
        assert!(!parse("http://a/b").is_allowed(&[]));
    }

    proptest! {
        /// For any redirect there is no panic, and the result is a URL without dots that parses to itself.
        #[test]
        fn no_location_is_too_strange(location in "[a-z:/.%2eE?#@;\\[\\]]{0,24}|\\PC{0,16}") {
            if let Ok(url) = parse("http://a.example/b/c").follow(&location) {
                prop_assert_eq!(&Url::parse(&url.to_string()).expect("taken"), &url);
                prop_assert!(!url.path.split('?').next().unwrap_or_default().split('/').any(is_dots));
            }
        }
    }
}
