//! One link message of every kind with all fields set, and the enrollment documents: as this version sends them, as the previous version
//! sent them, and as the next version may send them.

use gpuaas_contract::hex;
use gpuaas_contract::id::EnrollmentId;
use gpuaas_contract::link::{
    Ack, Applicant, Cancel, EnrollPending, EnrollRequest, EnrollStatus, EnrollWithToken, FromNode, Goodbye, Grant, Heartbeat,
    Hello, LogAck, LogChunk, LogLine, LogPosition, Metrics, Offer, PROTOCOL, Ping, Pong, Progress, ReceiptAck, Rejection, Rejoin,
    RejoinChallenge, RejoinChallengeRequest, Renew, Renewed, SignedReceipt, TaskInHand, TaskPhase, ToNode, VerifierSet, Welcome,
    from_node, to_node,
};
use gpuaas_contract::telemetry::HostFacts;
use prost::Message as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::envelope_cases;
use crate::fixture::{CLUSTER, EPOCH, Holder, INSTANCE, NODE, NOW, TASK, uuid_v7, verifier_set_document};
use crate::receipt_cases;
use crate::vector_files::{list, read, string, unhex};

const SESSION: &str = "sess_019b76daa80070008000000000000041";

/// The content of `link.json`.
pub(crate) fn made() -> Value {
    let mut from_node: Vec<Value> = from_node().into_iter().map(|message| recorded(&message)).collect();
    from_node.sort_by_key(kind_of);
    let mut to_node: Vec<Value> = to_node().into_iter().map(|message| recorded(&message)).collect();
    to_node.sort_by_key(kind_of);
    json!({ "protocol": PROTOCOL, "from_node": from_node, "to_node": to_node, "enrollment": enrollment() })
}

fn recorded<M: prost::Message + Serialize>(message: &M) -> Value {
    json!({ "protobuf_hex": hex(&message.encode_to_vec()), "json": to_value(message) })
}

fn kind_of(recorded: &Value) -> String {
    let message = recorded["json"]["message"].as_object().expect("a message");
    message.keys().next().expect("a kind").clone()
}

fn to_value(document: &impl Serialize) -> Value {
    serde_json::to_value(document).expect("JSON")
}

fn from_node() -> Vec<FromNode> {
    let (task_id, facts_json) = (TASK.to_string(), to_value(&facts()).to_string());
    let hello = Hello {
        protocol: PROTOCOL,
        agent_version: "0.1.0".to_owned(),
        agent_instance_id: INSTANCE.to_string(),
        boot_id: "boot".to_owned(),
        node_epoch: EPOCH,
        verifier_set_version: 7,
        tasks: vec![TaskInHand { task_id: task_id.clone(), phase: TaskPhase::Started.into() }],
        facts_json: facts_json.clone(),
        capacity: 4,
        notices: vec!["the journal was damaged".to_owned()],
        journal_fence_us: 1,
        resume_session: SESSION.to_owned(),
        resume_proof: vec![7; 32],
        oldest_protocol: PROTOCOL,
    };
    let line = LogLine {
        task_id: task_id.clone(),
        sequence: 1,
        at_us: NOW.0,
        stream: "stdout".to_owned(),
        text: "hello".to_owned(),
        dropped: 2,
    };
    let receipt = receipt_cases::believed().remove(0).document();
    let messages = [
        from_node::Message::Hello(hello),
        from_node::Message::Heartbeat(Heartbeat { sequence: 1, sent_at_us: NOW.0, facts_json, running: 1 }),
        from_node::Message::Ack(Ack { task_id: task_id.clone(), phase: TaskPhase::Accepted.into(), at_us: NOW.0 }),
        from_node::Message::Progress(Progress {
            task_id: task_id.clone(),
            phase: "mark".to_owned(),
            message: "half".to_owned(),
            at_us: NOW.0,
        }),
        from_node::Message::Logs(LogChunk { lines: vec![line] }),
        from_node::Message::Receipt(SignedReceipt { task_id: task_id.clone(), receipt }),
        from_node::Message::Metrics(Metrics { metrics_json: format!(r#"{{"at":{}}}"#, NOW.0) }),
        from_node::Message::Rejection(Rejection { task_id, code: "key_unknown".to_owned(), message: "why".to_owned() }),
        from_node::Message::Pong(Pong { nonce: u64::MAX }),
    ];
    messages.map(FromNode::from).into()
}

fn to_node() -> Vec<ToNode> {
    let task_id = TASK.to_string();
    let set = VerifierSet { version: 7, document: verifier_set_document().sign(&Holder::Root.key()) };
    let welcome = Welcome {
        session_id: SESSION.to_owned(),
        cluster_id: CLUSTER.to_string(),
        server_time_us: NOW.0,
        heartbeat_seconds: 15,
        verifier_set: Some(set.clone()),
        poll_seconds: 30,
        resume_secret: vec![8; 32],
        protocol: PROTOCOL,
        server_version: "0.1.0".to_owned(),
    };
    let first = envelope_cases::accepted().remove(0);
    let envelope = envelope_cases::document(&first.envelope, first.append_spaces);
    let messages = [
        to_node::Message::Welcome(welcome),
        to_node::Message::Offer(Offer { task_id: task_id.clone(), envelope }),
        to_node::Message::Cancel(Cancel { task_id: task_id.clone(), reason: "why".to_owned() }),
        to_node::Message::VerifierSet(set),
        to_node::Message::ReceiptAck(ReceiptAck { task_id: task_id.clone(), rejected_code: "receipt_conflict".to_owned() }),
        to_node::Message::LogAck(LogAck { positions: vec![LogPosition { task_id, sequence: 9 }] }),
        to_node::Message::Ping(Ping { nonce: u64::MAX }),
        to_node::Message::Goodbye(Goodbye { code: "bye".to_owned(), message: "why".to_owned(), retry_after_seconds: 5 }),
    ];
    messages.map(ToNode::from).into()
}

fn facts() -> HostFacts {
    HostFacts { hostname: "gpu-1".to_owned(), agent_version: "0.1.0".to_owned(), cpu_threads: 8, ..HostFacts::default() }
}

/// All enrollment documents, by name.
fn enrollment() -> Value {
    let applicant = || Applicant {
        fingerprint: "sha256:machine".to_owned(),
        csr_pem: "csr".to_owned(),
        receipt_key: Holder::Node.key().verifying_key(),
        facts: facts(),
    };
    let grant = Grant {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        certificate_pem: "certificate".to_owned(),
        ca_pem: "ca".to_owned(),
        root_key: Holder::Root.key().verifying_key(),
        verifier_set: verifier_set_document().sign(&Holder::Root.key()),
        server_time: NOW,
    };
    let pending = EnrollPending {
        enrollment_id: EnrollmentId::from_bytes(uuid_v7(0x51)),
        poll_secret: "secret".to_owned(),
        expires_at: NOW,
    };
    json!({
        "enroll_with_token": to_value(&EnrollWithToken { token: "token".to_owned(), applicant: applicant() }),
        "enroll_request": to_value(&EnrollRequest { email: "ada@example.org".to_owned(), applicant: applicant() }),
        "enroll_pending": to_value(&pending),
        "enroll_status": to_value(&EnrollStatus::Approved { grant: Box::new(grant.clone()) }),
        "grant": to_value(&grant),
        "renew": to_value(&Renew { csr_pem: "csr".to_owned() }),
        "renewed": to_value(&Renewed { certificate_pem: "certificate".to_owned() }),
        "rejoin_challenge_request": to_value(&RejoinChallengeRequest { node_id: NODE }),
        "rejoin_challenge": to_value(&RejoinChallenge { challenge: "challenge".to_owned() }),
        "rejoin": to_value(&Rejoin { node_id: NODE, proof: b"proof".to_vec() }),
    })
}

/// Reads an enrollment document as this version does, and writes it again.
fn reread(name: &str, document: Value) -> Value {
    fn again<T: DeserializeOwned + Serialize>(document: Value) -> Value {
        to_value(&serde_json::from_value::<T>(document).expect("this version reads it"))
    }
    match name {
        "enroll_with_token" => again::<EnrollWithToken>(document),
        "enroll_request" => again::<EnrollRequest>(document),
        "enroll_pending" => again::<EnrollPending>(document),
        "enroll_status" => again::<EnrollStatus>(document),
        "grant" => again::<Grant>(document),
        "renew" => again::<Renew>(document),
        "renewed" => again::<Renewed>(document),
        "rejoin_challenge_request" => again::<RejoinChallengeRequest>(document),
        "rejoin_challenge" => again::<RejoinChallenge>(document),
        "rejoin" => again::<Rejoin>(document),
        other => panic!("`{other}` is no document of enrollment"),
    }
}

/// Whether `whole` contains everything in `part`; objects may have additional fields.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

/// Checks that both encodings of a recorded message decode to the same message and that nothing is lost.
fn is_read<M: prost::Message + Default + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(recorded: &Value) {
    let from_bytes = M::decode(unhex(string(recorded, "protobuf_hex")).as_slice()).expect("this version reads it");
    let from_json: M = serde_json::from_value(recorded["json"].clone()).expect("this version reads it");
    assert_eq!(from_bytes, from_json, "{recorded}");
    let written = to_value(&from_json);
    assert!(contains(&written, &recorded["json"]), "{written} has lost a part of {recorded}");
}

fn all_are_read(file: &Value) {
    for message in list(file, "from_node") {
        is_read::<FromNode>(message);
    }
    for message in list(file, "to_node") {
        is_read::<ToNode>(message);
    }
    for (name, document) in file["enrollment"].as_object().expect("documents") {
        let written = reread(name, document.clone());
        assert!(contains(&written, document), "{written} has lost a part of {name}: {document}");
    }
}

#[test]
fn every_message_of_this_version_is_read() {
    all_are_read(&read("link.json"));
}

#[test]
fn every_message_of_the_version_before_is_read_and_nothing_in_it_is_lost() {
    all_are_read(&read("previous/link.json"));
}

/// Adds an unknown field to every object of a document.
fn with_more_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let more = fields.iter().map(|(name, value)| (name.clone(), with_more_fields(value)));
            Value::Object(more.chain([("of_the_next_version".to_owned(), json!([1]))]).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(with_more_fields).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[test]
fn fields_of_the_next_version_are_ignored_in_messages_and_in_enrollment() {
    for message in from_node() {
        let kinds = to_value(&message)["message"].as_object().expect("a message").clone();
        let (kind, content) = kinds.into_iter().next().expect("a kind");
        let read: FromNode =
            serde_json::from_value(json!({ "message": { kind: with_more_fields(&content) }, "more": 1 })).expect("read");
        assert_eq!(read, message);
        // An unknown field 1000 with a number, appended to the message.
        let bytes = [message.encode_to_vec(), vec![0xc0, 0x3e, 0x01]].concat();
        assert_eq!(FromNode::decode(bytes.as_slice()).expect("read"), message);
    }
    for (name, document) in enrollment().as_object().expect("documents") {
        // The verifier set and the key are strings, so nothing is added to them; facts drop the unknown fields.
        assert_eq!(&reread(name, with_more_fields(document)), document, "{name}");
    }
}

#[test]
fn kinds_of_messages_of_the_next_version_are_no_message() {
    let bytes = [0xc2, 0x3e, 0x02, 0x08, 0x01];
    assert_eq!(ToNode::decode(bytes.as_slice()).expect("read").message, None);
    let json = json!({ "message": { "of_the_next_version": { "a": 1 } } });
    assert_eq!(serde_json::from_value::<ToNode>(json).expect("read").message, None);
}
