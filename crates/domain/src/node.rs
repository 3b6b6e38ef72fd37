//! Nodes: enrolled hosts, their certificates, their link and whether they accept work.

use gpuaas_contract::Digest;
use gpuaas_contract::event::{
    Event, NodeBudgetExceeded, NodeCertificateRenewed, NodeEnrolled, NodeFactsChanged, NodeOffline, NodeOnline, NodeRejoined,
    NodeRenamed, NodeServiceChanged, OperatorAction,
};
use gpuaas_contract::id::{AgentInstanceId, NodeId, ServerId, SessionId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::state::{LinkTransport, NodeService};

use crate::decision::{Change, Context, Decision, Wakeup};
use crate::refusal::Refusal;

/// How often a node may rejoin with an expired certificate before an operator must enroll it again. A regular renewal resets the count.
pub const MAX_REJOINS: u32 = 10;
/// Maximum length of a node's name.
pub const MAX_NAME: usize = 253;
/// Maximum length of an operator's reason, in bytes.
pub const MAX_REASON: usize = 500;

/// The link that a node has open now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSession {
    /// Identifies this link session; messages from earlier sessions are ignored.
    pub id: SessionId,
    /// Identifies the agent process; new at every start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// Identifies the boot of the host.
    pub boot_id: String,
    /// Stream or long-poll.
    pub transport: LinkTransport,
    /// When the link was opened.
    pub since: Timestamp,
    /// The server process that holds the link; if that process dies, the link is gone, too.
    pub server: ServerId,
}

/// An enrolled host.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique id, which stays the same for the life of the machine.
    pub id: NodeId,
    /// Row version.
    pub version: i64,
    /// Host name, for people; not unique.
    pub name: String,
    /// Digest of the machine's hardware identity; unique, and the same across enrollments.
    pub fingerprint: String,
    /// Counts the machine's enrollments.
    pub epoch: u64,
    /// Public half of the receipt key of this epoch.
    pub receipt_key: VerifyingKey,
    /// Digest of the TLS public key (SPKI) of this epoch.
    pub tls_key_digest: Digest,
    /// Both keys above, signed by the control plane when it enrolled the node (a DSSE document), so that write access to the database is
    /// not enough to replace a key.
    pub record: Vec<u8>,
    /// Whether the node accepts work.
    pub service: NodeService,
    /// Why, for people; empty when in service.
    pub service_reason: String,
    /// The open link, if any. A node is online exactly while this is set.
    pub session: Option<LiveSession>,
    /// When the node was last heard from.
    pub last_seen_at: Option<Timestamp>,
    /// What the node reports about itself.
    pub facts: HostFacts,
    /// Number of rejoins since the last regular renewal.
    pub rejoins: u32,
    /// Time of the first enrollment.
    pub created_at: Timestamp,
    /// Time of the last enrollment.
    pub enrolled_at: Timestamp,
}

/// A certificate that was issued to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Serial number, in hex.
    pub serial: String,
    /// The node it was issued to.
    pub node_id: NodeId,
    /// The node's epoch when it was issued.
    pub node_epoch: u64,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
    /// When it was revoked; `None` if it was not.
    pub revoked_at: Option<Timestamp>,
}

/// What an operator can do to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Start maintenance: no new work.
    Drain,
    /// End maintenance.
    Undrain,
    /// Keep the node from being used.
    Quarantine,
    /// Allow the node to be used again.
    Unquarantine,
    /// Take the node out of service until it is enrolled again.
    Retire,
}

impl From<Operation> for OperatorAction {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Drain => Self::Drain,
            Operation::Undrain => Self::Undrain,
            Operation::Quarantine => Self::Quarantine,
            Operation::Unquarantine => Self::Unquarantine,
            Operation::Retire => Self::Retire,
        }
    }
}

/// A host that asks to enroll, already authenticated.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Digest of the machine's hardware identity.
    pub fingerprint: String,
    /// Public half of the receipt key.
    pub receipt_key: VerifyingKey,
    /// Digest of the TLS public key (SPKI).
    pub tls_key_digest: Digest,
    /// What the host reports about itself.
    pub facts: HostFacts,
}

/// Enrolls a machine: as a new node, or as the next epoch of its existing node.
///
/// The caller, who has the key, fills in the signed record before the commit: see [`Node::record`].
pub fn enroll(known: Option<Node>, admission: Admission, new_id: NodeId, context: &Context) -> (Node, Decision) {
    let Admission { fingerprint, receipt_key, tls_key_digest, facts } = admission;
    let now = context.now;
    let is_new = known.is_none();
    let node = match known {
        None => Node {
            id: new_id,
            version: 0,
            name: facts.hostname.clone(),
            fingerprint,
            epoch: 1,
            receipt_key,
            tls_key_digest,
            record: Vec::new(),
            service: NodeService::InService,
            service_reason: String::new(),
            session: None,
            last_seen_at: None,
            facts,
            rejoins: 0,
            created_at: now,
            enrolled_at: now,
        },
        Some(old) => {
            // A drain or a quarantine is an operator's decision and survives; a lock or a retirement ends with the new keys.
            let (service, service_reason) = match old.service {
                NodeService::Draining | NodeService::Quarantined => (old.service, old.service_reason),
                NodeService::InService | NodeService::Locked | NodeService::Retired => (NodeService::InService, String::new()),
            };
            Node {
                name: facts.hostname.clone(),
                epoch: old.epoch + 1,
                receipt_key,
                tls_key_digest,
                record: Vec::new(),
                service,
                service_reason,
                session: None,
                facts,
                rejoins: 0,
                enrolled_at: now,
                ..old
            }
        }
    };
    let event = Event::NodeEnrolled(NodeEnrolled {
        node_id: node.id,
        name: node.name.clone(),
        epoch: node.epoch,
        simulated: node.facts.simulated,
        receipt_key: node.receipt_key.clone(),
        tls_key_digest: node.tls_key_digest.clone(),
    });
    let mut decision = Decision::default();
    if !is_new {
        decision = decision.change(Change::CertificatesRevoke { node_id: node.id, up_to_epoch: node.epoch - 1, at: now });
    }
    let decision = decision.record(context, node.id, event).wakeup(Wakeup::NodeAccess(node.id));
    (node, decision)
}

/// Carries out an operator's operation on a node.
pub fn operate(node: &Node, operation: Operation, reason: &str, context: &Context) -> Result<Decision, Refusal> {
    use Operation as Op;
    if reason.len() > MAX_REASON {
        return Err(Refusal::invalid(
            "reason_too_long",
            format!("the reason has {} bytes; at most {MAX_REASON} are allowed", reason.len()),
        ));
    }
    let current = node.service;
    let wrong_state = || {
        let message = format!("node {} is {}; that cannot be done from this state", node.id, current.as_str());
        Err(Refusal::conflict("node_state", message))
    };
    let (next, event): (_, fn(NodeServiceChanged) -> Event) = match (operation, current) {
        (Op::Drain, NodeService::InService | NodeService::Draining) => (NodeService::Draining, Event::NodeDraining),
        (Op::Undrain, NodeService::Draining | NodeService::InService) => (NodeService::InService, Event::NodeInService),
        (Op::Quarantine, NodeService::InService | NodeService::Draining | NodeService::Quarantined) => {
            (NodeService::Quarantined, Event::NodeQuarantined)
        }
        (Op::Unquarantine, NodeService::Quarantined | NodeService::InService) => (NodeService::InService, Event::NodeInService),
        (Op::Retire, _) => (NodeService::Retired, Event::NodeRetired),
        (Op::Undrain, NodeService::Quarantined) => {
            let message = format!("node {} is quarantined, not draining; unquarantine it", node.id);
            return Err(Refusal::conflict("node_quarantined", message));
        }
        (Op::Drain, NodeService::Quarantined) => {
            let message = format!("node {} is quarantined and takes no new work already", node.id);
            return Err(Refusal::conflict("node_quarantined", message));
        }
        (Op::Drain | Op::Undrain | Op::Quarantine | Op::Unquarantine, NodeService::Locked) => {
            let message = format!("node {} is locked; enroll the machine again with a new join token, or retire it", node.id);
            return Err(Refusal::conflict("node_locked", message));
        }
        (Op::Drain | Op::Undrain | Op::Quarantine | Op::Unquarantine, NodeService::Retired)
        | (Op::Unquarantine, NodeService::Draining) => {
            return wrong_state();
        }
    };
    let reason = if next == NodeService::InService { "" } else { reason };
    if next == current && (reason.is_empty() || reason == node.service_reason) {
        return Ok(Decision::default());
    }
    let mut changed = Node { service: next, service_reason: reason.to_owned(), ..node.clone() };
    let mut decision = Decision::default();
    if next == NodeService::Retired {
        changed.session = None;
        decision = decision.change(Change::CertificatesRevoke { node_id: node.id, up_to_epoch: node.epoch, at: context.now });
    }
    let data = NodeServiceChanged { node_id: node.id, from: current.into(), to: next.into(), reason: reason.to_owned() };
    Ok(decision
        .change(Change::NodeUpdate(Box::new(changed)))
        .record(context, node.id, event(data))
        .wakeup(Wakeup::NodeAccess(node.id))
        .wakeup(Wakeup::NodeWork(node.id)))
}

/// Locks a node because two live copies of its identity were seen: nobody may use the identity until the machine is enrolled again.
/// Does nothing if nobody may use it already: a retired node stays retired.
pub fn lock(node: &Node, context: &Context) -> Decision {
    if !node.service.may_connect() {
        return Decision::default();
    }
    let reason = "two live copies of this node's identity were seen at the same time".to_owned();
    let event = Event::NodeLocked(NodeServiceChanged {
        node_id: node.id,
        from: node.service.into(),
        to: NodeService::Locked.into(),
        reason: reason.clone(),
    });
    let locked = Node { service: NodeService::Locked, service_reason: reason, session: None, ..node.clone() };
    Decision::default()
        .change(Change::CertificatesRevoke { node_id: node.id, up_to_epoch: node.epoch, at: context.now })
        .change(Change::NodeUpdate(Box::new(locked)))
        .record(context, node.id, event)
        .wakeup(Wakeup::NodeAccess(node.id))
}

/// Records that the node's link is open.
pub fn connected(node: &Node, session: LiveSession, facts: Option<HostFacts>, context: &Context) -> Result<Decision, Refusal> {
    if !node.service.may_connect() {
        let code = if node.service == NodeService::Locked { "node_locked" } else { "node_retired" };
        return Err(Refusal::forbidden(code, format!("node {} is {}; enroll the machine again", node.id, node.service.as_str())));
    }
    let event = Event::NodeOnline(NodeOnline {
        node_id: node.id,
        session_id: session.id,
        transport: session.transport.into(),
        agent_instance_id: session.agent_instance_id,
        boot_id: session.boot_id.clone(),
    });
    let facts = facts.unwrap_or_else(|| node.facts.clone());
    let held_elsewhere = node.session.as_ref().is_some_and(|older| older.server != session.server);
    let online = Node { session: Some(session), last_seen_at: Some(context.now), facts, ..node.clone() };
    let decision = Decision::default().change(Change::NodeUpdate(Box::new(online))).record(context, node.id, event);
    // Another server process may still hold the previous link.
    Ok(if held_elsewhere { decision.wakeup(Wakeup::NodeAccess(node.id)) } else { decision })
}

/// Records that a link was closed. Changes nothing if the node already has a newer one.
pub fn disconnected(node: &Node, session: SessionId, why: &str, context: &Context) -> Decision {
    if node.session.as_ref().is_none_or(|live| live.id != session) {
        return Decision::default();
    }
    let event = Event::NodeOffline(NodeOffline { node_id: node.id, session_id: session, reason: why.to_owned() });
    let offline = Node { session: None, last_seen_at: Some(context.now), ..node.clone() };
    Decision::default().change(Change::NodeUpdate(Box::new(offline))).record(context, node.id, event)
}

/// Renames a node. Only operators can: they rely on the name, so nothing that the node reports changes it.
pub fn rename(node: &Node, name: &str, context: &Context) -> Result<Decision, Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let good = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) && name.bytes().any(|b| b.is_ascii_alphanumeric());
    // Could be mistaken for an id, or for a command-line option.
    if !good || name.parse::<NodeId>().is_ok() || name.starts_with('-') {
        let message = format!(
            "the name of a node has 1 to {MAX_NAME} letters, digits, dashes, dots and underscores, such as `gpu-07.rack2`"
        );
        return Err(Refusal::invalid("name_invalid", message));
    }
    if node.name == name {
        return Ok(Decision::default());
    }
    let event = Event::NodeRenamed(NodeRenamed { node_id: node.id, from: node.name.clone(), to: name.to_owned() });
    let renamed = Node { name: name.to_owned(), ..node.clone() };
    Ok(Decision::default().change(Change::NodeUpdate(Box::new(renamed))).record(context, node.id, event))
}

/// Records that a node made the control plane write more than it may within an hour. Reported once per node and hour.
pub fn budget_exceeded(node: NodeId, kind: &str, limit: u64, context: &Context) -> Decision {
    let event = Event::NodeBudgetExceeded(NodeBudgetExceeded { node_id: node, kind: kind.to_owned(), limit });
    Decision::default().record(context, node, event)
}

/// Records that the node's facts changed while it was connected.
pub fn facts_changed(node: &Node, facts: HostFacts, context: &Context) -> Decision {
    if facts == node.facts {
        return Decision::default();
    }
    let event = Event::NodeFactsChanged(NodeFactsChanged {
        node_id: node.id,
        agent_version: facts.agent_version.clone(),
        kernel: facts.kernel.clone(),
        gpus: facts.gpus.len(),
    });
    let changed = Node { facts, last_seen_at: Some(context.now), ..node.clone() };
    Decision::default().change(Change::NodeUpdate(Box::new(changed))).record(context, node.id, event)
}

/// Records a regular renewal, authenticated with a valid certificate.
pub fn renewed(node: &Node, certificate: Certificate, context: &Context) -> Result<Decision, Refusal> {
    check_may_hold_certificate(node)?;
    let event = Event::NodeCertificateRenewed(NodeCertificateRenewed {
        node_id: node.id,
        serial: certificate.serial.clone(),
        not_after: certificate.not_after,
    });
    // Written even if nothing changes: the check of the node's version keeps a renewal from overtaking a lock or a retirement.
    let decision = Decision::default()
        .change(Change::CertificateInsert(certificate))
        .change(Change::NodeUpdate(Box::new(Node { rejoins: 0, ..node.clone() })));
    Ok(decision.record(context, node.id, event))
}

/// Records that a node with an expired certificate proved that it still has its keys.
pub fn rejoined(node: &Node, certificate: Certificate, context: &Context) -> Result<Decision, Refusal> {
    check_may_rejoin(node)?;
    let rejoins = node.rejoins + 1;
    let event = Event::NodeRejoined(NodeRejoined { node_id: node.id, serial: certificate.serial.clone(), rejoins });
    Ok(Decision::default()
        .change(Change::CertificateInsert(certificate))
        .change(Change::NodeUpdate(Box::new(Node { rejoins, ..node.clone() })))
        .record(context, node.id, event))
}

/// Whether a node with an expired certificate may rejoin once more. Checked before a certificate is issued.
pub fn check_may_rejoin(node: &Node) -> Result<(), Refusal> {
    check_may_hold_certificate(node)?;
    if node.rejoins >= MAX_REJOINS {
        let message = format!(
            "node {} came back with an expired certificate {MAX_REJOINS} times; enroll the machine again with a new join token",
            node.id
        );
        return Err(Refusal::forbidden("rejoins_used_up", message));
    }
    Ok(())
}

/// Whether a node may have a certificate at all. Checked before one is issued.
pub fn check_may_hold_certificate(node: &Node) -> Result<(), Refusal> {
    if node.service.may_connect() {
        Ok(())
    } else {
        Err(Refusal::forbidden(
            "node_not_trusted",
            format!("node {} is {}; enroll the machine again", node.id, node.service.as_str()),
        ))
    }
}
