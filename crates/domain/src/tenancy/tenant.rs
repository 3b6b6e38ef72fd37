//! Organizations own projects, projects own everything that is leased, and service accounts act for projects.

use gpuaas_contract::event::{
    Event, OrganizationChanged, OrganizationCreated, OrganizationDeleted, ProjectChanged, ProjectCreated, ProjectDeleted,
    ServiceAccountEvent,
};
use gpuaas_contract::id::{OrgId, ProjectId, ServiceAccountId};
use gpuaas_contract::state::ProjectState;
use gpuaas_contract::time::Timestamp;

use super::member::close;
use crate::access::Membership;
use crate::catalog::{Image, delete_image};
use crate::decision::{Context, Decision};
use crate::names::{checked_handle, checked_text};
use crate::quota::{Limits, Quota};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// A company, a university or a team.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Organization {
    /// Unique id of the organization.
    pub id: OrgId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Name that people type; unique among organizations.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was deleted; its audit entries stay. `None` while it exists.
    #[serde(default)]
    pub deleted_at: Option<Timestamp>,
}

resource!(Organization, Organization);

impl Organization {
    fn found_by(&self) -> Keys {
        let live = self.deleted_at.is_none();
        Keys { name: live.then(|| self.name.clone()), state: if live { "active" } else { "deleted" }, ..Keys::default() }
    }
}

/// The owner of allocations, SSH keys and service accounts.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Project {
    /// Unique id of the project.
    pub id: ProjectId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The organization that owns it.
    pub organization_id: OrgId,
    /// Name that people type; unique within the organization.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was deleted; its allocations and its audit entries stay. `None` while it exists.
    pub deleted_at: Option<Timestamp>,
}

resource!(Project, Project);

impl Project {
    fn found_by(&self) -> Keys {
        let live = self.deleted_at.is_none();
        Keys {
            parent: self.organization_id.to_string(),
            name: live.then(|| self.name.clone()),
            state: self.state().as_str(),
            ..Keys::default()
        }
    }

    /// Whether it exists or is deleted.
    pub const fn state(&self) -> ProjectState {
        if self.deleted_at.is_none() { ProjectState::Active } else { ProjectState::Deleted }
    }

    /// Refuses any change in a deleted project.
    pub fn check_live(&self) -> Result<(), Refusal> {
        match self.deleted_at {
            None => Ok(()),
            Some(_) => Err(Refusal::not_found("project_unknown", format!("project {} was deleted", self.name))),
        }
    }
}

/// A program that acts for a project. It signs in with API keys; its roles are memberships like those of people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServiceAccount {
    /// Unique id of the service account.
    pub id: ServiceAccountId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The project it acts for.
    pub project_id: ProjectId,
    /// Name that people type; unique within the project.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was deleted; its keys no longer count. `None` while it exists.
    pub deleted_at: Option<Timestamp>,
}

resource!(ServiceAccount, ServiceAccount);

impl ServiceAccount {
    fn found_by(&self) -> Keys {
        let live = self.deleted_at.is_none();
        Keys {
            parent: self.project_id.to_string(),
            name: live.then(|| self.name.clone()),
            state: if live { "active" } else { "deleted" },
            ..Keys::default()
        }
    }
}

/// Creates an organization, with a quota.
pub fn create_organization(
    id: OrgId,
    name: &str,
    description: &str,
    limits: Limits,
    context: &Context,
) -> Result<(Organization, Decision), Refusal> {
    let organization = Organization {
        id,
        version: 0,
        name: checked_handle(name, "an organization")?,
        description: checked_text(description, "the description")?,
        created_at: context.now,
        deleted_at: None,
    };
    let quota = Quota::of_organization(id, limits);
    let event = Event::OrganizationCreated(OrganizationCreated { organization_id: id, name: organization.name.clone(), limits });
    let decision = Decision::default().insert(&organization).insert(&quota).record(context, id, event);
    Ok((organization, decision))
}

/// Changes the description of an organization. Idempotent.
pub fn describe_organization(
    organization: &Organization,
    description: &str,
    context: &Context,
) -> Result<(Organization, Decision), Refusal> {
    let next = Organization { description: checked_text(description, "the description")?, ..organization.clone() };
    if next == *organization {
        return Ok((next, Decision::default()));
    }
    let event =
        Event::OrganizationChanged(OrganizationChanged { organization_id: next.id, description: next.description.clone() });
    let decision = Decision::default().update(&next).record(context, next.id, event);
    Ok((next, decision))
}

/// Creates a project, with a quota of its own in addition to that of its organization.
pub fn create_project(
    id: ProjectId,
    organization: &Organization,
    name: &str,
    description: &str,
    limits: Limits,
    context: &Context,
) -> Result<(Project, Decision), Refusal> {
    let project = Project {
        id,
        version: 0,
        organization_id: organization.id,
        name: checked_handle(name, "a project")?,
        description: checked_text(description, "the description")?,
        created_at: context.now,
        deleted_at: None,
    };
    let quota = Quota::of_project(id, organization.id, limits);
    let event = Event::ProjectCreated(ProjectCreated {
        project_id: id,
        organization_id: organization.id,
        name: project.name.clone(),
        limits,
    });
    // Also writes the organization, unchanged: if it is deleted at the same time, one of the two is a conflict.
    let decision = Decision::default().insert(&project).insert(&quota).update(organization);
    let decision = decision.record(context, id, event);
    Ok((project, decision))
}

/// Deletes an organization without projects, with its members and its images. `projects` is the number of its projects that are not
/// deleted.
pub fn delete_organization(
    organization: &Organization,
    projects: u64,
    members: &[Membership],
    images: &[Image],
    context: &Context,
) -> Result<(Organization, Decision), Refusal> {
    if organization.deleted_at.is_some() {
        return Ok((organization.clone(), Decision::default()));
    }
    if projects > 0 {
        let message = format!("organization {} still has {projects} projects; delete them first", organization.name);
        return Err(Refusal::conflict("organization_in_use", message));
    }
    let next = Organization { deleted_at: Some(context.now), ..organization.clone() };
    let mut decision = Decision::default().update(&next).wakeup(crate::Wakeup::Rights).and(close(members, context));
    for image in images {
        decision = decision.and(delete_image(image, context).1);
    }
    let event = Event::OrganizationDeleted(OrganizationDeleted { organization_id: next.id, name: next.name.clone() });
    Ok((next, decision.record(context, organization.id, event)))
}

/// Changes the description of a project. Idempotent.
pub fn describe_project(project: &Project, description: &str, context: &Context) -> Result<(Project, Decision), Refusal> {
    project.check_live()?;
    let next = Project { description: checked_text(description, "the description")?, ..project.clone() };
    if next == *project {
        return Ok((next, Decision::default()));
    }
    let event = Event::ProjectChanged(ProjectChanged { project_id: next.id, description: next.description.clone() });
    let decision = Decision::default().update(&next).record(context, next.id, event);
    Ok((next, decision))
}

/// Deletes an empty project, with its members. `quota` tells whether it is empty: it counts all allocations that have not ended.
pub fn delete_project(
    project: &Project,
    quota: &Quota,
    members: &[Membership],
    context: &Context,
) -> Result<(Project, Decision), Refusal> {
    if project.deleted_at.is_some() {
        return Ok((project.clone(), Decision::default()));
    }
    if quota.used.allocations > 0 {
        let message = format!("project {} still has {} allocations; release them first", project.name, quota.used.allocations);
        return Err(Refusal::conflict("project_in_use", message));
    }
    let next = Project { deleted_at: Some(context.now), ..project.clone() };
    // Also writes the quota, unchanged: an allocation requested at the same time changes it, so one of the two is a conflict.
    let decision = Decision::default().update(&next).update(quota).wakeup(crate::Wakeup::Rights);
    let decision = decision.and(close(members, context));
    let event = Event::ProjectDeleted(ProjectDeleted { project_id: next.id, name: next.name.clone() });
    Ok((next, decision.record(context, project.id, event)))
}

/// Creates a service account. It has no permissions until it is made a member.
pub fn create_service_account(
    id: ServiceAccountId,
    project: &Project,
    name: &str,
    description: &str,
    context: &Context,
) -> Result<(ServiceAccount, Decision), Refusal> {
    project.check_live()?;
    let account = ServiceAccount {
        id,
        version: 0,
        project_id: project.id,
        name: checked_handle(name, "a service account")?,
        description: checked_text(description, "the description")?,
        created_at: context.now,
        deleted_at: None,
    };
    let decision = Decision::default().insert(&account);
    let decision = decision.record(context, id, Event::ServiceAccountCreated(event_of(&account)));
    Ok((account, decision))
}

/// Deletes a service account, and with it all its keys.
pub fn delete_service_account(account: &ServiceAccount, context: &Context) -> (ServiceAccount, Decision) {
    if account.deleted_at.is_some() {
        return (account.clone(), Decision::default());
    }
    let next = ServiceAccount { deleted_at: Some(context.now), ..account.clone() };
    let decision = Decision::default().update(&next).wakeup(crate::Wakeup::Rights);
    let decision = decision.record(context, next.id, Event::ServiceAccountDeleted(event_of(&next)));
    (next, decision)
}

fn event_of(account: &ServiceAccount) -> ServiceAccountEvent {
    ServiceAccountEvent { service_account_id: account.id, project_id: account.project_id, name: account.name.clone() }
}
