//! All paths of the REST API, in the syntax of the server's router, and the names of its headers and events.
//!
//! The paths are generated from the declarations of [`crate::endpoints`]. Those written out here need no token.

macro_rules! paths {
    ($($resource:literal: $($route:ident = $path:literal ($($segment:ident),*) { $(
        $name:ident: $method:ident => $module:ident::$handler:ident, $action:ident of $about:ident, $summary:literal, $documents:tt;
    )* })*)*) => {$($(
        #[doc = concat!("`", $path, "`" $(, "\n\n`", stringify!($method), "`: ", $summary)*)]
        pub const $route: &str = with_segments($path, &[$(stringify!($segment)),*]);
    )*)*};
}

crate::for_each_endpoint!(paths);

/// Returns the path after checking its segments. The build fails if they differ, because the client's methods take them as arguments.
const fn with_segments(path: &'static str, segments: &[&str]) -> &'static str {
    let (bytes, mut at, mut found) = (path.as_bytes(), 0, 0);
    while at < bytes.len() {
        if bytes[at] == b'{' {
            assert!(found < segments.len(), "the path has a segment that is not listed behind it");
            let name = segments[found].as_bytes();
            let mut offset = 0;
            while offset < name.len() {
                assert!(bytes[at + 1 + offset] == name[offset], "the path has another segment in this place");
                offset += 1;
            }
            assert!(bytes[at + 1 + offset] == b'}', "the path has another segment in this place");
            found += 1;
        }
        at += 1;
    }
    assert!(found == segments.len(), "a segment is listed that the path does not have");
    path
}

/// `GET` → the OpenAPI document of this API. Needs no token.
pub const OPENAPI: &str = "/openapi.json";
/// `GET` → the API reference as an HTML page. Needs no token.
pub const REFERENCE: &str = "/docs";

/// `GET`: the process is alive. Needs no token.
pub const HEALTHZ: &str = "/healthz";
/// `GET`: the process can serve requests. Needs no token.
pub const READYZ: &str = "/readyz";

/// Request header of any `POST`: a request with the same key and body takes effect once; the same key with another body is a conflict.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// Response header: `true` if an earlier request with the same key was answered with this.
pub const IDEMPOTENCY_REPLAYED_HEADER: &str = "idempotency-replayed";
/// Response header: the version of the document.
pub const ETAG_HEADER: &str = "etag";
/// Request header of `PATCH`, `PUT` and `DELETE`: fails with 412 unless the document still has this version.
pub const IF_MATCH_HEADER: &str = "if-match";
/// Response header: what is left of the caller's rate limit, as `"name";r=<requests left>;t=<seconds until more>`.
pub const RATE_LIMIT_HEADER: &str = "ratelimit";
/// Response header: the caller's rate limit, as `"name";q=<requests>;w=<seconds>`.
pub const RATE_LIMIT_POLICY_HEADER: &str = "ratelimit-policy";
/// Response header with status 429 and 503: how many seconds to wait.
pub const RETRY_AFTER_HEADER: &str = "retry-after";
/// Request header of event streams: the `id` of the last event that the client has seen.
pub const LAST_EVENT_ID_HEADER: &str = "last-event-id";
/// Header of requests and responses: an id that appears in every log line about the request.
pub const CORRELATION_ID_HEADER: &str = "x-correlation-id";
/// Name of the event that carries a [`crate::dto::Task`].
pub const EVENT_TASK: &str = "task";
/// Name of the event that carries an [`crate::dto::Allocation`].
pub const EVENT_ALLOCATION: &str = "allocation";
/// Name of the event that carries a [`crate::dto::CloudEvent`].
pub const EVENT_CLOUD_EVENT: &str = "event";
/// Name of the event that carries a [`crate::dto::TaskProgress`].
pub const EVENT_PROGRESS: &str = "progress";

/// Fills in the `{…}` segments of a path, percent-encoded. Returns `None` if a value cannot be a segment, or if there are too few values.
pub fn fill(route: &str, values: &[&str]) -> Option<String> {
    let mut values = values.iter();
    let mut path = String::with_capacity(route.len() + 40);
    for segment in route.split('/').skip(1) {
        path.push('/');
        if segment.starts_with('{') {
            let value = values.next()?;
            // Dot segments would be normalized away, so that the path names another resource.
            if value.is_empty() || *value == "." || *value == ".." {
                return None;
            }
            encode_segment(value, &mut path);
        } else {
            path.push_str(segment);
        }
    }
    values.next().is_none().then_some(path)
}

fn encode_segment(value: &str, path: &mut String) {
    use std::fmt::Write as _;
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(fill(NODE_DRAIN, &["rack 1/7"]).as_deref(), Some("/api/v1/nodes/rack%201%2F7/drain"));
        assert_eq!(fill(NODE, &["a?b#c%"]).as_deref(), Some("/api/v1/nodes/a%3Fb%23c%25"));
        for bad in ["", ".", ".."] {
            assert_eq!(fill(NODE, &[bad]), None);
        }
    }

    #[test]
    fn the_number_of_values_must_fit() {
        assert_eq!(fill(NODES, &[]).as_deref(), Some(NODES));
        assert_eq!(fill(NODE, &[]), None);
        assert_eq!(fill(NODES, &["x"]), None);
    }
}
