//! Detects two copies of one identity when the second one says hello, on any server process.
//!
//! An agent process that held the node's link proves it with that link's secret, and replaces the link at once. A hello without a
//! proof comes from a restarted agent, whose old link is dead, or from a copy. So the process with the old link probes it. If an
//! agent answers there, the identity is in two places and the node is locked.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::{CorrelationId, NodeId, SessionId};
use gpuaas_contract::link::Hello;
use gpuaas_contract::resume::ResumeClaim;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::{Context, LinkWakeup};
use gpuaas_domain::node::{self, LiveSession, Node};
use gpuaas_domain::{Actor, Refusal, Wakeup, task};
use tokio::sync::broadcast::error::RecvError;

use super::session::PROBE;
use super::sweep::PRESENCE_TIMEOUT;
use crate::Control;
use crate::error::ControlError;
use crate::pki::{self, Peer};
use crate::transact::transact;

/// How long another process may take to answer: its own probe, and both wake-ups.
const ASK: Duration = PROBE.saturating_add(Duration::from_secs(2));

/// The state of a link of another process.
enum Elsewhere {
    Alive,
    Dead,
    /// Its process is alive and did not answer.
    Unknown,
}

/// Refuses a hello if another live copy of the identity holds the node's link, and locks the node.
pub(super) async fn exclude(control: &Arc<Control>, node: &Node, peer: &Peer, hello: &Hello) -> Result<(), ControlError> {
    if gpuaas_runtime::broken("control.second_copy") || resumes(control, node, peer, hello) {
        return Ok(());
    }
    let here = async {
        match control.hub.get(node.id) {
            Some(older) => older.probe().await,
            None => false,
        }
    };
    let elsewhere = async {
        match node.session.as_ref().filter(|live| live.server != control.server_id) {
            Some(live) => ask(control, node.id, live).await,
            // A link of this process that is not in the hub has ended; only its last row is not written yet.
            None => Ok(Elsewhere::Dead),
        }
    };
    let (here, elsewhere) = tokio::join!(here, elsewhere);
    match (here, elsewhere?) {
        (true, _) | (false, Elsewhere::Alive) => {
            tracing::error!(node = %node.id, "two live copies of the node's identity: locking the node");
            lock(control, node).await?;
            let message =
                format!("node {} is locked: two live copies of its identity were seen; enroll the machine again", node.id);
            Err(Refusal::forbidden("node_locked", message).into())
        }
        (false, Elsewhere::Dead) => Ok(()),
        (false, Elsewhere::Unknown) => {
            let message =
                format!("another server process holds a link of node {} and does not report whether it is alive", node.id);
            Err(ControlError::Unavailable { code: "link_undecided", message })
        }
    }
}

/// Returns whether the hello comes from the agent process that held the node's last link.
fn resumes(control: &Control, node: &Node, peer: &Peer, hello: &Hello) -> bool {
    // The recorded link or, without one, the link that this process may still hold.
    let recorded = node.session.as_ref().map(|live| live.id);
    let Some(last) = recorded.or_else(|| control.hub.get(node.id).map(|session| session.id)) else { return false };
    let session_id = last.to_string();
    let claim = ResumeClaim {
        node_id: node.id,
        node_epoch: node.epoch,
        session_id: &session_id,
        agent_instance_id: &hello.agent_instance_id,
    };
    hello.resume_session == session_id
        && control.keys.resume_secret(node.id, node.epoch, last).is_proof(&peer.binding, &claim, &hello.resume_proof)
}

/// Asks the process that holds a link to probe it. If it is alive and does not answer, nothing is assumed: the agent retries,
/// until the process answers or is known to be dead.
async fn ask(control: &Control, node_id: NodeId, live: &LiveSession) -> Result<Elsewhere, ControlError> {
    let seen = control.store.server_seen_at(live.server).await?;
    if seen.is_none_or(|seen| seen < Timestamp::now().minus(PRESENCE_TIMEOUT)) {
        return Ok(Elsewhere::Dead);
    }
    let mut wakeups = control.store.wakeups();
    let question = u64::from_le_bytes(pki::random());
    control.store.wakeup(Wakeup::Link(LinkWakeup::Probe { server: live.server, node_id, session_id: live.id, nonce: question }));
    let answer = async {
        loop {
            match wakeups.recv().await {
                Ok(Wakeup::Link(LinkWakeup::Probed { nonce, alive })) if nonce == question => return Some(alive),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    };
    Ok(match tokio::time::timeout(ASK, answer).await {
        Ok(Some(true)) => Elsewhere::Alive,
        Ok(Some(false)) => Elsewhere::Dead,
        Ok(None) | Err(_) => Elsewhere::Unknown,
    })
}

/// Answers another process that asks about a link of this one.
pub(super) fn spawn_answer(control: &Arc<Control>, node_id: NodeId, session_id: SessionId, nonce: u64) {
    let this = Arc::clone(control);
    control.background.spawn(async move {
        let session = this.hub.get(node_id).filter(|session| session.id == session_id);
        let alive = match session {
            Some(session) => session.probe().await,
            None => false,
        };
        this.store.wakeup(Wakeup::Link(LinkWakeup::Probed { nonce, alive }));
    });
}

async fn lock(control: &Control, node: &Node) -> Result<(), ControlError> {
    let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
    control.metrics.node_locked();
    transact(control, || async {
        let node =
            control.store.node_get(node.id).await?.ok_or_else(|| Refusal::not_found("node_unknown", "the node is gone"))?;
        let mut decision = node::lock(&node, &context);
        for task in control.store.task_open(node.id).await? {
            decision = decision.and(task::node_gone(&task, "its node was locked", &context));
        }
        Ok(((), decision))
    })
    .await
}
