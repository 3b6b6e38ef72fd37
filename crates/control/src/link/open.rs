//! Opens a session: authenticates the node, excludes copies, and reads its tasks in hand.

use std::collections::HashMap;
use std::sync::Arc;

use gpuaas_contract::id::{AgentInstanceId, CorrelationId, SessionId, TaskId};
use gpuaas_contract::link::{self, Hello, Outdated, TaskPhase, Versions, Welcome};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::{self, LinkTransport, LiveSession, Node};
use gpuaas_domain::task::{self, TaskState};
use gpuaas_domain::{Actor, Decision, Refusal};

use super::session::{LinkSession, Opening};
use super::{HEARTBEAT_SECONDS, POLL_SECONDS, budget, copies, dispatch, identity};
use crate::Control;
use crate::error::ControlError;
use crate::pki::Peer;
use crate::transact::{transact, transact_knowing};

/// How often the check for a copy is repeated because another server process opened a link of the node in the meantime.
const MAX_ROUNDS: u32 = 4;
/// Maximum number of tasks a hello may list.
const MAX_IN_HAND: usize = 100_000;

/// Opens a session for a node's hello, starts its driver and returns the welcome.
pub(super) async fn open(
    control: &Arc<Control>,
    peer: Peer,
    hello: Hello,
    transport: LinkTransport,
) -> Result<(Arc<LinkSession>, Welcome), ControlError> {
    let protocol = agree(&hello)?;
    let agent_instance_id: AgentInstanceId =
        hello.agent_instance_id.parse().map_err(|_| bad_hello("agent_instance_id is not an id"))?;
    if hello.boot_id.len() > 64 || hello.boot_id.chars().any(char::is_control) || hello.tasks.len() > MAX_IN_HAND {
        return Err(bad_hello("a field is larger than allowed"));
    }
    let facts: Option<HostFacts> = match hello.facts_json.as_str() {
        "" => None,
        json => Some(HostFacts::parse(json).map_err(|error| bad_hello(&error.to_string()))?),
    };
    let node = identity::node(control, &peer).await?;
    if hello.node_epoch != node.epoch {
        let message = format!("the agent is in epoch {}, the node in epoch {}; enroll it again", hello.node_epoch, node.epoch);
        return Err(Refusal::forbidden("epoch_retired", message).into());
    }
    if !budget::take(control, node.id, budget::BudgetKind::Links, 1).await? {
        let message = format!(
            "node {} opened more than {} links within the hour; the agent waits",
            node.id,
            budget::BudgetKind::Links.per_hour()
        );
        return Err(Refusal::conflict("link_budget_exceeded", message).into());
    }
    for notice in hello.notices.iter().take(16) {
        let notice: String = notice.chars().filter(|c| !c.is_control()).take(500).collect();
        tracing::warn!(node = %node.id, notice, "the agent reports a problem with its own state");
    }
    let _turn = control.hub.open_one(node.id).await;
    let (set_version, set_document) = control.keys.set_document();
    let id = SessionId::generate();
    let opening = Opening {
        id,
        resume: control.keys.resume_secret(node.id, node.epoch, id),
        peer,
        node_epoch: node.epoch,
        agent_instance_id,
        receipt_key: node.receipt_key.clone(),
        transport,
        capacity: hello.capacity,
        set_version,
    };
    let now = Timestamp::now();
    let session = Arc::new(LinkSession::new(opening, now));
    let live =
        LiveSession { id, agent_instance_id, boot_id: hello.boot_id.clone(), transport, since: now, server: control.server_id };
    record(control, &session, node, &live, facts, &hello).await?;
    control.hub.take_over(&session);
    reconcile(control, &session, &hello).await?;
    tracing::info!(node = %session.node_id, session = %session.id, transport = transport.as_str(), "node online");
    let counted = control.metrics.link_opened(transport, &hello.agent_version);
    dispatch::spawn_driver(Arc::clone(control), Arc::clone(&session), counted);
    let welcome = Welcome {
        session_id: session.id.to_string(),
        cluster_id: control.cluster_id.to_string(),
        server_time_us: now.0,
        heartbeat_seconds: HEARTBEAT_SECONDS,
        verifier_set: (hello.verifier_set_version < set_version)
            .then_some(link::VerifierSet { version: set_version, document: set_document }),
        poll_seconds: POLL_SECONDS,
        resume_secret: session.resume_secret().as_bytes().to_vec(),
        protocol,
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok((session, welcome))
}

/// The version of the protocol that this link uses.
fn agree(hello: &Hello) -> Result<u32, Refusal> {
    let (ours, theirs) = (Versions::OURS, Versions::of(hello));
    ours.in_common(theirs).map_err(|outdated| {
        let upgrade = match outdated {
            Outdated::Us => "server",
            Outdated::Peer => "agent",
        };
        let agent: String = hello.agent_version.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
        let message = format!(
            "this server (version {}) uses {ours}, the agent (version {agent}) {theirs}; upgrade the {upgrade}",
            env!("CARGO_PKG_VERSION")
        );
        Refusal::invalid("protocol_unsupported", message)
    })
}

/// Records this link as the node's link, once it is clear that no copy of the identity holds another.
async fn record(
    control: &Arc<Control>,
    session: &LinkSession,
    node: Node,
    live: &LiveSession,
    facts: Option<HostFacts>,
    hello: &Hello,
) -> Result<(), ControlError> {
    let context = session_context(session, live.since);
    let mut known = Some(node);
    for _ in 0..MAX_ROUNDS {
        let node = match known.take() {
            Some(node) => node,
            None => identity::node(control, &session.peer).await?,
        };
        copies::exclude(control, &node, &session.peer, hello).await?;
        let excluded = node.session.as_ref().map(|older| older.id);
        let written = transact_knowing(control, node, async |known| {
            let gone = || Refusal::forbidden("node_retired", "the node is gone");
            let node = match known {
                Some(node) => node,
                None => control.store.node_get(session.node_id).await?.ok_or_else(gone)?,
            };
            // Another process has opened a link of this node since: that one must be excluded too.
            if node.session.as_ref().is_some_and(|other| Some(other.id) != excluded) {
                return Ok((false, Decision::default()));
            }
            Ok((true, node::connected(&node, live.clone(), facts.clone(), &context)?))
        })
        .await?;
        if written {
            return Ok(());
        }
    }
    Err(ControlError::Contended)
}

/// Returns the context of decisions for a session.
pub(super) fn session_context(session: &LinkSession, now: Timestamp) -> Context {
    Context { now, actor: Actor::Node(session.node_id), correlation_id: CorrelationId::generate() }
}

fn bad_hello(detail: &str) -> ControlError {
    ControlError::BadInput { code: "hello_invalid", message: format!("hello: {detail}") }
}

/// Reconciles the store with the tasks in the node's journal.
async fn reconcile(control: &Control, session: &LinkSession, hello: &Hello) -> Result<(), ControlError> {
    let mut in_hand: HashMap<TaskId, TaskPhase> = HashMap::with_capacity(hello.tasks.len());
    for entry in &hello.tasks {
        let id = entry.task_id.parse().map_err(|_| bad_hello("a task id in `tasks` is not an id"))?;
        in_hand.insert(id, entry.phase());
    }
    let context = session_context(session, Timestamp::now());
    let fence = Timestamp(hello.journal_fence_us);
    // From here on, queued tasks wake the session.
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
        transact(control, || async {
            let Some(task) = control.store.task_get(id).await? else { return Ok(((), Default::default())) };
            let context = Context { correlation_id: task.correlation_id.clone(), ..context.clone() };
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
