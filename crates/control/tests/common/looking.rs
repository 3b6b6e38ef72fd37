//! A node with slots: it runs a topology discovery, and answers every task as a test needs.

use gpuaas_api::ClientError;
use gpuaas_api::dto::{Slot, Task, TaskCreate, TopologyApprove};
use gpuaas_contract::Digest;
use gpuaas_contract::envelope::Verified;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::receipt::{self, Signed};
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, Output, Prerequisites, Summary};
use serde_json::json;

use super::TestServer;
use super::node::{Host, Link};

/// A host that answers `slice.topology_discover`.
pub struct Looking {
    pub host: Host,
    pub link: Link,
    sequence: u64,
    previous: Option<Digest>,
}

impl Looking {
    pub async fn new(server: &TestServer) -> Self {
        let host = Host::enrolled(server).await;
        let link = host.connect(&[]).await;
        Self { host, link, sequence: 0, previous: None }
    }

    /// Creates it from a host that already has a link.
    pub fn of(host: Host, link: Link) -> Self {
        Self { host, link, sequence: 0, previous: None }
    }

    pub fn node(&self) -> String {
        self.host.node_id().to_string()
    }

    /// Runs a discovery that finds these slots.
    pub async fn finds(&mut self, server: &TestServer, slots: Vec<CandidateSlot>) -> TaskId {
        let create = TaskCreate {
            node: self.node(),
            task_type: "slice.topology_discover".to_owned(),
            params: json!({}),
            queue_seconds: None,
            timeout_seconds: None,
        };
        let task: Task = server.client().task_create(&create, None).await.unwrap();
        let offer = self.link.offer().await;
        let verified = self.host.verify(&offer.envelope);
        let answer = |payload: &mut receipt::Payload| {
            payload.output = Some(serde_json::value::to_raw_value(&found(slots)).unwrap());
        };
        assert_eq!(self.answers(&verified, answer).await, "");
        task.id
    }

    /// Runs a discovery, and approves all found slots as an operator.
    pub async fn with_slots(server: &TestServer, slots: u32) -> (Self, Vec<Slot>) {
        let mut looking = Self::new(server).await;
        let task_id = looking.finds(server, (0..slots).map(candidate).collect()).await;
        let approve = TopologyApprove { task_id, slots: None };
        let made = server.client().node_topology_approve(&looking.node(), &approve).await.unwrap().items;
        (looking, made)
    }

    /// Returns the next offered task.
    pub async fn next(&mut self) -> Verified {
        let offer = self.link.offer().await;
        self.host.verify(&offer.envelope)
    }

    /// Sends a receipt of success with these changes; returns the code if it was rejected.
    pub async fn answers(&mut self, task: &Verified, change: impl FnOnce(&mut receipt::Payload)) -> String {
        let mut payload = self.host.receipt_payload(task, self.sequence + 1, self.previous.clone());
        change(&mut payload);
        let Signed { receipt, digest } = payload.sign(&self.host.receipt_key);
        let reported = self.link.receipt(task.payload().task_id, receipt).await;
        if reported.is_empty() {
            self.sequence += 1;
            self.previous = Some(digest);
        }
        reported
    }

    /// Reconnects with these tasks in hand.
    pub async fn reconnects(&mut self, tasks: &[(TaskId, gpuaas_contract::link::TaskPhase)]) {
        self.link = self.host.connect(tasks).await;
    }
}

pub fn candidate(slot_index: u32) -> CandidateSlot {
    CandidateSlot {
        slot_index,
        pci_address: Some(format!("0000:{slot_index:02x}:00.0").parse().unwrap()),
        companions: Vec::new(),
        fabric_device: None,
        nvme_device: Some(format!("/dev/disk/by-id/nvme-S{slot_index}")),
        nvme_serial: Some(format!("S{slot_index}")),
        numa_node: 0,
        vcpu_count: 12,
        memory_mib: 65_536,
        mac_address: format!("02:00:00:00:00:{slot_index:02x}"),
        private_ip: Some(std::net::Ipv4Addr::new(10, 77, 0, u8::try_from(slot_index).unwrap() + 2)),
        schedulable: true,
        blockers: Vec::new(),
    }
}

pub fn found(slots: Vec<CandidateSlot>) -> Output {
    Output {
        approval_required: true,
        simulated: false,
        prerequisites: Prerequisites::default(),
        gpu_devices: Vec::new(),
        fabric_devices: Vec::new(),
        nvme_devices: Vec::new(),
        candidate_summary: Summary { slots: u32::try_from(slots.len()).unwrap(), schedulable: 0, blockers: Vec::new() },
        candidate_slots: slots,
    }
}

pub fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
    let error = result.expect_err("refused");
    error.problem().unwrap_or_else(|| panic!("not refused: {error:?}")).code.clone()
}

/// Runs a query directly on the database, like an attacker with its password. `$1` is the id.
pub async fn write_to_database(server: &TestServer, query: &'static str, id: &str) {
    let rows = match &server.pg {
        None => {
            let path = format!("sqlite:{}", server.dir.join("test.db").display());
            let pool = sqlx::SqlitePool::connect(&path).await.unwrap();
            let done = sqlx::query(query).bind(id).execute(&pool).await.unwrap();
            pool.close().await;
            done.rows_affected()
        }
        Some(pg) => {
            let pool = sqlx::PgPool::connect(pg.url()).await.unwrap();
            let done = sqlx::query(query).bind(id).execute(&pool).await.unwrap();
            pool.close().await;
            done.rows_affected()
        }
    };
    assert!(rows > 0, "{query} changed nothing");
}
