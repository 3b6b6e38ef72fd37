//! Effects are never outside compiled handler ∩ host policy ∩ signed task, whatever is signed, manipulated and allowed.
//!
//! Random tasks go through the real pipeline of a simulated host whose owner changes the policy at the same time. An oracle that
//! knows what was done to each envelope, and nothing of the verifier, decides what may run. `cargo xtask prove authority` runs a
//! million.

mod owner;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::dsse;
use gpuaas_contract::envelope::{MAX_BYTES, PAYLOAD_TYPE};
use gpuaas_contract::id::{AgentInstanceId, AllocationId, ClusterId, CorrelationId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::from_node::Message;
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::task::TaskType;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{self, Document, Entry, KeyState};
use gpuaas_host::users::MachineLease;
use gpuaas_host::{Host, Profile, SimHost};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Limits, Parts, Pipeline, Round};
use crate::journal::Journal;
use crate::policy::Policy;
use crate::spool::Spool;
use crate::trust::Trust;
use owner::Owner;

const EPOCH: u64 = 7;
/// Tasks between two changes of the policy.
const BATCH: usize = 250;
/// Policies that a host gets one after the other.
const POLICIES: usize = 4;

/// Random numbers derived from the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("fits")
    }

    fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn seconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_secs(from + self.next() % (to - from))
    }
}

/// Returns a signing key: its state in the node's verifier set, or `None` for a key that is not in it.
fn key(state: Option<KeyState>) -> SigningKey {
    SigningKey::from_seed(&[state.map_or(99, |state| 10 + state as u8); 32])
}

fn root() -> SigningKey {
    SigningKey::from_seed(&[1; 32])
}

fn receipt_key() -> SigningKey {
    SigningKey::from_seed(&[2; 32])
}

/// A manipulation of an authentic task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spoil {
    Nothing,
    Key,
    KeyName,
    PayloadType,
    Cluster,
    Node,
    Epoch,
    TypeUnknown,
    ParamsOfAnother,
    ParamUnknown,
    ParamsInvalid,
    FieldUnknown,
    FieldMissing,
    FieldTwice,
    Expired,
    Early,
    Window,
    Deadline,
    PayloadChanged,
    BitFlipped,
    Cut,
    Appended,
    SignedTwice,
    Oversized,
    Lease,
}

const SPOILS: [Spoil; 24] = [
    Spoil::Key,
    Spoil::KeyName,
    Spoil::PayloadType,
    Spoil::Cluster,
    Spoil::Node,
    Spoil::Epoch,
    Spoil::TypeUnknown,
    Spoil::ParamsOfAnother,
    Spoil::ParamUnknown,
    Spoil::ParamsInvalid,
    Spoil::FieldUnknown,
    Spoil::FieldMissing,
    Spoil::FieldTwice,
    Spoil::Expired,
    Spoil::Early,
    Spoil::Window,
    Spoil::Deadline,
    Spoil::PayloadChanged,
    Spoil::BitFlipped,
    Spoil::Cut,
    Spoil::Appended,
    Spoil::SignedTwice,
    Spoil::Oversized,
    Spoil::Lease,
];

/// One envelope and the oracle's knowledge of it.
#[derive(Debug)]
struct Case {
    task_id: TaskId,
    kind: TaskType,
    message: String,
    params: Value,
    spoil: Spoil,
    envelope: Vec<u8>,
}

/// One of these texts, as JSON.
fn one_of(random: &mut Random, texts: &[&str]) -> Value {
    serde_json::from_str(random.of::<&str>(texts)).expect("JSON")
}

fn params(random: &mut Random, kind: TaskType, message: &str, holder: (&str, u64)) -> Value {
    if kind.needs_lease() {
        return owner::leased_params(random, kind, holder);
    }
    if kind == TaskType::DiagPing {
        return json!({ "message": message, "log_lines": random.below(3) });
    }
    one_of(random, kind.examples().params)
}

struct Harness {
    cluster_id: ClusterId,
    node_id: NodeId,
}

impl Harness {
    fn case(&self, random: &mut Random, spoil: Spoil) -> Case {
        let (task_id, kind) = (TaskId::generate(), *random.of(&TaskType::ALL));
        let message = format!("{} {:016x}", random.of(&["short", "größer", "with \"quotes\" and \\", ""]), random.next());
        let allocation = AllocationId::generate().to_string();
        let params = params(random, kind, &message, (&allocation, 1));
        let now = Timestamp::now();
        let issued_at = now.minus(random.seconds(0, 50));
        let start_by = issued_at.plus(random.seconds(120, 900));
        let mut payload = json!({
            "cluster_id": self.cluster_id,
            "node_id": self.node_id,
            "node_epoch": EPOCH,
            "task_id": task_id,
            "task_type": kind.as_str(),
            "params": params,
            "issued_at": issued_at,
            "start_by": start_by,
            "deadline": start_by.plus(random.seconds(0, 86_400)),
            "correlation_id": CorrelationId::generate().as_str(),
        });
        if kind.needs_lease() {
            payload["allocation_id"] = json!(allocation);
            payload["lease_epoch"] = json!(1);
        }
        // The verifier accepts signatures of active keys and of those in their grace period.
        let mut signer = key(Some(*random.of(&[KeyState::Active, KeyState::Active, KeyState::Grace])));
        let mut payload_type = PAYLOAD_TYPE;
        self.spoil_payload(random, spoil, kind, now, &mut payload);
        if spoil == Spoil::Key {
            let strangers = [
                key(None),
                key(Some(KeyState::Staged)),
                key(Some(KeyState::Retired)),
                key(Some(KeyState::Revoked)),
                root(),
                receipt_key(),
            ];
            signer = SigningKey::from_seed(&random.of(&strangers).seed());
        }
        if spoil == Spoil::PayloadType {
            let others = [receipt::PAYLOAD_TYPE, verifier_set::PAYLOAD_TYPE, "application/vnd.gpuaas.task.v2+json", ""];
            payload_type = *random.of(&others);
        }
        let mut text = payload.to_string();
        if spoil == Spoil::FieldTwice {
            let field = *random.of(&["node_epoch", "task_type", "task_id", "start_by"]);
            text = text.replacen('{', &format!("{{\"{field}\":{},", payload[field]), 1);
        }
        let envelope = dsse::seal(payload_type, text.into_bytes(), &signer);
        let envelope = spoil_envelope(random, spoil, envelope);
        Case { task_id, kind, message, params, spoil, envelope }
    }

    fn spoil_payload(&self, random: &mut Random, spoil: Spoil, kind: TaskType, now: Timestamp, payload: &mut Value) {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        match spoil {
            Spoil::Cluster => payload["cluster_id"] = json!(ClusterId::generate()),
            Spoil::Node => payload["node_id"] = json!(NodeId::generate()),
            Spoil::Epoch => payload["node_epoch"] = json!(*random.of(&[0, EPOCH - 1, EPOCH + 1, u64::MAX])),
            Spoil::TypeUnknown => {
                let names = ["shell.exec", "diag.Ping", "diag.ping ", "", "diag", "slice.provision", "diag.ping\u{0}"];
                payload["task_type"] = json!(*random.of(&names));
            }
            Spoil::ParamsOfAnother => {
                payload["params"] = if kind == TaskType::DiagPing { json!({ "limit": 1 }) } else { json!({ "message": "ping" }) };
            }
            Spoil::ParamUnknown => payload["params"]["command"] = json!("/bin/true"),
            Spoil::ParamsInvalid => payload["params"] = one_of(random, kind.examples().refused_params),
            Spoil::FieldUnknown => payload["policy"] = json!({ "allowed_tasks": ["diag.ping"] }),
            Spoil::FieldMissing => {
                let fields = [
                    "cluster_id",
                    "node_id",
                    "node_epoch",
                    "task_id",
                    "task_type",
                    "params",
                    "issued_at",
                    "start_by",
                    "deadline",
                ];
                payload.as_object_mut().expect("an object").remove(*random.of(&fields));
            }
            // A minute is the accepted skew; half a minute more is the margin of this test.
            Spoil::Expired => {
                let issued_at = now.minus(random.seconds(600, 90_000));
                payload["issued_at"] = json!(issued_at);
                payload["start_by"] = json!(issued_at.plus(random.seconds(0, 500)));
                payload["deadline"] = json!(now.plus(minutes(10)));
            }
            Spoil::Early => {
                let issued_at = now.plus(random.seconds(90, 90_000));
                payload["issued_at"] = json!(issued_at);
                payload["start_by"] = json!(issued_at.plus(minutes(5)));
                payload["deadline"] = json!(issued_at.plus(minutes(6)));
            }
            Spoil::Window => {
                let window = if random.below(2) == 0 { now.plus(random.seconds(1000, 90_000)) } else { now.minus(minutes(2)) };
                payload["start_by"] = json!(window);
                payload["deadline"] = json!(window.plus(minutes(20)));
                payload["issued_at"] = json!(now);
            }
            Spoil::Deadline => {
                let start_by = now.plus(minutes(5));
                payload["issued_at"] = json!(now);
                payload["start_by"] = json!(start_by);
                payload["deadline"] = if random.below(2) == 0 {
                    json!(start_by.minus(minutes(1)))
                } else {
                    json!(start_by.plus(minutes(24 * 60 + 1)))
                };
            }
            // Another lease than that of its parameters, or an invalid number.
            Spoil::Lease => {
                payload["allocation_id"] = json!(AllocationId::generate());
                payload["lease_epoch"] = if kind.needs_lease() { json!(*random.of(&[1, 2])) } else { json!("1") };
            }
            Spoil::Nothing
            | Spoil::Key
            | Spoil::KeyName
            | Spoil::PayloadType
            | Spoil::FieldTwice
            | Spoil::PayloadChanged
            | Spoil::BitFlipped
            | Spoil::Cut
            | Spoil::Appended
            | Spoil::SignedTwice
            | Spoil::Oversized => {}
        }
    }
}

/// Applies what an attacker without a key can do.
fn spoil_envelope(random: &mut Random, spoil: Spoil, mut envelope: Vec<u8>) -> Vec<u8> {
    let parsed = || serde_json::from_slice::<Value>(&envelope).expect("DSSE is JSON");
    match spoil {
        Spoil::KeyName => {
            let mut wire = parsed();
            let own = wire["signatures"][0]["keyid"].clone();
            let trusted = [KeyState::Active, KeyState::Grace].map(|state| json!(key(Some(state)).verifying_key().id().as_str()));
            wire["signatures"][0]["keyid"] = trusted.into_iter().find(|name| *name != own).expect("there are two");
            wire.to_string().into_bytes()
        }
        Spoil::PayloadChanged => {
            use base64::Engine as _;
            let engine = base64::engine::general_purpose::STANDARD;
            let mut wire = parsed();
            let payload = engine.decode(wire["payload"].as_str().expect("text")).expect("base64");
            let mut payload: Value = serde_json::from_slice(&payload).expect("JSON");
            payload["task_type"] = json!("diag.ping");
            payload["params"] = json!({ "message": "forged" });
            wire["payload"] = json!(engine.encode(payload.to_string()));
            wire.to_string().into_bytes()
        }
        Spoil::BitFlipped => {
            let bit = random.below(envelope.len() * 8);
            envelope[bit / 8] ^= 1 << (bit % 8);
            envelope
        }
        Spoil::Cut => {
            envelope.truncate(random.below(envelope.len()));
            envelope
        }
        Spoil::Appended => {
            envelope.push(*random.of(b"x{\"0,"));
            envelope
        }
        Spoil::SignedTwice => {
            let mut wire = parsed();
            let signature = wire["signatures"][0].clone();
            wire["signatures"].as_array_mut().expect("a list").push(signature);
            wire.to_string().into_bytes()
        }
        Spoil::Oversized => {
            envelope.resize(MAX_BYTES + 1 + random.below(1000), b' ');
            envelope
        }
        Spoil::Nothing
        | Spoil::Key
        | Spoil::PayloadType
        | Spoil::Cluster
        | Spoil::Node
        | Spoil::Epoch
        | Spoil::TypeUnknown
        | Spoil::ParamsOfAnother
        | Spoil::ParamUnknown
        | Spoil::ParamsInvalid
        | Spoil::FieldUnknown
        | Spoil::FieldMissing
        | Spoil::FieldTwice
        | Spoil::Expired
        | Spoil::Early
        | Spoil::Window
        | Spoil::Deadline
        | Spoil::Lease => envelope,
    }
}

/// Writes a random policy and returns what it allows. While the file cannot be trusted, nothing is allowed.
fn write_policy(random: &mut Random, path: &Path, first: bool) -> Owner {
    let owner = Owner::random(random);
    let mut text = owner.text();
    if let Some(kind) = owner.tasks.first()
        && random.below(3) == 0
    {
        text.push_str(&format!("[concurrency]\n\"{kind}\" = {}\n", 1 + random.below(3)));
    }
    let (mut mode, mut trusted) = (0o644, true);
    // The agent does not start with an untrusted policy, but the policy can become untrusted later.
    if !first && random.below(4) == 0 {
        trusted = false;
        match random.below(3) {
            0 => mode = *random.of(&[0o666, 0o664, 0o622, 0o777]),
            1 => text.insert_str(0, "everything = true\n"),
            _ => text.insert(0, '['),
        }
    }
    gpuaas_host::private_file::write_with_mode(path, text.as_bytes(), 0o600).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    if trusted { owner } else { Owner::default() }
}

/// A host with its pipeline.
struct Bench {
    harness: Harness,
    folder: tempfile::TempDir,
    pipeline: Pipeline,
    round: Round,
    report: mpsc::Receiver<Message>,
    sequence: u64,
    marks: usize,
    /// The destructive tasks so far; the hour of this host has not passed.
    destroyed: BTreeMap<TaskType, usize>,
    host: SimHost,
    /// Holds the whole machine, so that tasks on slots or users stop at their first step.
    lease: MachineLease,
}

impl Bench {
    async fn start(random: &mut Random) -> (Self, Owner) {
        let harness = Harness { cluster_id: ClusterId::generate(), node_id: NodeId::generate() };
        // In memory if possible: the speed of a disk does not matter here.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("folder");
        let allowed = write_policy(random, &folder.path().join("policy.toml"), true);
        let states = [KeyState::Staged, KeyState::Active, KeyState::Grace, KeyState::Retired, KeyState::Revoked];
        let keys = states.map(|state| {
            let public_key = key(Some(state)).verifying_key();
            Entry { key_id: public_key.id(), public_key, state }
        });
        let document = Document { cluster_id: harness.cluster_id, version: 1, issued_at: Timestamp(1), keys: keys.into() };
        let trust = Trust::new(&folder.path().join("set"), &document.sign(&root()), root().verifying_key(), harness.cluster_id);
        let (journal, opened) = Journal::open(folder.path(), 48 << 20, Timestamp::now()).expect("journal");
        let host = SimHost::open(&folder.path().join("host"), Profile::H100, "authority").expect("host");
        let somebody = AllocationId::generate();
        let lease = MachineLease {
            allocation_id: somebody,
            lease_epoch: 1 << 40,
            task_id: TaskId::generate(),
            username: "somebody".parse().expect("a name"),
            user_of: somebody,
            uid: None,
            adopted: false,
            leaving: false,
            taken_at: Timestamp::now(),
        };
        Host::Sim(host.clone()).machine_lease_take(&lease, false).await.expect("leased");
        let (outbound, report) = mpsc::channel(1 << 16);
        let parts = Parts {
            cluster_id: harness.cluster_id,
            node_id: harness.node_id,
            node_epoch: EPOCH,
            receipt_key: receipt_key(),
            instance_id: AgentInstanceId::generate(),
            boot_id: "boot".to_owned(),
            trust: Arc::new(trust.expect("trusted")),
            journal,
            policy: Arc::new(
                Policy::load(&folder.path().join("policy.toml")).expect("policy").counting_in(folder.path()).expect("counts"),
            ),
            host: Host::Sim(host.clone()),
            guests: crate::guests::Guests::new(None),
            spool: Spool::open(&folder.path().join("logs"), 8 << 20).expect("spool"),
            outbound,
            limits: Limits {
                max_tasks: 8,
                journal_bytes: 48 << 20,
                task_timeout: Duration::from_secs(60),
                log_drain_timeout: Duration::from_secs(5),
            },
        };
        let pipeline = Pipeline::start(parts, opened).await.expect("starts");
        let round = pipeline.begin_round().1;
        let destroyed = BTreeMap::new();
        (Self { harness, folder, round, pipeline, report, sequence: 0, marks: 0, destroyed, host, lease }, allowed)
    }

    /// Waits until all offers are answered and all tasks have ended.
    async fn settle(&self) {
        self.pipeline.inner.tracker.close();
        self.pipeline.inner.tracker.wait().await;
        self.pipeline.inner.tracker.reopen();
    }

    /// Offers the cases in random order, some of them twice, and compares what happened with what may happen.
    async fn run(&mut self, random: &mut Random, cases: &[Case], allowed: &Owner, context: &str) {
        for case in cases {
            // The id beside the envelope is not signed and must not matter.
            let offered = if random.below(8) == 0 { TaskId::generate() } else { case.task_id };
            for _ in 0..1 + usize::from(random.below(10) == 0) {
                self.pipeline.offer(self.round, offered.to_string(), case.envelope.clone());
            }
        }
        self.settle().await;
        let may: BTreeMap<TaskId, &Case> = cases
            .iter()
            .filter(|case| case.spoil == Spoil::Nothing && allowed.allows(case.kind, &case.params))
            .map(|case| (case.task_id, case))
            .collect();
        let spoil_of = |id: &TaskId| cases.iter().find(|case| case.task_id == *id).map(|case| (case.spoil, case.kind));

        // Handlers report a phase before they touch the host, and enter each phase once.
        let mut entered: BTreeMap<(TaskId, String), usize> = BTreeMap::new();
        while let Ok(message) = self.report.try_recv() {
            if let Message::Progress(progress) = message {
                *entered.entry((progress.task_id.parse().expect("an id"), progress.phase)).or_default() += 1;
            }
        }
        for ((id, _), times) in &entered {
            assert!(may.contains_key(id), "{context}: {id} {:?} reached a handler; {allowed:?}", spoil_of(id));
            // Tasks with leases report a phase repeatedly while they undo it; their one receipt is counted below.
            let once = may.get(id).is_some_and(|case| !case.kind.needs_lease());
            assert!(!once || *times == 1, "{context}: {id} ran {times} times");
        }
        let text = std::fs::read_to_string(self.folder.path().join("host/ping.log")).unwrap_or_default();
        let mut marked = BTreeSet::new();
        for line in text.lines().skip(self.marks) {
            let mut words = line.splitn(3, ' ');
            let id: TaskId = words.next().expect("an id").parse().expect("an id");
            let case = may.get(&id).unwrap_or_else(|| panic!("{context}: {id} {:?} left a mark", spoil_of(&id)));
            assert_eq!((case.kind, words.nth(1)), (TaskType::DiagPing, Some(case.message.as_str())), "{context}: {id}");
            assert!(marked.insert(id), "{context}: {id} left two marks");
        }
        self.marks += marked.len();

        let (mut started, mut refused) = (BTreeSet::new(), BTreeSet::new());
        while let Some((unreported, bytes)) = self.pipeline.next_receipt(self.sequence).await {
            self.sequence = unreported.sequence;
            let payload = dsse::payload_unverified(&bytes).expect("DSSE");
            let report: receipt::Payload = serde_json::from_slice(&payload).expect("a receipt");
            let kind = may.get(&report.task_id).map(|case| case.kind);
            match report.outcome {
                // The machine is leased: tasks on slots or users start and fail.
                Outcome::Failed if kind.is_some_and(TaskType::needs_lease) => {
                    assert!(["machine_leased", "lease_missing"].contains(&report.code.as_str()), "{context}: {report:?}");
                    assert!(started.insert(report.task_id), "{context}: {} has two receipts", report.task_id);
                }
                Outcome::Succeeded => assert!(started.insert(report.task_id), "{context}: {} has two receipts", report.task_id),
                Outcome::Refused => {
                    assert!(report.started_at.is_none(), "{context}: {report:?}");
                    refused.insert(report.task_id);
                }
                Outcome::Failed | Outcome::Cancelled | Outcome::Interrupted => panic!("{context}: {report:?}"),
            }
            self.pipeline.reported(report.task_id, "");
        }
        self.settle().await;
        // Not only nothing else, but all of it: a pipeline that refuses everything would prove nothing.
        for kind in TaskType::ALL {
            let of_kind = |id: &&TaskId| may.get(id).is_some_and(|case| case.kind == kind);
            let (wanted, ran) = (may.keys().filter(of_kind).count(), started.iter().filter(of_kind).count());
            let before = self.destroyed.entry(kind).or_default();
            // Which of them are within the budget is random; their number is not.
            let within = allowed.per_hour(kind).map_or(wanted, |limit| wanted.min(limit.saturating_sub(*before)));
            assert_eq!(ran, within, "{context}: {kind}, {before} before; {allowed:?}");
            *before += ran;
        }
        let may: BTreeSet<TaskId> = may.into_keys().collect();
        assert_eq!(started.union(&refused).filter(|id| may.contains(id)).count(), may.len(), "{context}: all were answered");
        assert!(started.is_subset(&may) && started.is_disjoint(&refused), "{context}");
        assert!(entered.keys().all(|(id, _)| started.contains(id)), "{context}");
        assert_eq!(self.host.violations(), [""; 0], "{context}");
        assert_eq!(Host::Sim(self.host.clone()).machine_lease().await, Ok(Some(self.lease.clone())), "{context}");
    }
}

/// Returns the number of tasks: 20,000, or a million in the long form, or the requested number.
fn count() -> usize {
    let long = std::env::var("GPUAAS_PROVE").is_ok_and(|form| form == "long");
    let wanted = std::env::var("GPUAAS_PROVE_COUNT").ok().map(|count| count.parse().expect("GPUAAS_PROVE_COUNT is a number"));
    if long { wanted.unwrap_or(1_000_000) } else { 20_000 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_effect_is_outside_of_what_is_compiled_allowed_and_signed() {
    let (mut tried, mut could_run) = (0, 0);
    let mut seed = 0;
    while tried < count() {
        seed += 1;
        let mut random = Random(seed);
        let (mut bench, mut allowed) = Bench::start(&mut random).await;
        for number in 0..POLICIES {
            if number > 0 {
                allowed = write_policy(&mut random, &bench.folder.path().join("policy.toml"), false);
            }
            let cases: Vec<Case> = (0..BATCH)
                .map(|_| {
                    let spoil = if random.below(3) == 0 { Spoil::Nothing } else { *random.of(&SPOILS) };
                    bench.harness.case(&mut random, spoil)
                })
                .collect();
            could_run +=
                cases.iter().filter(|case| case.spoil == Spoil::Nothing && allowed.allows(case.kind, &case.params)).count();
            bench.run(&mut random, &cases, &allowed, &format!("seed {seed}, policy {number}")).await;
            tried += cases.len();
        }
    }
    eprintln!("{tried} random tasks on {seed} hosts with {} policies: {could_run} were allowed", seed * POLICIES as u64);
    assert!(could_run > tried / 20, "only {could_run} of {tried} tasks could run");
}
