//! Quotas of organizations and projects.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use gpuaas_api::dto;
use gpuaas_domain::quota::Quota;

use super::Tagged;
use super::problem::{JsonBody, Rejected};
use crate::Control;
use crate::app::{Caller, IfMatch, etag_of, quotas};

type Shared = State<Arc<Control>>;

pub(super) async fn of_organization(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    Ok(tagged(&quotas::get(&control, caller.organization()?.id).await?))
}

pub(super) async fn of_project(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    Ok(tagged(&quotas::get(&control, caller.project()?.id).await?))
}

pub(super) async fn set_of_organization(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    JsonBody(wanted): JsonBody<dto::Limits>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    Ok(tagged(&quotas::set(&control, &caller, caller.organization()?.id, &wanted, &if_match).await?))
}

pub(super) async fn set_of_project(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    JsonBody(wanted): JsonBody<dto::Limits>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    Ok(tagged(&quotas::set(&control, &caller, caller.project()?.id, &wanted, &if_match).await?))
}

fn tagged(quota: &Quota) -> Tagged<dto::Quota> {
    Tagged(etag_of(quota.version), to_dto(quota))
}

fn to_dto(quota: &Quota) -> dto::Quota {
    dto::Quota {
        organization_id: quota.organization_id,
        project_id: quota.project_id,
        limits: dto::QuotaLimits {
            allocations: quota.limits.allocations,
            slots: quota.limits.slots,
            machines: quota.limits.machines,
        },
        used: dto::QuotaUsed { allocations: quota.used.allocations, slots: quota.used.slots, machines: quota.used.machines },
        etag: etag_of(quota.version),
    }
}
