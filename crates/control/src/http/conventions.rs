//! HTTP conventions that hold for every resource: `OPTIONS`, conditional reads, and CORS.

use std::str::FromStr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gpuaas_api::endpoints;
use gpuaas_api::routes::{CORRELATION_ID_HEADER, IDEMPOTENCY_KEY_HEADER};

use crate::Control;
use gpuaas_api::routes::IDEMPOTENCY_REPLAYED_HEADER as REPLAYED_HEADER;

/// How long a browser may cache the response to a preflight request, in seconds.
const PREFLIGHT_AGE: &str = "600";

/// An origin whose pages may call the API from a browser, such as `https://portal.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOrigin(HeaderValue);

/// The error for a text that is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no origin; expected a scheme and a host and nothing after them, such as https://portal.example.com")]
pub struct BadOrigin(String);

impl FromStr for CorsOrigin {
    type Err = BadOrigin;

    fn from_str(text: &str) -> Result<Self, BadOrigin> {
        let bad = || BadOrigin(text.to_owned());
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).ok_or_else(bad)?;
        let is_plain =
            |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || ".-:[]".contains(character);
        if host.is_empty() || !host.chars().all(is_plain) {
            return Err(bad());
        }
        HeaderValue::from_str(text).map(Self).map_err(|_| bad())
    }
}

/// Answers `OPTIONS`, replaces a response that the caller already has with `304`, and adds the CORS headers.
pub(super) async fn apply(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    let template = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let origin =
        request.headers().get(header::ORIGIN).filter(|origin| control.cors_origins.iter().any(|known| known.0 == **origin));
    let origin = origin.cloned();
    let mut response = match template {
        Some(template) if request.method() == Method::OPTIONS => options(&template, request.headers(), origin.is_some()),
        Some(_) | None => {
            let wanted = request.headers().get(header::IF_NONE_MATCH).cloned();
            let reads = matches!(*request.method(), Method::GET | Method::HEAD);
            unless_known(next.run(request).await, wanted.filter(|_| reads).as_ref())
        }
    };
    if !control.cors_origins.is_empty() {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = origin {
        let exposed = format!("etag, location, retry-after, {CORRELATION_ID_HEADER}, {REPLAYED_HEADER}");
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if let Ok(exposed) = HeaderValue::try_from(exposed) {
            response.headers_mut().insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
    response
}

/// The methods of a path, in the format of the `Allow` header.
pub(super) fn allow(template: &str) -> String {
    let mut methods: Vec<&str> = endpoints::methods(template).map(endpoints::Method::as_str).collect();
    if methods.is_empty() || methods.contains(&"GET") {
        methods.retain(|method| *method != "GET");
        methods.splice(0..0, ["GET", "HEAD"]);
    }
    methods.push("OPTIONS");
    methods.join(", ")
}

fn options(template: &str, headers: &HeaderMap, is_cors: bool) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let Ok(allowed) = HeaderValue::try_from(allow(template)) else { return response };
    if is_cors && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        let taken =
            format!("authorization, content-type, if-match, if-none-match, {IDEMPOTENCY_KEY_HEADER}, {CORRELATION_ID_HEADER}");
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, allowed.clone());
        response.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_AGE));
        if let Ok(taken) = HeaderValue::try_from(taken) {
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, taken);
        }
    }
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

/// Replaces the response with `304` if `If-None-Match` names its `ETag`.
fn unless_known(response: Response, wanted: Option<&HeaderValue>) -> Response {
    let Some(wanted) = wanted.and_then(|wanted| wanted.to_str().ok()) else { return response };
    let tag = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
    let is_known = tag.is_some_and(|tag| {
        let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
        let same = |given: &str| given == "*" || opaque(given) == opaque(tag);
        wanted.split(',').map(str::trim).any(same)
    });
    if response.status() != StatusCode::OK || !is_known {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::NOT_MODIFIED;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    Response::from_parts(parts, Body::empty())
}

#[cfg(test)]
mod tests {
    use gpuaas_api::routes;

    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for good in ["https://portal.example.com", "http://localhost:3000", "https://[::1]:8443"] {
            assert!(good.parse::<CorsOrigin>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "*",
            "null",
            "portal.example.com",
            "https://",
            "https://a/",
            "https://a/b",
            "https://A.example",
            "ftp://a",
            "https://a b",
        ] {
            assert!(bad.parse::<CorsOrigin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn allow_lists_every_method() {
        assert_eq!(allow(routes::PROJECT_ALLOCATIONS), "GET, HEAD, POST, OPTIONS");
        assert_eq!(allow(routes::NODE_DRAIN), "POST, OPTIONS");
        assert_eq!(allow(routes::HEALTHZ), "GET, HEAD, OPTIONS", "what is open to everybody is only read");
    }

    #[test]
    fn a_document_that_the_caller_has_is_not_sent_again() {
        for tag in ["\"7\"", "W/\"7\""] {
            let answer = |wanted: &str| {
                let response = ([(header::ETAG, tag), (header::CONTENT_TYPE, "application/json")], "{}").into_response();
                unless_known(response, Some(&HeaderValue::from_str(wanted).expect("a header"))).status()
            };
            for same in ["\"7\"", "W/\"7\"", "\"6\", \"7\"", "*"] {
                assert_eq!(answer(same), StatusCode::NOT_MODIFIED, "{same}");
            }
            for other in ["\"6\"", "7", ""] {
                assert_eq!(answer(other), StatusCode::OK, "{other}");
            }
        }
    }
}
