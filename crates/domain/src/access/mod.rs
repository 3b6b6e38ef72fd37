//! Who asks, and what they may do.
//!
//! A [`Principal`] is who asks, with the roles they hold; an [`Action`] is what they want to do; a [`Scope`] is what it is about.
//! [`Policies::may`] answers. The rules themselves are not code: they are the Cedar files in `policies/`, and operators may add rules that
//! forbid more, never rules that allow more.

mod key_scopes;
mod membership;
mod mint;
mod policies;
mod principal;
mod rules;
mod scope;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ApiTokenId, NodeId, ProjectId, ServiceAccountId, UserId};
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::access::{Action, MemberRole, PlatformRole, ProjectRole, ScopeKind};
pub use key_scopes::{BadKeyScopes, KeyScopes, MAX_PATTERNS};
pub use membership::{BadName, Membership, Place, Who};
pub use mint::{KeyLimits, MAX_KEY_CHAIN, check_key, check_password_life, check_role, check_role_life};
pub use policies::{Policies, Verdict};
pub use principal::{Principal, PrincipalId};
pub use rules::{BadPolicies, MAX_FILE_BYTES, MAX_FILES, MAX_RULES};
pub use scope::Scope;

/// Who is responsible for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A person who signed in.
    User(UserId),
    /// A program that acts for a project.
    ServiceAccount {
        /// Which one.
        id: ServiceAccountId,
        /// The API key it used.
        key: ApiTokenId,
    },
    /// The bearer of an API token with a role of its own.
    Token {
        /// Which token.
        id: ApiTokenId,
        /// Its role.
        role: PlatformRole,
    },
    /// Whoever sits at the server itself.
    LocalAdmin,
    /// A node, as its certificate names it.
    Node(NodeId),
    /// A host that is not a node yet.
    Applicant(String),
    /// The control plane itself: leases, expiry, recovery.
    System,
}

impl Actor {
    /// The API key or token they use.
    pub const fn key(&self) -> Option<ApiTokenId> {
        match self {
            Self::ServiceAccount { key, .. } => Some(*key),
            Self::Token { id, .. } => Some(*id),
            Self::User(_) | Self::LocalAdmin | Self::Node(_) | Self::Applicant(_) | Self::System => None,
        }
    }
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => PrincipalId::User(*id).fmt(f),
            Self::ServiceAccount { id, .. } => PrincipalId::ServiceAccount(*id).fmt(f),
            Self::Token { id, .. } => PrincipalId::Token(*id).fmt(f),
            Self::LocalAdmin => PrincipalId::LocalAdmin.fmt(f),
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
    /// Its own role on the platform; a key of a service account has none and may what the account may.
    pub role: Option<PlatformRole>,
    /// The service account whose key it is.
    pub service_account: Option<ServiceAccountId>,
    /// The project of that service account.
    pub project: Option<ProjectId>,
    /// The key it was made with; it counts only as long as that one does. `None` if a person made it.
    pub parent: Option<ApiTokenId>,
    /// Who made it. It counts only as long as that person is there; `None` for the first one, and for those of before this was written down.
    pub created_by: Option<PrincipalId>,
    /// What it is limited to, of all that its role allows; `None` for no such limit.
    pub scopes: Option<KeyScopes>,
    /// SHA-256 of the secret.
    pub secret_digest: Digest,
    /// When it was made.
    pub created_at: Timestamp,
    /// The moment from which on it no longer counts.
    pub expires_at: Option<Timestamp>,
    /// When it was taken back.
    pub revoked_at: Option<Timestamp>,
}

impl ApiToken {
    /// Whether it lets anybody in: neither taken back nor expired.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}
