//! The operators' side: REST under `/api/v1`, health and metrics.
//!
//! Everything but the two health checks needs a bearer token. Reading needs any role, changing needs `admin`; that rule
//! is one layer over all routes ([`caller`]), so that a new route is closed until somebody opens it.

/// Handlers of what an operator can do with one thing, for a reason: each calls the file's own `operate`.
macro_rules! operations {
    ($shown:ty; $($name:ident => $operation:expr;)*) => {$(
        pub(super) async fn $name(
            shared: Shared,
            caller: Extension<Caller>,
            segments: Segments<String>,
            body: JsonBody<Reason>,
        ) -> Result<Json<$shown>, Rejected> {
            operate(shared, caller, segments, body, $operation).await
        }
    )*};
}

mod access;
mod audit;
mod caller;
mod enrolments;
mod node_name;
mod nodes;
pub mod problem;
mod progress;
mod slices;
mod slots;
mod system;
mod task_make;
mod task_watch;
mod tasks;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Router, middleware};
use gpuaas_api::{dto, routes};

use crate::Control;
use problem::problem;
pub use progress::ProgressBoard;

/// Largest body of a request.
const MAX_BODY: usize = 256 * 1024;

/// Everything operators may call.
pub fn router(control: &Arc<Control>) -> Router {
    let guarded = Router::new()
        .route(routes::CLUSTER, get(system::cluster))
        .route(routes::TASK_TYPES, get(system::task_types))
        .route(routes::METRICS, get(system::metrics))
        .route(routes::NODES, get(nodes::list))
        .route(routes::NODE, get(nodes::show))
        .route(routes::NODE_DRAIN, post(nodes::drain))
        .route(routes::NODE_UNDRAIN, post(nodes::undrain))
        .route(routes::NODE_QUARANTINE, post(nodes::quarantine))
        .route(routes::NODE_UNQUARANTINE, post(nodes::unquarantine))
        .route(routes::NODE_RETIRE, post(nodes::retire))
        .route(routes::NODE_TOPOLOGY, get(slots::topology))
        .route(routes::NODE_TOPOLOGY_APPROVE, post(slots::approve))
        .route(routes::SLOTS, get(slots::list))
        .route(routes::SLOT, get(slots::show))
        .route(routes::SLOT_QUARANTINE, post(slots::quarantine))
        .route(routes::SLOT_UNQUARANTINE, post(slots::unquarantine))
        .route(routes::SLOT_WITHDRAW, post(slots::withdraw))
        .route(routes::SLOT_FORCE_CLEANUP, post(slices::force_cleanup))
        .route(routes::SLICES, get(slices::list).post(slices::create))
        .route(routes::SLICE, get(slices::show))
        .route(routes::SLICE_RELEASE, post(slices::release))
        .route(routes::SLICE_POWER, post(slices::power))
        .route(routes::SLICE_CONSOLE, post(slices::console))
        .route(routes::ENROLMENTS, get(enrolments::list))
        .route(routes::ENROLMENT, get(enrolments::show))
        .route(routes::ENROLMENT_APPROVE, post(enrolments::approve))
        .route(routes::ENROLMENT_REJECT, post(enrolments::reject))
        .route(routes::JOIN_TOKENS, get(enrolments::token_list).post(enrolments::token_create))
        .route(routes::JOIN_TOKEN, delete(enrolments::token_revoke))
        .route(routes::TASKS, get(tasks::list).post(tasks::create))
        .route(routes::TASK, get(tasks::show))
        .route(routes::TASK_CANCEL, post(tasks::cancel))
        .route(routes::TASK_LOGS, get(tasks::logs))
        .route(routes::TASK_WATCH, get(task_watch::watch))
        .route(routes::TASK_EVIDENCE, get(tasks::evidence))
        .route(routes::AUDIT, get(audit::list))
        .route(routes::AUDIT_EXPORT, get(audit::export))
        .route(routes::SIGNING_KEYS, get(access::keys))
        .route(routes::SIGNING_KEYS_STAGE, post(access::stage))
        .route(routes::SIGNING_KEYS_ROTATE, post(access::rotate))
        .route(routes::SIGNING_KEY_REVOKE, post(access::revoke_key))
        .route(routes::API_TOKENS, get(access::tokens).post(access::token_create))
        .route(routes::API_TOKEN, delete(access::token_revoke))
        .method_not_allowed_fallback(|| async {
            problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path exists, but not for this method")
        })
        .fallback(|| async {
            problem(StatusCode::NOT_FOUND, "route_unknown", "there is nothing at this path; see the API documentation")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(control), caller::authorise));
    Router::new()
        .route(routes::HEALTHZ, get(system::healthz))
        .route(routes::READYZ, get(system::readyz))
        .merge(guarded)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(control), caller::correlate))
        .with_state(Arc::clone(control))
}

// A page is read with one item more to see whether there is another page; the store must not cut that one off.
const _: () = assert!(gpuaas_store::MAX_PAGE > dto::MAX_PAGE, "the largest page would look like the last one");

/// How many items a page has.
fn page_limit(asked: Option<u32>) -> Result<u32, crate::failure::Failure> {
    let limit = asked.unwrap_or(dto::DEFAULT_PAGE);
    if (1..=dto::MAX_PAGE).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit is {limit}; choose 1 to {}", dto::MAX_PAGE);
    Err(crate::failure::Failure::BadInput { code: "limit_invalid", message })
}

/// A page of what was asked for, given up to one item more than fits.
fn page<T>(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> dto::Page<T> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { items.last().map(cursor) } else { None };
    dto::Page { items, next }
}

/// A cursor or an id in a query, if given.
fn parse_opt<T: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(
    text: Option<&str>,
) -> Result<Option<T>, crate::failure::Failure> {
    text.map(parse_id).transpose()
}

fn parse_id<T: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(text: &str) -> Result<T, crate::failure::Failure> {
    text.parse().map_err(|error: gpuaas_contract::id::BadId| crate::failure::Failure::BadInput {
        code: "id_invalid",
        message: error.to_string(),
    })
}
