//! Authorization: who asks, and what they may do.
//!
//! A [`Principal`] is the caller with the roles they hold, an [`Action`] is what they want to do, and a [`Scope`] is what the action
//! applies to. [`Policies::may`] decides. The rules are not code but the Cedar files in `policies/`; operators may add rules that forbid
//! more, never rules that allow more.

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

/// Who is responsible for a change, as the audit log names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A person who is signed in.
    User(UserId),
    /// A program that acts for a project.
    ServiceAccount {
        /// The id of the service account.
        id: ServiceAccountId,
        /// The API key it used.
        key: ApiTokenId,
    },
    /// The bearer of a platform token, which has a role of its own.
    Token {
        /// The id of the token.
        id: ApiTokenId,
        /// The token's role on the platform.
        role: PlatformRole,
    },
    /// A caller on the server's local socket.
    LocalAdmin,
    /// A node, identified by its certificate.
    Node(NodeId),
    /// A host that is not enrolled yet.
    Applicant(String),
    /// The control plane itself: leases, expiry, recovery.
    System,
}

impl Actor {
    /// The API key or token in use, if any.
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

/// An API key or platform token as it is stored, with only a hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiToken {
    /// Unique id of the token.
    pub id: ApiTokenId,
    /// Row version.
    pub version: i64,
    /// Name for people.
    pub name: String,
    /// Role on the platform. `None` for a key of a service account, which has the account's roles.
    pub role: Option<PlatformRole>,
    /// The service account that the key belongs to; `None` for a platform token.
    pub service_account: Option<ServiceAccountId>,
    /// The project of that service account; `None` for a platform token.
    pub project: Option<ProjectId>,
    /// The key that this one was created with; it counts only while that one does. `None` if a person created it.
    pub parent: Option<ApiTokenId>,
    /// Who created it; it counts only while that person exists. `None` for the first token, and for tokens from before the creator was
    /// recorded.
    pub created_by: Option<PrincipalId>,
    /// Actions it is limited to, among those that its role allows; `None` if it is not limited.
    pub scopes: Option<KeyScopes>,
    /// SHA-256 of the secret.
    pub secret_digest: Digest,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked; `None` if it was not.
    pub revoked_at: Option<Timestamp>,
}

impl ApiToken {
    /// Whether it authenticates anyone: neither revoked nor expired.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}
