//! Who the caller is.

use gpuaas_contract::id::OrgId;
use gpuaas_contract::state::CallerKind;
use gpuaas_domain::access::{Membership, Place, PrincipalId, Who};
use gpuaas_domain::tenancy::{Organization, Project, ServiceAccount, User};
use gpuaas_store::ResourceFilter;

use super::Caller;
use crate::error::ControlError;
use crate::{Control, resources};

/// What is known of a caller.
pub(crate) struct Profile {
    /// A person, a service account, a token.
    pub(crate) kind: CallerKind,
    /// What people call them.
    pub(crate) name: String,
    /// A person's address.
    pub(crate) email: Option<String>,
    /// Where they are a member.
    pub(crate) memberships: Vec<NamedMembership>,
}

/// A membership, with what its place is called.
pub(crate) struct NamedMembership {
    /// The membership.
    pub(crate) membership: Membership,
    /// The name of the place.
    pub(crate) place_name: String,
    /// The organization that the place is, or is in.
    pub(crate) organization: Option<OrgId>,
}

/// Looks the caller up.
pub(crate) async fn profile(control: &Control, caller: &Caller) -> Result<Profile, ControlError> {
    let (kind, name, email, owner) = match caller.principal.who {
        PrincipalId::User(id) => {
            let user = resources::get::<User>(control, id).await?;
            let (email, name) = user.map(|user| (user.email, user.name)).unwrap_or_default();
            (CallerKind::User, name, Some(email).filter(|email| !email.is_empty()), Some(Who::User(id)))
        }
        PrincipalId::ServiceAccount(id) => {
            let account = resources::get::<ServiceAccount>(control, id).await?;
            let name = account.map(|account| account.name).unwrap_or_default();
            (CallerKind::ServiceAccount, name, None, Some(Who::ServiceAccount(id)))
        }
        PrincipalId::Token(id) => {
            let token = control.store.api_token_get(id).await?;
            (CallerKind::Token, token.map(|token| token.name).unwrap_or_default(), None, None)
        }
        PrincipalId::LocalAdmin => (CallerKind::LocalAdmin, "local admin".to_owned(), None, None),
    };
    let rows: Vec<Membership> = match owner {
        Some(owner) => {
            let filter = ResourceFilter { owner: Some(owner.to_string()), ..ResourceFilter::default() };
            resources::all(control, &filter).await?
        }
        None => Vec::new(),
    };
    let mut memberships = Vec::with_capacity(rows.len());
    for row in rows.into_iter().filter(|row| row.removed_at.is_none()) {
        memberships.extend(named(control, row).await?);
    }
    Ok(Profile { kind, name, email, memberships })
}

/// A membership with its place, unless that was deleted: there it counts for nothing.
async fn named(control: &Control, membership: Membership) -> Result<Option<NamedMembership>, ControlError> {
    let place = match membership.at {
        Place::Platform => Some(("platform".to_owned(), None)),
        Place::Organization(id) => {
            let organization = resources::get::<Organization>(control, id).await?;
            let organization = organization.filter(|organization| organization.deleted_at.is_none());
            organization.map(|organization| (organization.name, Some(id)))
        }
        Place::Project(id) => {
            let project = resources::get::<Project>(control, id).await?.filter(|project| project.deleted_at.is_none());
            project.map(|project| (project.name, Some(project.organization_id)))
        }
    };
    Ok(place.map(|(place_name, organization)| NamedMembership { membership, place_name, organization }))
}
