//! What the built-in issuer remembers between two requests of a sign-in: codes, device grants, refresh tokens. What they mean is the
//! issuer's business; here they are rows that are found by a digest of their secret and forgotten after a while.

use gpuaas_contract::id::{GrantId, UserId};
use gpuaas_contract::time::Timestamp;

use crate::resource::{Keys, resource};

/// What kind of thing is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignInKind {
    /// A code on its way through a browser.
    Code,
    /// A device that waits for a person.
    Device,
    /// What keeps a client signed in.
    Refresh,
    /// A whole sign-in: revoked with everything that came out of it.
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

/// One remembered thing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SignIn {
    /// The kind and a digest of the secret, such as `refresh:sha256:…`: the secret itself is nowhere.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// What it is.
    pub kind: SignInKind,
    /// A second way to find it: what a person types in for a device.
    pub lookup: Option<String>,
    /// The sign-in it belongs to.
    pub grant: Option<GrantId>,
    /// Whose it is, once that is known.
    pub user: Option<UserId>,
    /// What the issuer wants to know again, JSON.
    pub body: serde_json::Value,
    /// From when on it may be forgotten.
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
