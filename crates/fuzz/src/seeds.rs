//! Seeds for the fuzzer: the golden vectors, the examples in the documents, and journals written by the agent's code.

use gpuaas_agent::config::Key;
use gpuaas_agent::policy;
use gpuaas_contract::dsse;
use gpuaas_contract::link::{
    Ack, Cancel, FromNode, Goodbye, Grant, Heartbeat, Hello, LogAck, LogChunk, LogLine, LogPosition, Messages, Metrics, Offer,
    Ping, Pong, Progress, REJOIN_PAYLOAD_TYPE, ReceiptAck, Rejection, Rejoin, SignedReceipt, TaskInHand, ToNode, VerifierSet,
    Welcome,
};
use gpuaas_contract::link::{from_node, to_node};
use gpuaas_contract::task::TaskType;
use prost::Message as _;
use serde_json::{Value, json};

use crate::fixture::{CLUSTER, EPOCH, INSTANCE, KEYS, NODE, NOW, SET, TASK};

/// Longest seed, in bytes. Longer ones do not reach more code.
const LONGEST: usize = 8 * 1024;

const ENVELOPES: &str = include_str!("../../contract/testdata/envelope.json");
const RECEIPTS: &str = include_str!("../../contract/testdata/receipt.json");
const VERIFIER_SETS: &str = include_str!("../../contract/testdata/verifier_set.json");

/// Returns the seeds of a target; none if there is no such target.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut seeds = match target {
        "agent_config" => configs(),
        "agent_journal" => journals(),
        "agent_policy" => policies(),
        "link_messages" => messages(),
        "poll_bodies" => bodies(),
        "envelope" => {
            let mut seeds = documents(ENVELOPES, &[]);
            for params in all_params() {
                seeds.push(structured_envelope(&params));
            }
            seeds
        }
        "receipt" => {
            let mut seeds = documents(RECEIPTS, &[0]);
            for (kind, output) in all_outputs() {
                // Succeeded, with the right code, boot id `boot`, started, with output.
                let head = [6, kind, 0, 1, 3, 0b11, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1];
                seeds.push([&head, output.as_bytes()].concat());
            }
            seeds
        }
        "verifier_set" => {
            let mut seeds = documents(VERIFIER_SETS, &[]);
            seeds.push(vec![6, 0, 3, 1, 0, 2, 1, 3, 2, 0, 0, 0, 0, 8]);
            seeds
        }
        "task_params" => all_params(),
        "task_output" => all_outputs().into_iter().map(|(kind, output)| [&[kind], output.as_bytes()].concat()).collect(),
        _ => Vec::new(),
    };
    seeds.retain(|seed| seed.len() <= LONGEST);
    seeds.sort();
    seeds.dedup();
    seeds
}

/// Returns seeds from a file of vectors: its documents, and its payloads to be signed. `middle` follows the byte that selects the way.
fn documents(vectors: &str, middle: &[u8]) -> Vec<Vec<u8>> {
    let vectors: Value = serde_json::from_str(vectors).expect("the vectors are JSON");
    let mut seeds = Vec::new();
    let cases = ["accepted", "rejected"].into_iter().filter_map(|list| vectors[list].as_array()).flatten();
    for case in cases.filter(|case| case.get("append_spaces").is_none()) {
        if let Some(document) = case["document"].as_str() {
            seeds.push([&[0], middle, &[0], document.as_bytes()].concat());
        }
        if let Some(payload) = case["payload"].as_str() {
            seeds.push([&[1], middle, &[0], payload.as_bytes()].concat());
        }
    }
    let plain = vectors["accepted"][0]["payload"].as_str().expect("a plain case").as_bytes();
    // Signed by an invalid key, signed as another type, edited, and with trailing spaces.
    seeds.push([&[2], middle, &[0, 1], plain].concat());
    seeds.push([&[3], middle, &[0, 4], b"type".as_slice(), plain].concat());
    seeds.push([&[4], middle, &[0, 0, 9, 0, 1], plain].concat());
    seeds.push([&[5], middle, &[0, 0], plain].concat());
    seeds.push([&[5], middle, &[0, 1], plain].concat());
    seeds
}

fn kind_bytes() -> impl Iterator<Item = (u8, TaskType)> {
    (0..).zip(TaskType::ALL)
}

/// Returns valid and invalid parameters of every task type, each after the byte that selects the type.
fn all_params() -> Vec<Vec<u8>> {
    let texts = |kind: TaskType| kind.examples().params.iter().chain(kind.examples().refused_params);
    kind_bytes().flat_map(|(byte, kind)| texts(kind).map(move |text| [&[byte], text.as_bytes()].concat())).collect()
}

/// Returns an envelope built from fields, around parameters that follow the byte of their type: signed one second ago, to start
/// within a minute and end within an hour.
fn structured_envelope(params: &[u8]) -> Vec<u8> {
    let mut seed = vec![6, 0];
    for (scale, value) in [(2, -1_i32), (2, 60), (3, 60), (2, 0)] {
        seed.push(scale);
        seed.extend(value.to_le_bytes());
    }
    seed.extend(params);
    seed
}

/// Returns valid and invalid outputs of every task type, each with the byte that selects the type.
fn all_outputs() -> Vec<(u8, String)> {
    let texts = |kind: TaskType| kind.examples().outputs.iter().chain(kind.examples().refused_outputs);
    kind_bytes().flat_map(|(byte, kind)| texts(kind).map(move |text| (byte, (*text).to_owned()))).collect()
}

/// Returns journals built from steps, with and without damage, and one as the agent writes it.
fn journals() -> Vec<Vec<u8>> {
    // Three tasks: one from acceptance to report, one that is started, one that is accepted. A step is the task's number plus
    // eight times what happens to it, then the age of the task, then the blob if there is one.
    let steps = [
        &[48, 0][..],
        &[8, 1, 3, 1, 2, 3],
        &[16, 1],
        &[24, 1, 4, 1, 2, 3, 4],
        &[32, 1],
        &[9, 2, 2, 7, 7],
        &[17, 2],
        &[18, 2],
        &[10, 3, 8, 1, 2, 3, 4, 5, 6, 7, 8],
        &[27, 200, 2, 1, 1],
        &[40, 0],
    ];
    let count = u8::try_from(steps.len()).unwrap_or(u8::MAX);
    let good = [&[0, 0, 0, 0, count], steps.concat().as_slice()].concat();
    let mut seeds = vec![good.clone()];
    // A flipped bit at the start of a record, one in the middle, a hole, a truncation, a wrong length, and several of them in turn.
    for damage in [
        &[1, 1, 2, 0, 9, 0, 16][..],
        &[1, 3, 40, 0, 0, 0, 16],
        &[1, 5, 0, 1, 80, 0],
        &[1, 7, 0, 1, 0, 0],
        &[1, 8, 1, 0, 0, 0, 4],
        &[1, 3, 0, 1, 0, 0, 1, 1, 3, 4, 1, 0, 0, 1],
        &[1, 1, 2, 0, 9, 0, 16, 1, 8, 2, 0, 0, 0, 5],
    ] {
        seeds.push([good.as_slice(), damage].concat());
    }
    // The same in larger files, resized, and with a record that is not yet confirmed.
    for head in [[0, 13, 0, 0], [0, 0, 5, 0], [0, 6, 0, 13]] {
        seeds.push([&head, &good[4..]].concat());
    }
    // Arbitrary records: one of each kind, numbered from one.
    let any: Vec<u8> = (0..11).flat_map(|kind| [kind, kind % 3, 1, 0, 0, 0, 0, 0, 0, 0, 2, kind + 1, 1, 0]).collect();
    seeds.push([&[2, 5, 0, 0, 11], any.as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
    seeds.push([&[2, 5, 0, 0, 11], any.as_slice(), &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat());
    seeds.push([&[3, 0, 0], file_of_the_real_journal().as_slice()].concat());
    seeds.push(vec![3, 0, 0]);
    seeds
}

fn file_of_the_real_journal() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("journal");
    let records = [
        (json!({ "kind": "epoch_reset", "node_epoch": 1 }), Vec::new()),
        (json!({ "kind": "remembered", "task_id": TASK, "start_by": 5 }), vec![1, 2, 3]),
    ];
    gpuaas_agent::journal_fuzz_support::write(&path, 8192, &records, 1, 0).expect("written");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(8)));
    bytes
}

/// Returns configuration files with every key, with and without environment variables and a value to set.
fn configs() -> Vec<Vec<u8>> {
    let full = r#"# every key
server = ["control.example.com:7443", "https://other.example.com", "[::1]:9"]
state_dir = "/var/lib/gpuaas/agent"
policy_file = "/etc/gpuaas-agent/policy.toml"
heartbeat_interval = "15s" # short
metrics_interval = "1500ms"
request_timeout = "10s"
task_timeout = "1h"
shutdown_timeout = "0s"
log_drain_timeout = "5m"
transport = "auto"
max_tasks = 4
log_buffer_bytes = 67108864
journal_bytes = 67108864
log_level = "info"
simulate = "none"
"#;
    // No variables, and `max_tasks = 9` as the value to set.
    let plain = [0, 10, 1, b'9'];
    let mut seeds = vec![[&plain, full.as_bytes()].concat(), plain.to_vec()];
    for bad in
        ["max_task = 7\n", "[link]\nx = 1\n", "max_tasks = true", "server = \"http://x:1\"", "max_tasks = ", "state_dir = \"x\""]
    {
        seeds.push([&plain, bad.as_bytes()].concat());
    }
    for (number, key) in (0..).zip(Key::ALL) {
        let value: &[u8] = match key {
            Key::Server => b"a.example:1,https://b/",
            Key::StateDir | Key::PolicyFile | Key::SlicesDir | Key::ImagesDir | Key::DhcpHostsDir | Key::DnsmasqPidFile => {
                b"/srv/x"
            }
            Key::ImageFolders => b"/srv/x,/srv/y",
            Key::ImageCacheBytes => b"2147483648",
            Key::ConsoleBytes => b"65536",
            Key::HugePages => b"yes",
            Key::GuestTelemetryListen => b"10.77.0.1:9110",
            Key::HeartbeatInterval | Key::MetricsInterval | Key::RequestTimeout | Key::TaskTimeout => b"90s",
            Key::ShutdownTimeout | Key::LogDrainTimeout => b"2500ms",
            Key::Transport => b"poll",
            Key::MaxTasks => b"64",
            Key::LogBufferBytes | Key::JournalBytes => b"8388608",
            Key::LogLevel => b"trace",
            Key::Simulate => b"mi300x",
        };
        let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
        // As the value to set, and as a variable.
        seeds.push([&[0, number, length], value, b"max_tasks = 2 # few\n"].concat());
        seeds.push([&[1, 1, number, length], value, &plain[1..], b"max_tasks = 2\n"].concat());
    }
    seeds
}

fn policies() -> Vec<Vec<u8>> {
    let example = policy::example();
    let texts = [
        example.as_str(),
        "",
        "allowed_tasks = [\"diag.ping\"]\n[concurrency]\n\"diag.ping\" = 2\n",
        "allowed_tasks = [\"\\u0064iag.ping\", 'package.list']\nconcurrency = { \"package.list\" = 1 }\n",
        "concurrency.\"diag.ping\" = 0",
        "[slices]\npci_addresses = [\"*\"]\nimage_sources = [\"https://a/\"]\nemulation = \"fallback\"\ndestroys_per_hour = 3\n",
        "[slices]\nbridges = [\"br-slices\", \"*\"]\nimage_formats = [\"raw\"]\nusernames = [\"deb*\"]\nallow_graphics = true\n\
         driver_strategies = [\"cloud-init\"]\nmax_shutdown_seconds = 30\nimage_private_networks = [\"10.0.0.0/8\", \"::1\"]\n",
        "allowed_tasks = [\"shell.exec\"]",
        "allow_everything = true",
        "[[allowed_tasks]]\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Returns one message of every kind that a node sends.
fn from_node_messages() -> Vec<FromNode> {
    let task_id = TASK.to_string();
    let hello = Hello {
        protocol: 2,
        agent_version: "0.1.0".to_owned(),
        agent_instance_id: INSTANCE.to_string(),
        boot_id: "boot".to_owned(),
        node_epoch: EPOCH,
        verifier_set_version: 7,
        tasks: vec![TaskInHand { task_id: task_id.clone(), phase: 2 }],
        facts_json: FACTS.to_owned(),
        capacity: 4,
        notices: vec!["the journal was damaged".to_owned()],
        journal_fence_us: 1,
        resume_session: "sess_019b76daa80070008000000000000041".to_owned(),
        resume_proof: vec![7; 32],
        oldest_protocol: 2,
    };
    let heartbeat = Heartbeat { sequence: 1, sent_at_us: NOW.0, facts_json: FACTS.to_owned(), running: 1 };
    let line = LogLine {
        task_id: task_id.clone(),
        sequence: 1,
        at_us: NOW.0,
        stream: "stdout".to_owned(),
        text: "hello".to_owned(),
        dropped: 0,
    };
    let progress = Progress { task_id: task_id.clone(), phase: "mark".to_owned(), message: String::new(), at_us: NOW.0 };
    let rejection = Rejection { task_id: task_id.clone(), code: "key_unknown".to_owned(), message: "why".to_owned() };
    let messages = [
        from_node::Message::Hello(hello),
        from_node::Message::Heartbeat(heartbeat),
        from_node::Message::Ack(Ack { task_id: task_id.clone(), phase: 1, at_us: NOW.0 }),
        from_node::Message::Progress(progress),
        from_node::Message::Logs(LogChunk { lines: vec![line] }),
        from_node::Message::Receipt(SignedReceipt { task_id, receipt: b"{}".to_vec() }),
        from_node::Message::Metrics(Metrics { metrics_json: METRICS.to_owned() }),
        from_node::Message::Rejection(rejection),
        from_node::Message::Pong(Pong { nonce: 1 }),
    ];
    messages.map(FromNode::from).into()
}

/// Returns one message of every kind that a node receives.
fn to_node_messages() -> Vec<ToNode> {
    let task_id = TASK.to_string();
    let set = VerifierSet { version: 7, document: SET.document().sign(&KEYS.root) };
    let welcome = Welcome {
        session_id: "sess_019b76daa80070008000000000000041".to_owned(),
        cluster_id: CLUSTER.to_string(),
        server_time_us: NOW.0,
        heartbeat_seconds: 15,
        verifier_set: Some(set.clone()),
        poll_seconds: 30,
        resume_secret: vec![8; 32],
        protocol: 2,
        server_version: "0.1.0".to_owned(),
    };
    let messages = [
        to_node::Message::Welcome(welcome),
        to_node::Message::Offer(Offer { task_id: task_id.clone(), envelope: b"{}".to_vec() }),
        to_node::Message::Cancel(Cancel { task_id: task_id.clone(), reason: "why".to_owned() }),
        to_node::Message::VerifierSet(set),
        to_node::Message::ReceiptAck(ReceiptAck { task_id: task_id.clone(), rejected_code: String::new() }),
        to_node::Message::LogAck(LogAck { positions: vec![LogPosition { task_id, sequence: 9 }] }),
        to_node::Message::Ping(Ping { nonce: u64::MAX }),
        to_node::Message::Goodbye(Goodbye { code: "bye".to_owned(), message: String::new(), retry_after_seconds: 5 }),
    ];
    messages.map(ToNode::from).into()
}

fn messages() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = vec![vec![0], vec![1, 0xff]];
    seeds.extend(from_node_messages().iter().map(|message| [&[0], message.encode_to_vec().as_slice()].concat()));
    seeds.extend(to_node_messages().iter().map(|message| [&[1], message.encode_to_vec().as_slice()].concat()));
    seeds
}

const FACTS: &str =
    r#"{"hostname":"h","gpus":[{"pci_address":"0000:17:00.0","numa_node":-1}],"disks":[{"size_bytes":1}],"networks":[{}]}"#;
const METRICS: &str = r#"{"at":1767225600000000,"cpu_percent":5,"gpus":[{"pci_address":"0000:17:00.0","power_milliwatts":1}]}"#;
/// A certificate request. Its private key was discarded.
const REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIHRMHgCAQAwFjEUMBIGA1UEAwwLZ3B1YWFzIG5vZGUwWTATBgcqhkjOPQIBBggq
hkjOPQMBBwNCAAQU3ees2Thxj8pRnIv5oizzat3hPkkzoF9VlcYOdoKWcaxHNMJB
tISpowzVh3t/Inc8HZge3JBs5F52cfl7FLK+oAAwCgYIKoZIzj0EAwIDSQAwRgIh
AMvuypkgq1SEbjc4Ix3i71J4e/ELYfBuo0Y2jSXN8RSuAiEAy3wrVhVo/TecXnKk
76pdZRQYSF3ZoLvfYxnV8cSMB+4=
-----END CERTIFICATE REQUEST-----
";

fn value(message: &impl serde::Serialize) -> Value {
    serde_json::to_value(message).expect("a message serializes")
}

/// Returns one body of every kind, each after the byte that selects it.
fn bodies() -> Vec<Vec<u8>> {
    let facts: Value = serde_json::from_str(FACTS).expect("JSON");
    let applicant = json!({
        "fingerprint": "0123456789abcdef0123456789abcdef", "csr_pem": REQUEST,
        "receipt_key": KEYS.node.verifying_key(), "facts": facts,
    });
    let proof = json!({ "cluster_id": CLUSTER, "node_id": NODE, "node_epoch": EPOCH, "challenge": "1.mac", "csr_pem": REQUEST });
    let signed = dsse::seal(REJOIN_PAYLOAD_TYPE, proof.to_string().into_bytes(), &KEYS.node);
    let rejoin = Rejoin { node_id: NODE, proof: signed };
    let grant = Grant {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        certificate_pem: String::new(),
        ca_pem: String::new(),
        root_key: KEYS.root.verifying_key(),
        verifier_set: SET.document().sign(&KEYS.root),
        server_time: NOW,
    };
    let mut bodies: Vec<(u8, Value)> = Vec::new();
    for message in from_node_messages() {
        bodies.push((3, value(&message)));
        match message.message {
            Some(from_node::Message::Hello(hello)) => bodies.push((0, value(&hello))),
            Some(from_node::Message::Heartbeat(beat)) => bodies.push((1, value(&beat))),
            Some(from_node::Message::Metrics(sample)) => bodies.push((2, value(&sample))),
            Some(from_node::Message::Logs(chunk)) => bodies.push((4, value(&chunk))),
            Some(_) | None => {}
        }
    }
    let to_node = to_node_messages();
    bodies.push((11, value(&Messages { messages: to_node.clone() })));
    for message in to_node {
        match message.message {
            Some(to_node::Message::Welcome(welcome)) => bodies.push((10, value(&welcome))),
            Some(to_node::Message::LogAck(ack)) => bodies.push((12, value(&ack))),
            Some(to_node::Message::ReceiptAck(ack)) => bodies.push((13, value(&ack))),
            Some(_) | None => {}
        }
    }
    bodies.extend([
        (5, json!({ "token": "gpj_secret", "applicant": applicant })),
        (6, json!({ "email": "ops@example.com", "applicant": applicant })),
        (7, json!({ "csr_pem": REQUEST })),
        (8, json!({ "node_id": NODE })),
        (9, value(&rejoin)),
        (14, json!({ "enrollment_id": "enroll_019b76daa80070008000000000000051", "poll_secret": "gpe_x", "expires_at": NOW })),
        (15, json!({ "status": "pending" })),
        (15, json!({ "status": "rejected", "reason": "no" })),
        (15, json!({ "status": "approved", "grant": value(&grant) })),
        (16, value(&grant)),
        (17, json!({ "certificate_pem": "" })),
        (18, json!({ "challenge": "1.mac" })),
        (19, proof),
    ]);
    let mut seeds: Vec<Vec<u8>> =
        bodies.into_iter().map(|(number, body)| [&[number], body.to_string().as_bytes()].concat()).collect();
    seeds.push([&[19], REQUEST.as_bytes()].concat());
    seeds.extend((0..20).map(|number| vec![number]));
    seeds
}
