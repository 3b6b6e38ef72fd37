//! Scopes: what an action applies to.

use gpuaas_contract::access::ScopeKind;
use gpuaas_contract::id::{OrgId, ProjectId};

/// What an action applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The platform itself.
    Platform,
    /// An organization itself.
    Organization(OrgId),
    /// A project and everything in it.
    Project {
        /// The organization that owns the project. Always taken from the store, never from the caller.
        organization: OrgId,
        /// The id of the project.
        project: ProjectId,
    },
}

impl Scope {
    /// The kind of scope, without ids.
    pub const fn kind(&self) -> ScopeKind {
        match self {
            Self::Platform => ScopeKind::Platform,
            Self::Organization(_) => ScopeKind::Organization,
            Self::Project { .. } => ScopeKind::Project,
        }
    }
}
