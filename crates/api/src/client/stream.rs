//! Server-sent events over a connection that is reopened when it breaks, even across restarts of the server.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, Response};
use tokio::time::Instant;

use super::sse::{Event, MAX_EVENT_BYTES, Parser};
use super::{Call, Client, ClientError};
use crate::routes;

/// The server sends something at least every 15 s, so a connection that is silent for longer than this is dead.
const MAX_SILENCE: Duration = Duration::from_secs(45);
/// How long a server may be unreachable before the stream gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// First delay before reconnecting. It doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// A stream of events that outlives its connections.
pub(super) struct EventStream {
    client: Client,
    route: &'static str,
    segment: Option<String>,
    query: serde_json::Value,
    /// The newest `id` that the server has sent, from which the next connection resumes.
    last_id: Option<String>,
    connection: Option<(Response, Parser)>,
    pending: VecDeque<Event>,
    backoff: Duration,
    lost_since: Option<Instant>,
}

impl EventStream {
    /// Creates the stream of a route. Does not connect yet.
    pub(super) fn new(client: &Client, route: &'static str, segment: Option<&str>, query: serde_json::Value) -> Self {
        Self {
            client: client.clone(),
            route,
            segment: segment.map(str::to_owned),
            query,
            last_id: None,
            connection: None,
            pending: VecDeque::new(),
            backoff: FIRST_BACKOFF,
            lost_since: None,
        }
    }

    /// The next event. `None` when the connection was lost; the next call reopens it. An error ends the stream: the server stays
    /// unreachable, or refuses the request.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            match self.advance().await {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    let first_loss = self.lost_since.is_none();
                    self.wait_before_retry(error).await?;
                    if first_loss {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Called when an event was understood. Resets the backoff and the time limit for reconnecting.
    pub(super) fn is_well(&mut self) {
        (self.backoff, self.lost_since) = (FIRST_BACKOFF, None);
    }

    /// The error for an event that cannot be parsed.
    pub(super) fn malformed(&self, source: serde_json::Error) -> ClientError {
        ClientError::Malformed { url: format!("{} (watching)", self.client.url()), source }
    }

    /// Opens the connection, or reads from the open one.
    async fn advance(&mut self) -> Result<(), ClientError> {
        let Some((response, parser)) = &mut self.connection else {
            self.connection = Some((self.connect().await?, Parser::default()));
            return Ok(());
        };
        let url = response.url().to_string();
        let chunk = match tokio::time::timeout(MAX_SILENCE, response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => {
                // The server ended the stream although the caller still wants it, so it is shutting down.
                self.connection = None;
                return Err(ClientError::Timeout { url, after: Duration::ZERO });
            }
            Ok(Err(source)) => {
                self.connection = None;
                return Err(self.client.transport_error(source));
            }
            Err(_) => {
                self.connection = None;
                return Err(ClientError::Timeout { url, after: MAX_SILENCE });
            }
        };
        let events = parser.push(&chunk).map_err(|_| ClientError::TooLarge { url, limit: MAX_EVENT_BYTES })?;
        if let Some(id) = parser.last_id() {
            self.last_id = Some(id.to_owned());
        }
        self.pending.extend(events);
        Ok(())
    }

    async fn connect(&self) -> Result<Response, ClientError> {
        let segments: Vec<&str> = self.segment.as_deref().into_iter().collect();
        let mut query = self.query.clone();
        let mut call = Call { timeout: None, ..self.client.call(Method::GET, self.route, &segments) };
        call.headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = self.last_id.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
            call.headers.insert(routes::LAST_EVENT_ID_HEADER, id);
            // The header says where to resume; the original starting point would contradict it.
            if let Some(fields) = query.as_object_mut() {
                fields.remove("after");
            }
        }
        call.query = query;
        let (url, after) = (self.client.url().to_owned(), self.client.timeout);
        tokio::time::timeout(after, self.client.send(call)).await.map_err(|_| ClientError::Timeout { url, after })?
    }

    async fn wait_before_retry(&mut self, error: ClientError) -> Result<(), ClientError> {
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            return Err(error);
        }
        // Honors the server's `Retry-After`, up to the time limit.
        let asked = error.retry_after().unwrap_or_default().min(PATIENCE);
        tokio::time::sleep(self.backoff.max(asked)).await;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        Ok(())
    }
}
