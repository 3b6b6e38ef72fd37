//! Shows callers who they are and what roles they have.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto::{WhoAmI, WhoAmIMembership};

use super::problem::Rejected;
use crate::Control;
use crate::app::Caller;
use crate::app::whoami::{self, NamedMembership};

pub(super) async fn show(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<WhoAmI>, Rejected> {
    let profile = whoami::profile(&control, &caller).await?;
    Ok(Json(WhoAmI {
        kind: profile.kind.into(),
        id: caller.principal.who.to_string(),
        name: profile.name,
        email: profile.email,
        platform_role: caller.principal.platform.first().copied().map(Into::into),
        invited: caller.principal.is_known(),
        memberships: profile.memberships.into_iter().map(to_dto).collect(),
    }))
}

fn to_dto(NamedMembership { membership, place_name, organization }: NamedMembership) -> WhoAmIMembership {
    WhoAmIMembership {
        membership_id: membership.id,
        at: membership.at.to_string(),
        place_name,
        organization_id: organization,
        role: membership.role.into(),
    }
}
