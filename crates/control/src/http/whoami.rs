//! Who the caller is.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto::{WhoAmI, WhoAmIMembership};
use gpuaas_contract::state::CallerKind;
use gpuaas_domain::access::{Membership, Place, PrincipalId, Who};
use gpuaas_domain::tenancy::{Organization, Project, ServiceAccount, User};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::Rejected;
use crate::error::ControlError;
use crate::{Control, resources};

pub(super) async fn show(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<WhoAmI>, Rejected> {
    let who = caller.principal.who;
    let (kind, name, email, owner) = match who {
        PrincipalId::User(id) => {
            let user = resources::get::<User>(&control, id).await?;
            let (email, name) = user.map(|user| (user.email, user.name)).unwrap_or_default();
            (CallerKind::User, name, Some(email).filter(|email| !email.is_empty()), Some(Who::User(id)))
        }
        PrincipalId::ServiceAccount(id) => {
            let account = resources::get::<ServiceAccount>(&control, id).await?;
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
            resources::all(&control, &filter).await?
        }
        None => Vec::new(),
    };
    let mut memberships = Vec::with_capacity(rows.len());
    for row in rows.into_iter().filter(|row| row.removed_at.is_none()) {
        memberships.push(membership(&control, row).await?);
    }
    Ok(Json(WhoAmI {
        kind: kind.into(),
        id: who.to_string(),
        name,
        email,
        platform_role: caller.principal.platform.map(Into::into),
        invited: caller.principal.platform.is_some() || !caller.principal.memberships.is_empty(),
        memberships,
    }))
}

async fn membership(control: &Control, row: Membership) -> Result<WhoAmIMembership, ControlError> {
    let (place_name, organization_id) = match row.at {
        Place::Platform => ("platform".to_owned(), None),
        Place::Organization(id) => {
            let organization = resources::get::<Organization>(control, id).await?;
            (organization.map(|organization| organization.name).unwrap_or_default(), Some(id))
        }
        Place::Project(id) => match resources::get::<Project>(control, id).await? {
            Some(project) => (project.name, Some(project.organization_id)),
            None => (String::new(), None),
        },
    };
    Ok(WhoAmIMembership { membership_id: row.id, at: row.at.to_string(), place_name, organization_id, role: row.role.into() })
}
