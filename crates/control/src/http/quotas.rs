//! Quotas of organizations and projects.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use gpuaas_api::dto;
use gpuaas_domain::quota::{self, Limits, Quota, quota_id};

use super::caller::Caller;
use super::problem::{JsonBody, Rejected, Segments};
use super::{Tagged, etag_of, if_match, organizations, projects};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

pub(super) fn limits(limits: &dto::Limits) -> Limits {
    Limits { allocations: limits.allocations, slots: limits.slots, machines: limits.machines }
}

pub(super) async fn of_organization(
    State(control): Shared,
    Segments(id): Segments<String>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    let organization = organizations::get(&control, &id).await?;
    read(&control, quota_id(&organization.id)).await
}

pub(super) async fn of_project(State(control): Shared, Segments(id): Segments<String>) -> Result<Tagged<dto::Quota>, Rejected> {
    let project = projects::get(&control, &id).await?;
    read(&control, quota_id(&project.id)).await
}

pub(super) async fn set_of_organization(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(wanted): JsonBody<dto::Limits>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    let organization = organizations::get(&control, &id).await?;
    set(&control, &caller, &headers, quota_id(&organization.id), &wanted).await
}

pub(super) async fn set_of_project(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(wanted): JsonBody<dto::Limits>,
) -> Result<Tagged<dto::Quota>, Rejected> {
    let project = projects::get(&control, &id).await?;
    set(&control, &caller, &headers, quota_id(&project.id), &wanted).await
}

async fn get(control: &Control, id: &str) -> Result<Quota, ControlError> {
    resources::get::<Quota>(control, id).await?.ok_or_else(|| ControlError::Internal(format!("{id} is not in the resources")))
}

async fn read(control: &Control, id: String) -> Result<Tagged<dto::Quota>, Rejected> {
    let quota = get(control, &id).await?;
    Ok(Tagged(etag_of(quota.version), to_dto(&quota)))
}

async fn set(
    control: &Control,
    caller: &Caller,
    headers: &HeaderMap,
    id: String,
    wanted: &dto::Limits,
) -> Result<Tagged<dto::Quota>, Rejected> {
    let context = caller.context();
    transact(control, || async {
        let quota = get(control, &id).await?;
        if_match(headers, &etag_of(quota.version))?;
        Ok(quota::set_limits(&quota, limits(wanted), &context))
    })
    .await?;
    read(control, id).await
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
