//! The HTTP long-poll transport: the same messages for networks that break streams.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use bytes::Bytes;
use gpuaas_contract::id::{NodeId, SessionId};
use gpuaas_contract::link::{
    self, FromNode, Heartbeat, Hello, LogAck, LogChunk, Messages, Metrics, Pong, ReceiptAck, Welcome, from_node, route,
};
use gpuaas_contract::resume::REQUEST_KEY_HEADER;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::LinkTransport;

use super::session::LinkSession;
use super::{POLL_SECONDS, identity, inbound, open};
use crate::Control;
use crate::error::ControlError;
use crate::http::problem::{LinkBody, Rejected, Segments};
use crate::listener::ClientCertificate;

type Shared = State<Arc<Control>>;
type Certificate = Extension<ClientCertificate>;
type Answer<T> = Result<Json<T>, Rejected>;

/// Returns the long-poll routes.
pub(super) fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route(route::HELLO, post(hello))
        .route(route::TASKS_WAIT, get(tasks_wait))
        .route(route::CONTROL, get(control_wait).post(pong))
        .route(route::HEARTBEAT, post(heartbeat))
        .route(route::METRICS, post(metrics))
        .route(route::TASK_ACK, post(task_ack))
        .route(route::TASK_LOGS, post(task_logs))
        .route(route::TASK_RESULT, post(task_result))
        .route(route::BYE, post(bye))
        .layer(DefaultBodyLimit::max(link::MAX_MESSAGE_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&control), identity::required))
        .with_state(control)
}

async fn hello(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    LinkBody(hello): LinkBody<Hello>,
) -> Answer<Welcome> {
    let peer = identity::peer(&control, &cert, Some(node))?;
    let (_, welcome) = open::open(&control, peer, hello, LinkTransport::Poll).await?;
    Ok(Json(welcome))
}

/// Returns the session of a request: of this node, opened with this node's certificate, and still the node's link.
fn session(
    control: &Control,
    cert: &ClientCertificate,
    node: NodeId,
    headers: &HeaderMap,
) -> Result<Arc<LinkSession>, ControlError> {
    let peer = identity::peer(control, cert, Some(node))?;
    let claimed =
        headers.get(link::SESSION_HEADER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<SessionId>().ok());
    let Some(claimed) = claimed else {
        let message = format!("the header `{}` with the session of the hello is missing", link::SESSION_HEADER);
        return Err(ControlError::BadInput { code: "session_missing", message });
    };
    let session = control
        .hub
        .get(peer.node_id)
        .filter(|live| live.id == claimed && live.transport == LinkTransport::Poll && !live.is_closed());
    let session = session.ok_or(ControlError::Fenced)?;
    // The id of a session is in events and lists; only the agent process knows its key. A certificate that was forged with the
    // CA's key is for another key than the node's.
    let key = headers.get(REQUEST_KEY_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if session.peer.key_digest != peer.key_digest || !session.is_request_key(key) {
        let message = format!("the header `{REQUEST_KEY_HEADER}` does not prove that this request is of the session's own agent");
        return Err(ControlError::Unauthenticated { code: "session_key_invalid", message });
    }
    session.heard(Timestamp::now());
    Ok(session)
}

async fn tasks_wait(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    headers: HeaderMap,
) -> Answer<Messages> {
    let session = session(&control, &cert, node, &headers)?;
    let messages = session.poll_offers(patience()).await;
    after_wait(&control, &session, &messages)?;
    Ok(Json(Messages { messages }))
}

async fn control_wait(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    headers: HeaderMap,
) -> Answer<Messages> {
    let session = session(&control, &cert, node, &headers)?;
    let messages = session.poll_control(patience()).await;
    after_wait(&control, &session, &messages)?;
    Ok(Json(Messages { messages }))
}

/// Checks again after the wait: the certificate may have been revoked, or the session replaced.
fn after_wait(control: &Control, session: &LinkSession, messages: &[link::ToNode]) -> Result<(), ControlError> {
    identity::check_still_good(control, &session.peer)?;
    if session.is_closed() && messages.is_empty() { Err(ControlError::Fenced) } else { Ok(()) }
}

fn patience() -> Duration {
    Duration::from_secs(u64::from(POLL_SECONDS))
}

/// Handles the answer to a ping.
async fn pong(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    headers: HeaderMap,
    LinkBody(pong): LinkBody<Pong>,
) -> Result<(), Rejected> {
    session(&control, &cert, node, &headers)?.answered(pong.nonce);
    Ok(())
}

async fn heartbeat(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    headers: HeaderMap,
    LinkBody(beat): LinkBody<Heartbeat>,
) -> Result<(), Rejected> {
    let session = session(&control, &cert, node, &headers)?;
    Ok(inbound::heartbeat(&control, &session, beat).await?)
}

async fn metrics(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    headers: HeaderMap,
    LinkBody(sample): LinkBody<Metrics>,
) -> Result<(), Rejected> {
    let session = session(&control, &cert, node, &headers)?;
    Ok(inbound::metrics(&session, &sample)?)
}

async fn task_ack(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments((node, task)): Segments<(NodeId, String)>,
    headers: HeaderMap,
    LinkBody(message): LinkBody<FromNode>,
) -> Result<(), Rejected> {
    let session = session(&control, &cert, node, &headers)?;
    let fits = |about: &str| if about == task { Ok(()) } else { Err(wrong_task("the body is about another task than the path")) };
    match message.message {
        Some(from_node::Message::Ack(ack)) => {
            fits(&ack.task_id)?;
            inbound::acknowledge(&control, &session, &ack).await?;
        }
        Some(from_node::Message::Progress(step)) => {
            fits(&step.task_id)?;
            inbound::progress(&control, &session, step).await?;
        }
        Some(from_node::Message::Rejection(rejection)) => {
            fits(&rejection.task_id)?;
            inbound::rejected(&control, &session, &rejection).await?;
        }
        Some(
            from_node::Message::Hello(_)
            | from_node::Message::Heartbeat(_)
            | from_node::Message::Logs(_)
            | from_node::Message::Receipt(_)
            | from_node::Message::Metrics(_)
            | from_node::Message::Pong(_),
        ) => return Err(wrong_task("only ack, progress and rejection go here").into()),
        // A message of a newer agent that means nothing here.
        None => {}
    }
    Ok(())
}

fn wrong_task(message: &str) -> ControlError {
    ControlError::BadInput { code: "message_misplaced", message: message.to_owned() }
}

async fn task_logs(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments((node, task)): Segments<(NodeId, String)>,
    headers: HeaderMap,
    LinkBody(chunk): LinkBody<LogChunk>,
) -> Answer<LogAck> {
    let session = session(&control, &cert, node, &headers)?;
    if chunk.lines.iter().any(|line| line.task_id != task) {
        return Err(wrong_task("a line is about another task than the path").into());
    }
    let _room = inbound::log_room(&control, &session, &chunk).await;
    Ok(Json(inbound::logs(&control, &session, chunk).await?))
}

async fn task_result(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments((node, task)): Segments<(NodeId, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<ReceiptAck> {
    let session = session(&control, &cert, node, &headers)?;
    let check = inbound::check_receipt(&control, &session, &task, body.to_vec()).await?;
    Ok(Json(inbound::commit_receipt(&control, &session, check).await?))
}

async fn bye(
    State(control): Shared,
    Extension(cert): Certificate,
    Segments(node): Segments<NodeId>,
    headers: HeaderMap,
) -> Result<(), Rejected> {
    session(&control, &cert, node, &headers)?.close("bye", "the agent said goodbye", 0);
    Ok(())
}
