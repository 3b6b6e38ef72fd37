//! State that the built-in issuer keeps between two requests of a sign-in: codes, device grants, refresh tokens. Only the issuer interprets
//! them; here they are rows that are found by a digest of their secret and deleted after a while.

use gpuaas_contract::id::{GrantId, UserId};
use gpuaas_contract::time::Timestamp;

use crate::resource::{Keys, resource};

/// The kind of stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignInKind {
    /// An authorization code on its way through a browser.
    Code,
    /// A device that waits for a person to approve it.
    Device,
    /// A refresh token, which keeps a client signed in.
    Refresh,
    /// A whole sign-in; revoked together with everything that was issued from it.
    Grant,
}

impl SignInKind {
    /// Name in ids.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Device => "device",
            Self::Refresh => "refresh",
            Self::Grant => "grant",
        }
    }
}

/// One piece of stored state.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SignIn {
    /// The kind and a digest of the secret, such as `refresh:sha256:…`. The secret itself is not stored.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// What it stores.
    pub kind: SignInKind,
    /// A second way to find it: the code that a person enters for a device.
    pub lookup: Option<String>,
    /// The sign-in it belongs to; `None` until there is one.
    pub grant: Option<GrantId>,
    /// The user who signs in, once known.
    pub user: Option<UserId>,
    /// Data of the issuer, as JSON.
    pub body: serde_json::Value,
    /// When it may be deleted.
    pub expires_at: Timestamp,
}

resource!(SignIn, SignIn);

impl SignIn {
    fn found_by(&self) -> Keys {
        Keys {
            parent: self.grant.map(|grant| grant.to_string()).unwrap_or_default(),
            lookup: self.lookup.clone(),
            owner: self.user.map(|user| user.to_string()),
            state: self.kind.as_str(),
            expires_at: Some(self.expires_at),
            ..Keys::default()
        }
    }
}
