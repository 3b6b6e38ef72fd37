//! The operators' side: REST under `/api/v1`, health and metrics.
//!
//! Everything but the health checks and the reference needs a caller who is known ([`caller`]). What they may do is decided in one layer
//! over all routes ([`guard`]), so that a new route is closed until somebody says what it takes.

/// Handlers of what an operator can do with one thing, for a reason: each calls the file's own `operate`.
macro_rules! operations {
    ($id:ty, $shown:ty; $($name:ident => $operation:expr;)*) => {$(
        pub(super) async fn $name(
            shared: Shared,
            caller: Extension<Caller>,
            segments: Segments<$id>,
            body: JsonBody<Reason>,
        ) -> Result<Json<$shown>, Rejected> {
            operate(shared, caller, segments, body, $operation).await
        }
    )*};
}

mod access;
mod allocations;
mod audit;
mod budget;
mod caller;
mod catalog;
pub(crate) mod conventions;
mod enrollments;
mod events;
mod faults;
mod fleet;
mod guard;
mod idempotency;
mod images;
mod limits;
mod members;
mod nodes;
mod organizations;
pub mod problem;
mod projects;
mod quotas;
mod service_accounts;
mod slices;
mod slots;
mod ssh_keys;
mod stream_grant;
mod streams;
mod system;
mod tasks;
mod users;
mod webhooks;
mod whoami;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{delete, get, patch, post};
use axum::{Router, middleware};
use gpuaas_api::{dto, routes};
use tower_http::compression::CompressionLayer;

use crate::app::PageRequest;
use crate::error::ControlError;
use crate::{Control, identity};
pub(crate) use caller::Local;
use problem::problem;
pub(crate) use streams::Streams;

/// Largest body of a request.
const MAX_BODY: usize = 256 * 1024;

/// Largest form of somebody who is not known yet.
const MAX_FORM: usize = 16 * 1024;

/// Everything operators may call.
pub fn router(control: &Arc<Control>) -> Router {
    let guarded = Router::new()
        .route(routes::CLUSTER, get(system::cluster))
        .route(routes::BUDGET, get(budget::show))
        .route(routes::BUDGET_LIFT, post(budget::lift))
        .route(routes::TASK_TYPES, get(system::task_types))
        .route(routes::METRICS, get(system::metrics))
        .route(routes::NODES, get(nodes::list))
        .route(routes::NODE, get(nodes::show).patch(nodes::change))
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
        .route(routes::ENROLLMENTS, get(enrollments::list))
        .route(routes::ENROLLMENT, get(enrollments::show))
        .route(routes::ENROLLMENT_APPROVE, post(enrollments::approve))
        .route(routes::ENROLLMENT_REJECT, post(enrollments::reject))
        .route(routes::JOIN_TOKENS, get(enrollments::token_list).post(enrollments::token_create))
        .route(routes::JOIN_TOKEN, delete(enrollments::token_revoke))
        .route(routes::TASKS, get(tasks::list).post(tasks::create))
        .route(routes::TASK, get(tasks::show))
        .route(routes::TASK_CANCEL, post(tasks::cancel))
        .route(routes::TASK_LOGS, get(tasks::logs))
        .route(routes::TASK_WATCH, get(tasks::watch::watch))
        .route(routes::TASK_EVIDENCE, get(tasks::evidence))
        .route(routes::AUDIT, get(audit::list))
        .route(routes::AUDIT_EXPORT, get(audit::export))
        .route(routes::SIGNING_KEYS, get(access::keys))
        .route(routes::SIGNING_KEYS_STAGE, post(access::stage))
        .route(routes::SIGNING_KEYS_ROTATE, post(access::rotate))
        .route(routes::SIGNING_KEY_REVOKE, post(access::revoke_key))
        .merge(tenants())
        .route(routes::API_TOKENS, get(access::tokens).post(access::token_create))
        .route(routes::API_TOKEN, delete(access::token_revoke))
        .fallback(|| async {
            problem(StatusCode::NOT_FOUND, "route_unknown", "there is nothing at this path; see the API documentation")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(control), idempotency::once))
        .layer(middleware::from_fn_with_state(Arc::clone(control), streams::limit))
        .layer(middleware::from_fn_with_state(Arc::clone(control), limits::limit))
        .layer(middleware::from_fn_with_state(Arc::clone(control), caller::authorize));
    Router::new()
        .route("/", get(system::home))
        .route(routes::HEALTHZ, get(system::healthz))
        .route(routes::READYZ, get(system::readyz))
        .route(routes::OPENAPI, get(system::openapi))
        .route(routes::REFERENCE, get(system::reference))
        // Anybody may send these, and nobody needs more than a form.
        .merge(identity::router(control).layer(DefaultBodyLimit::max(MAX_FORM)).layer(middleware::map_response(form_too_large)))
        .merge(guarded)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(control), conventions::apply))
        .layer(middleware::from_fn_with_state(Arc::clone(control), caller::correlate))
        // Outermost: problem documents are completed before they are compressed.
        .layer(CompressionLayer::new())
        .with_state(Arc::clone(control))
}

/// A form that was not read to its end, in our own words.
async fn form_too_large(response: axum::response::Response) -> axum::response::Response {
    if response.status() != StatusCode::PAYLOAD_TOO_LARGE {
        return response;
    }
    problem(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", format!("a form has at most {MAX_FORM} bytes"))
}

/// Where something that was created is found.
#[derive(Clone, Debug)]
struct Location(Option<axum::http::HeaderValue>);

impl Location {
    /// The path of this route with these segments.
    fn of<T: std::fmt::Display + ?Sized, const N: usize>(route: &str, values: [&T; N]) -> Self {
        let values = values.map(ToString::to_string);
        let path = routes::fill(route, &values.each_ref().map(String::as_str));
        Self(path.and_then(|path| path.try_into().ok()))
    }
}

impl axum::response::IntoResponseParts for Location {
    type Error = std::convert::Infallible;

    fn into_response_parts(
        self,
        mut response: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        if let Some(location) = self.0 {
            response.headers_mut().insert(axum::http::header::LOCATION, location);
        }
        Ok(response)
    }
}

/// A document with its `ETag`.
struct Tagged<T>(String, T);

impl<T: serde::Serialize> axum::response::IntoResponse for Tagged<T> {
    fn into_response(self) -> axum::response::Response {
        ([(axum::http::header::ETAG, self.0)], axum::Json(self.1)).into_response()
    }
}

/// What tenants use, and what operators do for them.
fn tenants() -> Router<Arc<Control>> {
    Router::new()
        .route(routes::WHOAMI, get(whoami::show))
        .route(routes::OWN_PASSWORD, post(users::set_own_password))
        .route(routes::USERS, get(users::list).post(users::create))
        .route(routes::USER, get(users::show))
        .route(routes::USER_DEACTIVATE, post(users::deactivate))
        .route(routes::USER_REACTIVATE, post(users::reactivate))
        .route(routes::USER_PASSWORD, post(users::set_password))
        .route(routes::ORGANIZATIONS, get(organizations::list).post(organizations::create))
        .route(routes::ORGANIZATION, get(organizations::show).patch(organizations::change).delete(organizations::delete))
        .route(routes::ORGANIZATION_MEMBERS, get(members::list).post(members::add))
        .route(routes::ORGANIZATION_MEMBER, patch(members::change).delete(members::remove))
        .route(routes::ORGANIZATION_PROJECTS, get(projects::list_of).post(projects::create))
        .route(routes::ORGANIZATION_QUOTA, get(quotas::of_organization).put(quotas::set_of_organization))
        .route(routes::PROJECTS, get(projects::list))
        .route(routes::PROJECT, get(projects::show).patch(projects::change).delete(projects::delete))
        .route(routes::PROJECT_MEMBERS, get(members::list).post(members::add))
        .route(routes::PROJECT_MEMBER, patch(members::change).delete(members::remove))
        .route(routes::PROJECT_QUOTA, get(quotas::of_project).put(quotas::set_of_project))
        .route(routes::PLATFORM_MEMBERS, get(members::list).post(members::add))
        .route(routes::PLATFORM_MEMBER, patch(members::change).delete(members::remove))
        .route(routes::SERVICE_ACCOUNTS, get(service_accounts::list).post(service_accounts::create))
        .route(routes::SERVICE_ACCOUNT, delete(service_accounts::delete))
        .route(routes::API_KEYS, get(service_accounts::keys).post(service_accounts::key_create))
        .route(routes::API_KEY, delete(service_accounts::key_revoke))
        .route(routes::SSH_KEYS, get(ssh_keys::list).post(ssh_keys::create))
        .route(routes::SSH_KEY, delete(ssh_keys::delete))
        .route(routes::IMAGES, get(images::list).post(images::create))
        .route(routes::IMAGE, get(images::show).delete(images::delete))
        .route(routes::PROJECT_IMAGES, get(images::list).post(images::create))
        .route(routes::PROJECT_IMAGE, get(images::show).delete(images::delete))
        .route(routes::CATALOG, get(catalog::offers))
        .route(routes::SKUS, get(catalog::list).post(catalog::create))
        .route(routes::SKU, patch(catalog::change))
        .route(routes::PROJECT_ALLOCATIONS, get(allocations::list).post(allocations::create))
        .route(routes::ALLOCATIONS, get(allocations::search))
        .route(routes::ALLOCATION, get(allocations::show).patch(allocations::change))
        .route(routes::ALLOCATION_STOP, post(allocations::stop))
        .route(routes::ALLOCATION_START, post(allocations::start))
        .route(routes::ALLOCATION_REBOOT, post(allocations::reboot))
        .route(routes::ALLOCATION_EXTEND, post(allocations::extend))
        .route(routes::ALLOCATION_RELEASE, post(allocations::release))
        .route(routes::ALLOCATION_RETRY, post(allocations::retry))
        .route(routes::ALLOCATION_CONSOLE, post(allocations::console))
        .route(routes::ALLOCATION_EVENTS, get(allocations::watch::history))
        .route(routes::ALLOCATION_WATCH, get(allocations::watch::watch))
        .route(routes::PROJECT_EVENTS, get(events::of_project))
        .route(routes::PROJECT_EVENTS_WS, get(events::socket))
        .route(routes::EVENTS, get(events::of_everything))
        .route(routes::WEBHOOKS, get(webhooks::list).post(webhooks::create))
        .route(routes::WEBHOOK, get(webhooks::show).patch(webhooks::change).delete(webhooks::delete))
        .route(routes::WEBHOOK_DELIVERIES, get(webhooks::deliveries))
        .route(routes::DELIVERY_REPLAY, post(webhooks::replay))
        .route(routes::MAINTENANCE_WINDOWS, get(fleet::windows).post(fleet::announce))
        .route(routes::MAINTENANCE_WINDOW, delete(fleet::cancel))
        .route(routes::NODE_DRAIN_PREVIEW, get(fleet::drain_preview))
        .route(routes::CAPACITY, get(fleet::capacity))
        .route(routes::MACHINES, get(fleet::machines))
        .route(routes::NODE_MACHINE_OFFER, post(fleet::offer))
        .route(routes::NODE_MACHINE_WITHDRAW, post(fleet::withdraw))
}

// A page is read with one item more to see whether there is another page; the store must not cut that one off.
const _: () = assert!(gpuaas_store::MAX_PAGE > dto::MAX_PAGE, "the largest page would look like the last one");

/// How many items a page has.
fn page_limit(asked: Option<u32>) -> Result<u32, ControlError> {
    let limit = asked.unwrap_or(dto::DEFAULT_PAGE);
    if (1..=dto::MAX_PAGE).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit is {limit}; choose 1 to {}", dto::MAX_PAGE);
    Err(ControlError::BadInput { code: "limit_invalid", message })
}

/// Which part of a list a query asks for.
fn page_request<C: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<PageRequest<C>, ControlError> {
    let limit = page_limit(limit)?;
    Ok(PageRequest { after: parse_opt(after)?, limit })
}

/// A cursor or an id in a query, if given.
fn parse_opt<T: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(text: Option<&str>) -> Result<Option<T>, ControlError> {
    text.map(parse_id).transpose()
}

fn parse_id<T: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(text: &str) -> Result<T, ControlError> {
    text.parse().map_err(ControlError::id_invalid)
}
