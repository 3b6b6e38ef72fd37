//! The caller, with everything that authorization depends on.

use gpuaas_contract::id::{ApiTokenId, ServiceAccountId, UserId};
use gpuaas_contract::time::Timestamp;

use super::key_scopes::KeyScopes;
use super::membership::{BadName, Membership, Place, Who};
use super::{MemberRole, PlatformRole, ProjectRole, Scope};

/// The caller's identity. As text, like in the audit log: `user:user_…`, `sa:sa_…`, `token:apitok_…` or `local-admin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrincipalId {
    /// A person who is signed in.
    User(UserId),
    /// A program that acts for a project.
    ServiceAccount(ServiceAccountId),
    /// The bearer of a platform token, which has a role of its own.
    Token(ApiTokenId),
    /// A caller on the server's local socket.
    LocalAdmin,
}

impl std::fmt::Display for PrincipalId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => write!(f, "user:{id}"),
            Self::ServiceAccount(id) => write!(f, "sa:{id}"),
            Self::Token(id) => write!(f, "token:{id}"),
            Self::LocalAdmin => f.write_str("local-admin"),
        }
    }
}

impl std::str::FromStr for PrincipalId {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let read = match text.split_once(':') {
            Some(("user", id)) => id.parse().ok().map(Self::User),
            Some(("sa", id)) => id.parse().ok().map(Self::ServiceAccount),
            Some(("token", id)) => id.parse().ok().map(Self::Token),
            Some(_) => None,
            None => (text == "local-admin").then_some(Self::LocalAdmin),
        };
        read.ok_or(BadName("a caller"))
    }
}

impl TryFrom<String> for PrincipalId {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

/// A caller and the roles they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The caller's identity.
    pub who: PrincipalId,
    /// Roles on the platform.
    pub platform: Vec<PlatformRole>,
    /// Roles in organizations and projects. An entry for the platform has no effect.
    pub memberships: Vec<(Place, ProjectRole)>,
    /// Actions that the API key in use is limited to; `None` if it is not limited.
    pub scopes: Option<KeyScopes>,
    /// When the API key in use expires; `None` if it does not, and for people.
    pub expires_at: Option<Timestamp>,
}

impl Principal {
    /// A caller without any role.
    pub fn nobody(who: PrincipalId) -> Self {
        Self { who, platform: Vec::new(), memberships: Vec::new(), scopes: None, expires_at: None }
    }

    /// A caller on the server's local socket, who may do everything.
    pub fn local_admin() -> Self {
        Self { platform: vec![PlatformRole::Admin], ..Self::nobody(PrincipalId::LocalAdmin) }
    }

    /// A caller with those roles among `rows` that belong to them. Rows of others, invitations, removed roles and roles in the wrong place
    /// have no effect.
    pub fn with_memberships(who: PrincipalId, rows: &[Membership]) -> Self {
        let mut principal = Self::nobody(who);
        let holder = match who {
            PrincipalId::User(id) => Some(Who::User(id)),
            PrincipalId::ServiceAccount(id) => Some(Who::ServiceAccount(id)),
            PrincipalId::Token(_) | PrincipalId::LocalAdmin => None,
        };
        let theirs = |row: &&Membership| Some(&row.who) == holder.as_ref();
        for row in rows.iter().filter(theirs).filter(|row| row.removed_at.is_none() && row.at.fits(row.role)) {
            match row.role {
                MemberRole::Platform(role) => principal.platform.push(role),
                MemberRole::Project(role) => principal.memberships.push((row.at, role)),
            }
        }
        principal
    }

    /// Whether the caller holds any role in `scope`. For a caller who does not, the API pretends that it does not exist, so that nobody
    /// learns what others have.
    pub fn can_see(&self, scope: &Scope) -> bool {
        self.is_of_platform() || self.project_roles(scope).next().is_some()
    }

    /// Whether the caller holds any role on the platform, and so is one of its operators.
    pub fn is_of_platform(&self) -> bool {
        !self.platform.is_empty()
    }

    /// Whether the caller holds a role anywhere.
    pub fn is_known(&self) -> bool {
        self.is_of_platform() || self.memberships.iter().any(|(place, _)| *place != Place::Platform)
    }

    /// The organization and project roles that count in `scope`.
    fn project_roles(&self, scope: &Scope) -> impl Iterator<Item = ProjectRole> {
        let (organization, project) = match *scope {
            Scope::Platform => (None, None),
            Scope::Organization(organization) => (Some(organization), None),
            Scope::Project { organization, project } => (Some(organization), Some(project)),
        };
        let counts = move |place: Place| match place {
            Place::Platform => false,
            Place::Organization(held) => organization == Some(held),
            Place::Project(held) => project == Some(held),
        };
        self.memberships.iter().filter(move |(place, _)| counts(*place)).map(|(_, role)| *role)
    }

    /// All roles that count in `scope`.
    pub(super) fn roles_at(&self, scope: &Scope) -> Vec<MemberRole> {
        let platform = self.platform.iter().copied().map(MemberRole::Platform);
        platform.chain(self.project_roles(scope).map(MemberRole::Project)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::{MembershipId, OrgId, ProjectId};

    use super::*;

    #[test]
    fn a_caller_reads_back_as_itself_and_nothing_else_does() {
        let ids = [
            PrincipalId::User(UserId::generate()),
            PrincipalId::ServiceAccount(ServiceAccountId::generate()),
            PrincipalId::Token(ApiTokenId::generate()),
            PrincipalId::LocalAdmin,
        ];
        for id in ids {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "user", "user:", "user:ann", "node:node_1", "local-admin:"] {
            assert!(bad.parse::<PrincipalId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_live_rows_of_the_holder_count() {
        let (ann, bob) = (UserId::generate(), UserId::generate());
        let at = Place::Project(ProjectId::generate());
        let row = |who, at, role| Membership {
            id: MembershipId::generate(),
            version: 1,
            who,
            at,
            role,
            invited_by: "system".to_owned(),
            created_at: Timestamp(1),
            removed_at: None,
        };
        let member = MemberRole::Project(ProjectRole::Member);
        let admin = MemberRole::Platform(PlatformRole::Admin);
        let rows = [
            row(Who::User(ann), at, member),
            row(Who::User(bob), Place::Platform, admin),
            row(Who::Invited("ann@example.com".to_owned()), Place::Platform, admin),
            // Both are in the wrong place, which only a corrupt row can be.
            row(Who::User(ann), Place::Organization(OrgId::generate()), admin),
            row(Who::User(ann), Place::Platform, MemberRole::Project(ProjectRole::Owner)),
            Membership { removed_at: Some(Timestamp(2)), ..row(Who::User(ann), Place::Platform, admin) },
            row(Who::User(ann), Place::Platform, MemberRole::Platform(PlatformRole::Operator)),
            row(Who::User(ann), Place::Platform, MemberRole::Platform(PlatformRole::Support)),
        ];
        let principal = Principal::with_memberships(PrincipalId::User(ann), &rows);
        assert_eq!(principal.platform, [PlatformRole::Operator, PlatformRole::Support]);
        assert_eq!(principal.memberships, [(at, ProjectRole::Member)]);
        assert_eq!(Principal::with_memberships(PrincipalId::LocalAdmin, &rows), Principal::nobody(PrincipalId::LocalAdmin));
    }
}
