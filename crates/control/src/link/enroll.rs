//! Enrollment: with a join token, by an operator's approval, renewal, and rejoining after expiry.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use base64::Engine as _;
use gpuaas_contract::event::OperatorAction;
use gpuaas_contract::id::{CorrelationId, EnrollmentId, JoinTokenId, NodeId};
use gpuaas_contract::link::{
    self, Applicant, EnrollPending, EnrollRequest, EnrollStatus, EnrollWithToken, Grant, Rejoin, RejoinChallenge,
    RejoinChallengeRequest, RejoinProof, Renew, Renewed, route,
};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{Digest, dsse};
use gpuaas_domain::decision::{Change, Context, Decision};
use gpuaas_domain::enrollment::{self, Door, Enrollment, EnrollmentState, Existing, Queue, REQUEST_LIFE, Replacement};
use gpuaas_domain::node::{self, Admission, Node};
use gpuaas_domain::{Actor, Refusal, RefusalKind, task};

use super::issue_once::IssueOnce;
use super::{budget, identity};
use crate::Control;
use crate::error::ControlError;
use crate::http::problem::{LinkBody, Rejected, Segments};
use crate::lease_settlement;
use crate::listener::{ClientAddress, ClientCertificate};
use crate::pki::{Ca, CaError, Issued, NodeRecord, secret_text};
use crate::stranger_budgets::{AddressRange, ENROLLMENT_REQUESTS};
use crate::transact::{transact, transact_in_line};

type Shared = State<Arc<Control>>;
type Answer<T> = Result<Json<T>, Rejected>;

/// How long a rejoin challenge is valid.
const CHALLENGE_LIFE: Duration = Duration::from_secs(60);

/// Size limit of a challenge request: it names a node.
const MAX_CHALLENGE_REQUEST: usize = 1024;
/// Size limit of a request of an existing node: a certificate request, and a proof around it.
const MAX_REQUEST: usize = 16 * 1024;

/// Returns the routes of enrollment.
pub(super) fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route(route::ENROLL_WITH_TOKEN, post(with_token))
        .route(route::ENROLL_REQUEST, post(request))
        .route(route::ENROLL_POLL, get(poll))
        .route(route::REJOIN_CHALLENGE, post(rejoin_challenge).layer(DefaultBodyLimit::max(MAX_CHALLENGE_REQUEST)))
        .route(route::REJOIN, post(rejoin).layer(DefaultBodyLimit::max(MAX_REQUEST)))
        .route(route::RENEW, post(renew).layer(DefaultBodyLimit::max(MAX_REQUEST)))
        .layer(DefaultBodyLimit::max(link::MAX_ENROLLMENT_BYTES))
        .with_state(control)
}

fn context(applicant: &str, from: ClientAddress) -> Context {
    let host: String = applicant.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).take(64).collect();
    Context {
        now: Timestamp::now(),
        actor: Actor::Applicant(format!("{host}@{}", from.0.ip())),
        correlation_id: CorrelationId::generate(),
    }
}

async fn with_token(
    State(control): Shared,
    Extension(from): Extension<ClientAddress>,
    LinkBody(request): LinkBody<EnrollWithToken>,
) -> Answer<Grant> {
    let context = context(&request.applicant.facts.hostname, from);
    let secret = Digest::of(request.token.as_bytes());
    let (new_id, certificate) = (NodeId::generate(), IssueOnce::new(&control.ca));
    // Many hosts may come with one token at the same moment.
    let (_, grant) = transact_in_line(
        &control,
        |(token, _): &(JoinTokenId, Grant)| Some(*token.as_bytes()),
        || async {
            let unknown =
                || Refusal::forbidden("join_token_unknown", "this join token is not known here; ask an operator for a new one");
            let token = control.store.join_token_by_secret(&secret).await?.ok_or_else(unknown)?;
            let known = control.store.node_by_fingerprint(&request.applicant.fingerprint).await?;
            // The answer may have been lost: the same host with the same key gets the same node again.
            if let Some(node) = &known
                && token.used.iter().any(|(_, joined)| *joined == node.id)
                && token.revoked_at.is_none()
                && context.now <= token.expires_at
                && is_same_host(node, &request.applicant)?
            {
                let (grant, decision) = reissue(&control, node, &request.applicant.csr_pem, &certificate, &context).await?;
                return Ok(((token.id, grant), decision));
            }
            let node_id = known.as_ref().map_or(new_id, |node| node.id);
            let used = enrollment::token_use(&token, node_id, &context)?;
            let may = replacement(known.as_ref(), &request.applicant, token.replace_node, Door::Token)?;
            let (grant, decision) = admit(&control, (known, may), new_id, &request.applicant, &certificate, &context).await?;
            // A node is written before what refers to it.
            Ok(((token.id, grant), decision.and(used)))
        },
    )
    .await?;
    tracing::info!(node = %grant.node_id, epoch = grant.node_epoch, door = "token", "node enrolled");
    Ok(Json(grant))
}

async fn request(
    State(control): Shared,
    Extension(from): Extension<ClientAddress>,
    LinkBody(request): LinkBody<EnrollRequest>,
) -> Answer<EnrollPending> {
    let context = context(&request.applicant.facts.hostname, from);
    check_applicant(&request.applicant)?;
    let range = AddressRange::of(Some(from));
    ENROLLMENT_REQUESTS.spend(&control, &range, false).await?;
    let poll_secret = secret_text("gpe_");
    let enrollment = Enrollment {
        id: EnrollmentId::generate(),
        version: 0,
        state: EnrollmentState::Pending,
        email: request.email,
        fingerprint: request.applicant.fingerprint,
        csr_pem: request.applicant.csr_pem,
        receipt_key: request.applicant.receipt_key,
        facts: request.applicant.facts.bounded(),
        poll_secret_digest: Digest::of(poll_secret.as_bytes()),
        reason: String::new(),
        address: range.to_string(),
        node_id: None,
        created_at: context.now,
        expires_at: context.now.plus(REQUEST_LIFE),
        replace_node: None,
    };
    let enrollment = transact(&control, || async {
        let queue = queue_for(&control, &enrollment, context.now).await?;
        Ok(enrollment::request(enrollment.clone(), &queue, &context)?)
    })
    .await
    .inspect_err(|failure| count_refusal(&control, failure))?;
    tracing::info!(enrollment = %enrollment.id, email = %enrollment.email, "a host asks to be enrolled");
    Ok(Json(EnrollPending { enrollment_id: enrollment.id, poll_secret, expires_at: enrollment.expires_at }))
}

/// Returns the queue of requests for this one.
async fn queue_for(control: &Control, enrollment: &Enrollment, now: Timestamp) -> Result<Queue, ControlError> {
    let store = &control.store;
    let earlier = store.enrollment_open_by_fingerprint(&enrollment.fingerprint, now).await?;
    let same = earlier.filter(|earlier| earlier.state == EnrollmentState::Pending && earlier.address == enrollment.address);
    // Replacing a request requires the keys it was created for.
    let same = match same {
        Some(earlier)
            if earlier.receipt_key == enrollment.receipt_key
                && request_key(&earlier.csr_pem)? == request_key(&enrollment.csr_pem)? =>
        {
            Some(earlier)
        }
        Some(_) | None => None,
    };
    let waiting = store.enrollment_waiting(now).await?;
    let displaceable = match waiting >= enrollment::MAX_WAITING {
        true => store.enrollment_displaceable(now).await?,
        false => None,
    };
    let displaceable = match displaceable {
        Some(oldest) => {
            let held = store.enrollment_waiting_from(&oldest.address, now).await?;
            Some((oldest, held))
        }
        None => None,
    };
    let from_address = store.enrollment_waiting_from(&enrollment.address, now).await?;
    Ok(Queue { waiting, from_address, same, displaceable })
}

fn count_refusal(control: &Control, failure: &ControlError) {
    if let ControlError::Refused(refusal) = failure
        && refusal.kind == RefusalKind::Exhausted
    {
        control.metrics.refused(refusal.code);
    }
}

async fn poll(
    State(control): Shared,
    Extension(from): Extension<ClientAddress>,
    Segments(id): Segments<EnrollmentId>,
    headers: HeaderMap,
) -> Answer<EnrollStatus> {
    let given = headers.get(link::ENROLL_SECRET_HEADER).map(|value| Digest::of(value.as_bytes()));
    let (new_id, certificate) = (NodeId::generate(), IssueOnce::new(&control.ca));
    let status = transact(&control, || async {
        let enrollment = control.store.enrollment_get(id).await?;
        // Without the secret, a caller does not even learn whether the request exists.
        let Some(enrollment) = enrollment.filter(|found| given.as_ref() == Some(&found.poll_secret_digest)) else {
            return Err(Refusal::not_found("enrollment_unknown", "there is no such request for this secret; ask again").into());
        };
        let context = context(&enrollment.facts.hostname, from);
        let lapsed = context.now > enrollment.expires_at;
        match enrollment.state {
            EnrollmentState::Rejected => Ok((EnrollStatus::Rejected { reason: enrollment.reason }, Decision::default())),
            EnrollmentState::Pending | EnrollmentState::Approved if lapsed => Ok((EnrollStatus::Expired, Decision::default())),
            EnrollmentState::Pending => Ok((EnrollStatus::Pending, Decision::default())),
            EnrollmentState::Approved => {
                let applicant = applicant_of(&enrollment);
                let known = control.store.node_by_fingerprint(&applicant.fingerprint).await?;
                let node_id = known.as_ref().map_or(new_id, |node| node.id);
                let claimed = enrollment::claim(&enrollment, node_id, &context)?;
                // Checked again: another host may have become that node since the operator decided.
                let may = replacement(known.as_ref(), &applicant, enrollment.replace_node, Door::Approval(enrollment.id))?;
                let (grant, decision) = admit(&control, (known, may), new_id, &applicant, &certificate, &context).await?;
                Ok((EnrollStatus::Approved { grant: Box::new(grant) }, Decision::default().change(claimed).and(decision)))
            }
            EnrollmentState::Enrolled => {
                // The answer may have been lost: the same request gets the same node again, until the request lapses.
                let applicant = applicant_of(&enrollment);
                let node = match enrollment.node_id {
                    Some(node_id) if !lapsed => control.store.node_get(node_id).await?,
                    Some(_) | None => None,
                };
                match node {
                    Some(node) if is_same_host(&node, &applicant)? => {
                        let (grant, decision) = reissue(&control, &node, &applicant.csr_pem, &certificate, &context).await?;
                        Ok((EnrollStatus::Approved { grant: Box::new(grant) }, decision))
                    }
                    Some(_) | None => Ok((EnrollStatus::Expired, Decision::default())),
                }
            }
        }
    })
    .await?;
    Ok(Json(status))
}

fn replacement(
    known: Option<&Node>,
    applicant: &Applicant,
    replace_node: Option<NodeId>,
    door: Door,
) -> Result<Replacement, ControlError> {
    let existing = match known {
        Some(node) => Some(Existing { node, same_keys: is_same_host(node, applicant)? }),
        None => None,
    };
    Ok(enrollment::check_replacement(existing, replace_node, door)?)
}

pub(crate) fn applicant_of(enrollment: &Enrollment) -> Applicant {
    Applicant {
        fingerprint: enrollment.fingerprint.clone(),
        csr_pem: enrollment.csr_pem.clone(),
        receipt_key: enrollment.receipt_key.clone(),
        facts: enrollment.facts.clone(),
    }
}

/// Admits the host as a node (or as the next epoch of its node), with a certificate and a signed record of its keys.
async fn admit(
    control: &Control,
    (known, replacement): (Option<Node>, Replacement),
    new_id: NodeId,
    applicant: &Applicant,
    certificate: &IssueOnce<'_>,
    context: &Context,
) -> Result<(Grant, Decision), ControlError> {
    check_applicant(applicant)?;
    let admission = Admission {
        fingerprint: applicant.fingerprint.clone(),
        receipt_key: applicant.receipt_key.clone(),
        tls_key_digest: request_key(&applicant.csr_pem)?,
        facts: applicant.facts.clone().bounded(),
    };
    let open = match &known {
        Some(node) => control.store.task_open(node.id).await?,
        None => Vec::new(),
    };
    let is_new = known.is_none();
    let (mut node, mut decision) = node::enroll(known, admission, new_id, context);
    node.record = NodeRecord::seal(&node, control.cluster_id, control.keys.root());
    // The next enrollment replaces the record in the node's row; the audit log keeps it, so that old receipts can be checked.
    for entry in &mut decision.audit {
        entry.detail["record"] = base64::engine::general_purpose::STANDARD.encode(&node.record).into();
    }
    for task in open {
        decision = decision.and(task::node_gone(&task, "its node was enrolled again", context));
    }
    match replacement {
        Replacement::New | Replacement::SameKeys => {}
        Replacement::OtherKeys => {
            const REASON: &str = "its node was replaced; its earlier reports are no longer valid";
            decision =
                lease_settlement::node_gone(control, node.id, (OperatorAction::Replace, REASON), decision, context).await?;
        }
    }
    let issued = certificate.issue(&node, &applicant.csr_pem, context.now).await.map_err(ca_failure)?;
    let grant = grant(control, &node, &issued, context.now);
    let row = Box::new(node);
    let row = if is_new { Change::NodeInsert(row) } else { Change::NodeUpdate(row) };
    Ok((grant, decision.change(row).change(Change::CertificateInsert(issued.certificate))))
}

/// Issues another certificate for an enrolled host whose answer was lost.
async fn reissue(
    control: &Control,
    node: &Node,
    csr_pem: &str,
    certificate: &IssueOnce<'_>,
    context: &Context,
) -> Result<(Grant, Decision), ControlError> {
    node::check_may_hold_certificate(node)?;
    certificate_budget(control, node).await?;
    let issued = certificate.issue(node, csr_pem, context.now).await.map_err(ca_failure)?;
    let grant = grant(control, node, &issued, context.now);
    Ok((grant, node::renewed(node, issued.certificate, context)?))
}

pub(crate) fn is_same_host(node: &Node, applicant: &Applicant) -> Result<bool, ControlError> {
    Ok(node.fingerprint == applicant.fingerprint
        && node.receipt_key == applicant.receipt_key
        && node.tls_key_digest == request_key(&applicant.csr_pem)?)
}

fn grant(control: &Control, node: &Node, issued: &Issued, now: Timestamp) -> Grant {
    Grant {
        cluster_id: control.cluster_id,
        node_id: node.id,
        node_epoch: node.epoch,
        certificate_pem: issued.pem.clone(),
        ca_pem: control.ca.pem().to_owned(),
        root_key: control.keys.root_key(),
        verifier_set: control.keys.set_document().1,
        server_time: now,
    }
}

fn request_key(csr_pem: &str) -> Result<Digest, ControlError> {
    Ca::request_key_digest(csr_pem).map_err(ca_failure)
}

fn ca_failure(error: CaError) -> ControlError {
    match error {
        CaError::BadRequest(detail) => {
            ControlError::BadInput { code: "csr_invalid", message: format!("the certificate request is not valid: {detail}") }
        }
        // The details are in the log for operators, not in the answer to a host.
        CaError::Unavailable { .. } | CaError::Refused { .. } | CaError::Unacceptable(_) | CaError::Credential(_) => {
            tracing::error!(error = &error as &dyn std::error::Error, "no certificate for a node");
            let message = "no certificate can be issued at the moment because the certificate authority does not work; nothing was changed, \
                           try again later, and ask an operator to look at `gpuaas cluster info` if it lasts";
            ControlError::Unavailable { code: error.code(), message: message.to_owned() }
        }
        CaError::File(_)
        | CaError::Damaged(_)
        | CaError::Incomplete
        | CaError::Sign(_)
        | CaError::Settings(_)
        | CaError::Changed(_) => ControlError::Internal(super::inbound::chain(&error)),
    }
}

fn check_applicant(applicant: &Applicant) -> Result<(), ControlError> {
    let plain = applicant.fingerprint.bytes().all(|b| b.is_ascii_graphic());
    if !plain || !(16..=128).contains(&applicant.fingerprint.len()) {
        let message = "the fingerprint must be 16 to 128 printable characters".to_owned();
        return Err(ControlError::BadInput { code: "fingerprint_invalid", message });
    }
    if applicant.facts.hostname.len() > 253 || applicant.facts.hostname.chars().any(char::is_control) {
        return Err(ControlError::BadInput { code: "hostname_invalid", message: "the host name is not valid".to_owned() });
    }
    request_key(&applicant.csr_pem).map(|_| ())
}

async fn renew(
    State(control): Shared,
    Extension(cert): Extension<ClientCertificate>,
    Segments(path): Segments<NodeId>,
    LinkBody(request): LinkBody<Renew>,
) -> Answer<Renewed> {
    let peer = identity::peer(&control, &cert, Some(path))?;
    let context = Context { now: Timestamp::now(), actor: Actor::Node(peer.node_id), correlation_id: CorrelationId::generate() };
    let certificate = IssueOnce::new(&control.ca);
    let pem = transact(&control, || async {
        let node = identity::node(&control, &peer).await?;
        check_same_key(&node, &request.csr_pem)?;
        node::check_may_hold_certificate(&node)?;
        certificate_budget(&control, &node).await?;
        let issued = certificate.issue(&node, &request.csr_pem, context.now).await.map_err(ca_failure)?;
        let decision = node::renewed(&node, issued.certificate, &context)?;
        Ok((issued.pem, decision))
    })
    .await?;
    tracing::info!(node = %peer.node_id, "certificate renewed");
    Ok(Json(Renewed { certificate_pem: pem }))
}

/// Checks the budget of certificates. Each is a row, so a node gets a few per hour and not one per request.
async fn certificate_budget(control: &Control, node: &Node) -> Result<(), ControlError> {
    if budget::take(control, node.id, budget::BudgetKind::Certificates, 1).await? {
        return Ok(());
    }
    let message = format!(
        "node {} got {} certificates within the hour; use the last one, or try again later",
        node.id,
        budget::BudgetKind::Certificates.per_hour()
    );
    Err(Refusal::conflict("certificate_budget_exceeded", message).into())
}

fn check_same_key(node: &Node, csr_pem: &str) -> Result<(), ControlError> {
    if request_key(csr_pem)? == node.tls_key_digest {
        return Ok(());
    }
    let message = "the request is for another key than the one the node enrolled with; enroll again to change keys";
    Err(Refusal::forbidden("tls_key_changed", message).into())
}

/// Returns a challenge. It needs no stored state: it is a time and a MAC over it.
async fn rejoin_challenge(
    State(control): Shared,
    LinkBody(request): LinkBody<RejoinChallengeRequest>,
) -> Answer<RejoinChallenge> {
    let now = Timestamp::now().0;
    let mac = control.keys.intent_mac(&challenge_text(request.node_id, now));
    Ok(Json(RejoinChallenge { challenge: format!("{now}.{mac}") }))
}

fn challenge_text(node_id: NodeId, at: i64) -> String {
    format!("gpuaas-rejoin-challenge-v1\n{node_id}\n{at}")
}

fn check_challenge(control: &Control, node_id: NodeId, challenge: &str, now: Timestamp) -> Result<(), ControlError> {
    let valid = challenge.split_once('.').is_some_and(|(at, mac)| {
        at.parse::<i64>().is_ok_and(|at| {
            let age = now.since(Timestamp(at));
            at <= now.0 && age <= CHALLENGE_LIFE && control.keys.intent_matches(&challenge_text(node_id, at), mac)
        })
    });
    if valid {
        Ok(())
    } else {
        Err(Refusal::forbidden("challenge_invalid", "the challenge is not ours or too old; ask for a new one").into())
    }
}

async fn rejoin(State(control): Shared, LinkBody(request): LinkBody<Rejoin>) -> Answer<Renewed> {
    let context =
        Context { now: Timestamp::now(), actor: Actor::Node(request.node_id), correlation_id: CorrelationId::generate() };
    let certificate = IssueOnce::new(&control.ca);
    let pem = transact(&control, || async {
        // The same answer for every invalid proof, so that strangers learn nothing about nodes.
        let refuse =
            || Refusal::forbidden("rejoin_refused", "the proof does not fit a node of this cluster; enroll the host again");
        let node = control.store.node_get(request.node_id).await?.ok_or_else(refuse)?;
        if !NodeRecord::matches(&node, control.cluster_id, &control.keys.root_key()).unwrap_or(false) {
            return Err(refuse().into());
        }
        let opened = dsse::open(&request.proof, link::MAX_ENROLLMENT_BYTES, link::REJOIN_PAYLOAD_TYPE, &node.receipt_key);
        let proof: RejoinProof = serde_json::from_slice(&opened.map_err(|_| refuse())?).map_err(|_| refuse())?;
        if (proof.cluster_id, proof.node_id, proof.node_epoch) != (control.cluster_id, node.id, node.epoch) {
            return Err(refuse().into());
        }
        check_challenge(&control, node.id, &proof.challenge, context.now)?;
        check_same_key(&node, &proof.csr_pem)?;
        node::check_may_rejoin(&node)?;
        let issued = certificate.issue(&node, &proof.csr_pem, context.now).await.map_err(ca_failure)?;
        let decision = node::rejoined(&node, issued.certificate, &context)?;
        Ok((issued.pem, decision))
    })
    .await?;
    tracing::info!(node = %request.node_id, "node rejoined with an expired certificate");
    Ok(Json(Renewed { certificate_pem: pem }))
}
