//! Errors as defined in RFC 6749 and RFC 8628.

/// The closed list of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OauthError {
    /// A parameter is missing, repeated or wrong.
    InvalidRequest,
    /// The client is unknown.
    InvalidClient,
    /// The code, device code or refresh token is wrong, used, expired or revoked.
    InvalidGrant,
    /// The client is not allowed to do this.
    UnauthorizedClient,
    /// The grant type is not one of the three.
    UnsupportedGrantType,
    /// The response type is not `code`.
    UnsupportedResponseType,
    /// The scope does not exist.
    InvalidScope,
    /// The user denied the request.
    AccessDenied,
    /// An internal error.
    ServerError,
    /// The server is overloaded.
    TemporarilyUnavailable,
    /// The user has not decided yet.
    AuthorizationPending,
    /// The client polls too fast.
    SlowDown,
    /// The device code has expired.
    ExpiredToken,
}

impl OauthError {
    /// Returns its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidClient => "invalid_client",
            Self::InvalidGrant => "invalid_grant",
            Self::UnauthorizedClient => "unauthorized_client",
            Self::UnsupportedGrantType => "unsupported_grant_type",
            Self::UnsupportedResponseType => "unsupported_response_type",
            Self::InvalidScope => "invalid_scope",
            Self::AccessDenied => "access_denied",
            Self::ServerError => "server_error",
            Self::TemporarilyUnavailable => "temporarily_unavailable",
            Self::AuthorizationPending => "authorization_pending",
            Self::SlowDown => "slow_down",
            Self::ExpiredToken => "expired_token",
        }
    }

    /// Returns the HTTP status for the token endpoint.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::InvalidClient => 401,
            Self::ServerError => 500,
            Self::TemporarilyUnavailable => 503,
            Self::InvalidRequest
            | Self::InvalidGrant
            | Self::UnauthorizedClient
            | Self::UnsupportedGrantType
            | Self::UnsupportedResponseType
            | Self::InvalidScope
            | Self::AccessDenied
            | Self::AuthorizationPending
            | Self::SlowDown
            | Self::ExpiredToken => 400,
        }
    }
}

impl std::fmt::Display for OauthError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for OauthError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// An error with a message for people. As JSON, it is the body of an error response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[error("{description}")]
pub struct OauthFailure {
    /// The error.
    pub error: OauthError,
    /// What to do. Never contains data from the client.
    #[serde(rename = "error_description")]
    pub description: String,
}

impl OauthFailure {
    /// Creates an error with its message.
    pub fn new(error: OauthError, description: impl Into<String>) -> Self {
        Self { error, description: description.into() }
    }
}
