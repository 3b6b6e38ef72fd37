//! Opening a session: who speaks, is it the only one, and what does it have in hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::{AgentInstanceId, CorrelationId, TaskId};
use gpuaas_contract::link::{self, Hello, Ping, TaskPhase, Welcome, to_node};
use gpuaas_contract::telemetry::{self, HostFacts};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::{self, LiveSession, Node, Transport};
use gpuaas_domain::task::{self, TaskState};
use gpuaas_domain::{Actor, Refusal};

use super::session::{Opening, Session};
use super::{HEARTBEAT_SECONDS, POLL_SECONDS, dispatch, identity};
use crate::Control;
use crate::failure::{Failure, settle, settle_knowing};
use crate::pki::Peer;

/// How long the older of two links has to show that it is alive.
const PROBE: Duration = Duration::from_secs(3);
/// Most tasks a hello may list.
const MAX_IN_HAND: usize = 100_000;

/// Opens a session for a node that said hello, starts its driver and returns the welcome.
pub(super) async fn open(
    control: &Arc<Control>,
    peer: Peer,
    hello: Hello,
    transport: Transport,
) -> Result<(Arc<Session>, Welcome), Failure> {
    if hello.protocol != link::PROTOCOL {
        let message =
            format!("this server speaks link protocol {}, the agent {}; update the older one", link::PROTOCOL, hello.protocol);
        return Err(Refusal::invalid("protocol_unsupported", message).into());
    }
    let agent_instance_id: AgentInstanceId =
        hello.agent_instance_id.parse().map_err(|_| bad_hello("agent_instance_id is not an id"))?;
    if hello.boot_id.len() > 64 || hello.tasks.len() > MAX_IN_HAND || hello.facts_json.len() > telemetry::MAX_BYTES {
        return Err(bad_hello("a field is larger than allowed"));
    }
    let facts: Option<HostFacts> = match hello.facts_json.as_str() {
        "" => None,
        json => Some(serde_json::from_str(json).map_err(|e| bad_hello(&format!("facts: {e}")))?),
    };
    let node = identity::node(control, &peer).await?;
    if hello.node_epoch != node.epoch {
        let message =
            format!("the agent speaks for epoch {}, the node is in epoch {}; enrol it again", hello.node_epoch, node.epoch);
        return Err(Refusal::forbidden("epoch_retired", message).into());
    }
    for notice in hello.notices.iter().take(16) {
        tracing::warn!(node = %node.id, notice = %notice.chars().take(500).collect::<String>(), "the agent reports trouble with its own state");
    }
    let _turn = control.hub.open_one(node.id).await;
    exclude_second_copy(control, &node, agent_instance_id).await?;

    let (set_version, set_document) = control.keys.set_document();
    let now = Timestamp::now();
    let opening = Opening {
        peer,
        node_epoch: node.epoch,
        agent_instance_id,
        receipt_key: node.receipt_key.clone(),
        transport,
        capacity: hello.capacity,
        set_version,
    };
    let session = Arc::new(Session::new(opening, now));
    let context = session_context(&session, now);
    settle_knowing(control, node, async |known| {
        let gone = || Refusal::forbidden("node_retired", "the node is gone");
        let node = match known {
            Some(node) => node,
            None => control.store.node_get(session.node_id).await?.ok_or_else(gone)?,
        };
        let live = LiveSession {
            id: session.id,
            agent_instance_id,
            boot_id: hello.boot_id.clone(),
            transport,
            since: now,
            server: control.server_id,
        };
        Ok(((), node::connected(&node, live, facts.clone(), &context)?))
    })
    .await?;
    control.hub.take_over(&session);
    reconcile(control, &session, &hello).await?;
    tracing::info!(node = %session.node_id, session = %session.id, transport = transport.as_str(), "node online");
    control.metrics.links_opened(transport);
    dispatch::spawn_driver(Arc::clone(control), Arc::clone(&session));
    let welcome = Welcome {
        session_id: session.id.to_string(),
        cluster_id: control.cluster_id.to_string(),
        server_time_us: now.0,
        heartbeat_seconds: HEARTBEAT_SECONDS,
        verifier_set: (hello.verifier_set_version < set_version)
            .then_some(link::VerifierSet { version: set_version, document: set_document }),
        poll_seconds: POLL_SECONDS,
    };
    Ok((session, welcome))
}

/// Decisions made on behalf of a session.
pub(super) fn session_context(session: &Session, now: Timestamp) -> Context {
    Context { now, actor: Actor::Node(session.node_id), correlation_id: CorrelationId::generate() }
}

fn bad_hello(detail: &str) -> Failure {
    Failure::BadInput { code: "hello_invalid", message: format!("hello: {detail}") }
}

/// A second live copy of the identity locks the node. The same agent process may always replace its own link, and so may
/// a restarted agent whose old link is dead; a link that still answers while another process shows the same
/// certificate means that the key is in two places.
async fn exclude_second_copy(control: &Arc<Control>, node: &Node, instance: AgentInstanceId) -> Result<(), Failure> {
    let Some(older) = control.hub.get(node.id) else { return Ok(()) };
    if older.agent_instance_id == instance || older.is_closed() {
        return Ok(());
    }
    let alive = match older.transport {
        Transport::Stream => {
            let pong = older.pong.notified();
            older.tell(to_node::Message::Ping(Ping { nonce: 1 }));
            tokio::time::timeout(PROBE, pong).await.is_ok() && !older.is_closed()
        }
        // A long-poll agent that is alive asks again; one that was restarted does not.
        Transport::Poll => {
            let before = older.polls_seen();
            older.tell(to_node::Message::Ping(Ping { nonce: 1 }));
            tokio::time::sleep(PROBE).await;
            older.polls_seen() > before
        }
    };
    if !alive {
        return Ok(());
    }
    tracing::error!(node = %node.id, "two live copies of the node's identity: locking the node");
    lock(control, node).await?;
    let message = format!("node {} is locked: two live copies of its identity were seen; enrol the machine again", node.id);
    Err(Refusal::forbidden("node_locked", message).into())
}

async fn lock(control: &Control, node: &Node) -> Result<(), Failure> {
    let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
    settle(control, || async {
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

/// Brings our books in line with what the node has in its journal.
async fn reconcile(control: &Control, session: &Session, hello: &Hello) -> Result<(), Failure> {
    let mut in_hand: HashMap<TaskId, TaskPhase> = HashMap::with_capacity(hello.tasks.len());
    for entry in &hello.tasks {
        let id = entry.task_id.parse().map_err(|_| bad_hello("a task id in `tasks` is not an id"))?;
        in_hand.insert(id, entry.phase());
    }
    let context = session_context(session, Timestamp::now());
    let fence = Timestamp(hello.journal_fence_us);
    // From here on, whatever is queued wakes the session.
    session.set_caught_up(true);
    let store = &control.store;
    let (outstanding, waiting, head) = tokio::try_join!(
        store.task_outstanding(session.node_id),
        store.task_queued(session.node_id, 1),
        store.receipt_head(session.node_id, session.node_epoch)
    )?;
    *session.receipt_head.lock().await = head;
    if !waiting.is_empty() || !outstanding.is_empty() {
        session.wake();
    }
    for listed in outstanding {
        let id = listed.id;
        settle(control, || async {
            let Some(task) = control.store.task_get(id).await? else { return Ok(((), Default::default())) };
            let decision = match in_hand.get(&id) {
                Some(TaskPhase::Accepted) => task::acknowledged(&task, false, &context),
                Some(TaskPhase::Started | TaskPhase::Finished) => task::acknowledged(&task, true, &context),
                Some(TaskPhase::Unspecified) | None => task::unknown_to_node(&task, fence, &context),
            };
            Ok(((), decision))
        })
        .await?;
        if in_hand.contains_key(&id) && listed.state != TaskState::Queued {
            session.has_sent(id, None);
        }
    }
    Ok(())
}
