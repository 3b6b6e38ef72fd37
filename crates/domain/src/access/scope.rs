//! What an action is about.

use gpuaas_contract::access::ScopeKind;
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
