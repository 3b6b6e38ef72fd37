//! A typed client: one method per endpoint, over real HTTP.
//!
//! Responses have a size limit and requests a time limit. Redirects are not followed, because a token must not be sent to a server that
//! its owner did not name. Every error message says what to do.

mod error;
mod export;
mod methods;
mod sse;
mod stream;
mod tls;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Response, Url};

use crate::dto::Problem;
use crate::endpoints::Method;
use crate::routes;

pub use error::{ClientError, Distrust, ErrorKind, SocketProblem};
pub use export::AuditExport;
pub use tls::config as tls_config;
pub use watch::{AllocationWatchEvent, HeardEvent, WatchEvent, WatchUntil};

/// Maximum size of one JSON response in bytes.
pub const MAX_RESPONSE_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of bytes that are read of an error response.
const MAX_PROBLEM_BYTES: usize = 64 * 1024;
/// Time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach a server.
#[derive(Clone)]
pub struct ClientOptions {
    /// URL of the server, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The API token. `None` sends requests without authentication.
    pub token: Option<String>,
    /// PEM file with the only authorities to trust for `https`. `None` trusts those of the system.
    pub ca_file: Option<PathBuf>,
    /// Sent with every request. `None` lets the server generate one per request.
    pub correlation_id: Option<CorrelationId>,
    /// The `User-Agent` header of every request.
    pub user_agent: String,
    /// Local socket of a server, used instead of the network. The URL then only provides the `Host` header.
    pub unix_socket: Option<PathBuf>,
    /// Time limit of a request, up to the last byte of its response. Streams are exempt; they time out when they are silent for too long.
    pub timeout: Duration,
}

impl ClientOptions {
    /// Options for this URL, with defaults for everything else.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: None,
            ca_file: None,
            correlation_id: None,
            user_agent: concat!("gpuaas-api/", env!("CARGO_PKG_VERSION")).to_owned(),
            unix_socket: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Omits the token, so that it does not end up in logs.
impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions").field("url", &self.url).field("ca_file", &self.ca_file).finish_non_exhaustive()
    }
}

/// A client for one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    /// The local socket that is used instead of the network, for error messages.
    socket: Option<PathBuf>,
    timeout: Duration,
}

/// A request that has not been sent yet.
struct Call<'a> {
    method: reqwest::Method,
    route: &'a str,
    segments: &'a [&'a str],
    query: serde_json::Value,
    body: Option<Vec<u8>>,
    headers: HeaderMap,
    /// `None` for streams, whose readers detect silence.
    timeout: Option<Duration>,
}

impl Call<'_> {
    fn query(self, query: &impl serde::Serialize) -> Result<Self, ClientError> {
        Ok(Self { query: to_value(query)?, ..self })
    }

    fn body(self, body: &impl serde::Serialize) -> Result<Self, ClientError> {
        let body = serde_json::to_vec(body).map_err(|source| ClientError::Unserializable { source })?;
        Ok(Self { body: Some(body), ..self })
    }

    /// The request takes effect once, however often it is sent with the same key.
    fn idempotency_key(self, key: Option<&str>) -> Result<Self, ClientError> {
        self.header(routes::IDEMPOTENCY_KEY_HEADER, key)
    }

    /// The request takes effect only if the document still has the version that the caller has seen.
    fn if_match(self, etag: Option<&str>) -> Result<Self, ClientError> {
        self.header(routes::IF_MATCH_HEADER, etag)
    }

    fn header(mut self, name: &'static str, value: Option<&str>) -> Result<Self, ClientError> {
        if let Some(text) = value {
            let value = HeaderValue::from_str(text)
                .map_err(|_| ClientError::BadName { value: text.escape_default().to_string(), route: self.route.to_owned() })?;
            self.headers.insert(name, value);
        }
        Ok(self)
    }
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Patch => Self::PATCH,
            Method::Delete => Self::DELETE,
        }
    }
}

impl Client {
    /// Creates a client with these options. Does not connect yet.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let base = parse_base(&options.url)?;
        let mut headers = HeaderMap::new();
        if let Some(token) = &options.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| ClientError::BadToken)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(id) = &options.correlation_id {
            let value = HeaderValue::from_str(id.as_str()).map_err(|_| ClientError::BadToken)?;
            headers.insert(routes::CORRELATION_ID_HEADER, value);
        }
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(base.scheme() == "https", options.ca_file.as_deref())?)
            .user_agent(options.user_agent)
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        if let Some(path) = &options.unix_socket {
            builder = builder.unix_socket(path.as_path());
        }
        let http = builder.build().map_err(|source| ClientError::Setup { source })?;
        Ok(Self { http, base, socket: options.unix_socket, timeout: options.timeout })
    }

    /// The URL of the server, without a trailing slash.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Whether requests, with the token in them, cross a network in plain text.
    pub fn is_plaintext_over_network(&self) -> bool {
        let host = self.base.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        self.base.scheme() == "http" && !local
    }

    fn call<'a>(&self, method: impl Into<reqwest::Method>, route: &'a str, segments: &'a [&'a str]) -> Call<'a> {
        Call {
            method: method.into(),
            route,
            segments,
            query: serde_json::Value::Null,
            body: None,
            headers: HeaderMap::new(),
            timeout: Some(self.timeout),
        }
    }

    /// Sends an arbitrary request, for endpoints without a method here. `path` begins with `/` and may have a query. Returns the body of
    /// the response.
    pub async fn raw(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, ClientError> {
        let bad = || ClientError::BadName {
            value: path.escape_default().to_string(),
            route: "a path such as /api/v1/nodes".to_owned(),
        };
        let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).map_err(|_| bad())?;
        let (route, query) = path.split_once('?').unwrap_or((path, ""));
        if !route.starts_with('/') || route.contains(['{', '}', '#']) {
            return Err(bad());
        }
        let pairs = reqwest::Url::parse(&format!("http://query/?{query}")).map_err(|_| bad())?;
        let query = pairs.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned().into())).collect();
        let call = Call { query: serde_json::Value::Object(query), body, ..self.call(method, route, &[]) };
        self.exchange(call).await.map(|(_, bytes)| bytes)
    }

    /// Sends a call and parses the JSON response.
    async fn json<T: serde::de::DeserializeOwned>(&self, call: Call<'_>) -> Result<T, ClientError> {
        let (url, bytes) = self.exchange(call).await?;
        serde_json::from_slice(&bytes).map_err(|source| ClientError::Malformed { url, source })
    }

    /// Sends a call and reads the whole response. Returns the URL as well.
    ///
    /// Boxed, so that it is compiled once, here, and not again for every document type in every program.
    fn exchange<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<(String, Vec<u8>), ClientError>> {
        Box::pin(async move {
            let response = self.send(call).await?;
            let url = response.url().to_string();
            let bytes = self.read_capped(response, MAX_RESPONSE_BYTES).await?;
            Ok((url, bytes))
        })
    }

    /// Sends a call. A response without a success status becomes an error.
    async fn send(&self, call: Call<'_>) -> Result<Response, ClientError> {
        let path = routes::fill(call.route, call.segments)
            .ok_or_else(|| ClientError::BadName { value: call.segments.join("/"), route: call.route.to_owned() })?;
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        append_query(&mut url, &call.query);
        let says_what_it_accepts = call.headers.contains_key(ACCEPT);
        let mut request = self.http.request(call.method, url).headers(call.headers);
        if let Some(timeout) = call.timeout {
            request = request.timeout(timeout);
        }
        if let Some(body) = call.body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body);
        }
        if !says_what_it_accepts {
            request = request.header(ACCEPT, "application/json, application/problem+json, application/x-ndjson, text/plain");
        }
        let response = request.send().await.map_err(|source| self.transport_error(source))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    async fn refusal(&self, response: Response) -> ClientError {
        let (status, url) = (response.status().as_u16(), response.url().to_string());
        let retry_after = error::retry_after(response.headers());
        let skew = error::clock_skew(response.headers(), Timestamp::now()).filter(|_| status == 401);
        // If the body cannot be read, the error still reports the status, which is worth more than the read error.
        let bytes = self.read_capped(response, MAX_PROBLEM_BYTES).await.unwrap_or_default();
        let problem = serde_json::from_slice::<Problem>(&bytes);
        if let (Some((skew, ahead)), Ok(problem)) = (skew, &problem) {
            return ClientError::ClockSkew { skew, ahead, problem: Box::new(problem.clone()) };
        }
        match (problem, retry_after) {
            (problem, Some(retry_after)) if status == 429 => ClientError::rate_limited(retry_after, problem.ok()),
            (Ok(problem), _) => ClientError::Refused { status, problem: Box::new(problem) },
            (Err(_), _) => {
                let excerpt: String = String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).take(200).collect();
                ClientError::Unexpected { url, status, excerpt }
            }
        }
    }

    async fn read_capped(&self, mut response: Response, limit: usize) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|source| self.transport_error(source))? {
            if bytes.len() + chunk.len() > limit {
                return Err(ClientError::TooLarge { url: response.url().to_string(), limit });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn transport_error(&self, source: reqwest::Error) -> ClientError {
        error::classify(self.url(), self.socket.as_deref(), source, self.timeout)
    }
}

fn parse_base(text: &str) -> Result<Url, ClientError> {
    let bad = |detail: &str| ClientError::BadUrl { url: text.to_owned(), detail: detail.to_owned() };
    let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad("it must start with http:// or https://"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(bad("it names no host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it must not contain a user name or password; use a token"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("it must end with the host or a path"));
    }
    Ok(url)
}

fn append_query(url: &mut Url, query: &serde_json::Value) {
    let Some(fields) = query.as_object().filter(|fields| !fields.is_empty()) else { return };
    let mut pairs = url.query_pairs_mut();
    for (name, value) in fields {
        if let Some(text) = value.as_str() {
            pairs.append_pair(name, text);
        } else {
            pairs.append_pair(name, &value.to_string());
        }
    }
}

fn to_value(query: &impl serde::Serialize) -> Result<serde_json::Value, ClientError> {
    serde_json::to_value(query).map_err(|source| ClientError::Unserializable { source })
}
