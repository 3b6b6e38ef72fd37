//! Serves one request: before the router and after its answer.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tower::ServiceExt as _;

use super::budget::{CountedBody, RequestState, WatchedBody};
use super::state::ConnectionState;
use super::{ClientAddress, ClientCertificate, ListenerKind, Reason, Serving};
use crate::http::Local;
use crate::http::problem::problem;

/// The address of clients without one.
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What the requests of a connection have in common.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) certificate: ClientCertificate,
    pub(super) address: Option<SocketAddr>,
    pub(super) state: Arc<ConnectionState>,
    pub(super) serving: Arc<Serving>,
}

/// Serves one request.
pub(super) async fn serve(context: Context, request: Request<Incoming>) -> Result<Response<WatchedBody>, Infallible> {
    let open = context.state.open();
    let response = answer(&context, request).await;
    let open = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // The connection is upgraded and no longer HTTP; the upgraded protocol has its own deadlines.
        open.keep();
        None
    } else {
        Some(open)
    };
    Ok(response.map(|body| WatchedBody::new(body, open)))
}

async fn answer(context: &Context, mut request: Request<Incoming>) -> Response<Body> {
    let Context { certificate, address, state, serving } = context;
    if let Err((code, message)) = check_headers(&request) {
        serving.cut(Reason::Header);
        return problem(StatusCode::BAD_REQUEST, code, message);
    }
    let held = RequestState::new(Arc::clone(state), Arc::clone(&serving.budget));
    let marker = held.marker();
    let is_local = match serving.options.kind {
        ListenerKind::Local => true,
        ListenerKind::Api | ListenerKind::Link => false,
    };
    if is_local || certificate.0.is_some() {
        marker.mark();
    }
    // A client of the local socket is on this machine.
    let client = address.map_or(HERE, |peer| client_address(context, peer, request.headers()));
    let extensions = request.extensions_mut();
    extensions.insert(certificate.clone());
    extensions.insert(marker);
    extensions.insert(ClientAddress(client));
    if is_local {
        extensions.insert(Local);
    }
    let request = if is_endless(context, &request) {
        request.map(Body::new)
    } else {
        request.map(|body| Body::new(CountedBody::new(body, Arc::clone(&held))))
    };
    let response = match serving.router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let Some(reason) = held.refused() else { return response };
    serving.cut(reason);
    let is_slow = reason == Reason::Body;
    if is_slow {
        return problem(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body did not arrive in time; send it at once");
    }
    let message = "the server holds as many unfinished requests as it has room for; try again in a second";
    let mut busy = problem(StatusCode::SERVICE_UNAVAILABLE, "server_busy", message);
    busy.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    busy
}

/// Returns the client's address. Only REST trusts the headers of proxies: in front of the link, proxies only forward bytes, and
/// the headers are the client's.
fn client_address(context: &Context, peer: SocketAddr, headers: &HeaderMap) -> SocketAddr {
    match context.serving.options.kind {
        ListenerKind::Api => context.serving.options.proxies.client(peer, headers),
        ListenerKind::Link | ListenerKind::Local => peer,
    }
}

/// Returns whether the request is the stream of a node, which lasts as long as the node is connected. Each of its messages has
/// its own limit.
fn is_endless(context: &Context, request: &Request<Incoming>) -> bool {
    let is_grpc =
        request.headers().get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    context.serving.options.kind == ListenerKind::Link && context.certificate.0.is_some() && is_grpc
}

/// Refuses repeated headers: a proxy and this server could read different ones.
fn check_headers<B>(request: &Request<B>) -> Result<(), (&'static str, String)> {
    for name in [header::HOST, header::AUTHORIZATION] {
        if request.headers().get_all(&name).iter().nth(1).is_some() {
            return Err(("header_repeated", format!("the header `{name}` is there more than once; send it once")));
        }
    }
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    match (authority, host) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            Err(("host_mismatch", "the request names two different hosts; send one".to_owned()))
        }
        (Some(_) | None, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut builder = Request::builder().uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("a request")
    }

    #[test]
    fn a_header_that_decides_something_is_there_once() {
        for (uri, headers, code) in [
            ("/", &[("host", "a")][..], None),
            ("/", &[("host", "a"), ("authorization", "Bearer x")], None),
            ("/", &[("host", "a"), ("host", "a")], Some("header_repeated")),
            ("/", &[("host", "a"), ("authorization", "Bearer x"), ("Authorization", "Bearer y")], Some("header_repeated")),
            ("https://a/", &[("host", "A")], None),
            ("https://a/", &[], None),
            ("https://a/", &[("host", "b")], Some("host_mismatch")),
        ] {
            assert_eq!(check_headers(&request(uri, headers)).err().map(|(code, _)| code), code, "{uri} {headers:?}");
        }
    }
}
