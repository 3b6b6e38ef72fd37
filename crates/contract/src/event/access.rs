//! Events of users, members, keys and sign-ins.

use super::payload::payloads;
use crate::access::PlatformRole;
use crate::id::{ApiTokenId, GrantId, MembershipId, ProjectId, ServerId, ServiceAccountId, UserId};
use crate::key::KeyId;
use crate::names::Open;
use crate::time::{OptionalRfc3339, Timestamp};

payloads! {
    /// A new key of a service account.
    pub struct ApiKeyCreated {
        /// The key.
        tenant api_token_id: ApiTokenId,
        /// The service account that owns it.
        tenant service_account_id: ServiceAccountId,
        /// The project of the service account.
        tenant project_id: ProjectId,
        /// Its name.
        tenant name: String,
        /// The key that created it; null if none did.
        tenant parent_id: Option<ApiTokenId>,
        /// When it expires; null if it does not.
        #[serde(default, with = "OptionalRfc3339")]
        tenant expires_at: Option<Timestamp>,
        /// Scopes that limit it; null if it is not limited.
        tenant scopes: Option<Vec<String>>,
    }

    /// A revoked key of a service account.
    pub struct ApiKeyRevoked {
        /// The key.
        tenant api_token_id: ApiTokenId,
        /// The service account that owned it.
        tenant service_account_id: ServiceAccountId,
        /// The project of the service account.
        tenant project_id: ProjectId,
    }

    /// A new API token of the platform.
    pub struct ApiTokenCreated {
        /// The token.
        operator api_token_id: ApiTokenId,
        /// Its role.
        operator role: Open<PlatformRole>,
        /// Its name.
        operator name: String,
        /// The token that created it; null if none did.
        operator parent_id: Option<ApiTokenId>,
    }

    /// A revoked API token of the platform.
    pub struct ApiTokenRevoked {
        /// The token.
        operator api_token_id: ApiTokenId,
    }

    /// A sign-in.
    pub struct SignInEvent {
        /// The sign-in.
        operator grant_id: GrantId,
        /// Who signs in.
        operator user_id: UserId,
        /// The program that they sign in with.
        operator client: String,
    }

    /// The end of a sign-in.
    pub struct SignInRevoked {
        /// The sign-in.
        operator grant_id: GrantId,
        /// The user who had signed in.
        operator user_id: UserId,
        /// Reason.
        operator reason: String,
    }

    /// A change of the keys that sign tasks.
    pub struct SigningKeyChanged {
        /// The key that is sent to nodes and will sign after the next rotation, if one was staged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator staged: Option<KeyId>,
        /// The key that signs from now on, if keys were rotated or revoked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator active: Option<KeyId>,
        /// The key that was revoked, if one was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator revoked: Option<KeyId>,
        /// Why it was revoked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator reason: Option<String>,
    }

    /// Whether the certificate authority answers.
    pub struct CaState {
        /// Kind of certificate authority.
        operator ca: String,
        /// Its URL.
        operator url: String,
        /// The server that checked it.
        operator server_id: ServerId,
        /// Error of the check; empty if it answers.
        operator detail: String,
    }

    /// A role of a user, a service account or an invited address.
    pub struct MemberEvent {
        /// The membership.
        operator membership_id: MembershipId,
        /// Who has the role.
        operator who: String,
        /// `platform`, or the id of the organization or project.
        operator at: String,
        /// The role.
        operator role: String,
    }

    /// A new user.
    pub struct UserCreated {
        /// The user.
        operator user_id: UserId,
        /// The issuer that authenticates them.
        operator issuer: String,
        /// Their email address.
        operator email: String,
    }

    /// Changed information of an issuer about a user.
    pub struct UserChanged {
        /// The user.
        operator user_id: UserId,
        /// Their email address.
        operator email: String,
        /// Whether the issuer has verified it.
        operator email_verified: bool,
    }

    /// The user that an event is about.
    pub struct UserEvent {
        /// The user.
        operator user_id: UserId,
    }

    /// A deleted user.
    pub struct UserDeleted {
        /// The user.
        operator user_id: UserId,
        /// The email address they had.
        operator email: String,
        /// Number of their roles and invitations that ended.
        operator memberships: u32,
        /// Number of keys and tokens created by them that were revoked.
        operator keys: u32,
    }

    /// A wrong password.
    pub struct UserSignInFailed {
        /// The user.
        operator user_id: UserId,
        /// Number of consecutive wrong passwords.
        operator failed_sign_ins: u32,
    }
}

impl SigningKeyChanged {
    /// The audit action: a key was staged, or keys were rotated or revoked.
    pub(super) fn audit_action(&self) -> &'static str {
        match (&self.staged, &self.revoked) {
            (Some(_), _) => "signing_key.stage",
            (None, Some(_)) => "signing_key.revoke",
            (None, None) => "signing_key.rotate",
        }
    }
}
