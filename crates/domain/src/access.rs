//! Who asks, and what a role may do.

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ApiTokenId, NodeId};
use gpuaas_contract::time::Timestamp;

/// What a token lets its bearer do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Reads everything, changes nothing.
    Viewer,
}

impl Role {
    /// Name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Viewer => "viewer",
        }
    }

    /// The role with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Admin, Self::Viewer].into_iter().find(|role| role.as_str() == name)
    }
}

/// Who is responsible for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The bearer of an API token.
    Token {
        /// Which token.
        id: ApiTokenId,
        /// Its role.
        role: Role,
    },
    /// A node, as its certificate names it.
    Node(NodeId),
    /// A host that is not a node yet.
    Applicant(String),
    /// The control plane itself: leases, expiry, recovery.
    System,
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token { id, .. } => write!(f, "token:{id}"),
            Self::Node(id) => write!(f, "node:{id}"),
            Self::Applicant(name) => write!(f, "applicant:{name}"),
            Self::System => f.write_str("system"),
        }
    }
}

/// A token for the API, as stored: only the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiToken {
    /// Its id.
    pub id: ApiTokenId,
    /// Row version.
    pub version: i64,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// SHA-256 of the secret.
    pub secret_digest: Digest,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stopped to count.
    pub revoked_at: Option<Timestamp>,
}
