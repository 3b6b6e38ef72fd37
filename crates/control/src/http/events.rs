//! Streams the events of a project, or of everything, as server-sent events; those of a project also over a WebSocket.
//!
//! A listener first receives the events in the outbox after its cursor, and then new ones whenever the fan-out announces them. All events
//! are read from the outbox, so none is missed. Every event carries its position, from which a listener can resume.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, State};
use axum::http::{HeaderMap, Request};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::{Stream, StreamExt as _};
use gpuaas_api::dto::EventsQuery;
use gpuaas_api::routes::{EVENT_CLOUD_EVENT, LAST_EVENT_ID_HEADER};
use gpuaas_backends::fanout::{Listener, Notice};
use gpuaas_contract::id::ProjectId;
use gpuaas_domain::webhook::{MAX_KINDS, wants};
use gpuaas_store::{OutboxRow, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::problem::{Params, Rejected};
use super::stream_grant::StreamGrant;
use super::streams::StreamPlace;
use crate::Control;
use crate::audience::Audience;
use crate::error::ControlError;
use crate::events::notify::{ALL, channel_of, unpacked};

type Shared = State<Arc<Control>>;

/// Events per read.
const BATCH: u32 = 200;
/// How often the outbox is read without a notice from the fan-out, for events that were too large for it or lost.
const SLOW_LOOK: Duration = Duration::from_secs(10);
/// How often an idle stream sends a keep-alive.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long sending one message may take before the listener is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a message from a listener. None are expected.
const MAX_SAID: usize = 4096;

/// Maximum number of bytes buffered for a listener that does not read. An event is smaller.
const MAX_UNSENT: usize = 1024 * 1024;
/// A listener that sends nothing for this long, not even a pong, is considered gone.
const HEARD_WITHIN: Duration = Duration::from_secs(30);

/// Which events a listener wants to receive.
#[derive(Clone)]
struct Wanted {
    project: Option<ProjectId>,
    audience: Audience,
    kinds: Vec<String>,
    after: Option<i64>,
}

impl Wanted {
    fn new(project: Option<ProjectId>, caller: &Caller, query: &EventsQuery, headers: &HeaderMap) -> Result<Self, ControlError> {
        let last = headers.get(LAST_EVENT_ID_HEADER).map(|value| {
            let bad = || ControlError::BadInput {
                code: "cursor_invalid",
                message: "Last-Event-ID is not the id of an event here".to_owned(),
            };
            value.to_str().ok().and_then(|text| text.parse::<i64>().ok()).ok_or_else(bad)
        });
        let kinds = query.kinds.as_deref().unwrap_or_default().split(',').map(str::trim).filter(|kind| !kind.is_empty());
        let kinds: Vec<String> = kinds.map(str::to_owned).collect();
        if kinds.len() > MAX_KINDS {
            return Err(ControlError::BadInput {
                code: "kinds_invalid",
                message: format!("at most {MAX_KINDS} kinds of events"),
            });
        }
        Ok(Self { project, audience: Audience::of(&caller.principal), kinds, after: last.transpose()?.or(query.after) })
    }
}

pub(super) async fn of_project(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Rejected> {
    let project = caller.project()?;
    sse(control, Wanted::new(Some(project.id), &caller, &query, &headers)?).await
}

pub(super) async fn of_everything(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Rejected> {
    sse(control, Wanted::new(None, &caller, &query, &headers)?).await
}

async fn sse(control: Arc<Control>, wanted: Wanted) -> Result<Response, Rejected> {
    let listening = Listening::open(control, wanted).await?;
    // An id without an event: a client that is disconnected before the first event knows where to resume.
    let start = Event::default().id(listening.position.to_string());
    let events = listening
        .heard()
        .map(|(position, document)| Event::default().event(EVENT_CLOUD_EVENT).id(position.to_string()).data(document));
    let events = futures::stream::iter([start]).chain(events).map(Ok::<_, Infallible>);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

pub(super) async fn socket(
    State(control): Shared,
    Extension(grant): Extension<StreamGrant>,
    Extension(caller): Extension<Caller>,
    Extension(place): Extension<StreamPlace>,
    Params(query): Params<EventsQuery>,
    request: Request<axum::body::Body>,
) -> Result<Response, Rejected> {
    let project = caller.project()?;
    let (mut parts, _) = request.into_parts();
    let wanted = Wanted::new(Some(project.id), &caller, &query, &parts.headers)?;
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await.map_err(|rejection| ControlError::BadInput {
        code: "websocket_expected",
        message: format!("this path speaks WebSocket only: {rejection}"),
    })?;
    let listening = Listening::open(control, wanted).await?;
    let upgrade = upgrade.max_message_size(MAX_SAID).max_frame_size(MAX_SAID);
    let upgrade = upgrade.write_buffer_size(0).max_write_buffer_size(MAX_UNSENT);
    Ok(grant.upgrade(upgrade, move |socket, ended| async move {
        serve(listening, socket, ended).await;
        drop(place);
    }))
}

/// Sends events until the client leaves or loses its right to them. Messages from the client only show that it is alive.
async fn serve(listening: Listening, mut socket: WebSocket, ended: CancellationToken) {
    let shutdown = listening.control.shutdown.clone();
    let mut events = std::pin::pin!(listening.heard());
    let mut pings = tokio::time::interval(KEEP_ALIVE);
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            () = ended.cancelled() => break,
            reported = tokio::time::timeout_at(heard + HEARD_WITHIN, socket.recv()) => match reported {
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return,
                Ok(Some(Ok(_))) => {
                    heard = Instant::now();
                    continue;
                }
            },
            event = events.next() => match event {
                Some((position, document)) => Message::Text(with_position(position, &document).into()),
                None => break,
            },
            // Detects clients that vanished without closing the connection.
            _ = pings.tick() => Message::Ping(axum::body::Bytes::new()),
        };
        // A client that does not read is disconnected; it can reconnect and resume from its position.
        if !matches!(tokio::time::timeout(SEND_TIMEOUT, socket.send(message)).await, Ok(Ok(()))) {
            return;
        }
    }
    // Best effort: the client may be gone.
    let _ = tokio::time::timeout(SEND_TIMEOUT, socket.send(Message::Close(None))).await;
}

/// The event with its position as the CloudEvents extension `sequence`, because WebSocket messages have no id.
fn with_position(position: i64, document: &str) -> String {
    match document.strip_prefix('{') {
        Some(rest) => format!("{{\"sequence\":\"{position}\",{rest}"),
        None => document.to_owned(),
    }
}

/// A listener that receives every event after its position.
struct Listening {
    control: Arc<Control>,
    wanted: Wanted,
    notices: Listener,
    /// Position of the last event that was sent or filtered out.
    position: i64,
}

impl Listening {
    /// Subscribes. Every event that is written after this returns is received.
    async fn open(control: Arc<Control>, wanted: Wanted) -> Result<Self, ControlError> {
        let channel = wanted.project.map_or_else(|| ALL.to_owned(), |project| channel_of(&project.to_string()));
        // Subscribe before reading the position, so that no event is missed in between.
        let notices = control.backends.fanout.subscribe(&[&channel]).await;
        let notices = notices.map_err(|error| ControlError::Internal(format!("events cannot be listened to: {error}")))?;
        let position = match wanted.after {
            Some(after) => after,
            None => control.store.outbox_end().await?,
        };
        Ok(Self { control, wanted, notices, position })
    }

    /// Events with their positions. The stream ends when the server stops or the outbox cannot be read; clients reconnect.
    fn heard(mut self) -> impl Stream<Item = (i64, String)> + Send {
        async_stream::stream! {
            let mut look = self.wanted.after.is_some();
            loop {
                while look {
                    let Ok(rows) = self.read().await else { return };
                    look = rows.len() == BATCH as usize;
                    for row in rows {
                        self.position = row.position;
                        if wants(&self.wanted.kinds, &row.kind)
                            && let Some(document) = self.wanted.audience.event(row.body)
                        {
                            yield (row.position, document);
                        }
                    }
                }
                let notice = tokio::select! {
                    biased;
                    () = self.control.shutdown.cancelled() => return,
                    notice = tokio::time::timeout(SLOW_LOOK, self.notices.next()) => notice,
                };
                look = match notice {
                    // A message from the fan-out only shows that there is a new event; the outbox provides it, in order and without gaps.
                    Ok(Some(Notice::Message { body, .. })) => unpacked(&body).is_none_or(|(at, _)| at > self.position),
                    Ok(Some(Notice::Gap)) | Err(_) => true,
                    Ok(None) => return,
                };
            }
        }
    }

    async fn read(&self) -> Result<Vec<OutboxRow>, StoreError> {
        let store = &self.control.store;
        match self.wanted.project {
            Some(project) => store.outbox_of_project(project, self.position, BATCH).await,
            None => store.outbox_list(self.position, BATCH).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_stays_a_cloud_event_with_its_position() {
        let text = with_position(7, r#"{"specversion":"1.0","id":"x"}"#);
        let event: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(event, serde_json::json!({ "sequence": "7", "specversion": "1.0", "id": "x" }));
    }
}
