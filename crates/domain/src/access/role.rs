//! Roles: what somebody is, on the platform and in projects.

/// A role on the platform: of those who run it, and of API tokens. Each includes those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlatformRole {
    /// Everything.
    Admin,
    /// Runs the platform: nodes, catalog, quotas, maintenance. Changes nothing that belongs to tenants but the state of allocations.
    Operator,
    /// Reads everything, changes nothing.
    #[serde(alias = "viewer")]
    Support,
}

/// The role of an API token. The short name from the time when there was no other role.
pub type Role = PlatformRole;

impl PlatformRole {
    /// Every role, the one that may most first.
    pub const ALL: [Self; 3] = [Self::Admin, Self::Operator, Self::Support];

    /// Name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Support => "support",
        }
    }

    /// The role with this name. Old clients and old rows say `viewer` for `support`.
    pub fn parse(name: &str) -> Option<Self> {
        let name = if name == "viewer" { "support" } else { name };
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Whether somebody with this role has `other` as well.
    pub const fn includes(self, other: Self) -> bool {
        self.rank() >= other.rank()
    }

    const fn rank(self) -> u8 {
        match self {
            Self::Admin => 3,
            Self::Operator => 2,
            Self::Support => 1,
        }
    }
}

/// A role in a project, or in an organization and so in all its projects. Each includes those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectRole {
    /// Everything in it, members and keys too.
    Owner,
    /// Works in it: makes, uses and ends allocations.
    Member,
    /// Looks.
    Viewer,
}

impl ProjectRole {
    /// Every role, the one that may most first.
    pub const ALL: [Self; 3] = [Self::Owner, Self::Member, Self::Viewer];

    /// Name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Member => "member",
            Self::Viewer => "viewer",
        }
    }

    /// The role with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Whether somebody with this role has `other` as well.
    pub const fn includes(self, other: Self) -> bool {
        self.rank() >= other.rank()
    }

    const fn rank(self) -> u8 {
        match self {
            Self::Owner => 3,
            Self::Member => 2,
            Self::Viewer => 1,
        }
    }
}
