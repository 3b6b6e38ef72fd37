//! Watching a task until it ends, through dropped connections and server restarts.

use std::collections::VecDeque;
use std::time::Duration;

use futures::Stream;
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, Response};
use tokio::time::Instant;

use super::sse::{Event, MAX_EVENT_BYTES, Parser};
use super::{Call, Client, ClientError};
use crate::dto::{Task, TaskProgress};
use crate::routes;

/// The server says something at least every 15 s; silence for longer than this is a dead connection.
const MAX_SILENCE: Duration = Duration::from_secs(45);
/// How long a server may be away before watching is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// First wait before reconnecting; doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// What a watcher hears.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// The task as it stands now: first of all, then after every change. The last one has ended.
    Task(Box<Task>),
    /// The running task went into another phase.
    Progress(TaskProgress),
    /// The connection is gone; the watch goes on trying. For people, not for programs.
    Reconnecting,
}

impl Client {
    /// Watches a task until it ends. Connections that drop are opened again; the stream ends with an error only if the
    /// server stays away for a minute or refuses.
    pub fn task_watch(&self, task: &str) -> impl Stream<Item = Result<WatchEvent, ClientError>> + Send + use<> {
        let watch = Watch {
            client: self.clone(),
            task: task.to_owned(),
            connection: None,
            pending: VecDeque::new(),
            last: None,
            backoff: FIRST_BACKOFF,
            lost_since: None,
            done: false,
        };
        futures::stream::unfold(watch, |mut watch| async move {
            let item = watch.next().await?;
            watch.done |= item.is_err();
            Some((item, watch))
        })
    }
}

struct Watch {
    client: Client,
    task: String,
    connection: Option<(Response, Parser)>,
    pending: VecDeque<Event>,
    last: Option<Box<Task>>,
    backoff: Duration,
    lost_since: Option<Instant>,
    done: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Result<WatchEvent, ClientError>> {
        loop {
            if self.done {
                return None;
            }
            while let Some(event) = self.pending.pop_front() {
                match self.understand(event) {
                    Ok(Some(event)) => return Some(Ok(event)),
                    Ok(None) => {}
                    Err(error) => return Some(Err(error)),
                }
                if self.done {
                    return None;
                }
            }
            match self.advance().await {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    let first_loss = self.lost_since.is_none();
                    if let Err(error) = self.wait_before_retry(error).await {
                        return Some(Err(error));
                    }
                    if first_loss {
                        return Some(Ok(WatchEvent::Reconnecting));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Opens the connection, or reads from the one that is open.
    async fn advance(&mut self) -> Result<(), ClientError> {
        let Some((response, parser)) = &mut self.connection else {
            let segments = [self.task.as_str()];
            let mut call = Call { timeout: None, ..self.client.call(Method::GET, routes::TASK_WATCH, &segments) };
            call.headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            let url = self.client.url().to_owned();
            let response = tokio::time::timeout(self.client.timeout, self.client.send(call))
                .await
                .map_err(|_| ClientError::Timeout { url, after: self.client.timeout })??;
            self.connection = Some((response, Parser::default()));
            return Ok(());
        };
        let url = response.url().to_string();
        let chunk = match tokio::time::timeout(MAX_SILENCE, response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => {
                // The server ended a stream whose task had not: it is shutting down.
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
        self.pending.extend(events);
        Ok(())
    }

    async fn wait_before_retry(&mut self, error: ClientError) -> Result<(), ClientError> {
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            return Err(error);
        }
        tokio::time::sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        Ok(())
    }

    fn understand(&mut self, event: Event) -> Result<Option<WatchEvent>, ClientError> {
        let malformed = |source| ClientError::Malformed { url: format!("{} (watching)", self.client.url()), source };
        match event.name.as_str() {
            routes::EVENT_TASK => {
                let task: Box<Task> = serde_json::from_str(&event.data).map_err(malformed)?;
                (self.backoff, self.lost_since) = (FIRST_BACKOFF, None);
                self.done = task.ended();
                // After a reconnect the server says again what is known already.
                if self.last.as_ref() == Some(&task) {
                    return Ok(None);
                }
                self.last = Some(task.clone());
                Ok(Some(WatchEvent::Task(task)))
            }
            routes::EVENT_PROGRESS => serde_json::from_str(&event.data).map(|p| Some(WatchEvent::Progress(p))).map_err(malformed),
            // Events that a newer server may add.
            _ => Ok(None),
        }
    }
}
