//! What can go wrong between a client and a server, in sentences.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::HeaderMap;

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
    #[error("{url} has no certificate that is trusted here: give the CA file of the server")]
    Untrusted {
        /// The server's address.
        url: String,
        /// What TLS says.
        #[source]
        source: reqwest::Error,
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
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::Broken { .. } => ErrorKind::Unreachable,
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
            Self::Refused { problem, .. } | Self::RateLimited { problem, .. } => Some(problem),
            Self::BadUrl { .. }
            | Self::BadToken
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Setup { .. }
            | Self::BadName { .. }
            | Self::Unserializable { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
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
            Self::BadUrl { .. } => "bad_url",
            Self::BadToken => "bad_token",
            Self::CaFile { .. } => "bad_ca_file",
            Self::Tls { .. } => "tls_setup",
            Self::Setup { .. } => "http_setup",
            Self::BadName { .. } => "bad_name",
            Self::Unserializable { .. } => "bad_document",
            Self::Unreachable { .. } => "server_unreachable",
            Self::Untrusted { .. } => "server_untrusted",
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
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Broken { .. } | Self::RateLimited { .. } => true,
            Self::Refused { status, .. } | Self::Unexpected { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            Self::BadUrl { .. }
            | Self::BadToken
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Setup { .. }
            | Self::BadName { .. }
            | Self::Unserializable { .. }
            | Self::Untrusted { .. }
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

/// What a transport error means to a person.
pub(super) fn classify(url: &str, source: reqwest::Error, timeout: Duration) -> ClientError {
    let url = url.to_owned();
    if is_certificate_error(&source) {
        ClientError::Untrusted { url, source }
    } else if source.is_connect() {
        ClientError::Unreachable { url, source }
    } else if source.is_timeout() {
        ClientError::Timeout { url, after: timeout }
    } else {
        ClientError::Broken { url, source }
    }
}

fn is_certificate_error(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref::<rustls::Error>(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // An I/O error hides what it wraps from `source`.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}
