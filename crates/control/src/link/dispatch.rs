//! The driver of a session: on a wake-up, it signs and sends the queued tasks of its node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gpuaas_contract::envelope::Signed;
use gpuaas_contract::id::{CorrelationId, TaskId};
use gpuaas_contract::link::{Cancel, Offer, to_node};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::{self, LinkTransport, Node};
use gpuaas_domain::task::{self, TaskRecord};
use gpuaas_domain::{Actor, Decision};
use gpuaas_store::CommitError;

use super::inbound::{chain, close_for};
use super::session::{LinkSession, Sent};
use super::{POLL_SECONDS, identity};
use crate::Control;
use crate::commit::commit;
use crate::error::ControlError;
use crate::transact::transact;

/// How often a long-poll session checks its timers: silence, certificate.
const WATCH_POLL: Duration = Duration::from_secs(2);
/// How often a stream checks its timers. Every message and heartbeat checks them too, and the deny-list closes it by itself, so
/// this is only a fallback: thousands of idle links must cost nothing.
const WATCH_STREAM: Duration = Duration::from_secs(30);
/// Makes sure that the clock is past the end of a certificate, and not just at it.
const EXPIRY_MARGIN: Duration = Duration::from_millis(1);
/// Delay between two attempts to record the end of a link.
const RETRY: Duration = Duration::from_secs(1);
/// After a broken poll connection, another poll must follow within this time.
const ABANDONED: Duration = Duration::from_secs(3);

/// Starts the driver. It ends with the session and takes the node offline. Metrics count the agent under the name `version`.
pub(super) fn spawn_driver(control: Arc<Control>, session: Arc<LinkSession>, version: String) {
    let tracker = control.background.clone();
    tracker.spawn(async move {
        drive(&control, &session).await;
        control.hub.remove(session.node_id, session.id);
        control.metrics.link_closed(session.transport, &version);
        Box::pin(offline(&control, &session)).await;
    });
}

async fn drive(control: &Arc<Control>, session: &Arc<LinkSession>) {
    let mut watch = tokio::time::interval(match session.transport {
        LinkTransport::Stream => WATCH_STREAM,
        LinkTransport::Poll => WATCH_POLL,
    });
    watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut cancels_sent = HashSet::new();
    loop {
        let valid = session.peer.not_after.since(Timestamp::now()) + EXPIRY_MARGIN;
        tokio::select! {
            biased;
            () = session.ended() => return,
            () = control.shutdown.cancelled() => {
                session.close("server_shutdown", "the server is restarting", 0);
                return;
            }
            () = tokio::time::sleep(valid) => if session.ends_if_expired() { return },
            _ = watch.tick() => {
                if let Err(error) = identity::check_still_good(control, &session.peer) {
                    close_for(session, &error);
                    return;
                }
                let now = Timestamp::now();
                let silent = now.since(session.last_heard(now));
                let patience = Duration::from_secs(u64::from(POLL_SECONDS));
                let gone = session.abandoned_for(now).is_some_and(|gone| gone > ABANDONED);
                if session.transport == LinkTransport::Poll && (silent > patience || gone) {
                    session.close("poll_silent", "there was no poll for too long", 0);
                    return;
                }
            }
            () = session.work.notified() => {
                // Boxed, because its state is large and an idle link should not hold memory for it.
                if let Err(error) = Box::pin(dispatch_queued(control, session, &mut cancels_sent)).await {
                    close_for(session, &error);
                    return;
                }
            }
        }
    }
}

/// Records the end of the link, as soon as the store accepts it: no other process would.
async fn offline(control: &Control, session: &LinkSession) {
    let why = if session.is_fenced() { "replaced by a newer link" } else { "link closed" };
    let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
    loop {
        let settled = transact(control, || async {
            let Some(node) = control.store.node_get(session.node_id).await? else { return Ok(((), Decision::default())) };
            Ok(((), node::disconnected(&node, session.id, why, &context)))
        })
        .await;
        match settled {
            Ok(()) => return tracing::info!(node = %session.node_id, session = %session.id, why, "link ended"),
            Err(error) => {
                tracing::error!(node = %session.node_id, error = %chain(&error), "could not record that the node is offline; retrying");
            }
        }
        // After the end of this process other processes, or the next start, find the link dead.
        tokio::select! { biased; () = control.shutdown.cancelled() => return, () = tokio::time::sleep(RETRY) => {} }
    }
}

async fn dispatch_queued(
    control: &Arc<Control>,
    session: &Arc<LinkSession>,
    cancels_sent: &mut HashSet<TaskId>,
) -> Result<(), ControlError> {
    // Tasks that are claimed for an expired link would wait until their lease lapses.
    identity::check_still_good(control, &session.peer)?;
    // Tasks that are queued from here on wake this driver again.
    session.set_caught_up(false);
    let (version, document) = control.keys.set_document();
    session.tell_verifier_set(version, &document);
    let node_id = session.node_id;
    let cancellations = async {
        for cancelled in control.store.task_cancellations(node_id).await? {
            if cancels_sent.insert(cancelled.id) {
                let reason = cancelled.message.clone();
                session.tell(to_node::Message::Cancel(Cancel { task_id: cancelled.id.to_string(), reason }));
            }
        }
        Ok::<_, ControlError>(())
    };
    // These reads are independent, so they run concurrently.
    let ((), first) = tokio::try_join!(cancellations, node_and_queue(control, session))?;
    let mut next = first;
    while let Some((node, queued, room)) = next {
        // Fewer tasks than there was room for are all there are. Later tasks wake this driver again.
        let more = queued.len() >= room;
        // Committed concurrently, so that they share a transaction.
        let offers = join_all(queued.iter().map(|queued| claim(control, &node, queued))).await;
        let mut sent = 0;
        for offer in offers {
            if let Some(offer) = offer? {
                gpuaas_failpoint::hit("server.claimed");
                let (record, envelope) = offer;
                let task_id = record.id;
                // For a task that was sent before, other envelopes are valid too.
                let remembered = (record.dispatches == 1).then_some(Sent { record, envelope: envelope.digest });
                session.has_sent(task_id, remembered);
                session.offer(Offer { task_id: task_id.to_string(), envelope: envelope.envelope });
                sent += 1;
            }
        }
        if sent == 0 || !more {
            break;
        }
        next = node_and_queue(control, session).await?;
    }
    Ok(())
}

/// Returns the node, its queued tasks, and how many of them may be sent. Returns `None` if nothing may or can be sent.
async fn node_and_queue(
    control: &Control,
    session: &LinkSession,
) -> Result<Option<(Node, Vec<TaskRecord>, usize)>, ControlError> {
    let (store, node_id) = (&control.store, session.node_id);
    let mut room = session.room();
    if room == 0 {
        // Leases may have lapsed in the meantime: count again from the store.
        let outstanding = store.task_outstanding(node_id).await?;
        session.set_in_flight(outstanding.iter().filter(|t| t.state != task::TaskState::Queued).map(|t| t.id));
        room = session.room();
        if room == 0 {
            return Ok(None);
        }
    }
    let most = u32::try_from(room).unwrap_or(u32::MAX);
    let (node, mut queued) = tokio::try_join!(store.node_get(node_id), store.task_queued(node_id, most))?;
    session.set_caught_up(queued.len() < room);
    let Some(node) = node.filter(|node| node.service.may_connect() && !session.is_closed()) else { return Ok(None) };
    if !node.service.takes_work() {
        // Tasks for the node's slices may be queued behind many others.
        queued = store.task_queued(node_id, gpuaas_store::MAX_PAGE).await?;
        queued.retain(|task| node.service.takes(task.task_type));
        queued.truncate(room);
    }
    Ok((!queued.is_empty()).then_some((node, queued, room)))
}

/// Signs an envelope for a queued task and moves it to dispatched. Returns `None` if it must not (or need not) be sent.
async fn claim(control: &Control, node: &Node, queued: &TaskRecord) -> Result<Option<(TaskRecord, Signed)>, ControlError> {
    let now = Timestamp::now();
    let context = Context { now, actor: Actor::System, correlation_id: queued.correlation_id.clone() };
    let settle_as = async |decision: Decision| match commit(control, decision).await {
        // Another process took it.
        Ok(()) | Err(CommitError::Conflict) => Ok(None),
        Err(CommitError::Store(error)) => Err(ControlError::from(error)),
    };
    if !control.keys.intent_matches(&task::intent_text(queued), &queued.intent) {
        tracing::error!(task = %queued.id, "a task row was not written by the control plane: the database was manipulated");
        return settle_as(task::intent_forged(queued, &context)).await;
    }
    if queued.node_epoch != node.epoch {
        return settle_as(task::node_gone(queued, "its node was enrolled again", &context)).await;
    }
    if now > queued.queue_until {
        let decision = task::tick(queued, &context);
        return if decision.is_empty() { Ok(None) } else { settle_as(decision).await };
    }
    let outgoing = control.keys.outgoing(queued, node, now)?;
    let Ok((sent, decision)) = task::dispatch(queued, node, &outgoing, &context) else { return Ok(None) };
    match commit(control, decision).await {
        Ok(()) => {
            tracing::info!(task = %queued.id, node = %node.id, correlation_id = %queued.correlation_id, "task dispatched");
            control.metrics.task_dispatched(now.since(queued.created_at));
            Ok(Some((TaskRecord { version: sent.version + 1, ..sent }, outgoing.signed)))
        }
        Err(CommitError::Conflict) => Ok(None),
        Err(CommitError::Store(error)) => Err(error.into()),
    }
}
