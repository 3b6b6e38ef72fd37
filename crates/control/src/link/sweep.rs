//! Background work of the link role: wake-ups, changes by time alone, the deny-list, presence.
//!
//! None of it has input, and all of it can be lost: each sweep reads the store and does what is due.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use gpuaas_contract::id::{CorrelationId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::{Change, Context, LinkWakeup};
use gpuaas_domain::node::NodeService;
use gpuaas_domain::{Actor, Decision, Wakeup, node, task};
use gpuaas_store::CommitError;
use tokio::sync::broadcast::error::RecvError;

use super::copies;
use super::inbound::chain;
use crate::Control;
use crate::commit::commit;
use crate::error::ControlError;
use crate::transact::transact;

/// The interval for leases and timeouts.
const DUE_EVERY: Duration = Duration::from_secs(1);
/// The polling interval, in case a wake-up is lost.
const SLOW_POLL: Duration = Duration::from_secs(20);
/// The polling interval for revocations: an open link ends within 5 s even if the wake-up is lost.
const DENY_EVERY: Duration = Duration::from_secs(3);
/// How often this process reports that it is alive.
const PRESENCE_EVERY: Duration = Duration::from_secs(5);
/// A process that is silent for this long is dead, and so are its links.
pub(super) const PRESENCE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of tasks of one sweep.
const BATCH: u32 = 500;

/// Serial numbers of revoked certificates that have not expired, in memory because every message checks them.
#[derive(Default)]
pub struct DenyList(RwLock<HashSet<String>>);

impl DenyList {
    /// Returns whether the certificate is revoked.
    pub fn contains(&self, serial: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(serial)
    }

    /// Replaces the list with the store's.
    pub fn replace(&self, serials: HashSet<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = serials;
    }
}

/// Starts every background loop of the link role.
pub async fn spawn_sweepers(control: &Arc<Control>) -> Result<(), ControlError> {
    // Before the first agent can connect: presence, so that our links do not count as dead, and the deny-list.
    presence(control).await?;
    refresh_deny_list(control).await?;
    spawn_hints(Arc::clone(control));
    every(control, DUE_EVERY, "due tasks", |control| async move { due(&control).await });
    every(control, DENY_EVERY, "deny-list", |control| async move {
        refresh_deny_list(&control).await?;
        if control.keys.reload().map_err(|e| ControlError::Internal(chain(&e)))? {
            wake_all(&control);
        }
        Ok(())
    });
    every(control, PRESENCE_EVERY, "presence", |control| async move {
        presence(&control).await?;
        bury_dead_links(&control).await
    });
    every(control, SLOW_POLL, "queued tasks", |control| async move {
        for node in control.store.nodes_with_queued_tasks().await? {
            control.hub.wake(node);
        }
        Ok(())
    });
    every(control, SLOW_POLL, "tasks of gone nodes", |control| async move { end_tasks_of_gone_nodes(&control).await });
    Ok(())
}

fn every<W, F>(control: &Arc<Control>, period: Duration, what: &'static str, work: W)
where
    W: Fn(Arc<Control>) -> F + Send + 'static,
    F: Future<Output = Result<(), ControlError>> + Send,
{
    let control = Arc::clone(control);
    let tracker = control.background.clone();
    tracker.spawn(async move {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! { biased; () = control.shutdown.cancelled() => return, _ = ticks.tick() => {} }
            if let Err(error) = work(Arc::clone(&control)).await {
                tracing::error!(what, error = %chain(&error), "sweep failed; retrying");
            }
        }
    });
}

/// Converts the store's wake-ups into wake-ups of sessions.
fn spawn_hints(control: Arc<Control>) {
    let mut wakeups = control.store.wakeups();
    let tracker = control.background.clone();
    tracker.spawn(async move {
        loop {
            let wakeup =
                tokio::select! { biased; () = control.shutdown.cancelled() => return, wakeup = wakeups.recv() => wakeup };
            match wakeup {
                Ok(Wakeup::NodeWork(node)) => control.hub.wake(node),
                Ok(Wakeup::NodeAccess(node)) => {
                    if let Err(error) = check_access(&control, node).await {
                        tracing::error!(%node, error = %chain(&error), "could not check a node's access");
                    }
                }
                Ok(Wakeup::Link(LinkWakeup::Probe { server, node_id, session_id, nonce })) => {
                    if server == control.server_id {
                        copies::spawn_answer(&control, node_id, session_id, nonce);
                    }
                }
                Ok(
                    Wakeup::Link(LinkWakeup::Probed { .. })
                    | Wakeup::Task(_)
                    | Wakeup::Progress { .. }
                    | Wakeup::Allocation(_)
                    | Wakeup::AllocationAdvanced(_)
                    | Wakeup::Fleet(_)
                    | Wakeup::Outbox
                    | Wakeup::Rights,
                ) => {}
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "wake-ups were lost; waking every link");
                    wake_all(&control);
                }
                Err(RecvError::Closed) => return,
            }
        }
    });
}

fn wake_all(control: &Control) {
    for session in control.hub.all() {
        session.wake();
    }
}

/// Closes the link of a node that lost its access.
async fn check_access(control: &Control, node_id: NodeId) -> Result<(), ControlError> {
    let Some(session) = control.hub.get(node_id) else { return Ok(()) };
    let Some(node) = control.store.node_get(node_id).await? else { return Ok(()) };
    let (code, message, retry) = match node.service {
        NodeService::Locked => ("node_locked", node.service_reason.as_str(), 300),
        NodeService::Retired => ("node_retired", "an operator retired this node", 300),
        NodeService::InService | NodeService::Draining | NodeService::Quarantined if node.epoch != session.node_epoch => {
            ("epoch_retired", "this machine was enrolled again", 60)
        }
        NodeService::InService | NodeService::Draining | NodeService::Quarantined => {
            if node.session.is_some_and(|live| live.id != session.id && live.server != control.server_id) {
                session.fence();
            }
            return Ok(());
        }
    };
    session.close(code, message, retry);
    refresh_deny_list(control).await
}

async fn refresh_deny_list(control: &Control) -> Result<(), ControlError> {
    let serials = control.store.certificates_revoked(Timestamp::now()).await?;
    control.denied.replace(serials.into_iter().collect());
    for session in control.hub.all() {
        if control.denied.contains(&session.peer.serial) {
            session.close("certificate_revoked", "this node's certificate was revoked; enroll the host again", 300);
        }
    }
    Ok(())
}

async fn due(control: &Control) -> Result<(), ControlError> {
    let now = Timestamp::now();
    for found in control.store.task_due(now, BATCH).await? {
        let context = Context { now, actor: Actor::System, correlation_id: found.correlation_id.clone() };
        let decision = task::tick(&found, &context);
        if decision.is_empty() {
            continue;
        }
        match commit(control, decision).await {
            // A conflict means that another process changed it; the next sweep checks again.
            Ok(()) | Err(CommitError::Conflict) => {}
            Err(CommitError::Store(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Ends the tasks that were created while their node was locked or retired: whoever created them still saw the node in service, and
/// whoever locked or retired it did not see them yet.
async fn end_tasks_of_gone_nodes(control: &Control) -> Result<(), ControlError> {
    for found in control.store.gone_nodes_with_open_tasks().await? {
        let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
        transact(control, || async {
            let mut decision = Decision::default();
            let gone = control.store.node_get(found).await?.filter(|node| !node.service.may_connect());
            if let Some(node) = gone {
                let why = format!("its node is {}", node.service.as_str());
                for task in control.store.task_open(node.id).await? {
                    decision = decision.and(task::node_gone(&task, &why, &context));
                }
            }
            Ok(((), decision))
        })
        .await?;
    }
    Ok(())
}

async fn presence(control: &Control) -> Result<(), ControlError> {
    let seen = Change::ServerSeen { server: control.server_id, at: Timestamp::now() };
    transact(control, || async { Ok(((), Decision::default().change(seen.clone()))) }).await
}

/// Takes nodes offline whose link was held by a process that is dead.
async fn bury_dead_links(control: &Control) -> Result<(), ControlError> {
    let now = Timestamp::now();
    let mut dead = control.store.nodes_of_dead_servers(now.minus(PRESENCE_TIMEOUT)).await?;
    // Links that this process no longer holds (it could not record their end).
    dead.retain(|node| node.session.as_ref().is_none_or(|live| live.server != control.server_id));
    for found in dead {
        let Some(session) = found.session.as_ref().map(|live| live.id) else { continue };
        let context = Context { now, actor: Actor::System, correlation_id: CorrelationId::generate() };
        transact(control, || async {
            let Some(node) = control.store.node_get(found.id).await? else { return Ok(((), Decision::default())) };
            Ok(((), node::disconnected(&node, session, "the server process of the link is gone", &context)))
        })
        .await?;
    }
    Ok(())
}

/// Takes all nodes offline at the start of the only server (SQLite): every recorded link is dead.
pub async fn bury_all_links(control: &Control) -> Result<(), ControlError> {
    let everybody = control.store.nodes_of_dead_servers(Timestamp(i64::MAX)).await?;
    for found in everybody {
        let Some(live) = found.session.as_ref().filter(|live| live.server != control.server_id).map(|live| live.id) else {
            continue;
        };
        let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
        transact(control, || async {
            let Some(node) = control.store.node_get(found.id).await? else { return Ok(((), Decision::default())) };
            Ok(((), node::disconnected(&node, live, "the server was restarted", &context)))
        })
        .await?;
    }
    Ok(())
}
