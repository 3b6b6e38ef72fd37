//! Texts that never change while the process runs. Each is compressed once per encoding, not once per request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{LazyLock, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use tower::{ServiceExt as _, service_fn};
use tower_http::compression::Compression;

/// A text with its headers and its compressed forms.
pub(super) struct StaticText {
    text: Bytes,
    headers: HeaderMap,
    /// Compressed forms by `Content-Encoding`. Bounded by the number of encodings that the server supports.
    encoded: Mutex<BTreeMap<Vec<u8>, Bytes>>,
}

impl StaticText {
    /// Creates a text with these headers. Its `ETag` is derived from its digest, and weak because all encodings share it.
    pub(super) fn new(text: impl Into<Bytes>, headers: impl IntoIterator<Item = (header::HeaderName, String)>) -> Self {
        let text = text.into();
        let digest = gpuaas_contract::Digest::of(&text).to_string();
        let etag = format!("W/\"{}\"", digest.rsplit(':').next().unwrap_or_default());
        let own = [(header::ETAG, etag), (header::CACHE_CONTROL, "no-cache".to_owned())];
        let headers = headers.into_iter().chain(own).filter_map(|(name, value)| Some((name, value.try_into().ok()?))).collect();
        Self { text, headers, encoded: Mutex::default() }
    }

    /// Responds with the text in the encoding that the request prefers.
    pub(super) async fn respond(&self, request: &HeaderMap) -> Response {
        let mut asking = Request::new(Body::empty());
        if let Some(accepted) = request.get(header::ACCEPT_ENCODING) {
            asking.headers_mut().insert(header::ACCEPT_ENCODING, accepted.clone());
        }
        let plain = service_fn(|_: Request| {
            let mut response = self.text.clone().into_response();
            response.headers_mut().extend(self.headers.clone());
            std::future::ready(Ok::<_, Infallible>(response))
        });
        // The encoding is chosen here, but the text is compressed only when the body is read.
        let Ok(response) = Compression::new(plain).oneshot(asking).await;
        let (parts, body) = response.into_parts();
        let encoding = parts.headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes).unwrap_or_default().to_vec();
        let known = self.encoded.lock().unwrap_or_else(PoisonError::into_inner).get(&encoding).cloned();
        let bytes = match known {
            Some(bytes) => bytes,
            None => {
                // Compressing in memory does not fail. If it did, the plain text would be sent and nothing cached.
                let Ok(collected) = body.collect().await else { return self.text.clone().into_response() };
                let bytes = collected.to_bytes();
                self.encoded.lock().unwrap_or_else(PoisonError::into_inner).insert(encoding, bytes.clone());
                bytes
            }
        };
        Response::from_parts(parts, Body::from(bytes))
    }
}

/// The OpenAPI document.
pub(super) static OPENAPI: LazyLock<StaticText> = LazyLock::new(|| {
    StaticText::new(gpuaas_api::openapi::document().to_string(), [(header::CONTENT_TYPE, "application/json".to_owned())])
});

/// The API reference as an HTML page.
pub(super) static REFERENCE: LazyLock<StaticText> = LazyLock::new(|| {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, gpuaas_api::reference::content_security_policy()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
    ];
    StaticText::new(gpuaas_api::reference::page(), headers)
});

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(text: &StaticText, accepted: Option<&'static str>) -> (Response, Bytes) {
        let headers = accepted.map(|value| (header::ACCEPT_ENCODING, HeaderValue::from_static(value))).into_iter().collect();
        let (parts, body) = text.respond(&headers).await.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        (Response::from_parts(parts, Body::empty()), bytes)
    }

    #[tokio::test]
    async fn each_encoding_is_made_once_and_all_have_the_same_tag() {
        let text = StaticText::new("the same words ".repeat(1000), [(header::CONTENT_TYPE, "text/plain".to_owned())]);
        let (plain, whole) = ask(&text, None).await;
        assert_eq!((whole.len(), plain.headers().get(header::CONTENT_ENCODING)), (15_000, None));
        for encoding in ["gzip", "br"] {
            let (response, bytes) = ask(&text, Some(encoding)).await;
            assert_eq!(response.headers()[header::CONTENT_ENCODING], encoding);
            assert_eq!(response.headers()[header::ETAG], plain.headers()[header::ETAG]);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain");
            assert!(response.headers().get_all(header::VARY).iter().any(|vary| vary.as_bytes() == b"accept-encoding"));
            assert!(!bytes.is_empty() && bytes.len() < 1000, "{}", bytes.len());
            let (_, again) = ask(&text, Some(encoding)).await;
            assert_eq!(again.as_ptr(), bytes.as_ptr(), "{encoding} is kept");
        }
        let (refused, _) = ask(&text, Some("gzip;q=0, br;q=0")).await;
        assert_eq!(refused.headers().get(header::CONTENT_ENCODING), None);
        let other = StaticText::new("other words", []);
        assert_ne!(other.headers[header::ETAG], plain.headers()[header::ETAG]);
    }
}
