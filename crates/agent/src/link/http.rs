//! HTTP/1.1 requests to the link listener, one at a time per lane, over one persistent connection.

use std::time::Duration;

use bytes::Bytes;
use gpuaas_contract::link::MAX_MESSAGE_BYTES;
use gpuaas_contract::resume::ChannelBinding;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::dial::{self, DialError, Dialer, Protocol};

/// One connection that is opened when needed and kept as long as it works.
#[derive(Debug)]
pub(crate) struct Lane {
    dialer: Dialer,
    connection: Option<SendRequest<Full<Bytes>>>,
    binding: Option<ChannelBinding>,
}

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Bytes,
}

/// Why there is no successful answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection.
    #[error("the control plane cannot be reached")]
    Dial(#[from] DialError),
    /// The answer did not arrive in time.
    #[error("the control plane did not answer within {seconds} s", seconds = .0.as_secs())]
    Timeout(Duration),
    /// The connection broke.
    #[error("the connection to the control plane broke: {0}")]
    Broken(String),
    /// The control plane refused the request.
    #[error("the control plane refused ({status}, {code}): {detail}")]
    Problem {
        /// HTTP status.
        status: u16,
        /// Stable code.
        code: String,
        /// The message.
        detail: String,
    },
    /// The answer does not follow the protocol.
    #[error("the control plane's answer is not valid: {0}")]
    Malformed(String),
}

/// The relevant fields of problem+json; others are allowed.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Problem {
    code: String,
    detail: String,
    title: String,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    pub(crate) timeout: Duration,
}

impl Call {
    pub(crate) fn get(path: String, timeout: Duration) -> Self {
        Self { method: Method::GET, path, headers: Vec::new(), body: Bytes::new(), timeout }
    }

    pub(crate) fn post(path: String, body: impl Into<Bytes>, timeout: Duration) -> Self {
        Self { method: Method::POST, path, headers: Vec::new(), body: body.into(), timeout }
    }

    pub(crate) fn post_json(path: String, body: &impl serde::Serialize, timeout: Duration) -> Self {
        // Our own messages always serialize.
        Self::post(path, serde_json::to_vec(body).unwrap_or_default(), timeout)
            .header("content-type", "application/json".to_owned())
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl Lane {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, connection: None, binding: None }
    }

    /// Connects if there is no connection yet, and returns its channel binding.
    pub(crate) async fn channel_binding(&mut self) -> Result<Option<ChannelBinding>, HttpError> {
        if self.connection.is_none() {
            self.connection = Some(self.connect().await?);
        }
        Ok(self.binding)
    }

    /// Sends the request and reads the whole answer. A refusal is an error with its code.
    pub(crate) async fn call(&mut self, call: &Call) -> Result<Answer, HttpError> {
        match tokio::time::timeout(call.timeout, self.exchange(call)).await {
            Ok(answer) => answer,
            Err(_) => {
                // A late answer would be taken for the answer to the next request.
                self.connection = None;
                Err(HttpError::Timeout(call.timeout))
            }
        }
    }

    /// Sends the request and parses the answer.
    pub(crate) async fn call_json<T: serde::de::DeserializeOwned>(&mut self, call: &Call) -> Result<T, HttpError> {
        let answer = self.call(call).await?;
        serde_json::from_slice(&answer.body).map_err(|error| HttpError::Malformed(error.to_string()))
    }

    /// Runs one exchange. The server may have closed a persistent connection at the moment of its reuse. Everything that is sent
    /// here may be sent twice, so it is retried on a new connection.
    async fn exchange(&mut self, call: &Call) -> Result<Answer, HttpError> {
        if let Some(mut kept) = self.connection.take()
            && kept.ready().await.is_ok()
        {
            match self.exchange_over(kept, call).await {
                Err(HttpError::Broken(reason)) => tracing::debug!(reason, "a persistent connection broke; trying a new one"),
                answer => return answer,
            }
        }
        let fresh = self.connect().await?;
        self.exchange_over(fresh, call).await
    }

    async fn exchange_over(&mut self, mut connection: SendRequest<Full<Bytes>>, call: &Call) -> Result<Answer, HttpError> {
        let mut request = Request::builder()
            .method(&call.method)
            .uri(&call.path)
            .header("host", gpuaas_contract::link::SERVER_NAME)
            .body(Full::new(call.body.clone()))
            .map_err(|error| HttpError::Malformed(error.to_string()))?;
        for (name, value) in &call.headers {
            let value = http::HeaderValue::try_from(value).map_err(|error| HttpError::Malformed(error.to_string()))?;
            request.headers_mut().insert(*name, value);
        }
        let response = connection.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_MESSAGE_BYTES).collect().await;
        let body = body.map_err(|error| HttpError::Broken(error.to_string()))?.to_bytes();
        self.connection = Some(connection);
        if status.is_success() { Ok(Answer { body }) } else { Err(problem(status, &body)) }
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let stream = self.dialer.dial(Protocol::Http1).await?;
        self.binding = dial::channel_binding(&stream);
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move {
            // Ends when the sender is dropped or the server closes; errors reach the current request.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

fn broken(error: hyper::Error) -> HttpError {
    HttpError::Broken(crate::error_chain::chain(&error))
}

fn problem(status: StatusCode, body: &[u8]) -> HttpError {
    let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
    let code = if problem.code.is_empty() { "unknown".to_owned() } else { problem.code };
    let detail = if problem.detail.is_empty() { problem.title } else { problem.detail };
    HttpError::Problem { status: status.as_u16(), code, detail }
}
