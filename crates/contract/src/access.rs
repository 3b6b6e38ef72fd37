//! Authorization vocabulary: the names of actions, of the scopes they apply to, and of roles. A role is a set of actions; the control
//! plane's rules declare which ones.

use std::borrow::Cow;

use crate::names::{Named, UnknownName, named};

named! {
    /// Kind of scope that an action can apply to.
    pub enum ScopeKind {
        /// The platform itself.
        Platform = "platform",
        /// An organization.
        Organization = "organization",
        /// A project.
        Project = "project",
    }
}

macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $effect:ident, [$($scope:ident),+];)*) => {
        /// An action that needs a permission. Every operation of the API requires one of these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum Action {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Action {
            /// All actions, in order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name on the wire, in policies and in API key scopes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Whether the action only reads.
            pub const fn reads(self) -> bool {
                match self {
                    $(Self::$variant => actions!(@ $effect),)*
                }
            }

            /// The kinds of scope the action can apply to.
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
    /// Changes their own password.
    SelfManage, "self.manage", changes, [Platform];
    /// Sees what can be leased, and at which price.
    CatalogRead, "catalog.read", reads, [Platform];
    /// Sees nodes, slots, tasks and the state of the control plane.
    PlatformRead, "platform.read", reads, [Platform];
    /// Enrolls, drains and repairs nodes, and runs tasks on them.
    PlatformOperate, "platform.operate", changes, [Platform];
    /// Changes who and what is trusted: platform tokens, signing keys, issuers.
    PlatformAdmin, "platform.admin", changes, [Platform];
    /// Reads the audit log.
    AuditRead, "audit.read", reads, [Platform];
    /// Changes products, prices and the images of the platform.
    CatalogManage, "catalog.manage", changes, [Platform];
    /// Sees which capacity is free, leased or unhealthy.
    CapacityRead, "capacity.read", reads, [Platform];
    /// Plans and cancels maintenance windows.
    MaintenanceManage, "maintenance.manage", changes, [Platform];
    /// Lists the organizations they can see.
    OrganizationList, "organization.list", reads, [Platform];
    /// Creates an organization.
    OrganizationCreate, "organization.create", changes, [Platform];
    /// Sees an organization.
    OrganizationRead, "organization.read", reads, [Organization];
    /// Changes an organization.
    OrganizationManage, "organization.manage", changes, [Organization];
    /// Sees quotas and their usage.
    QuotaRead, "quota.read", reads, [Organization, Project];
    /// Sets quotas.
    QuotaSet, "quota.set", changes, [Organization, Project];
    /// Lists the projects they can see.
    ProjectList, "project.list", reads, [Platform];
    /// Creates a project in an organization.
    ProjectCreate, "project.create", changes, [Organization];
    /// Sees a project.
    ProjectRead, "project.read", reads, [Project];
    /// Changes or deletes a project.
    ProjectManage, "project.manage", changes, [Project];
    /// Sees who has which role.
    MemberRead, "member.read", reads, [Platform, Organization, Project];
    /// Adds and removes members, and changes their roles.
    MemberManage, "member.manage", changes, [Platform, Organization, Project];
    /// Sees service accounts and the names of their keys. Secrets are shown to nobody.
    KeyRead, "key.read", reads, [Project];
    /// Creates and deletes service accounts and their keys.
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
    /// Creates allocations.
    AllocationCreate, "allocation.create", changes, [Project];
    /// Starts, stops, extends and releases allocations.
    AllocationOperate, "allocation.operate", changes, [Project];
    /// Opens the console of a guest. Counts as a change, because input on a console changes the guest.
    AllocationConsole, "allocation.console", changes, [Project];
    /// Reads the events of a project.
    EventRead, "event.read", reads, [Project];
    /// Sees webhooks and their deliveries.
    WebhookRead, "webhook.read", reads, [Project];
    /// Adds, changes and removes webhooks.
    WebhookManage, "webhook.manage", changes, [Project];
}

impl Action {
    /// Looks an action up by name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.as_str() == name)
    }

    /// The part of the name before the dot, such as `allocation`.
    pub fn group(self) -> &'static str {
        self.as_str().split_once('.').map_or(self.as_str(), |(group, _)| group)
    }

    /// Whether the action can apply to a scope of this kind.
    pub fn applies_to(self, kind: ScopeKind) -> bool {
        self.scopes().contains(&kind)
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

named! {
    /// A role on the platform, for operators and for API tokens.
    pub enum PlatformRole {
        /// Can do everything.
        Admin = "admin",
        /// Runs the platform: nodes, catalog, quotas, maintenance. Changes nothing that belongs to tenants but the state of allocations.
        Operator = "operator",
        /// Reads everything and changes nothing.
        Support = "support",
        /// Reads the audit log and the state of the platform, but no keys, images or webhooks of tenants. Changes nothing.
        Auditor = "auditor",
    }
}

named! {
    /// A role in a project, or in an organization and all its projects.
    pub enum ProjectRole {
        /// Can do everything in it, including the management of members and keys.
        Owner = "owner",
        /// Creates, uses and releases allocations.
        Member = "member",
        /// Reads everything in it.
        Viewer = "viewer",
        /// Reads what bills are based on: quotas and allocations.
        BillingAdmin = "billing_admin",
        /// Reads who and what has access: members, keys without their secrets, webhooks and events.
        TenantAuditor = "tenant_auditor",
    }
}

/// A role of either kind, serialized as its name. Names are unique across both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "&str")]
pub enum MemberRole {
    /// A role on the platform.
    Platform(PlatformRole),
    /// A role in an organization or a project.
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

    /// Looks a role up by name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::from_name(name)
    }
}

impl Named for MemberRole {
    const VALUES: &'static [Self] = &[
        Self::Platform(PlatformRole::Admin),
        Self::Platform(PlatformRole::Operator),
        Self::Platform(PlatformRole::Support),
        Self::Platform(PlatformRole::Auditor),
        Self::Project(ProjectRole::Owner),
        Self::Project(ProjectRole::Member),
        Self::Project(ProjectRole::Viewer),
        Self::Project(ProjectRole::BillingAdmin),
        Self::Project(ProjectRole::TenantAuditor),
    ];

    fn name(self) -> &'static str {
        self.as_str()
    }
}

impl std::fmt::Display for MemberRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for MemberRole {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::parse(name).ok_or_else(|| UnknownName::of::<Self>(name))
    }
}

impl TryFrom<String> for MemberRole {
    type Error = UnknownName;

    fn try_from(name: String) -> Result<Self, UnknownName> {
        name.parse()
    }
}

impl From<MemberRole> for &'static str {
    fn from(role: MemberRole) -> Self {
        role.as_str()
    }
}

impl schemars::JsonSchema for MemberRole {
    fn schema_name() -> Cow<'static, str> {
        "MemberRole".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = Self::VALUES.iter().map(|role| role.as_str()).collect();
        schemars::json_schema!({
            "description": "A role: admin, operator, support or auditor on the platform; owner, member, viewer, billing_admin or tenant_auditor in an organization or a project.",
            "type": "string",
            "enum": names,
        })
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

    #[test]
    fn every_role_has_a_name_of_its_own() {
        let roles =
            PlatformRole::ALL.into_iter().map(MemberRole::Platform).chain(ProjectRole::ALL.into_iter().map(MemberRole::Project));
        assert_eq!(roles.collect::<Vec<_>>(), MemberRole::VALUES);
        for role in MemberRole::VALUES {
            assert_eq!(MemberRole::parse(role.as_str()), Some(*role));
            assert_eq!(serde_json::to_string(role).expect("json"), format!("\"{role}\""));
        }
        assert!(serde_json::from_str::<MemberRole>("\"king\"").is_err());
    }
}
