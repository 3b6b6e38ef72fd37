//! Users, including those who sign in with the built-in issuer.

use gpuaas_contract::id::UserId;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::UserState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct User {
    /// Id of the user.
    pub id: UserId,
    /// Email address, as the issuer last reported it.
    pub email: String,
    /// Whether the email address is verified.
    pub email_verified: bool,
    /// Display name.
    pub name: String,
    /// The issuer that authenticates the user.
    pub issuer: String,
    /// Whether the issuer is the built-in one. Only then can the password be set here.
    pub local: bool,
    /// State: whether the user can sign in.
    pub state: Open<UserState>,
    /// When the user first signed in or was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When the user was deactivated.
    #[serde(default, with = "OptionalRfc3339")]
    pub deactivated_at: Option<Timestamp>,
    /// When the user was deleted.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

/// Filter for a list of users.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserListQuery {
    /// Only the user with this email address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Only users in this state; without it, all but those who were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<UserState>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A user of the built-in issuer to create. They have no permissions until they get a role.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserCreate {
    /// Email address, which counts as verified.
    pub email: String,
    /// Display name; may be empty.
    #[serde(default)]
    pub name: String,
    /// Password; generated if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// Omits the secret.
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
    /// The generated password, if none was given. Shown once.
    #[serde(default)]
    pub one_time_password: Option<String>,
}

/// Omits the secret.
impl std::fmt::Debug for UserCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserCreated").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A password to set. All sessions of the user end.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPassword {
    /// Password; generated if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// Omits the secret.
impl std::fmt::Debug for UserPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserPassword").finish_non_exhaustive()
    }
}

/// Change of the caller's own password.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnPassword {
    /// The current password.
    pub current_password: String,
    /// The new password.
    pub new_password: String,
}

/// Omits the secret.
impl std::fmt::Debug for OwnPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnPassword").finish_non_exhaustive()
    }
}

/// A user with a new password.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct UserPasswordSet {
    /// The user.
    pub user: User,
    /// The generated password, if none was given. Shown once.
    #[serde(default)]
    pub one_time_password: Option<String>,
}

/// Omits the secret.
impl std::fmt::Debug for UserPasswordSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserPasswordSet").field("user", &self.user).finish_non_exhaustive()
    }
}
