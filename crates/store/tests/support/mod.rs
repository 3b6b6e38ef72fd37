//! A database per test, on either engine, and rows to put into it.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::event::{Event, TaskQueued, TaskRef};
use gpuaas_contract::id::{
    AgentInstanceId, AllocationId, ApiTokenId, CorrelationId, EnrollmentId, JoinTokenId, NodeId, ServerId, SessionId, SlotId,
    TaskId,
};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::telemetry::{DiskFact, GpuFact, HostFacts, NetworkFact};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, PlatformRole, PrincipalId};
use gpuaas_domain::decision::Context;
use gpuaas_domain::enrollment::{Enrollment, EnrollmentState, JoinToken};
use gpuaas_domain::node::{Certificate, LinkTransport, LiveSession, Node, NodeService};
use gpuaas_domain::resource::{Document, Keys, ResourceKind};
use gpuaas_domain::slot::{Slot, SlotState};
use gpuaas_domain::task::{TaskRecord, TaskState};
use gpuaas_domain::{Actor, Change, Decision};
use gpuaas_store::{Store, StoreConfig};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// A fresh database that is removed with this value.
pub(crate) struct Database {
    pub(crate) config: StoreConfig,
    folder: Option<tempfile::TempDir>,
    server: Option<(String, String)>,
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("gpuaas.db");
        Self { config: StoreConfig::Sqlite { path }, folder: Some(folder), server: None }
    }

    /// Creates a database on the server in `GPUAAS_TEST_PG_URL`. Prints a line if there is none.
    pub(crate) async fn postgres(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Ok(server) = std::env::var("GPUAAS_TEST_PG_URL") else {
            // Bypasses the test harness, which hides the output of passing tests.
            let line = format!("SKIPPED on PostgreSQL: {test} (set GPUAAS_TEST_PG_URL to the address of a server to run it)\n");
            std::io::stderr().write_all(line.as_bytes()).expect("stderr");
            return None;
        };
        let name = format!("gpuaas_store_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&server).await.expect("the test server answers");
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.expect("a database is made");
        admin.close().await.expect("closes");
        let (before, _) = server.rsplit_once('/').expect("the address ends in a database name");
        let url = format!("{before}/{name}");
        let config = StoreConfig::Postgres { url, max_connections: 6 };
        Some(Self { config, folder: None, server: Some((server, name)) })
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open(&self.config).await.expect("the store opens")
    }

    /// Removes the database. Not in `Drop`, which cannot wait.
    pub(crate) async fn remove(self) {
        if let Some((server, name)) = self.server {
            let mut admin = PgConnection::connect(&server).await.expect("the test server answers");
            let drop = format!("DROP DATABASE {name} WITH (FORCE)");
            sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await.expect("the database is dropped");
        }
        drop(self.folder);
    }
}

/// Declares tests that run on both engines: `async fn name(database: &Database)`.
#[macro_export]
macro_rules! on_both_engines {
    ($($name:ident)*) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let database = $crate::support::Database::sqlite();
                    super::$name(&database).await;
                    database.remove().await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(database) = $crate::support::Database::postgres(stringify!($name)).await {
                        super::$name(&database).await;
                        database.remove().await;
                    }
                }
            )*
        }
    };
}

pub(crate) const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

pub(crate) fn later(seconds: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(seconds))
}

pub(crate) fn context() -> Context {
    Context { now: NOW, actor: Actor::System, correlation_id: CorrelationId::generate() }
}

pub(crate) fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn facts() -> HostFacts {
    HostFacts {
        simulated: true,
        hostname: "rack-1 ü \"quoted\"".to_owned(),
        os: "Debian".to_owned(),
        kernel: "6.1".to_owned(),
        architecture: "x86_64".to_owned(),
        agent_version: "0.1.0".to_owned(),
        cpu_model: "model".to_owned(),
        cpu_threads: 192,
        memory_bytes: u64::MAX,
        gpus: vec![GpuFact { pci_address: "0000:17:00.0".to_owned(), numa_node: -1, ..GpuFact::default() }],
        disks: vec![DiskFact { name: "nvme0n1".to_owned(), size_bytes: 7, ..DiskFact::default() }],
        networks: vec![NetworkFact { name: "eth0".to_owned(), up: true, ..NetworkFact::default() }],
        allowed_tasks: Some(vec!["diag.ping".to_owned()]),
    }
}

/// Returns a node with something in every field.
pub(crate) fn node() -> Node {
    let id = NodeId::generate();
    Node {
        id,
        version: 0,
        name: "rack-1".to_owned(),
        fingerprint: digest(&id.to_string()).to_string(),
        epoch: 3,
        receipt_key: SigningKey::from_seed(&[7; 32]).verifying_key(),
        tls_key_digest: digest("tls"),
        record: vec![0, 1, 255],
        service: NodeService::InService,
        service_reason: "because".to_owned(),
        session: Some(LiveSession {
            id: SessionId::generate(),
            agent_instance_id: AgentInstanceId::generate(),
            boot_id: "boot".to_owned(),
            transport: LinkTransport::Poll,
            since: later(1),
            server: ServerId::generate(),
        }),
        last_seen_at: Some(later(2)),
        facts: facts(),
        rejoins: 4,
        created_at: NOW,
        enrolled_at: later(3),
    }
}

/// Returns a queued task with something in every field that a queued task may have.
pub(crate) fn task(node: &Node) -> TaskRecord {
    TaskRecord {
        id: TaskId::generate(),
        version: 0,
        node_id: node.id,
        node_epoch: node.epoch,
        task_type: TaskType::DiagPing,
        params: r#"{"message":"hé"}"#.to_owned(),
        state: TaskState::Queued,
        requested_by: "token:x".to_owned(),
        correlation_id: CorrelationId::generate(),
        idempotency_key: None,
        intent: "mac".to_owned(),
        created_at: NOW,
        queue_until: later(600),
        timeout: Duration::from_micros(1_234_567),
        dispatches: 0,
        lease_until: None,
        envelope_start_by: None,
        cancel_requested_at: None,
        accepted_at: None,
        started_at: None,
        ended_at: None,
        code: String::new(),
        message: String::new(),
        receipt_digest: None,
    }
}

pub(crate) fn certificate(node: &Node, serial: &str) -> Certificate {
    Certificate {
        serial: serial.to_owned(),
        node_id: node.id,
        node_epoch: node.epoch,
        not_before: NOW,
        not_after: later(86_400),
        revoked_at: None,
    }
}

pub(crate) fn join_token() -> JoinToken {
    let id = JoinTokenId::generate();
    JoinToken {
        id,
        version: 0,
        secret_digest: digest(&id.to_string()),
        note: "rack 1".to_owned(),
        created_at: NOW,
        expires_at: later(900),
        uses: 3,
        used: Vec::new(),
        revoked_at: None,
        replace_node: None,
    }
}

pub(crate) fn enrollment() -> Enrollment {
    let id = EnrollmentId::generate();
    Enrollment {
        id,
        version: 0,
        state: EnrollmentState::Pending,
        email: "ops@example.org".to_owned(),
        fingerprint: digest(&id.to_string()).to_string(),
        csr_pem: "-----BEGIN".to_owned(),
        receipt_key: SigningKey::from_seed(&[9; 32]).verifying_key(),
        facts: facts(),
        poll_secret_digest: digest("poll"),
        reason: "none".to_owned(),
        address: "192.0.2.1".to_owned(),
        node_id: None,
        created_at: NOW,
        expires_at: later(86_400),
        replace_node: None,
    }
}

pub(crate) fn api_token() -> ApiToken {
    let id = ApiTokenId::generate();
    ApiToken {
        id,
        version: 0,
        name: "ci".to_owned(),
        role: Some(PlatformRole::Support),
        service_account: None,
        project: None,
        parent: Some(ApiTokenId::generate()),
        created_by: Some(PrincipalId::LocalAdmin),
        scopes: None,
        secret_digest: digest(&id.to_string()),
        created_at: NOW,
        expires_at: None,
        revoked_at: None,
    }
}

/// Returns a resource of this kind with nothing but an id.
pub(crate) fn document(kind: ResourceKind, id: &str) -> Document {
    let keys = Keys { state: "active", ..Keys::default() };
    let body = serde_json::json!({ "id": id }).to_string();
    Document { kind, id: id.to_owned(), version: 0, keys, body, seal: format!("seal of {id}") }
}

/// Returns a decision with only these changes.
pub(crate) fn changes(changes: impl IntoIterator<Item = Change>) -> Decision {
    Decision { changes: changes.into_iter().collect(), ..Decision::default() }
}

/// Returns the same decision with an event and an audit row.
pub(crate) fn recorded(subject: &str, list: impl IntoIterator<Item = Change>) -> Decision {
    let data = serde_json::json!({ "subject": subject, "odd": "\u{0}\"ü" });
    changes(list).record(&context(), subject, event(data))
}

/// An event that takes any data: that of a new task, as its parameters.
pub(crate) fn event(params: serde_json::Value) -> Event {
    let task = TaskRef { task_id: TaskId::from_bytes([7; 16]), node_id: NodeId::from_bytes([8; 16]) };
    Event::TaskQueued(TaskQueued { task, task_type: "diag.ping".to_owned(), params: Some(params) })
}

/// Stores a new node.
pub(crate) async fn stored_node(store: &Store) -> Node {
    let node = node();
    store.commit(changes([Change::NodeInsert(Box::new(node.clone()))])).await.expect("the node is written");
    node
}

/// Stores a new task.
pub(crate) async fn stored_task(store: &Store, node: &Node) -> TaskRecord {
    let task = task(node);
    store.commit(changes([Change::TaskInsert(Box::new(task.clone()))])).await.expect("the task is written");
    task
}

/// Returns a task that acts on the slots of an allocation.
pub(crate) fn console_read(node: &Node, allocation: AllocationId) -> TaskRecord {
    let params = format!(r#"{{"allocation_id":"{allocation}","lease_epoch":1}}"#);
    TaskRecord { task_type: TaskType::SliceConsoleRead, params, idempotency_key: None, ..task(node) }
}

/// Returns a slot of the node with something in every field.
pub(crate) fn slot(node: &Node, proposal: &TaskRecord, slot_index: u32) -> Slot {
    let address = |text: &str| text.parse().expect("an address");
    Slot {
        id: SlotId::generate(),
        version: 0,
        node_id: node.id,
        spec: SlotSpec {
            slot_index,
            pci_address: Some(address("0000:17:00.0")),
            companions: vec![address("0000:17:00.1")],
            fabric_device: Some(address("0000:18:00.1")),
            nvme_device: "/dev/disk/by-id/nvme-S1".to_owned(),
            nvme_serial: "S1".to_owned(),
            numa_node: -1,
            vcpu_count: 12,
            memory_mib: 65_536,
            mac_address: "02:00:00:00:00:01".to_owned(),
            private_ip: std::net::Ipv4Addr::new(10, 77, 0, 2),
        },
        state: SlotState::Available,
        reason: "because".to_owned(),
        quarantine: Some("held".to_owned()),
        allocation_id: None,
        lease_epoch: 7,
        lease_task: None,
        drive_used: true,
        devices_used: false,
        proposed_by: proposal.id,
        approved_by: "somebody".to_owned(),
        approved_at: later(1),
        created_at: later(2),
        seal: "seal".to_owned(),
    }
}
