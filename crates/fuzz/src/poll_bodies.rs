//! Target `poll_bodies`: the bodies of the long-poll transport and of enrollment, as the receiving side parses them.

use gpuaas_contract::dsse;
use gpuaas_contract::link::{
    Applicant, EnrollPending, EnrollRequest, EnrollStatus, EnrollWithToken, FromNode, Grant, Heartbeat, Hello, LogAck, LogChunk,
    MAX_ENROLLMENT_BYTES, Messages, Metrics, REJOIN_PAYLOAD_TYPE, ReceiptAck, Rejoin, RejoinChallenge, RejoinChallengeRequest,
    RejoinProof, Renew, Renewed, Welcome, from_node, to_node,
};
use gpuaas_contract::telemetry::{self, HostFacts, HostMetrics};
use gpuaas_contract::verifier_set::VerifierSet;
use gpuaas_control::pki::Ca;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fixture::KEYS;
use crate::input::Input;

/// Parses the body as the type that the first byte selects. Returns true if it is valid.
pub fn poll_bodies(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let which = input.byte() % 20;
    let body = input.rest();
    // The control plane treats an empty body as an empty object.
    let to_server = if body.is_empty() { b"{}" } else { body };
    match which {
        // Messages from agents.
        0 => read::<Hello>(to_server).is_some_and(|hello| facts(&hello.facts_json)),
        1 => read::<Heartbeat>(to_server).is_some_and(|beat| beat.facts_json.is_empty() || facts(&beat.facts_json)),
        2 => read::<Metrics>(to_server).is_some_and(|sample| telemetry::<HostMetrics>(&sample.metrics_json)),
        3 => read::<FromNode>(to_server).is_some_and(|message| match message.message {
            Some(from_node::Message::Ack(ack)) => ack.task_id.parse::<gpuaas_contract::id::TaskId>().is_ok(),
            other => other.is_some(),
        }),
        4 => read::<LogChunk>(to_server).is_some_and(|chunk| !chunk.lines.is_empty()),
        // Enrollment requests from unknown hosts.
        5 => read::<EnrollWithToken>(to_server).is_some_and(|request| applicant(&request.applicant)),
        6 => read::<EnrollRequest>(to_server).is_some_and(|request| applicant(&request.applicant)),
        7 => read::<Renew>(to_server).is_some_and(|renew| request(&renew.csr_pem)),
        8 => read::<RejoinChallengeRequest>(to_server).is_some(),
        9 => read::<Rejoin>(to_server).is_some_and(|rejoin| proof(&rejoin.proof)),
        // Messages from the control plane.
        10 => read::<Welcome>(body).is_some_and(|welcome| !welcome.session_id.is_empty()),
        11 => read::<Messages>(body).is_some_and(|messages| messages.messages.into_iter().any(|message| heard(message.message))),
        12 => read::<LogAck>(body).is_some(),
        13 => read::<ReceiptAck>(body).is_some(),
        14 => read::<EnrollPending>(body).is_some(),
        15 => read::<EnrollStatus>(body).is_some_and(|status| match status {
            EnrollStatus::Approved { grant } => check_grant(&grant),
            EnrollStatus::Pending | EnrollStatus::Rejected { .. } | EnrollStatus::Expired => true,
        }),
        16 => read::<Grant>(body).is_some_and(|grant| check_grant(&grant)),
        17 => read::<Renewed>(body).is_some(),
        18 => read::<RejoinChallenge>(body).is_some(),
        // A certificate request alone, and the signed proof of a node that rejoins.
        _ => {
            let signed = dsse::seal(REJOIN_PAYLOAD_TYPE, body.to_vec(), &KEYS.node);
            std::str::from_utf8(body).is_ok_and(request) || proof(&signed)
        }
    }
}

/// Parses a body, and checks that it survives being serialized and parsed again.
fn read<T: DeserializeOwned + Serialize>(body: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(body).ok()?;
    let json = serde_json::to_vec(&value).expect("a document serializes");
    let again: T = serde_json::from_slice(&json).expect("what was written can be read");
    assert_eq!(serde_json::to_vec(&again).expect("a document serializes"), json, "written and read again it says something else");
    Some(value)
}

fn facts(json: &str) -> bool {
    telemetry::<HostFacts>(json)
}

fn telemetry<T: DeserializeOwned + Serialize>(json: &str) -> bool {
    json.len() <= telemetry::MAX_BYTES && read::<T>(json.as_bytes()).is_some()
}

fn applicant(applicant: &Applicant) -> bool {
    request(&applicant.csr_pem)
}

/// Checks a certificate request. It comes from unauthenticated hosts, and passes through more parsers than the one for JSON.
fn request(csr_pem: &str) -> bool {
    let Ok(key) = Ca::request_key_digest(csr_pem) else { return false };
    assert_eq!(Ca::request_key_digest(csr_pem).ok(), Some(key), "the key of a request is always the same");
    true
}

fn proof(document: &[u8]) -> bool {
    let key = KEYS.node.verifying_key();
    let Ok(payload) = dsse::open(document, MAX_ENROLLMENT_BYTES, REJOIN_PAYLOAD_TYPE, &key) else { return false };
    read::<RejoinProof>(&payload).is_some_and(|proof| request(&proof.csr_pem) || !proof.challenge.is_empty())
}

fn heard(message: Option<to_node::Message>) -> bool {
    let root = KEYS.root.verifying_key();
    match message {
        Some(to_node::Message::VerifierSet(set)) => VerifierSet::open(&set.document, &root, crate::fixture::CLUSTER).is_ok(),
        Some(
            to_node::Message::Welcome(_)
            | to_node::Message::Offer(_)
            | to_node::Message::Cancel(_)
            | to_node::Message::ReceiptAck(_)
            | to_node::Message::LogAck(_)
            | to_node::Message::Ping(_)
            | to_node::Message::Goodbye(_),
        ) => true,
        None => false,
    }
}

fn check_grant(grant: &Grant) -> bool {
    VerifierSet::open(&grant.verifier_set, &grant.root_key, grant.cluster_id).is_ok()
}
