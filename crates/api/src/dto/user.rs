//! People, and those among them whom the built-in issuer signs in.

use gpuaas_contract::id::UserId;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::UserState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A person.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct User {
    /// Their id.
    pub id: UserId,
    /// Their address, as their issuer said last.
    pub email: String,
    /// Whether they proved to have it.
    pub email_verified: bool,
    /// What people call them.
    pub name: String,
    /// Who signs them in.
    pub issuer: String,
    /// Whether that is the built-in issuer: only then is there a password to set.
    pub local: bool,
    /// Whether they can sign in.
    pub state: Open<UserState>,
    /// First sign-in, or when an administrator made them.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Since when they may no longer sign in.
    #[serde(default, with = "OptionalRfc3339")]
    pub deactivated_at: Option<Timestamp>,
}

/// Which users to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserListQuery {
    /// Only those with this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<UserState>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A user of the built-in issuer to make. They may do nothing until somebody gives them a role.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserCreate {
    /// Their address, which the administrator vouches for.
    pub email: String,
    /// What people call them; may be empty.
    #[serde(default)]
    pub name: String,
    /// Their password; one is made up unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for UserCreate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserCreate").field("email", &self.email).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A new user.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct UserCreated {
    /// The user.
    pub user: User,
    /// The password that was made up because none was given. Shown once.
    #[serde(default)]
    pub one_time_password: Option<String>,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for UserCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserCreated").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A password to set. Every sign-in of the user ends.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPassword {
    /// The password; one is made up unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for UserPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserPassword").finish_non_exhaustive()
    }
}

/// Another password for oneself.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnPassword {
    /// The one they have now.
    pub current_password: String,
    /// The new one.
    pub new_password: String,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for OwnPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnPassword").finish_non_exhaustive()
    }
}

/// A user with another password.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct UserPasswordSet {
    /// The user.
    pub user: User,
    /// The password that was made up because none was given. Shown once.
    #[serde(default)]
    pub one_time_password: Option<String>,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for UserPasswordSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserPasswordSet").field("user", &self.user).finish_non_exhaustive()
    }
}
