//! The two ways to enroll a host: with a join token, or with an operator's approval.

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::event::{
    EnrollmentDecided, EnrollmentDisplaced, EnrollmentRequested, Event, JoinTokenCreated, JoinTokenRevoked, JoinTokenUsed,
};
use gpuaas_contract::id::{EnrollmentId, JoinTokenId, NodeId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::state::EnrollmentState;

use crate::decision::{Change, Context, Decision};
use crate::node::Node;
use crate::refusal::Refusal;

/// Life of a join token unless the operator asks for less.
pub const TOKEN_LIFE: Duration = Duration::from_secs(15 * 60);
/// Maximum number of hosts that one join token enrolls.
pub const MAX_TOKEN_USES: u32 = 1000;
/// How long a request waits for an operator.
pub const REQUEST_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of waiting requests: anyone may send one, but nobody can fill the store.
pub const MAX_WAITING: u64 = 1000;
/// Maximum number of waiting requests per address. A rack behind one address fits, and it takes twenty such addresses to fill the queue.
pub const MAX_WAITING_PER_ADDRESS: u64 = 50;

/// A token that enrolls a number of hosts, as it is stored: with only a hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// Unique id of the token.
    pub id: JoinTokenId,
    /// Row version.
    pub version: i64,
    /// SHA-256 of the secret.
    pub secret_digest: Digest,
    /// What the token is for, as the operator wrote it.
    pub note: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
    /// Maximum number of hosts it enrolls.
    pub uses: u32,
    /// When it was used and by which nodes, in order.
    pub used: Vec<(Timestamp, NodeId)>,
    /// When an operator revoked it; `None` if it was not.
    pub revoked_at: Option<Timestamp>,
    /// The node that a host may take over with it. If `None`, it enrolls new machines only.
    pub replace_node: Option<NodeId>,
}

impl JoinToken {
    /// How many more hosts it may enroll, unless it expires or is revoked before that.
    pub fn left(&self) -> u32 {
        self.uses.saturating_sub(u32::try_from(self.used.len()).unwrap_or(u32::MAX))
    }
}

/// A host's request to be enrolled.
#[derive(Clone, Debug, PartialEq)]
pub struct Enrollment {
    /// Unique id of the request.
    pub id: EnrollmentId,
    /// Row version.
    pub version: i64,
    /// Whether an operator has decided, and how.
    pub state: EnrollmentState,
    /// Email address of the person who asked, as they entered it.
    pub email: String,
    /// Digest of the machine's hardware identity.
    pub fingerprint: String,
    /// PEM certificate signing request.
    pub csr_pem: String,
    /// Public half of the host's receipt key.
    pub receipt_key: VerifyingKey,
    /// How the host describes itself. Not verified.
    pub facts: HostFacts,
    /// SHA-256 of the secret that the host needs to fetch the result.
    pub poll_secret_digest: Digest,
    /// The operator's reason, if the request was rejected.
    pub reason: String,
    /// Where the request came from: an IPv4 address, or the /64 of an IPv6 address.
    pub address: String,
    /// The node that the host became; `None` until then.
    pub node_id: Option<NodeId>,
    /// When the host sent the request.
    pub created_at: Timestamp,
    /// When the request expires.
    pub expires_at: Timestamp,
    /// The node that the host may take over, as an operator decided.
    pub replace_node: Option<NodeId>,
}

/// The properties of a join token to create.
#[derive(Clone, Debug)]
pub struct NewJoinToken<'a> {
    /// What the token is for, as the operator wrote it.
    pub note: &'a str,
    /// How long it is valid.
    pub life: Duration,
    /// Maximum number of hosts it enrolls.
    pub uses: u32,
    /// The node that a host may take over with it.
    pub replace_node: Option<NodeId>,
}

/// Creates a join token.
pub fn token_create(
    id: JoinTokenId,
    secret_digest: Digest,
    new: &NewJoinToken<'_>,
    context: &Context,
) -> Result<Decision, Refusal> {
    let NewJoinToken { note, life, uses, replace_node } = *new;
    if life.is_zero() || life > TOKEN_LIFE {
        let message = format!("a join token lives 1 to {} seconds", TOKEN_LIFE.as_secs());
        return Err(Refusal::invalid("token_life_invalid", message));
    }
    if note.len() > 200 {
        return Err(Refusal::invalid("note_too_long", "the note may have at most 200 bytes"));
    }
    if !(1..=MAX_TOKEN_USES).contains(&uses) {
        let message = format!("a join token enrolls 1 to {MAX_TOKEN_USES} hosts");
        return Err(Refusal::invalid("token_uses_invalid", message).in_body("/uses"));
    }
    if uses > 1 && replace_node.is_some() {
        let message = "a node is replaced by one host; leave `uses` or `replace_node` out";
        return Err(Refusal::invalid("token_uses_invalid", message).in_body("/uses"));
    }
    let token = JoinToken {
        id,
        version: 0,
        secret_digest,
        note: note.to_owned(),
        created_at: context.now,
        expires_at: context.now.plus(life),
        uses,
        used: Vec::new(),
        revoked_at: None,
        replace_node,
    };
    let event = Event::JoinTokenCreated(JoinTokenCreated {
        join_token_id: id,
        expires_at: token.expires_at,
        note: note.to_owned(),
        uses: Some(uses),
        replace_node,
    });
    Ok(Decision::default().change(Change::JoinTokenInsert(token)).record(context, id, event))
}

/// Revokes a join token: it enrolls no more hosts. Hosts that it has enrolled stay.
pub fn token_revoke(token: &JoinToken, context: &Context) -> Result<Decision, Refusal> {
    if token.left() == 0 {
        return Err(Refusal::conflict(
            "join_token_used",
            "the join token is used up; retire the nodes that joined with it instead",
        ));
    }
    if token.revoked_at.is_some() {
        return Ok(Decision::default());
    }
    let revoked = JoinToken { revoked_at: Some(context.now), ..token.clone() };
    let event = Event::JoinTokenRevoked(JoinTokenRevoked { join_token_id: token.id });
    Ok(Decision::default().change(Change::JoinTokenUpdate(revoked)).record(context, token.id, event))
}

/// Uses a join token once. The update is conditional on the row version, so two hosts cannot both have the last use.
pub fn token_use(token: &JoinToken, node_id: NodeId, context: &Context) -> Result<Decision, Refusal> {
    if token.revoked_at.is_some() {
        return Err(Refusal::forbidden("join_token_revoked", "the join token was taken back; ask an operator for a new one"));
    }
    if token.left() == 0 {
        return Err(Refusal::forbidden("join_token_used", "the join token is used up; ask an operator for a new one"));
    }
    if context.now > token.expires_at {
        return Err(Refusal::forbidden("join_token_expired", "the join token has expired; ask an operator for a new one"));
    }
    let mut next = token.clone();
    next.used.push((context.now, node_id));
    let event = Event::JoinTokenUsed(JoinTokenUsed { join_token_id: token.id, node_id, left: next.left() });
    Ok(Decision::default().change(Change::JoinTokenUpdate(next)).record(context, token.id, event))
}

/// The queue of waiting requests, from the point of view of a new one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// Number of waiting requests.
    pub waiting: u64,
    /// Number of waiting requests from the same address.
    pub from_address: u64,
    /// The waiting request of the same host with the same keys from the same address, if there is one.
    pub same: Option<Enrollment>,
    /// If the queue is full: the oldest request of the address with the most requests, and how many it has.
    pub displaceable: Option<(Enrollment, u64)>,
}

/// Records a host's enrollment request. Repeating a request renews it: it keeps its place, and the new secret replaces the old one. When
/// the queue is full, the oldest request of the address with the most requests makes room. Returns the request that now waits.
pub fn request(enrollment: Enrollment, queue: &Queue, context: &Context) -> Result<(Enrollment, Decision), Refusal> {
    let email = &enrollment.email;
    let plausible =
        (3..=254).contains(&email.len()) && email.contains('@') && !email.chars().any(|c| c.is_control() || c.is_whitespace());
    if !plausible {
        return Err(Refusal::invalid("email_invalid", "give the e-mail address of the person who asks"));
    }
    let record = |decision: Decision, enrollment: &Enrollment| {
        let event = EnrollmentRequested {
            enrollment_id: enrollment.id,
            email: enrollment.email.clone(),
            hostname: enrollment.facts.hostname.clone(),
        };
        decision.record(context, enrollment.id, Event::EnrollmentRequested(event))
    };
    if let Some(same) = &queue.same {
        // Keeps everything that an operator may be looking at.
        let Enrollment { poll_secret_digest, expires_at, .. } = enrollment;
        let again = Enrollment { poll_secret_digest, expires_at, ..same.clone() };
        let decision = Decision::default().change(Change::EnrollmentUpdate(Box::new(again.clone())));
        return Ok((again.clone(), record(decision, &again)));
    }
    if queue.from_address >= MAX_WAITING_PER_ADDRESS {
        let message = format!(
            "{MAX_WAITING_PER_ADDRESS} requests from this address are waiting already; an operator must decide on some first, or enroll \
             with a join token"
        );
        return Err(Refusal::exhausted("too_many_enrollments_from_address", message));
    }
    let mut decision = Decision::default();
    if queue.waiting >= MAX_WAITING {
        match &queue.displaceable {
            Some((oldest, held)) if *held > queue.from_address.saturating_add(1) => {
                decision = decision.and(displace(oldest, context));
            }
            Some(_) | None => {
                let message = format!("{MAX_WAITING} requests are waiting already; an operator must decide on some first");
                return Err(Refusal::exhausted("too_many_enrollments", message));
            }
        }
    }
    let decision = decision.change(Change::EnrollmentInsert(Box::new(enrollment.clone())));
    Ok((enrollment.clone(), record(decision, &enrollment)))
}

/// Lets a request expire early; the host asks again by itself.
fn displace(enrollment: &Enrollment, context: &Context) -> Decision {
    let lapsed = Enrollment { expires_at: Timestamp(context.now.0.saturating_sub(1)), ..enrollment.clone() };
    let event = EnrollmentDisplaced { enrollment_id: enrollment.id, address: enrollment.address.clone() };
    let decision = Decision::default().change(Change::EnrollmentUpdate(Box::new(lapsed)));
    decision.record(context, enrollment.id, Event::EnrollmentDisplaced(event))
}

/// Approves a request. If the host is already a node, whatever its name, the operator must have named that node.
pub fn approve(
    enrollment: &Enrollment,
    existing: Option<Existing<'_>>,
    replace_node: Option<NodeId>,
    context: &Context,
) -> Result<Decision, Refusal> {
    check_replacement(existing, replace_node, Door::Approval(enrollment.id))?;
    decide(enrollment, EnrollmentState::Approved, "", replace_node, context)
}

/// The existing node of a host that asks to enroll, found by its fingerprint.
#[derive(Clone, Copy, Debug)]
pub struct Existing<'a> {
    /// The node with this fingerprint.
    pub node: &'a Node,
    /// Whether the host has the keys that the node enrolled with.
    pub same_keys: bool,
}

/// How a host asks to enroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// With a join token.
    Token,
    /// With a request that an operator decides on.
    Approval(EnrollmentId),
}

/// What enrolling a host does to its existing node, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// There is no such node yet.
    New,
    /// The node keeps its keys: the same machine, which lost the answer or is enrolled again.
    SameKeys,
    /// The node gets other keys. Nothing that was known about its slots is known any more.
    OtherKeys,
}

/// Whether a host may become the next epoch of the node that it claims to be. A fingerprint is no secret, so a host that presents the
/// fingerprint of an existing node gets that node only if an operator named it.
pub fn check_replacement(
    existing: Option<Existing<'_>>,
    replace_node: Option<NodeId>,
    door: Door,
) -> Result<Replacement, Refusal> {
    let command = |node: NodeId| match door {
        Door::Token => format!("create a join token with `replace_node` set to {node}"),
        Door::Approval(id) => format!("approve {id} with `replace_node` set to {node}"),
    };
    match (existing, replace_node) {
        (None, None) => Ok(Replacement::New),
        (Some(Existing { node, .. }), Some(named)) if node.id != named => {
            let message = format!("this host has the fingerprint of {}, not of {named}; {}", node.id, command(node.id));
            Err(Refusal::conflict("replace_node_mismatch", message))
        }
        (None, Some(named)) => {
            let message = format!("this host does not have the fingerprint of {named}; leave `replace_node` out");
            Err(Refusal::conflict("replace_node_mismatch", message))
        }
        // A host with the keys of a trusted node is that node. The keys of a locked node are known to be in two places, so they prove
        // nothing.
        (Some(Existing { node, same_keys: true }), _) if node.service.may_connect() => Ok(Replacement::SameKeys),
        (Some(Existing { node, .. }), None) => {
            let online = if node.session.is_some() { "online" } else { "offline" };
            let what = match door {
                Door::Token => format!("{} ({})", node.id, node.service.as_str()),
                Door::Approval(_) => format!("{} ({}, {}, {online})", node.id, node.name, node.service.as_str()),
            };
            let message = format!(
                "this host has the fingerprint of node {what} and other keys: enrolling it ends that node's identity, and its slots \
                 are not used before they are proven again. If it is that machine, {}",
                command(node.id)
            );
            Err(Refusal::conflict("replaces_node", message))
        }
        (Some(_), Some(_)) => Ok(Replacement::OtherKeys),
    }
}

/// Rejects a request.
pub fn reject(enrollment: &Enrollment, reason: &str, context: &Context) -> Result<Decision, Refusal> {
    decide(enrollment, EnrollmentState::Rejected, reason, None, context)
}

fn decide(
    enrollment: &Enrollment,
    next: EnrollmentState,
    reason: &str,
    replace_node: Option<NodeId>,
    context: &Context,
) -> Result<Decision, Refusal> {
    if reason.len() > crate::node::MAX_REASON {
        return Err(Refusal::invalid(
            "reason_too_long",
            format!("the reason may have at most {} bytes", crate::node::MAX_REASON),
        ));
    }
    if enrollment.state == next && enrollment.replace_node == replace_node {
        return Ok(Decision::default());
    }
    if enrollment.state != EnrollmentState::Pending {
        let message = format!("enrollment {} is {} already", enrollment.id, enrollment.state.as_str());
        return Err(Refusal::conflict("enrollment_decided", message));
    }
    if context.now > enrollment.expires_at {
        let message = format!("enrollment {} has expired; the host must ask again", enrollment.id);
        return Err(Refusal::conflict("enrollment_expired", message));
    }
    let event: fn(EnrollmentDecided) -> Event = match next {
        EnrollmentState::Approved => Event::EnrollmentApproved,
        EnrollmentState::Rejected => Event::EnrollmentRejected,
        EnrollmentState::Pending | EnrollmentState::Enrolled => {
            return Err(Refusal::invalid("enrollment_state", "only approval and rejection are decisions"));
        }
    };
    let event = event(EnrollmentDecided {
        enrollment_id: enrollment.id,
        fingerprint: enrollment.fingerprint.clone(),
        reason: reason.to_owned(),
        replace_node,
    });
    let decided = Enrollment { state: next, reason: reason.to_owned(), replace_node, ..enrollment.clone() };
    Ok(Decision::default().change(Change::EnrollmentUpdate(Box::new(decided))).record(context, enrollment.id, event))
}

/// Lets an approved host fetch its certificate; possible only once.
pub fn claim(enrollment: &Enrollment, node_id: NodeId, context: &Context) -> Result<Change, Refusal> {
    if enrollment.state != EnrollmentState::Approved {
        let message = format!("enrollment {} is {}", enrollment.id, enrollment.state.as_str());
        return Err(Refusal::conflict("enrollment_not_approved", message));
    }
    if context.now > enrollment.expires_at {
        return Err(Refusal::conflict("enrollment_expired", "the enrollment has expired; ask again with `gpuaas-agent enroll`"));
    }
    let claimed = Enrollment { state: EnrollmentState::Enrolled, node_id: Some(node_id), ..enrollment.clone() };
    Ok(Change::EnrollmentUpdate(Box::new(claimed)))
}
