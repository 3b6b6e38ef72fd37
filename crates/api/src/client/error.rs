//! Errors of the client, with messages for people.

use std::io::ErrorKind as ErrorKindOfIo;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gpuaas_contract::time::Timestamp;
use reqwest::header::{DATE, HeaderMap};
use rustls::CertificateError;

use crate::dto::Problem;
use crate::routes;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not a valid URL of a server.
    #[error("`{url}` is not the address of a server: {detail}")]
    BadUrl {
        /// The value as given.
        url: String,
        /// What is wrong.
        detail: String,
    },
    /// The token contains characters that a header cannot have.
    #[error("the API token contains characters that no token has; copy it again")]
    BadToken,
    /// The CA file cannot be used.
    #[error("cannot use the CA file {}: {detail}", path.display())]
    CaFile {
        /// Path of the CA file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// TLS could not be set up.
    #[error("cannot set TLS up; if this system has no certificate store, give a CA file")]
    Tls {
        /// The underlying TLS error.
        #[source]
        source: rustls::Error,
    },
    /// The HTTP client could not be set up.
    #[error("cannot set the HTTP client up")]
    Setup {
        /// The underlying error.
        #[source]
        source: reqwest::Error,
    },
    /// A name or id cannot be a segment of a path.
    #[error("`{value}` cannot be a name or an id")]
    BadName {
        /// The value as given.
        value: String,
        /// The route whose path should contain it.
        route: String,
    },
    /// A document could not be serialized as JSON.
    #[error("cannot write the request as JSON")]
    Unserializable {
        /// The underlying error of serde.
        #[source]
        source: serde_json::Error,
    },
    /// No connection could be established.
    #[error("cannot reach {url}: is `gpuaas server` or `gpuaas dev` running there?")]
    Unreachable {
        /// The server's address.
        url: String,
        /// The underlying transport error.
        #[source]
        source: reqwest::Error,
    },
    /// The certificate of the server is not trusted.
    #[error("{}", untrusted(url, why))]
    Untrusted {
        /// The server's address.
        url: String,
        /// What is wrong with the certificate.
        why: Distrust,
        /// The underlying TLS error.
        #[source]
        source: reqwest::Error,
    },
    /// The request used plain HTTP and the server speaks TLS, or the other way around.
    #[error("{url} answers, but it speaks {}", if *speaks_tls { "https, not plain http" } else { "plain http, not https" })]
    WrongScheme {
        /// The server's address.
        url: String,
        /// Whether the server speaks TLS.
        speaks_tls: bool,
        /// The underlying transport error.
        #[source]
        source: reqwest::Error,
    },
    /// The local socket of a server cannot be used.
    #[error("{}", unusable_socket(path, *problem))]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// What is wrong.
        problem: SocketProblem,
        /// The underlying I/O error.
        #[source]
        source: reqwest::Error,
    },
    /// The server refuses the token, and its clock differs from ours, which may be the reason.
    #[error("{}; the clock of this machine is {} seconds {} that of the server", detail_of(problem).trim_end_matches('.'), skew.as_secs(), if *ahead { "ahead of" } else { "behind" })]
    ClockSkew {
        /// The difference between the clocks.
        skew: Duration,
        /// Whether our clock is ahead of the server's.
        ahead: bool,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// No answer in time.
    #[error("{url} did not answer within {} seconds", after.as_secs())]
    Timeout {
        /// The server's address.
        url: String,
        /// How long the client waited.
        after: Duration,
    },
    /// The connection broke before the response was complete.
    #[error("the connection to {url} broke before the answer was complete; try again")]
    Broken {
        /// The server's address.
        url: String,
        /// The underlying transport error.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused the request, with an explanation.
    #[error("{}", detail_of(problem))]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// The caller sends too many requests. The same request may be sent again later.
    #[error("{}; try again in {} seconds", detail_of(problem).trim_end_matches('.'), retry_after.as_secs())]
    RateLimited {
        /// How long to wait before the next attempt.
        retry_after: Duration,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// The response is an error without a problem document, so the other side may not be a gpuaas server.
    #[error("{url} answered with status {status} and no explanation; is that a gpuaas server of this version?")]
    Unexpected {
        /// The URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
        /// The beginning of the response.
        excerpt: String,
    },
    /// The response is larger than the client accepts.
    #[error("the answer of {url} is larger than {limit} bytes; ask for less at a time")]
    TooLarge {
        /// The URL of the request.
        url: String,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The response is not the expected document.
    #[error("{url} answered with something else than expected; do client and server have the same version?")]
    Malformed {
        /// The URL of the request.
        url: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

/// Why a server's certificate is not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// It is not signed by an authority that this machine trusts.
    Authority,
    /// It is for other names. The list is empty if they are not known.
    Name(Vec<String>),
    /// It is not valid yet or has expired, according to the clock of this machine.
    Time,
}

/// Why a socket cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketProblem {
    /// It does not exist.
    Missing,
    /// This user has no permission to use it.
    Forbidden,
    /// No server listens on it.
    Dead,
}

fn untrusted(url: &str, why: &Distrust) -> String {
    match why {
        Distrust::Authority => format!("{url} has a certificate of an authority that is not trusted here"),
        Distrust::Name(names) if names.is_empty() => format!("the certificate of {url} is for another name"),
        Distrust::Name(names) => format!("the certificate of {url} is for another name: {}", names.join(", ")),
        Distrust::Time => format!("the certificate of {url} is not valid at this time, by the clock of this machine"),
    }
}

fn unusable_socket(path: &Path, problem: SocketProblem) -> String {
    let path = path.display();
    match problem {
        SocketProblem::Missing => format!("there is no socket {path}"),
        SocketProblem::Forbidden => format!("this user may not use the socket {path}"),
        SocketProblem::Dead => format!("no server listens on the socket {path}"),
    }
}

/// Kinds of errors that a caller may want to treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller's input is invalid.
    Usage,
    /// The resource does not exist.
    NotFound,
    /// The current state does not allow the request.
    Conflict,
    /// The caller is not authenticated, or not authorized.
    Unauthorized,
    /// There is no server at the address, or it is not trusted.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// The server, or something in between, is broken.
    Internal,
}

impl ClientError {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::BadUrl { .. } | Self::BadToken | Self::CaFile { .. } | Self::BadName { .. } => ErrorKind::Usage,
            Self::Socket { problem: SocketProblem::Forbidden, .. } | Self::ClockSkew { .. } => ErrorKind::Unauthorized,
            Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::WrongScheme { .. }
            | Self::Socket { .. }
            | Self::Broken { .. } => ErrorKind::Unreachable,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Refused { status, .. } | Self::Unexpected { status, .. } => kind_of_status(*status),
            Self::RateLimited { .. } => ErrorKind::Conflict,
            Self::Tls { .. }
            | Self::Setup { .. }
            | Self::Unserializable { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. } => ErrorKind::Internal,
        }
    }

    /// The server's explanation, if it sent one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem, .. } | Self::RateLimited { problem, .. } | Self::ClockSkew { problem, .. } => Some(problem),
            Self::BadUrl { .. }
            | Self::BadToken
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Setup { .. }
            | Self::BadName { .. }
            | Self::Unserializable { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::WrongScheme { .. }
            | Self::Socket { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::Unexpected { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. } => None,
        }
    }

    /// A stable code for programs: the server's code, if it sent one.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { problem, .. } | Self::RateLimited { problem, .. } => &problem.code,
            Self::ClockSkew { .. } => "clock_skew",
            Self::WrongScheme { .. } => "wrong_scheme",
            Self::Socket { problem: SocketProblem::Missing, .. } => "socket_missing",
            Self::Socket { problem: SocketProblem::Forbidden, .. } => "socket_forbidden",
            Self::Socket { problem: SocketProblem::Dead, .. } => "server_unreachable",
            Self::BadUrl { .. } => "bad_url",
            Self::BadToken => "bad_token",
            Self::CaFile { .. } => "bad_ca_file",
            Self::Tls { .. } => "tls_setup",
            Self::Setup { .. } => "http_setup",
            Self::BadName { .. } => "bad_name",
            Self::Unserializable { .. } => "bad_document",
            Self::Unreachable { .. } => "server_unreachable",
            Self::Untrusted { why: Distrust::Authority, .. } => "server_untrusted",
            Self::Untrusted { why: Distrust::Name(_), .. } => "server_name_mismatch",
            Self::Untrusted { why: Distrust::Time, .. } => "certificate_time",
            Self::Timeout { .. } => "timeout",
            Self::Broken { .. } => "connection_broken",
            Self::Unexpected { .. } => "unexpected_answer",
            Self::TooLarge { .. } => "answer_too_large",
            Self::Malformed { .. } => "answer_malformed",
        }
    }

    /// What the user can do about a refusal, in addition to what the server's message says.
    pub fn advice(&self) -> Option<&'static str> {
        let status = match self {
            Self::Refused { status, .. } => *status,
            Self::RateLimited { .. } => 429,
            Self::ClockSkew { .. } => 401,
            // The messages of these errors already say what to do.
            Self::BadUrl { .. }
            | Self::BadToken
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Setup { .. }
            | Self::BadName { .. }
            | Self::Unserializable { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::WrongScheme { .. }
            | Self::Socket { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::Unexpected { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. } => return None,
        };
        match status {
            401 => Some("sign in, or give a token that still counts"),
            403 => Some("ask somebody who may to do it, or to give you the role it takes"),
            404 => Some("check the name and the project; what you may not see looks like what is not there"),
            412 => Some("somebody has changed it since you looked; look again, then change it"),
            429 => Some("wait as long as the server says, then ask again"),
            503 => Some("the server is starting, stopping or too busy; ask again in a moment"),
            _ => None,
        }
    }

    /// How long the server asks to wait before the request is sent again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } => Some(*retry_after),
            Self::BadUrl { .. }
            | Self::BadToken
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Setup { .. }
            | Self::BadName { .. }
            | Self::Unserializable { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::WrongScheme { .. }
            | Self::Socket { .. }
            | Self::ClockSkew { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::Refused { .. }
            | Self::Unexpected { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. } => None,
        }
    }

    pub(super) fn rate_limited(retry_after: Duration, problem: Option<Problem>) -> Self {
        // A proxy between client and server may limit as well, without a problem document.
        let ours = || Problem::new(429, "Too Many Requests", "rate_limited", "too many requests in a short time");
        Self::RateLimited { retry_after, problem: Box::new(problem.unwrap_or_else(ours)) }
    }

    /// Whether the same request may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Socket { problem: SocketProblem::Missing | SocketProblem::Dead, .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::RateLimited { .. } => true,
            Self::Refused { status, .. } | Self::Unexpected { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            Self::BadUrl { .. }
            | Self::BadToken
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Setup { .. }
            | Self::BadName { .. }
            | Self::Unserializable { .. }
            | Self::Untrusted { .. }
            | Self::WrongScheme { .. }
            | Self::Socket { problem: SocketProblem::Forbidden, .. }
            | Self::ClockSkew { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. } => false,
        }
    }
}

/// Maximum wait that the client accepts from a server.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long the server asks to wait. Only the form in seconds is read: interpreting a date would need the server's clock.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(routes::RETRY_AFTER_HEADER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

fn kind_of_status(status: u16) -> ErrorKind {
    match status {
        401 | 403 => ErrorKind::Unauthorized,
        404 => ErrorKind::NotFound,
        409 | 412 | 429 => ErrorKind::Conflict,
        408 | 504 => ErrorKind::Timeout,
        400..=499 => ErrorKind::Usage,
        502 | 503 => ErrorKind::Unreachable,
        _ => ErrorKind::Internal,
    }
}

fn detail_of(problem: &Problem) -> &str {
    match (problem.detail.as_str(), problem.title.as_str()) {
        ("", "") => &problem.code,
        ("", title) => title,
        (detail, _) => detail,
    }
}

/// Clocks that differ by no more than this cannot be the reason why a token is refused.
const MAX_SKEW: Duration = Duration::from_secs(300);

/// The difference between our clock and the server's `Date` header, and whether ours is ahead. `None` if the clocks agree, or without the
/// header.
pub(super) fn clock_skew(headers: &HeaderMap, now: Timestamp) -> Option<(Duration, bool)> {
    let theirs = headers.get(DATE)?.to_str().ok().and_then(|date| httpdate::parse_http_date(date).ok())?;
    let theirs = Timestamp(0).plus(theirs.duration_since(SystemTime::UNIX_EPOCH).ok()?);
    let ahead = now > theirs;
    let skew = if ahead { now.since(theirs) } else { theirs.since(now) };
    (skew > MAX_SKEW).then_some((skew, ahead))
}

/// Translates a transport error into one that tells a person what is wrong.
pub(super) fn classify(url: &str, socket: Option<&Path>, source: reqwest::Error, timeout: Duration) -> ClientError {
    let url = url.to_owned();
    if let Some(problem) = find_cause(&source, socket_problem)
        && let Some(path) = socket
    {
        return ClientError::Socket { path: path.to_owned(), problem, source };
    }
    if let Some(why) = find_cause(&source, distrust) {
        return ClientError::Untrusted { url, why, source };
    }
    if let Some(speaks_tls) = find_cause(&source, other_scheme) {
        return ClientError::WrongScheme { url, speaks_tls, source };
    }
    if source.is_connect() {
        ClientError::Unreachable { url, source }
    } else if source.is_timeout() {
        ClientError::Timeout { url, after: timeout }
    } else {
        ClientError::Broken { url, source }
    }
}

/// Walks the causes of an error and returns the first result of `meaning`.
fn find_cause<T>(error: &reqwest::Error, meaning: impl Fn(&(dyn std::error::Error + 'static)) -> Option<T>) -> Option<T> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = meaning(error) {
            return Some(found);
        }
        // The `source` of an I/O error skips the error that it wraps.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of the standard library: every other kind is described by its own text"
)]
fn socket_problem(error: &(dyn std::error::Error + 'static)) -> Option<SocketProblem> {
    match error.downcast_ref::<std::io::Error>()?.kind() {
        ErrorKindOfIo::NotFound => Some(SocketProblem::Missing),
        ErrorKindOfIo::PermissionDenied => Some(SocketProblem::Forbidden),
        ErrorKindOfIo::ConnectionRefused => Some(SocketProblem::Dead),
        _ => None,
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of rustls: every other fault means that nobody vouches for the server"
)]
fn distrust(error: &(dyn std::error::Error + 'static)) -> Option<Distrust> {
    let rustls::Error::InvalidCertificate(fault) = error.downcast_ref::<rustls::Error>()? else { return None };
    Some(match fault {
        CertificateError::NotValidForName => Distrust::Name(Vec::new()),
        CertificateError::NotValidForNameContext { presented, .. } => Distrust::Name(presented.clone()),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Distrust::Time,
        _ => Distrust::Authority,
    })
}

/// Whether the server speaks TLS. `None` if the error is not about the wrong scheme.
fn other_scheme(error: &(dyn std::error::Error + 'static)) -> Option<bool> {
    if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref::<rustls::Error>() {
        return Some(false);
    }
    // A TLS alert where an HTTP response was expected.
    error.downcast_ref::<hyper::Error>().filter(|error| error.is_parse()).map(|_| true)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn clocks_that_differ_by_minutes_are_noticed() {
        let theirs = Timestamp(1_700_000_000_000_000);
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut headers = HeaderMap::new();
        assert_eq!(clock_skew(&headers, theirs), None, "who says no time cannot be compared");
        headers.insert(DATE, HeaderValue::from_str(&httpdate::fmt_http_date(date)).expect("a header"));
        let hour = Duration::from_secs(3600);
        assert_eq!(clock_skew(&headers, theirs.plus(Duration::from_secs(10))), None);
        assert_eq!(clock_skew(&headers, theirs.plus(hour)), Some((hour, true)));
        assert_eq!(clock_skew(&headers, theirs.minus(hour)), Some((hour, false)));
    }
}
