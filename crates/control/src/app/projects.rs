//! Projects.

use std::collections::BTreeMap;

use gpuaas_api::dto::{Page, ProjectChange, ProjectCreate};
use gpuaas_contract::id::{MembershipId, OrgId, ProjectId};
use gpuaas_domain::access::{MemberRole, Place, ProjectRole};
use gpuaas_domain::quota::{Quota, quota_id};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, Organization, Project};
use gpuaas_domain::{Refusal, caps};
use gpuaas_store::ResourceFilter;

use super::{
    Caller, IfMatch, PageRequest, check_cap, check_name_free, grants, list_resources, live_count, live_in, members,
    organizations, quotas,
};
use crate::error::ControlError;
use crate::{Control, resources};

/// The project with this id, if it was not deleted.
pub(crate) async fn get(control: &Control, id: ProjectId) -> Result<Project, ControlError> {
    let unknown = || Refusal::not_found("project_unknown", format!("there is no project {id}"));
    let project = resources::get::<Project>(control, id).await?.ok_or_else(unknown)?;
    project.check_live()?;
    Ok(project)
}

/// Which projects are listed.
#[derive(Debug, Default)]
pub(crate) struct ProjectFilter {
    /// Those of the organization with this id or name.
    pub(crate) organization: Option<String>,
    /// Those with this in their name.
    pub(crate) name_contains: Option<String>,
}

/// Those that the caller sees.
pub(crate) async fn list(
    control: &Control,
    caller: &Caller,
    filter: ProjectFilter,
    page: &PageRequest<ProjectId>,
) -> Result<Page<Project>, ControlError> {
    let organization = match &filter.organization {
        Some(name) => Some(organizations::find(control, name).await?.id),
        None => None,
    };
    if caller.principal.is_of_platform() {
        let filter = ResourceFilter {
            parent: organization.map(|id| id.to_string()),
            states: vec!["active"],
            name_contains: filter.name_contains,
            ..ResourceFilter::default()
        };
        return list_resources(control, &filter, page, false).await;
    }
    let mut found = seen_by(control, caller).await?;
    found.retain(|project| {
        organization.is_none_or(|id| project.organization_id == id)
            && filter.name_contains.as_deref().is_none_or(|name| project.name.contains(name))
            && page.after.is_none_or(|after| project.id > after)
    });
    Ok(page.cut(found, |project| project.id.to_string()))
}

/// The projects in which a tenant has a role, by id.
async fn seen_by(control: &Control, caller: &Caller) -> Result<Vec<Project>, ControlError> {
    let mut found: BTreeMap<ProjectId, Project> = BTreeMap::new();
    for (place, _) in &caller.principal.memberships {
        match place {
            Place::Platform => {}
            Place::Project(id) => {
                found.extend(resources::get::<Project>(control, id).await?.map(|project| (project.id, project)))
            }
            Place::Organization(id) => {
                let projects = resources::all::<Project>(control, &live_in(id)).await?;
                found.extend(projects.into_iter().map(|project| (project.id, project)));
            }
        }
    }
    Ok(found.into_values().filter(|project| project.deleted_at.is_none()).collect())
}

/// Lists the projects of an organization.
pub(crate) async fn list_of(
    control: &Control,
    organization: OrgId,
    page: &PageRequest<ProjectId>,
) -> Result<Page<Project>, ControlError> {
    list_resources(control, &live_in(organization), page, false).await
}

/// Creates a project, with an owner if one is named.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    organization: &Organization,
    wanted: &ProjectCreate,
) -> Result<Project, ControlError> {
    let (id, owner, context) = (ProjectId::generate(), MembershipId::generate(), caller.context());
    let attempt = || async {
        check_name_free::<Project>(control, &organization.id.to_string(), &wanted.name).await?;
        check_cap(control, caps::PROJECTS, live_count(control, ResourceKind::Project, organization.id).await?)?;
        let limits = quotas::limits(&wanted.limits);
        let (made, mut decision) =
            tenancy::create_project(id, organization, &wanted.name, &wanted.description, limits, &context)?;
        if let Some(email) = &wanted.owner_email {
            let who = members::by_email(control, email).await?;
            let role = MemberRole::Project(ProjectRole::Owner);
            grants::role(control, caller, Place::Project(id), role)?;
            decision = decision.and(tenancy::invite(owner, who, Place::Project(id), role, &context)?.1);
        }
        Ok((made, decision))
    };
    caller.transact(control, attempt).await
}

/// Gives a project another description.
pub(crate) async fn change(
    control: &Control,
    caller: &Caller,
    id: ProjectId,
    change: &ProjectChange,
    if_match: &IfMatch,
) -> Result<Project, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let project = get(control, id).await?;
        if_match.check(project.version)?;
        let description = change.description.as_deref().unwrap_or(&project.description);
        Ok(tenancy::describe_project(&project, description, &context)?)
    };
    caller.transact(control, attempt).await?;
    get(control, id).await
}

/// Deletes a project in which nothing is left.
pub(crate) async fn delete(
    control: &Control,
    caller: &Caller,
    id: ProjectId,
    if_match: &IfMatch,
) -> Result<Project, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let project = get(control, id).await?;
        if_match.check(project.version)?;
        let missing = || ControlError::Internal(format!("project {} has no quota in the resources", project.id));
        let quota = resources::get::<Quota>(control, quota_id(&project.id)).await?.ok_or_else(missing)?;
        let members = members::of_place(control, Place::Project(project.id)).await?;
        Ok(tenancy::delete_project(&project, &quota, &members, &context)?)
    };
    caller.transact(control, attempt).await
}
