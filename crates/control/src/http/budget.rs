//! The budget of destructive commands: shows what is left of it, and raises it for an hour.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto;
use gpuaas_domain::budget::Scope;

use super::problem::{JsonBody, Rejected};
use crate::Control;
use crate::app::{self, Caller};
use crate::error::ControlError;

type Shared = State<Arc<Control>>;

pub(super) async fn show(State(control): Shared) -> Result<Json<dto::Budget>, Rejected> {
    Ok(Json(to_dto(&control).await?))
}

pub(super) async fn lift(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(dto::BudgetLift { count, reason }): JsonBody<dto::BudgetLift>,
) -> Result<Json<dto::Budget>, Rejected> {
    app::budget::lift(&control, &caller, count, &reason).await?;
    Ok(Json(to_dto(&control).await?))
}

async fn to_dto(control: &Control) -> Result<dto::Budget, ControlError> {
    let (spent, per_hour) = (control.budget.spent(control).await?, control.budget.per_hour());
    let share = |scope: &str| {
        let scope = scope.parse().map_or(Scope::Operators, Scope::Organization);
        scope.share(per_hour).saturating_add(spent.lifted)
    };
    let scopes =
        spent.by_scope.iter().map(|(scope, used)| dto::BudgetScope { scope: scope.clone(), used: *used, share: share(scope) });
    Ok(dto::Budget { per_hour, used: spent.total, lifted: spent.lifted, scopes: scopes.collect() })
}
