//! Quotas of organizations and projects.

use std::fmt::Display;

use gpuaas_api::dto;
use gpuaas_domain::quota::{self, Limits, Quota, quota_id};

use super::{Caller, IfMatch};
use crate::error::ControlError;
use crate::{Control, resources};

/// The limits of a document.
pub(super) fn limits(limits: &dto::Limits) -> Limits {
    Limits { allocations: limits.allocations, slots: limits.slots, machines: limits.machines }
}

/// The quota of an organization or a project.
pub(crate) async fn get(control: &Control, of: impl Display) -> Result<Quota, ControlError> {
    let id = quota_id(&of);
    resources::get::<Quota>(control, &id).await?.ok_or_else(|| ControlError::Internal(format!("{id} is not in the resources")))
}

/// Sets the limits of the quota of an organization or a project.
pub(crate) async fn set(
    control: &Control,
    caller: &Caller,
    of: impl Display,
    wanted: &dto::Limits,
    if_match: &IfMatch,
) -> Result<Quota, ControlError> {
    let (of, context) = (of.to_string(), caller.context());
    let attempt = || async {
        let quota = get(control, &of).await?;
        if_match.check(quota.version)?;
        Ok(quota::set_limits(&quota, limits(wanted), &context))
    };
    caller.transact(control, attempt).await?;
    get(control, &of).await
}
