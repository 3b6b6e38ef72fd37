//! What can go wrong between a client and a server, in sentences.

use std::io::ErrorKind as ErrorKindOfIo;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gpuaas_contract::time::Timestamp;
use reqwest::header::{DATE, HeaderMap};
use rustls::CertificateError;

use crate::dto::Problem;
use crate::routes;

/// Why a request has no answer, or a bad one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not one.
    #[error("`{url}` is not the address of a server: {detail}")]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The token cannot be a header.
    #[error("the API token contains characters that no token has; copy it again")]
    BadToken,
    /// The file with authorities cannot be used.
    #[error("cannot use the CA file {}: {detail}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// TLS could not be set up.
    #[error("cannot set TLS up; if this system has no certificate store, give a CA file")]
    Tls {
        /// What TLS says.
        #[source]
        source: rustls::Error,
    },
    /// The HTTP client could not be set up.
    #[error("cannot set the HTTP client up")]
    Setup {
        /// What it says.
        #[source]
        source: reqwest::Error,
    },
    /// A name or id that cannot be part of a path.
    #[error("`{value}` cannot be a name or an id")]
    BadName {
        /// What was given.
        value: String,
        /// The path it should have been put into.
        route: String,
    },
    /// A document could not be written as JSON.
    #[error("cannot write the request as JSON")]
    Unserializable {
        /// What serde says.
        #[source]
        source: serde_json::Error,
    },
    /// No connection.
    #[error("cannot reach {url}: is `gpuaas server` or `gpuaas dev` running there?")]
    Unreachable {
        /// The server's address.
        url: String,
        /// What the network says.
        #[source]
        source: reqwest::Error,
    },
    /// A connection, but with somebody whose certificate is not trusted.
    #[error("{}", untrusted(url, why))]
    Untrusted {
        /// The server's address.
        url: String,
        /// What is wrong with the certificate.
        why: Distrust,
        /// What TLS says.
        #[source]
        source: reqwest::Error,
    },
    /// A server that speaks TLS was asked over plain HTTP, or the other way round.
    #[error("{url} answers, but it speaks {}", if *speaks_tls { "https, not plain http" } else { "plain http, not https" })]
    WrongScheme {
        /// The address that was asked.
        url: String,
        /// What it speaks.
        speaks_tls: bool,
        /// What the network says.
        #[source]
        source: reqwest::Error,
    },
    /// The socket of a server on this machine cannot be used.
    #[error("{}", unusable_socket(path, *problem))]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        problem: SocketProblem,
        /// What the system says.
        #[source]
        source: reqwest::Error,
    },
    /// The server does not take the token, and its clock is not ours.
    #[error("{}; the clock of this machine is {} seconds {} that of the server", detail_of(problem).trim_end_matches('.'), skew.as_secs(), if *ahead { "ahead of" } else { "behind" })]
    ClockSkew {
        /// How far the clocks are apart.
        skew: Duration,
        /// Whether ours is the later one.
        ahead: bool,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// No answer in time.
    #[error("{url} did not answer within {} seconds", after.as_secs())]
    Timeout {
        /// The server's address.
        url: String,
        /// How long was waited.
        after: Duration,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection to {url} broke before the answer was complete; try again")]
    Broken {
        /// The server's address.
        url: String,
        /// What the network says.
        #[source]
        source: reqwest::Error,
    },
    /// The server says no, and why.
    #[error("{}", detail_of(problem))]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// The caller asks too often. The same request is welcome after a while.
    #[error("{}; try again in {} seconds", detail_of(problem).trim_end_matches('.'), retry_after.as_secs())]
    RateLimited {
        /// How long to wait.
        retry_after: Duration,
        /// The server's explanation.
        problem: Box<Problem>,
    },
    /// Something answered that does not speak this interface.
    #[error("{url} answered with status {status} and no explanation; is that a gpuaas server of this version?")]
    Unexpected {
        /// What was asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// How the answer starts.
        excerpt: String,
    },
    /// The answer is larger than a client takes.
    #[error("the answer of {url} is larger than {limit} bytes; ask for less at a time")]
    TooLarge {
        /// What was asked.
        url: String,
        /// Most bytes taken.
        limit: usize,
    },
    /// The answer is not the document it should be.
    #[error("{url} answered with something else than expected; do client and server have the same version?")]
    Malformed {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// Why a server's certificate is not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// No authority that is trusted here has signed it.
    Authority,
    /// It is for other names, as far as they are known.
    Name(Vec<String>),
    /// It is not valid yet, or no longer, by the clock of this machine.
    Time,
}

/// Why a socket cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketProblem {
    /// It does not exist.
    Missing,
    /// This user may not use it.
    Forbidden,
    /// No server listens there.
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

/// The kinds of errors a caller may want to treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// What the caller gave cannot be used.
    Usage,
    /// There is no such thing.
    NotFound,
    /// The state does not allow it.
    Conflict,
    /// No identity, or not one that may.
    Unauthorized,
    /// No server there, or not one that is trusted.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// The server, or something between, is broken.
    Internal,
}

impl ClientError {
    /// Its kind.
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

    /// The server's explanation, if there is one.
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

    /// Stable code, for programs: the server's where it says one.
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

    /// What to do about a refusal, beside what the server's own sentence says.
    pub fn advice(&self) -> Option<&'static str> {
        let status = match self {
            Self::Refused { status, .. } => *status,
            Self::RateLimited { .. } => 429,
            Self::ClockSkew { .. } => 401,
            // These say themselves what to do.
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

    /// How long the server asks to wait before the same request, if it does.
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
        // Something between client and server may limit as well, without our words.
        let ours = || Problem::new(429, "Too Many Requests", "rate_limited", "too many requests in a short time");
        Self::RateLimited { retry_after, problem: Box::new(problem.unwrap_or_else(ours)) }
    }

    /// Whether the same request may well succeed a little later.
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

/// The longest wait that is believed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long the server asks to wait. Only seconds are read: a date would need its clock.
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

/// Clocks that differ by less than this are no reason why a token is refused.
const MAX_SKEW: Duration = Duration::from_secs(300);

/// How far our clock is from that of a server which says its time with every answer, and whether ours is ahead; `None` if they agree.
pub(super) fn clock_skew(headers: &HeaderMap, now: Timestamp) -> Option<(Duration, bool)> {
    let theirs = headers.get(DATE)?.to_str().ok().and_then(|date| httpdate::parse_http_date(date).ok())?;
    let theirs = Timestamp(0).plus(theirs.duration_since(SystemTime::UNIX_EPOCH).ok()?);
    let ahead = now > theirs;
    let skew = if ahead { now.since(theirs) } else { theirs.since(now) };
    (skew > MAX_SKEW).then_some((skew, ahead))
}

/// What a transport error means to a person.
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

/// What the first cause that means something says.
fn find_cause<T>(error: &reqwest::Error, meaning: impl Fn(&(dyn std::error::Error + 'static)) -> Option<T>) -> Option<T> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = meaning(error) {
            return Some(found);
        }
        // An I/O error hides what it wraps from `source`.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn socket_problem(error: &(dyn std::error::Error + 'static)) -> Option<SocketProblem> {
    match error.downcast_ref::<std::io::Error>()?.kind() {
        ErrorKindOfIo::NotFound => Some(SocketProblem::Missing),
        ErrorKindOfIo::PermissionDenied => Some(SocketProblem::Forbidden),
        ErrorKindOfIo::ConnectionRefused => Some(SocketProblem::Dead),
        _ => None,
    }
}

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

/// Whether the server speaks TLS, if it does not speak what it was asked in.
fn other_scheme(error: &(dyn std::error::Error + 'static)) -> Option<bool> {
    if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref::<rustls::Error>() {
        return Some(false);
    }
    // An alert of TLS in place of an answer.
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
