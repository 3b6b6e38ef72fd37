//! Organizations.

use std::collections::BTreeSet;

use gpuaas_api::dto::{OrganizationChange, OrganizationCreate, Page};
use gpuaas_contract::id::{MembershipId, OrgId};
use gpuaas_domain::Refusal;
use gpuaas_domain::access::{MemberRole, Place, ProjectRole};
use gpuaas_domain::catalog::Image;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, Organization, Project};
use gpuaas_store::ResourceFilter;

use super::{Caller, IfMatch, PageRequest, check_name_free, grants, list_resources, live_count, members, quotas};
use crate::error::ControlError;
use crate::{Control, resources};

/// The organization with this id.
pub(crate) async fn get(control: &Control, id: OrgId) -> Result<Organization, ControlError> {
    let found = resources::get::<Organization>(control, id).await?.filter(is_live);
    Ok(found.ok_or_else(|| unknown(&id.to_string()))?)
}

/// The organization with this id or name.
pub(crate) async fn find(control: &Control, name: &str) -> Result<Organization, ControlError> {
    let found = match name.parse::<OrgId>() {
        Ok(id) => resources::get::<Organization>(control, id).await?,
        Err(_) => resources::by_name::<Organization>(control, "", name).await?,
    };
    Ok(found.filter(is_live).ok_or_else(|| unknown(name))?)
}

fn is_live(organization: &Organization) -> bool {
    organization.deleted_at.is_none()
}

fn unknown(name: &str) -> Refusal {
    Refusal::not_found("organization_unknown", format!("there is no organization {name}"))
}

/// The name of an organization; empty if there is no such organization.
pub(crate) async fn name_of(control: &Control, id: OrgId) -> Result<String, ControlError> {
    Ok(resources::get::<Organization>(control, id).await?.map(|organization| organization.name).unwrap_or_default())
}

/// Those that the caller sees: all of them on the platform, else those in which they have a role, or a role in a project.
pub(crate) async fn list(
    control: &Control,
    caller: &Caller,
    name: Option<String>,
    page: &PageRequest<OrgId>,
) -> Result<Page<Organization>, ControlError> {
    if caller.principal.is_of_platform() {
        let filter = ResourceFilter { name_contains: name, states: vec!["active"], ..ResourceFilter::default() };
        return list_resources(control, &filter, page, false).await;
    }
    let mut ids = BTreeSet::new();
    for (place, _) in &caller.principal.memberships {
        match place {
            Place::Organization(id) => drop(ids.insert(*id)),
            Place::Project(id) => {
                ids.extend(resources::get::<Project>(control, id).await?.map(|project| project.organization_id));
            }
            Place::Platform => {}
        }
    }
    let mut found: Vec<Organization> = Vec::new();
    for id in ids.into_iter().filter(|id| page.after.is_none_or(|after| *id > after)) {
        found.extend(resources::get::<Organization>(control, id).await?.filter(is_live));
    }
    found.retain(|organization| name.as_deref().is_none_or(|name| organization.name.contains(name)));
    Ok(page.cut(found, |organization| organization.id.to_string()))
}

/// Creates an organization, with an owner if one is named.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    wanted: &OrganizationCreate,
) -> Result<Organization, ControlError> {
    let (id, owner, context) = (OrgId::generate(), MembershipId::generate(), caller.context());
    let attempt = || async {
        check_name_free::<Organization>(control, "", &wanted.name).await?;
        let limits = quotas::limits(&wanted.limits);
        let (made, mut decision) = tenancy::create_organization(id, &wanted.name, &wanted.description, limits, &context)?;
        if let Some(email) = &wanted.owner_email {
            let who = members::by_email(control, email).await?;
            let role = MemberRole::Project(ProjectRole::Owner);
            grants::role(control, caller, Place::Organization(id), role)?;
            decision = decision.and(tenancy::invite(owner, who, Place::Organization(id), role, &context)?.1);
        }
        Ok((made, decision))
    };
    caller.transact(control, attempt).await
}

/// Gives an organization another description.
pub(crate) async fn change(
    control: &Control,
    caller: &Caller,
    id: OrgId,
    change: &OrganizationChange,
    if_match: &IfMatch,
) -> Result<Organization, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let organization = get(control, id).await?;
        if_match.check(organization.version)?;
        let description = change.description.as_deref().unwrap_or(&organization.description);
        Ok(tenancy::describe_organization(&organization, description, &context)?)
    };
    caller.transact(control, attempt).await?;
    get(control, id).await
}

/// Deletes an organization that has no projects any more.
pub(crate) async fn delete(
    control: &Control,
    caller: &Caller,
    id: OrgId,
    if_match: &IfMatch,
) -> Result<Organization, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let organization = get(control, id).await?;
        if_match.check(organization.version)?;
        let projects = live_count(control, ResourceKind::Project, organization.id).await?;
        let members = members::of_place(control, Place::Organization(organization.id)).await?;
        let parent = Some(organization.id.to_string());
        let images = ResourceFilter { parent, states: vec!["active"], ..ResourceFilter::default() };
        let images: Vec<Image> = resources::all(control, &images).await?;
        Ok(tenancy::delete_organization(&organization, projects, &members, &images, &context)?)
    };
    caller.transact(control, attempt).await
}
