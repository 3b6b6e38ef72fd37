//! What can be asked for, and what it can be about.

use gpuaas_contract::id::{OrgId, ProjectId};

/// What an action is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The platform itself.
    Platform,
    /// An organization.
    Organization(OrgId),
    /// A project and everything in it.
    Project {
        /// The organization it belongs to, as stored; never as the caller says.
        organization: OrgId,
        /// The project.
        project: ProjectId,
    },
}

impl Scope {
    /// What kind of thing it is.
    pub const fn kind(&self) -> ScopeKind {
        match self {
            Self::Platform => ScopeKind::Platform,
            Self::Organization(_) => ScopeKind::Organization,
            Self::Project { .. } => ScopeKind::Project,
        }
    }
}

/// The kinds of [`Scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScopeKind {
    /// The platform itself.
    Platform,
    /// An organization.
    Organization,
    /// A project.
    Project,
}

impl ScopeKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Platform, Self::Organization, Self::Project];

    /// Name in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Platform => "platform",
            Self::Organization => "organization",
            Self::Project => "project",
        }
    }
}

macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $effect:ident, [$($scope:ident),+];)*) => {
        /// What somebody wants to do. Closed: whatever the API offers needs one of these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum Action {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Action {
            /// Every action.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name on the wire, in the policies and in the scopes of keys.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Whether it only looks.
            pub const fn reads(self) -> bool {
                match self {
                    $(Self::$variant => actions!(@ $effect),)*
                }
            }

            /// The kinds of scope it can be about.
            pub const fn scopes(self) -> &'static [ScopeKind] {
                match self {
                    $(Self::$variant => &[$(ScopeKind::$scope),+],)*
                }
            }
        }
    };
    (@ reads) => { true };
    (@ changes) => { false };
}

actions! {
    /// Sees who they are and which roles they have.
    SelfRead, "self.read", reads, [Platform];
    /// Sees what can be leased, and at which price.
    CatalogRead, "catalog.read", reads, [Platform];
    /// Sees nodes, slots, tasks and the state of the control plane.
    PlatformRead, "platform.read", reads, [Platform];
    /// Enrolls, drains and repairs nodes, runs tasks on them.
    PlatformOperate, "platform.operate", changes, [Platform];
    /// Changes who and what is trusted: platform tokens, signing keys, issuers.
    PlatformAdmin, "platform.admin", changes, [Platform];
    /// Reads the audit log.
    AuditRead, "audit.read", reads, [Platform];
    /// Changes products, prices and the images everybody sees.
    CatalogManage, "catalog.manage", changes, [Platform];
    /// Sees what is free, taken and broken.
    CapacityRead, "capacity.read", reads, [Platform];
    /// Plans and cancels maintenance windows.
    MaintenanceManage, "maintenance.manage", changes, [Platform];
    /// Lists the organizations they can see.
    OrganizationList, "organization.list", reads, [Platform];
    /// Makes an organization.
    OrganizationCreate, "organization.create", changes, [Platform];
    /// Sees an organization.
    OrganizationRead, "organization.read", reads, [Organization];
    /// Changes an organization.
    OrganizationManage, "organization.manage", changes, [Organization];
    /// Sees limits and what is used of them.
    QuotaRead, "quota.read", reads, [Organization, Project];
    /// Sets limits.
    QuotaSet, "quota.set", changes, [Organization, Project];
    /// Lists the projects they can see.
    ProjectList, "project.list", reads, [Platform];
    /// Makes a project in an organization.
    ProjectCreate, "project.create", changes, [Organization];
    /// Sees a project.
    ProjectRead, "project.read", reads, [Project];
    /// Changes or deletes a project.
    ProjectManage, "project.manage", changes, [Project];
    /// Sees who has which role.
    MemberRead, "member.read", reads, [Platform, Organization, Project];
    /// Invites and removes people, changes their roles.
    MemberManage, "member.manage", changes, [Platform, Organization, Project];
    /// Sees service accounts and the names of their keys. Secrets are shown to nobody.
    KeyRead, "key.read", reads, [Project];
    /// Makes and removes service accounts and their keys.
    KeyManage, "key.manage", changes, [Project];
    /// Sees SSH keys.
    SshKeyRead, "ssh_key.read", reads, [Project];
    /// Adds and removes SSH keys.
    SshKeyManage, "ssh_key.manage", changes, [Project];
    /// Sees the images of a project.
    ImageRead, "image.read", reads, [Project];
    /// Adds and removes images of a project.
    ImageManage, "image.manage", changes, [Project];
    /// Sees allocations.
    AllocationRead, "allocation.read", reads, [Project];
    /// Leases machines.
    AllocationCreate, "allocation.create", changes, [Project];
    /// Starts, stops, renews and ends allocations.
    AllocationOperate, "allocation.operate", changes, [Project];
    /// Opens the console of a guest. Counts as a change: who types there changes things.
    AllocationConsole, "allocation.console", changes, [Project];
    /// Reads what happened in a project.
    EventRead, "event.read", reads, [Project];
    /// Sees webhooks and their deliveries.
    WebhookRead, "webhook.read", reads, [Project];
    /// Adds, changes and removes webhooks.
    WebhookManage, "webhook.manage", changes, [Project];
}

impl Action {
    /// The action with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.as_str() == name)
    }

    /// What its name has before the dot.
    pub fn group(self) -> &'static str {
        self.as_str().split_once('.').map_or(self.as_str(), |(group, _)| group)
    }

    /// Whether it can be about such a thing.
    pub fn applies_to(self, kind: ScopeKind) -> bool {
        self.scopes().contains(&kind)
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whether_an_action_reads() {
        for action in Action::ALL.iter().copied() {
            assert_eq!(Action::parse(action.as_str()), Some(action));
            let name = action.as_str();
            assert_eq!(action.reads(), name.ends_with(".read") || name.ends_with(".list"), "{name}");
            assert_eq!(serde_json::to_string(&action).expect("json"), format!("\"{name}\""));
        }
        assert_eq!(Action::parse("allocation"), None);
    }
}
