//! REST under `/api/v1`, health and metrics.
//!
//! Everything except the health checks and the reference needs an authenticated caller ([`caller`]). The routes and their required
//! permissions are declared in the endpoint table of `api`; a single layer over all routes authorizes callers ([`guard`]).

/// Defines handlers for operations on one resource that take a reason. Each calls the `operate` function of its module.
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
mod static_text;
mod stream_grant;
mod streams;
mod system;
mod tasks;
mod users;
mod watch;
mod webhooks;
mod whoami;

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request};
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get};
use axum::{Router, middleware};
use gpuaas_api::endpoints::Method;
use gpuaas_api::{dto, routes};
use tower_http::compression::CompressionLayer;

use crate::app::PageRequest;
use crate::error::ControlError;
use crate::{Control, identity};
pub(crate) use caller::Local;
use problem::problem;
pub(crate) use streams::Streams;

/// Maximum size of a request body in bytes.
const MAX_BODY: usize = 256 * 1024;

/// Maximum size in bytes of a form from a client that is not authenticated yet.
const MAX_FORM: usize = 16 * 1024;

/// Builds a router with the handler of every declared endpoint. There is no other way to add a route that needs a caller.
macro_rules! routes_of {
    ($($resource:literal: $($route:ident = $path:literal $segments:tt { $(
        $name:ident: $method:ident => $module:ident::$handler:ident, $action:ident of $about:ident, $summary:literal, $documents:tt;
    )* })*)*) => {
        Router::new()$($(
            .route(routes::$route, MethodRouter::new()$(.on(filter(Method::$method), Endpoint::new($module::$handler)))*)
        )*)*
    };
}

/// A handler behind a pointer. What axum wraps around a handler is then compiled once instead of once for each endpoint.
#[derive(Clone)]
struct Endpoint(Arc<dyn Fn(Request, Arc<Control>) -> HandlerFuture + Send + Sync>);

type HandlerFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Endpoint {
    fn new<T: 'static>(handler: impl Handler<T, Arc<Control>, Future = HandlerFuture>) -> Self {
        Self(Arc::new(move |request, control| handler.clone().call(request, control)))
    }
}

impl Handler<(), Arc<Control>> for Endpoint {
    type Future = HandlerFuture;

    fn call(self, request: Request, control: Arc<Control>) -> Self::Future {
        (self.0)(request, control)
    }
}

const fn filter(method: Method) -> MethodFilter {
    match method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Put => MethodFilter::PUT,
        Method::Patch => MethodFilter::PATCH,
        Method::Delete => MethodFilter::DELETE,
    }
}

/// The REST interface.
pub fn router(control: &Arc<Control>) -> Router {
    let guarded = gpuaas_api::for_each_endpoint!(routes_of)
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
        // Open to unauthenticated clients, which only ever need to send a form.
        .merge(identity::router(control).layer(DefaultBodyLimit::max(MAX_FORM)).layer(middleware::map_response(form_too_large)))
        .merge(guarded)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(control), conventions::apply))
        .layer(middleware::from_fn_with_state(Arc::clone(control), caller::correlate))
        // Outermost, because problem documents must be filled in before they are compressed.
        .layer(CompressionLayer::new())
        .with_state(Arc::clone(control))
}

/// Replaces axum's response to an oversized form with a problem document.
async fn form_too_large(response: Response) -> Response {
    if response.status() != StatusCode::PAYLOAD_TOO_LARGE {
        return response;
    }
    problem(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", format!("a form has at most {MAX_FORM} bytes"))
}

/// The `Location` header of a created resource.
#[derive(Clone, Debug)]
struct Location(Option<axum::http::HeaderValue>);

impl Location {
    /// The path of this route with its variable segments filled in.
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

// One item more than the page is read, to see whether there is another page; the store must not cut that item off.
const _: () = assert!(gpuaas_store::MAX_PAGE > dto::MAX_PAGE, "the largest page would look like the last one");

/// The number of items per page: as requested, or the default. An error if it is out of range.
fn page_limit(asked: Option<u32>) -> Result<u32, ControlError> {
    let limit = asked.unwrap_or(dto::DEFAULT_PAGE);
    if (1..=dto::MAX_PAGE).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit is {limit}; choose 1 to {}", dto::MAX_PAGE);
    Err(ControlError::BadInput { code: "limit_invalid", message })
}

/// The page of a list that a query asks for.
fn page_request<C: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<PageRequest<C>, ControlError> {
    let limit = page_limit(limit)?;
    Ok(PageRequest { after: parse_opt(after)?, limit })
}

/// Parses an optional cursor or id in a query.
fn parse_opt<T: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(text: Option<&str>) -> Result<Option<T>, ControlError> {
    text.map(parse_id).transpose()
}

fn parse_id<T: std::str::FromStr<Err = gpuaas_contract::id::BadId>>(text: &str) -> Result<T, ControlError> {
    text.parse().map_err(ControlError::id_invalid)
}
