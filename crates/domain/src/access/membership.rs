//! Memberships: who holds which role, and where.

use gpuaas_contract::id::{MembershipId, OrgId, ProjectId, ServiceAccountId, UserId};
use gpuaas_contract::time::Timestamp;

use super::{MemberRole, PlatformRole, ProjectRole};
use crate::names::checked_email;
use crate::refusal::Refusal;

/// A stored text is not a valid name of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of {0}")]
pub struct BadName(pub &'static str);

/// The holder of a role. As text: `user:user_…`, `sa:sa_…` or `invited:ann@example.com`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Who {
    /// A person who has signed in at least once.
    User(UserId),
    /// A service account.
    ServiceAccount(ServiceAccountId),
    /// Any person who signs in with this email address, in lower case.
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

/// Where a role is held. As text: `platform`, or the id of the organization or project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// On the platform, and therefore everywhere.
    Platform,
    /// In an organization, and therefore in all its projects.
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

impl Place {
    /// Whether a role of this kind can be held here.
    pub const fn fits(self, role: MemberRole) -> bool {
        match (role, self) {
            (MemberRole::Platform(_), Self::Platform) => true,
            (MemberRole::Project(_), Self::Organization(_) | Self::Project(_)) => true,
            (MemberRole::Platform(_), Self::Organization(_) | Self::Project(_)) | (MemberRole::Project(_), Self::Platform) => {
                false
            }
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

/// One role of one holder in one place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Membership {
    /// Unique id of the membership.
    pub id: MembershipId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The holder of the role.
    pub who: Who,
    /// Where the role is held.
    pub at: Place,
    /// The role that is held.
    pub role: MemberRole,
    /// The actor who granted the role, as in the audit log.
    pub invited_by: String,
    /// When the role was granted.
    pub created_at: Timestamp,
    /// When the role was removed; `None` while it counts.
    pub removed_at: Option<Timestamp>,
}

impl Membership {
    /// A new membership. Platform roles are held on the platform, project roles in organizations and projects.
    pub fn new(
        id: MembershipId,
        who: Who,
        at: Place,
        role: MemberRole,
        invited_by: String,
        created_at: Timestamp,
    ) -> Result<Self, Refusal> {
        if !at.fits(role) {
            let message = match at {
                Place::Platform => {
                    let known = PlatformRole::ALL.map(PlatformRole::as_str).join(", ");
                    format!("`{role}` is a role in projects; on the platform there are {known}")
                }
                Place::Organization(_) | Place::Project(_) => {
                    let known = ProjectRole::ALL.map(ProjectRole::as_str).join(", ");
                    format!("`{role}` is a role on the platform; here there are {known}")
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
