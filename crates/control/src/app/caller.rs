//! Who asks for something, and how what is decided for them is written.

use std::sync::Arc;

use gpuaas_contract::id::{CorrelationId, OrgId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{Principal, Scope};
use gpuaas_domain::allocation::Allocation;
use gpuaas_domain::decision::Context;
use gpuaas_domain::idempotency::RequestKey;
use gpuaas_domain::tenancy::{Organization, Project};
use gpuaas_domain::{Actor, Decision};

use crate::Control;
use crate::audience::Audience;
use crate::error::ControlError;
use crate::transact::{Claim, transact_with};

/// Somebody who is known, and what they ask about.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Who.
    pub(crate) actor: Actor,
    /// With which roles.
    pub(crate) principal: Arc<Principal>,
    /// What they ask about.
    pub(crate) scope: Scope,
    /// The same as it was read, so that nobody reads it again.
    subject: Arc<Subject>,
    /// Follows the request.
    pub(crate) correlation_id: CorrelationId,
    /// The request is done once under this key.
    claim: Option<Arc<Claim>>,
}

/// What a request is about, as it was read to decide whether its caller may do it.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// The platform itself.
    Platform,
    /// An organization.
    Organization(Organization),
    /// A project that is there.
    Project(Project),
    /// An allocation.
    Allocation(Box<Allocation>),
    /// A webhook, or one of its deliveries, and the project it belongs to.
    Webhook(Project),
}

impl Subject {
    /// Where the right to it comes from.
    pub(crate) fn scope(&self) -> Scope {
        match self {
            Self::Platform => Scope::Platform,
            Self::Organization(organization) => Scope::Organization(organization.id),
            Self::Project(project) | Self::Webhook(project) => {
                Scope::Project { organization: project.organization_id, project: project.id }
            }
            Self::Allocation(of) => Scope::Project { organization: of.organization_id, project: of.project_id },
        }
    }
}

impl Caller {
    /// Somebody who may do what they ask for.
    pub(crate) fn new(actor: Actor, principal: Arc<Principal>, subject: Subject, correlation_id: CorrelationId) -> Self {
        Self { actor, principal, scope: subject.scope(), subject: Arc::new(subject), correlation_id, claim: None }
    }

    /// The same, for a request that is done once under this key.
    pub(crate) fn once(self, key: RequestKey) -> Self {
        Self { claim: Some(Arc::new(Claim::new(key))), ..self }
    }

    /// The caller's own key for the request.
    pub(crate) fn idempotency_key(&self) -> Option<&str> {
        self.claim.as_deref().map(|claim| claim.key().text())
    }

    /// The organization that the request is about, as it was when the caller's right to it was decided on.
    pub(crate) fn organization(&self) -> Result<Organization, ControlError> {
        let Subject::Organization(organization) = &*self.subject else {
            return Err(ControlError::Internal(format!("the request is about {:?}, not an organization", self.subject)));
        };
        Ok(organization.clone())
    }

    /// The project that the request is about, as it was when the caller's right to it was decided on.
    pub(crate) fn project(&self) -> Result<Project, ControlError> {
        let Subject::Project(project) = &*self.subject else {
            return Err(ControlError::Internal(format!("the request is about {:?}, not a project", self.subject)));
        };
        Ok(project.clone())
    }

    /// The allocation that the request is about, as it was when the caller's right to it was decided on.
    pub(crate) fn allocation(&self) -> Result<Allocation, ControlError> {
        let Subject::Allocation(allocation) = &*self.subject else {
            return Err(ControlError::Internal(format!("the request is about {:?}, not an allocation", self.subject)));
        };
        Ok((**allocation).clone())
    }

    /// What they are shown.
    pub(crate) fn audience(&self) -> Audience {
        Audience::of(&self.principal)
    }

    /// The context of a decision made for this caller.
    pub(crate) fn context(&self) -> Context {
        Context { now: Timestamp::now(), actor: self.actor.clone(), correlation_id: self.correlation_id.clone() }
    }

    /// Loads, decides and commits for this caller, with the record of the request's key: see [`crate::transact`].
    pub(crate) async fn transact<T, A, F>(&self, control: &Control, attempt: A) -> Result<T, ControlError>
    where
        A: Fn() -> F,
        F: Future<Output = Result<(T, Decision), ControlError>>,
    {
        transact_with(control, self.claim.as_deref(), (), |_| None, |_| attempt()).await
    }

    /// The same if the state was loaded a moment ago: the first attempt gets it.
    pub(crate) async fn transact_knowing<K, T, A, F>(&self, control: &Control, known: K, attempt: A) -> Result<T, ControlError>
    where
        A: Fn(Option<K>) -> F,
        F: Future<Output = Result<(T, Decision), ControlError>>,
    {
        transact_with(control, self.claim.as_deref(), known, |_| None, attempt).await
    }

    /// The same for decisions that count against the quota of an organization.
    pub(crate) async fn transact_counted<K, T, A, F>(
        &self,
        control: &Control,
        known: K,
        organization: impl Fn(&T) -> Option<OrgId>,
        attempt: A,
    ) -> Result<T, ControlError>
    where
        A: Fn(Option<K>) -> F,
        F: Future<Output = Result<(T, Decision), ControlError>>,
    {
        transact_with(control, self.claim.as_deref(), known, |value| organization(value).map(|id| *id.as_bytes()), attempt).await
    }
}
