//! The second transport: HTTP long-poll with the same messages as JSON, for networks that break streams.

use std::time::Duration;

use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_contract::link::{FromNode, Hello, LogAck, Messages, ReceiptAck, SESSION_HEADER, Welcome, from_node, route, to_node};
use gpuaas_contract::resume::REQUEST_KEY_HEADER;
use tokio::sync::mpsc;

use super::conversation::{Conversation, LinkError, QUEUE};
use super::dial::Dialer;
use super::http::{Call, HttpError, Lane};
use super::resume::Resume;

type Heard = mpsc::Sender<Result<to_node::Message, LinkError>>;

/// The common parts of a session's requests.
#[derive(Clone)]
struct PollSession {
    node_id: NodeId,
    session_id: String,
    /// Proves that a request comes from this process.
    key: String,
    timeout: Duration,
    dialer: Dialer,
}

/// Opens a session: hello, welcome.
pub(super) async fn open(
    dialer: &Dialer,
    node_id: NodeId,
    resume: &Resume,
    mut hello: Hello,
    timeout: Duration,
) -> Result<Conversation, LinkError> {
    let path = route::HELLO.replace("{node}", &node_id.to_string());
    let mut lane = Lane::new(dialer.clone());
    resume.prove(&mut hello, lane.channel_binding().await?.as_ref());
    let mut welcome: Welcome = lane.call_json(&Call::post_json(path, &hello, timeout)).await?;
    let key = resume.take(&mut welcome).map(|secret| secret.request_key()).unwrap_or_default();
    let session = PollSession { node_id, session_id: welcome.session_id.clone(), key, timeout, dialer: dialer.clone() };
    let hold = Duration::from_secs(u64::from(welcome.poll_seconds.clamp(1, 300)));

    let (outgoing, queue) = mpsc::channel(QUEUE);
    let (heard, incoming) = mpsc::channel(QUEUE);
    let mut conversation = Conversation::new(welcome, outgoing, incoming);
    for wait_route in [route::TASKS_WAIT, route::CONTROL] {
        conversation.tasks.spawn(listen(session.clone(), wait_route, hold, heard.clone()));
    }
    conversation.tasks.spawn(speak(session, queue, heard));
    Ok(conversation)
}

impl PollSession {
    fn path(&self, template: &str) -> String {
        template.replace("{node}", &self.node_id.to_string())
    }

    fn with_session(&self, call: Call) -> Call {
        call.header(SESSION_HEADER, self.session_id.clone()).header(REQUEST_KEY_HEADER, self.key.clone())
    }
}

/// Polls for messages of the control plane.
async fn listen(session: PollSession, wait_route: &'static str, hold: Duration, heard: Heard) {
    let mut lane = Lane::new(session.dialer.clone());
    let call = session.with_session(Call::get(session.path(wait_route), hold + session.timeout));
    loop {
        // The session may end while the request is held open.
        let answer = tokio::select! {
            biased;
            answer = lane.call_json::<Messages>(&call) => answer,
            () = heard.closed() => return,
        };
        match answer {
            Ok(messages) => {
                for message in messages.messages.into_iter().filter_map(|message| message.message) {
                    if heard.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                let _ = heard.send(Err(error.into())).await;
                return;
            }
        }
    }
}

/// Sends messages to the control plane in two ordered lanes: those that tasks wait for, and the others.
async fn speak(session: PollSession, mut queue: mpsc::Receiver<FromNode>, heard: Heard) {
    let (tasks, tasks_queue) = mpsc::channel(QUEUE);
    let (bulk, bulk_queue) = mpsc::channel(QUEUE);
    let route_all = async {
        while let Some(FromNode { message: Some(message) }) = queue.recv().await {
            let lane = match &message {
                from_node::Message::Ack(_)
                | from_node::Message::Progress(_)
                | from_node::Message::Rejection(_)
                | from_node::Message::Receipt(_) => &tasks,
                from_node::Message::Hello(_)
                | from_node::Message::Heartbeat(_)
                | from_node::Message::Metrics(_)
                | from_node::Message::Logs(_)
                | from_node::Message::Pong(_) => &bulk,
            };
            if lane.send(message).await.is_err() {
                break;
            }
        }
        drop((tasks, bulk));
    };
    let lanes = async {
        tokio::join!(carry(&session, tasks_queue, &heard), carry(&session, bulk_queue, &heard));
    };
    tokio::join!(route_all, lanes);
    // A clean end. A failure does not matter: the control plane notices the silence.
    let call = session.with_session(Call::post(session.path(route::BYE), Vec::new(), session.timeout));
    let _ = Lane::new(session.dialer.clone()).call(&call).await;
}

async fn carry(session: &PollSession, mut queue: mpsc::Receiver<from_node::Message>, heard: &Heard) {
    let mut lane = Lane::new(session.dialer.clone());
    while let Some(message) = queue.recv().await {
        match post(session, &mut lane, message).await.or_else(passing) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                // If the session has ended, the answers come again with the next one.
                let _ = heard.send(Ok(answer)).await;
            }
            Err(error) => {
                let _ = heard.send(Err(error)).await;
                return;
            }
        }
    }
}

/// Handles a rejected message, which says nothing about the session: its content comes again with the next hello, or as an
/// unconfirmed receipt.
fn passing(error: HttpError) -> Result<Option<to_node::Message>, LinkError> {
    if let HttpError::Problem { status: 400 | 404 | 409 | 413 | 422, code, detail } = error {
        tracing::warn!(code, detail, "the control plane rejected a message");
        return Ok(None);
    }
    Err(error.into())
}

async fn post(
    session: &PollSession,
    lane: &mut Lane,
    message: from_node::Message,
) -> Result<Option<to_node::Message>, HttpError> {
    let for_task = |template: &str, task_id: &str| session.path(template).replace("{task}", task_id);
    let about_task = |task_id: &str, message: from_node::Message| {
        Call::post_json(for_task(route::TASK_ACK, task_id), &FromNode::from(message), session.timeout)
    };
    let call = match message {
        from_node::Message::Heartbeat(heartbeat) => Call::post_json(session.path(route::HEARTBEAT), &heartbeat, session.timeout),
        from_node::Message::Metrics(metrics) => Call::post_json(session.path(route::METRICS), &metrics, session.timeout),
        from_node::Message::Logs(chunk) => {
            let task_id = chunk.lines.first().map(|line| line.task_id.clone()).unwrap_or_default();
            let path = for_task(route::TASK_LOGS, &task_id);
            let call = session.with_session(Call::post_json(path, &chunk, session.timeout));
            let ack: LogAck = lane.call_json(&call).await?;
            return Ok(Some(to_node::Message::LogAck(ack)));
        }
        from_node::Message::Receipt(receipt) => {
            let path = for_task(route::TASK_RESULT, &receipt.task_id);
            let call = Call::post(path, receipt.receipt, session.timeout).header("content-type", "application/json".to_owned());
            let ack: ReceiptAck = lane.call_json(&session.with_session(call)).await?;
            return Ok(Some(to_node::Message::ReceiptAck(ack)));
        }
        from_node::Message::Ack(ack) => about_task(&ack.task_id.clone(), from_node::Message::Ack(ack)),
        from_node::Message::Progress(progress) => about_task(&progress.task_id.clone(), from_node::Message::Progress(progress)),
        // An invalid task id cannot be part of a path, and the answer would be useless.
        from_node::Message::Rejection(rejection) if rejection.task_id.parse::<TaskId>().is_err() => return Ok(None),
        from_node::Message::Rejection(rejection) => {
            about_task(&rejection.task_id.clone(), from_node::Message::Rejection(rejection))
        }
        from_node::Message::Pong(pong) => Call::post_json(session.path(route::CONTROL), &pong, session.timeout),
        // Hello opened the session.
        from_node::Message::Hello(_) => return Ok(None),
    };
    lane.call(&session.with_session(call)).await?;
    Ok(None)
}
