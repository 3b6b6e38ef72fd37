//! Handles the messages of a node, over either transport.

use std::collections::HashMap;
use std::sync::Arc;

use gpuaas_contract::id::TaskId;
use gpuaas_contract::link::{
    Ack, FromNode, Heartbeat, LogAck, LogChunk, LogLine, LogPosition, Metrics, Progress, ReceiptAck, Rejection, TaskPhase,
};
use gpuaas_contract::link::{from_node, to_node};
use gpuaas_contract::receipt;
use gpuaas_contract::telemetry::{self, HostFacts, HostMetrics};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::{Change, TaskLogLine};
use gpuaas_domain::task::{self, ReceiptHead, TaskRecord};
use gpuaas_domain::{Decision, Refusal, Wakeup, node};

use super::budget;
use super::open::session_context;
use super::session::{LinkSession, TaskLog};
use crate::Control;
use crate::error::ControlError;
use crate::transact::{transact, transact_knowing};

/// Maximum number of lines of one chunk.
const MAX_LINES: usize = 4096;
/// Longest stored line; the agent cuts earlier.
const MAX_LINE: usize = 16 * 1024;
/// The log line that replaces the first line beyond the budget.
const BEYOND_BUDGET: &str = "the log budget of this task or its node is used up; lines from here on are dropped";
/// Maximum number of tasks whose owner a session caches. Above that, the cache is cleared.
const MAX_REMEMBERED: usize = 10_000;

/// Returns whether a message needs no further handling: an idle node sends nothing else, and thousands of them must cost nothing.
pub(super) fn is_sign_of_life(session: &LinkSession, message: &FromNode) -> bool {
    match &message.message {
        None => true,
        Some(from_node::Message::Heartbeat(beat)) if beat.facts_json.is_empty() => {
            session.heard(Timestamp::now());
            true
        }
        Some(_) => false,
    }
}

/// Handles one message of a stream. Answers go into the session's queue.
///
/// Messages about tasks are committed concurrently: a late or early message about a task changes nothing that a receipt has
/// decided, so their order does not matter.
pub(super) async fn handle(control: &Arc<Control>, session: &Arc<LinkSession>, message: FromNode) -> Result<(), ControlError> {
    let Some(message) = message.message else { return Ok(()) };
    session.heard(Timestamp::now());
    let (c, s) = (Arc::clone(control), Arc::clone(session));
    match message {
        from_node::Message::Hello(_) => {
            Err(ControlError::BadInput { code: "hello_twice", message: "hello is only the first message".to_owned() })
        }
        from_node::Message::Heartbeat(beat) => heartbeat(control, session, beat).await,
        from_node::Message::Metrics(sample) => metrics(session, &sample),
        from_node::Message::Progress(step) => progress(control, session, step).await,
        from_node::Message::Rejection(rejection) => rejected(control, session, &rejection).await,
        from_node::Message::Pong(pong) => {
            session.answered(pong.nonce);
            Ok(())
        }
        from_node::Message::Ack(ack) => in_background(session, async move { acknowledge(&c, &s, &ack).await }).await,
        from_node::Message::Logs(chunk) => {
            // Before the next message is read: a node that sends more than the store can write has to wait.
            let room = log_room(control, session, &chunk).await;
            in_background(session, async move {
                let _room = room;
                let stored = logs(&c, &s, chunk).await?;
                s.tell(to_node::Message::LogAck(stored));
                Ok(())
            })
            .await
        }
        from_node::Message::Receipt(signed) => {
            // Verified in the order of arrival, because receipts form a chain; committed concurrently.
            let check = check_receipt(control, session, &signed.task_id, signed.receipt).await?;
            in_background(session, async move {
                let ack = commit_receipt(&c, &s, check).await?;
                s.tell(to_node::Message::ReceiptAck(ack));
                Ok(())
            })
            .await
        }
    }
}

/// Runs a commit concurrently with the reading of the stream, bounded per node. If the store fails, the session ends: the node
/// reconnects and repeats everything.
async fn in_background(
    session: &Arc<LinkSession>,
    work: impl Future<Output = Result<(), ControlError>> + Send + 'static,
) -> Result<(), ControlError> {
    let Ok(permit) = Arc::clone(&session.commits).acquire_owned().await else { return Ok(()) };
    let session = Arc::clone(session);
    tokio::spawn(async move {
        let _permit = permit;
        if let Err(error) = work.await {
            close_for(&session, &error);
        }
    });
    Ok(())
}

/// Closes a session because of an internal error or an invalid message.
pub(super) fn close_for(session: &LinkSession, error: &ControlError) {
    tracing::warn!(node = %session.node_id, session = %session.id, error = %chain(error), "link closed");
    match error {
        ControlError::Unauthenticated { code, message } | ControlError::BadInput { code, message } => {
            session.close(code, message, 5)
        }
        ControlError::BadBody { message, .. } => session.close("body_invalid", message, 5),
        ControlError::Refused(refusal) => session.close(refusal.code, &refusal.message, 5),
        ControlError::Fenced => session.fence(),
        ControlError::Store(_)
        | ControlError::Contended
        | ControlError::AlreadyDone { .. }
        | ControlError::TooMany { .. }
        | ControlError::Internal(_)
        | ControlError::Unavailable { .. }
        | ControlError::Precondition { .. } => session.close("server_error", "the server could not store it", 1),
    }
}

/// Returns an error with its sources, for one log line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

/// Handles a heartbeat. The node's facts may have changed.
pub(super) async fn heartbeat(control: &Control, session: &LinkSession, beat: Heartbeat) -> Result<(), ControlError> {
    if beat.facts_json.is_empty() {
        return Ok(());
    }
    let facts = HostFacts::parse(&beat.facts_json)
        .map_err(|error| ControlError::BadInput { code: "telemetry_invalid", message: error.to_string() })?;
    let context = session_context(session, Timestamp::now());
    transact(control, || async {
        let Some(node) = control.store.node_get(session.node_id).await? else { return Ok(((), Decision::default())) };
        if node.facts == facts || !budget::take(control, session.node_id, budget::BudgetKind::Facts, 1).await? {
            return Ok(((), Decision::default()));
        }
        Ok(((), node::facts_changed(&node, facts.clone(), &context)))
    })
    .await
}

/// Handles a sample of metrics: kept in memory, never stored.
pub(super) fn metrics(session: &LinkSession, sample: &Metrics) -> Result<(), ControlError> {
    session.set_metrics(telemetry_document::<HostMetrics>(&sample.metrics_json)?);
    Ok(())
}

fn telemetry_document<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, ControlError> {
    let bad = |message| ControlError::BadInput { code: "telemetry_invalid", message };
    if json.len() > telemetry::MAX_BYTES {
        return Err(bad(format!("telemetry of {} bytes; at most {}", json.len(), telemetry::MAX_BYTES)));
    }
    serde_json::from_str(json).map_err(|e| bad(format!("telemetry: {e}")))
}

/// Records that the node has a task in its journal, or runs it.
pub(super) async fn acknowledge(control: &Control, session: &LinkSession, ack: &Ack) -> Result<(), ControlError> {
    let id = task_id(&ack.task_id)?;
    let started = match ack.phase() {
        TaskPhase::Accepted => false,
        TaskPhase::Started | TaskPhase::Finished => true,
        TaskPhase::Unspecified => {
            return Err(ControlError::BadInput { code: "ack_invalid", message: "an ack needs a phase".to_owned() });
        }
    };
    let context = session_context(session, Timestamp::now());
    let known = session.sent(id).map(|sent| sent.record.clone());
    let next = transact_knowing(control, known, async |known| {
        let task = match known.flatten() {
            Some(known) => known,
            None => own_task(control, session, id).await?,
        };
        let context = gpuaas_domain::decision::Context { correlation_id: task.correlation_id.clone(), ..context.clone() };
        let decision = task::acknowledged(&task, started, &context);
        let next = decision.changes.iter().find_map(|change| {
            let Change::TaskUpdate(next) = change else { return None };
            Some(TaskRecord { version: next.version + 1, ..(**next).clone() })
        });
        Ok((next, decision))
    })
    .await?;
    if let Some(next) = next {
        session.has_gone_on(next);
    }
    Ok(())
}

/// Handles a new phase of a running task: it is sent to listeners.
pub(super) async fn progress(control: &Control, session: &LinkSession, step: Progress) -> Result<(), ControlError> {
    let id = task_id(&step.task_id)?;
    if !owns(control, session, id).await? {
        return Err(not_yours(id));
    }
    if !budget::take(control, session.node_id, budget::BudgetKind::Progress, 1).await? {
        return Ok(());
    }
    let short = |text: String| text.chars().filter(|c| !c.is_control()).take(500).collect::<String>();
    control.store.wakeup(Wakeup::Progress {
        task_id: id,
        phase: short(step.phase),
        message: short(step.message),
        at: Timestamp(step.at_us),
    });
    Ok(())
}

/// Waits until a chunk of log lines may be written.
pub(super) async fn log_room(control: &Control, session: &LinkSession, chunk: &LogChunk) -> impl Send + use<> {
    let cost = usize::try_from(budget::LOG_LINE_COST).unwrap_or(usize::MAX);
    let bytes = chunk.lines.iter().fold(0_usize, |sum, line| sum.saturating_add(line.text.len()).saturating_add(cost));
    session.log_room.take(&control.budgets, bytes).await
}

/// Stores log lines and returns the acknowledged positions.
pub(super) async fn logs(control: &Control, session: &LinkSession, chunk: LogChunk) -> Result<LogAck, ControlError> {
    if chunk.lines.len() > MAX_LINES {
        let message = format!("{} log lines in one chunk; at most {MAX_LINES}", chunk.lines.len());
        return Err(ControlError::BadInput { code: "logs_too_many", message });
    }
    let mut stored = Vec::with_capacity(chunk.lines.len());
    let mut positions: HashMap<String, u64> = HashMap::new();
    for mut line in chunk.lines {
        let id = task_id(&line.task_id)?;
        let position = positions.entry(line.task_id.clone()).or_default();
        *position = line.sequence.max(*position);
        // Lines of a task that is not (or no longer) this node's are acknowledged and dropped: the agent must be able to empty
        // its buffer.
        if !owns(control, session, id).await? {
            continue;
        }
        if line.text.len() > MAX_LINE {
            let cut = (0..=MAX_LINE).rev().find(|at| line.text.is_char_boundary(*at)).unwrap_or(0);
            line.text.truncate(cut);
        }
        match log_budget(control, session, id, &line).await? {
            LogBudget::Within { dropped } => line.dropped = line.dropped.saturating_add(dropped),
            LogBudget::FirstBeyond => {
                line.text = BEYOND_BUDGET.to_owned();
                line.stream = "agent".to_owned();
            }
            LogBudget::Beyond => continue,
        }
        // PostgreSQL does not store NUL in text.
        let text = if line.text.contains('\0') { line.text.replace('\0', "\u{fffd}") } else { line.text };
        let stream = line.stream.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        stored.push(TaskLogLine {
            task_id: id,
            sequence: line.sequence,
            at: Timestamp(line.at_us),
            stream,
            text,
            dropped: line.dropped,
        });
    }
    if !stored.is_empty() {
        let touched: Vec<TaskId> = {
            let mut ids: Vec<TaskId> = stored.iter().map(|line| line.task_id).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let mut decision = Decision::default().change(Change::LogAppend(stored));
        for id in touched {
            decision = decision.wakeup(Wakeup::Task(id));
        }
        transact(control, || async { Ok(((), decision.clone())) }).await?;
    }
    Ok(LogAck { positions: positions.into_iter().map(|(task_id, sequence)| LogPosition { task_id, sequence }).collect() })
}

/// Whether a log line is stored.
enum LogBudget {
    Within {
        /// Lines that were dropped before it because of the budget.
        dropped: u64,
    },
    /// The first line beyond the budget: a notice takes its place.
    FirstBeyond,
    Beyond,
}

async fn log_budget(control: &Control, session: &LinkSession, id: TaskId, line: &LogLine) -> Result<LogBudget, ControlError> {
    let cost = u64::try_from(line.text.len()).unwrap_or(u64::MAX).saturating_add(budget::LOG_LINE_COST);
    let mut logs = session.logs.lock().await;
    if !logs.contains_key(&id) {
        if logs.len() >= MAX_REMEMBERED {
            logs.clear();
        }
        let bytes = control.store.log_bytes(id).await?;
        logs.insert(id, TaskLog { bytes, ..TaskLog::default() });
    }
    let Some(log) = logs.get_mut(&id) else { return Ok(LogBudget::Beyond) };
    let of_task = log.bytes.checked_add(cost).filter(|bytes| *bytes <= budget::LOG_BYTES_PER_TASK);
    if of_task.is_none() {
        control.metrics.budget_exceeded("task_log_bytes", 1);
    }
    let within = match of_task {
        Some(bytes) if budget::take(control, session.node_id, budget::BudgetKind::LogBytes, cost).await? => Some(bytes),
        Some(_) | None => None,
    };
    Ok(match within {
        Some(bytes) => {
            log.bytes = bytes;
            log.beyond = false;
            LogBudget::Within { dropped: std::mem::take(&mut log.dropped) }
        }
        None if log.beyond => {
            log.dropped = log.dropped.saturating_add(1).saturating_add(line.dropped);
            LogBudget::Beyond
        }
        None => {
            log.beyond = true;
            // The notice replaces this line.
            log.dropped = 1;
            LogBudget::FirstBeyond
        }
    })
}

/// A checked receipt.
pub(super) enum ReceiptCheck {
    /// Verified; it must be committed before it is acknowledged.
    Receipt {
        /// Its task, as it was when the receipt arrived.
        task: Box<task::TaskRecord>,
        /// The content of the receipt.
        verified: Box<receipt::Verified>,
        /// DSSE bytes.
        raw: Vec<u8>,
        /// The node's previous receipt.
        head: ReceiptHead,
    },
    /// Rejected, or not for a task of ours: the answer for the node.
    Rejected(ReceiptAck),
}

/// Verifies a receipt before anything is done with it.
pub(super) async fn check_receipt(
    control: &Control,
    session: &LinkSession,
    task: &str,
    raw: Vec<u8>,
) -> Result<ReceiptCheck, ControlError> {
    let reject = async |code: &str| {
        control.metrics.receipt_rejected(code);
        if budget::take(control, session.node_id, budget::BudgetKind::Rejections, 1).await? {
            tracing::warn!(node = %session.node_id, task = ?task.chars().take(64).collect::<String>(), code, "receipt rejected");
        }
        Ok(ReceiptCheck::Rejected(ReceiptAck { task_id: task.to_owned(), rejected_code: code.to_owned() }))
    };
    let Ok(id) = task.parse::<TaskId>() else { return reject("receipt_malformed").await };
    let (record, envelope_digests) = match session.sent(id) {
        Some(sent) => (sent.record.clone(), vec![sent.envelope.clone()]),
        None => match control.store.task_with_envelopes(id).await? {
            Some((record, digests)) if record.node_id == session.node_id => (record, digests),
            Some(_) | None => return reject("receipt_task_unknown").await,
        },
    };
    let expect = receipt::Expectation {
        key: &session.receipt_key,
        cluster_id: control.cluster_id,
        node_id: session.node_id,
        node_epoch: session.node_epoch,
        task_id: id,
        task_type: record.task_type,
        envelope_digests: &envelope_digests,
    };
    let verified = match receipt::verify(&raw, &expect) {
        Ok(verified) => verified,
        Err(disbelief) => return reject(disbelief.code()).await,
    };
    let mut head = session.receipt_head.lock().await;
    let before = head.clone();
    if verified.payload().sequence > head.sequence {
        *head = ReceiptHead { sequence: verified.payload().sequence, digest: Some(verified.digest().clone()) };
    }
    Ok(ReceiptCheck::Receipt { task: Box::new(record), verified: Box::new(verified), raw, head: before })
}

/// Commits a verified receipt; only then is it acknowledged.
pub(super) async fn commit_receipt(
    control: &Control,
    session: &LinkSession,
    check: ReceiptCheck,
) -> Result<ReceiptAck, ControlError> {
    let (known, verified, raw, head) = match check {
        ReceiptCheck::Rejected(ack) => return Ok(ack),
        ReceiptCheck::Receipt { task, verified, raw, head } => (*task, verified, raw, head),
    };
    let id = known.id;
    gpuaas_failpoint::hit("server.before_receipt_commit");
    if gpuaas_runtime::broken("control.receipt_before_ack") {
        return Ok(ReceiptAck { task_id: id.to_string(), rejected_code: String::new() });
    }
    let context = session_context(session, Timestamp::now());
    let settled = transact_knowing(control, known, async |known| {
        let task = match known {
            Some(known) => known,
            None => own_task(control, session, id).await?,
        };
        let context = gpuaas_domain::decision::Context { correlation_id: task.correlation_id.clone(), ..context.clone() };
        let decision = task::receipt(&task, &head, &verified, &raw, &context)?;
        Ok(((task, decision.is_some()), decision.unwrap_or_default()))
    })
    .await;
    gpuaas_failpoint::hit("server.receipt_committed");
    let rejected_code = match settled {
        // It was accepted before: only our answer was lost.
        Ok((_, false)) => String::new(),
        Ok((task, true)) => {
            let reported = verified.payload();
            control.metrics.task_ended(reported.outcome, Timestamp::now().since(task.created_at));
            tracing::info!(
                task = %id, node = %session.node_id, outcome = reported.outcome.as_str(), code = %reported.code,
                correlation_id = %task.correlation_id, "receipt accepted"
            );
            String::new()
        }
        Err(ControlError::Refused(refusal)) => {
            control.metrics.receipt_rejected(refusal.code);
            refusal.code.to_owned()
        }
        Err(other) => return Err(other),
    };
    session.has_ended(id);
    Ok(ReceiptAck { task_id: id.to_string(), rejected_code })
}

/// Handles a rejection: the node could not authenticate an envelope, or it was not for this node.
pub(super) async fn rejected(control: &Control, session: &LinkSession, rejection: &Rejection) -> Result<(), ControlError> {
    if !budget::take(control, session.node_id, budget::BudgetKind::Rejections, 1).await? {
        return Ok(());
    }
    let clip = |text: &str| text.chars().filter(|c| !c.is_control()).take(300).collect::<String>();
    tracing::error!(
        node = %session.node_id, task = %clip(&rejection.task_id), code = %clip(&rejection.code), message = %clip(&rejection.message),
        "the node rejected an envelope"
    );
    control.metrics.envelope_rejected();
    // The one cause that can be fixed from here: the node has an older verifier set than expected.
    let (version, document) = control.keys.set_document();
    session.tell(to_node::Message::VerifierSet(gpuaas_contract::link::VerifierSet { version, document }));
    Ok(())
}

fn task_id(text: &str) -> Result<TaskId, ControlError> {
    text.parse().map_err(|error: gpuaas_contract::id::BadId| ControlError::BadInput {
        code: "task_id_invalid",
        message: error.to_string(),
    })
}

fn not_yours(id: TaskId) -> ControlError {
    Refusal::forbidden("task_of_another_node", format!("task {id} is not this node's")).into()
}

async fn own_task(control: &Control, session: &LinkSession, id: TaskId) -> Result<task::TaskRecord, ControlError> {
    match control.store.task_get(id).await? {
        Some(task) if task.node_id == session.node_id => Ok(task),
        Some(_) | None => Err(not_yours(id)),
    }
}

async fn owns(control: &Control, session: &LinkSession, id: TaskId) -> Result<bool, ControlError> {
    if let Some(known) = session.tasks_of_node().get(&id) {
        return Ok(*known);
    }
    let owned = control.store.task_get(id).await?.is_some_and(|task| task.node_id == session.node_id);
    let mut remembered = session.tasks_of_node();
    if remembered.len() >= MAX_REMEMBERED {
        remembered.clear();
    }
    remembered.insert(id, owned);
    Ok(owned)
}
