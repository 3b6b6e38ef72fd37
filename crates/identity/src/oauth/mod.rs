//! The core of the built-in issuer: requests, responses, and the states of codes and tokens.
//!
//! Everything here is a pure function of a request, a row and a clock. The caller writes the returned row in one transaction and
//! **only if the stored row is still the one that was decided on**. This makes codes and refresh tokens single-use even when two
//! requests arrive at the same moment.
//!
//! There are no client secrets: both clients are public programs, so PKCE and exact redirect addresses replace them.

mod client;
mod code;
mod device;
mod error;
mod refresh;
mod request;
mod scope;

use std::time::Duration;

pub use client::{BadRedirect, ClientId, Clients};
pub use code::{AuthorizationCode, CodeOutcome};
pub use device::{DeviceGrant, DevicePoll, DeviceState, NotDecidable};
pub use error::{OauthError, OauthFailure};
pub use refresh::{Refresh, RefreshOutcome, Rotation};
pub use request::{AuthorizationRefusal, AuthorizationRequest, DeviceAuthorizationRequest, TokenRequest};
pub use scope::{Scope, Scopes};

/// Lifetime of an access token.
pub const ACCESS_TOKEN_LIFE: Duration = Duration::from_secs(10 * 60);
/// Lifetime of an unused refresh token; each use issues a new one.
pub const REFRESH_TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Lifetime of a sign-in, however often it is refreshed.
pub const GRANT_LIFE: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Lifetime of an authorization code.
pub const CODE_LIFE: Duration = Duration::from_secs(60);
/// Lifetime of a device code.
pub const DEVICE_CODE_LIFE: Duration = Duration::from_secs(10 * 60);
/// Initial time between two polls with a device code.
pub const DEVICE_POLL_INTERVAL: Duration = Duration::from_secs(5);
