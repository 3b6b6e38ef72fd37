//! Who holds which role where, as stored.

use gpuaas_contract::id::{MembershipId, OrgId, ProjectId, ServiceAccountId, UserId};
use gpuaas_contract::time::Timestamp;

use super::role::{PlatformRole, ProjectRole};
use crate::names::checked_email;
use crate::refusal::Refusal;

/// A stored text that is not one of the names of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of {0}")]
pub struct BadName(pub &'static str);

/// Who holds a role. In text `user:user_…`, `sa:sa_…` or `invited:ann@example.com`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Who {
    /// A person who signed in at least once.
    User(UserId),
    /// A program.
    ServiceAccount(ServiceAccountId),
    /// Whoever signs in with this address, in lower case.
    Invited(String),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => write!(f, "user:{id}"),
            Self::ServiceAccount(id) => write!(f, "sa:{id}"),
            Self::Invited(email) => write!(f, "invited:{email}"),
        }
    }
}

impl TryFrom<String> for Who {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        let read = match text.split_once(':') {
            Some(("user", id)) => id.parse().ok().map(Self::User),
            Some(("sa", id)) => id.parse().ok().map(Self::ServiceAccount),
            Some(("invited", email)) => checked_email(email).ok().filter(|checked| checked == email).map(Self::Invited),
            Some(_) | None => None,
        };
        read.ok_or(BadName("somebody who holds a role"))
    }
}

impl From<Who> for String {
    fn from(who: Who) -> Self {
        who.to_string()
    }
}

/// Where a role is held. In text `platform`, or the id of the organization or project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// On the platform, and so everywhere.
    Platform,
    /// In an organization, and so in all its projects.
    Organization(OrgId),
    /// In one project.
    Project(ProjectId),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Platform => f.write_str("platform"),
            Self::Organization(id) => id.fmt(f),
            Self::Project(id) => id.fmt(f),
        }
    }
}

impl TryFrom<String> for Place {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        if text == "platform" {
            return Ok(Self::Platform);
        }
        let organization = text.parse().ok().map(Self::Organization);
        organization.or_else(|| text.parse().ok().map(Self::Project)).ok_or(BadName("a place of a role"))
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

/// A role of either kind. In text its name: no name is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MemberRole {
    /// Of those who run the platform.
    Platform(PlatformRole),
    /// In an organization or a project.
    Project(ProjectRole),
}

impl MemberRole {
    /// Name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Platform(role) => role.as_str(),
            Self::Project(role) => role.as_str(),
        }
    }

    /// The role with this name. A `viewer` is one of a project: only API tokens had such a role on the platform.
    pub fn parse(name: &str) -> Option<Self> {
        let platform = PlatformRole::ALL.into_iter().map(Self::Platform);
        platform.chain(ProjectRole::ALL.into_iter().map(Self::Project)).find(|role| role.as_str() == name)
    }

    /// Whether somebody with this role has `other` as well.
    pub const fn includes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Platform(own), Self::Platform(other)) => own.includes(other),
            (Self::Project(own), Self::Project(other)) => own.includes(other),
            (Self::Platform(_), Self::Project(_)) | (Self::Project(_), Self::Platform(_)) => false,
        }
    }

    /// Whether this role can be held there.
    pub const fn fits(self, at: Place) -> bool {
        match (self, at) {
            (Self::Platform(_), Place::Platform) => true,
            (Self::Project(_), Place::Organization(_) | Place::Project(_)) => true,
            (Self::Platform(_), Place::Organization(_) | Place::Project(_)) | (Self::Project(_), Place::Platform) => false,
        }
    }
}

impl TryFrom<String> for MemberRole {
    type Error = BadName;

    fn try_from(name: String) -> Result<Self, BadName> {
        Self::parse(&name).ok_or(BadName("a role"))
    }
}

impl From<MemberRole> for String {
    fn from(role: MemberRole) -> Self {
        role.as_str().to_owned()
    }
}

/// One role of one holder in one place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Membership {
    /// Its id.
    pub id: MembershipId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Who holds it.
    pub who: Who,
    /// Where.
    pub at: Place,
    /// Which role.
    pub role: MemberRole,
    /// Who gave it, as the audit log names them.
    pub invited_by: String,
    /// Since when.
    pub created_at: Timestamp,
    /// When it was taken away.
    pub removed_at: Option<Timestamp>,
}

impl Membership {
    /// A new one. Roles of the platform are held on the platform, those of projects in organizations and projects.
    pub fn new(
        id: MembershipId,
        who: Who,
        at: Place,
        role: MemberRole,
        invited_by: String,
        created_at: Timestamp,
    ) -> Result<Self, Refusal> {
        if !role.fits(at) {
            let message = match at {
                Place::Platform => {
                    format!("`{}` is a role in projects; on the platform choose admin, operator or support", role.as_str())
                }
                Place::Organization(_) | Place::Project(_) => {
                    format!("`{}` is a role on the platform; here choose owner, member or viewer", role.as_str())
                }
            };
            return Err(Refusal::invalid("role_misplaced", message));
        }
        let who = match who {
            Who::Invited(email) => Who::Invited(checked_email(&email)?),
            Who::User(_) | Who::ServiceAccount(_) => who,
        };
        Ok(Self { id, version: 0, who, at, role, invited_by, created_at, removed_at: None })
    }
}
