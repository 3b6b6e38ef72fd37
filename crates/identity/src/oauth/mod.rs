//! The core of the built-in issuer: what is asked, what is answered, and what becomes of codes and tokens.
//!
//! Everything here is a pure function of a request, a row and a clock. Whoever calls it writes the row that comes back, in one
//! transaction and **only if the row is still the one that was decided on**: that is what makes a code single-use and a refresh
//! token single-use when two requests with it come at the same moment.
//!
//! There are no client secrets: both clients are public programs, so PKCE and exact redirect addresses stand in for them.

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

/// Life of an access token.
pub const ACCESS_TOKEN_LIFE: Duration = Duration::from_secs(10 * 60);
/// Life of a refresh token that nobody uses; each use gives a new one.
pub const REFRESH_TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Life of a sign-in, however often it is refreshed.
pub const GRANT_LIFE: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Life of an authorization code.
pub const CODE_LIFE: Duration = Duration::from_secs(60);
/// Life of a device code.
pub const DEVICE_CODE_LIFE: Duration = Duration::from_secs(10 * 60);
/// Pause between two polls with a device code, at first.
pub const DEVICE_POLL_INTERVAL: Duration = Duration::from_secs(5);
