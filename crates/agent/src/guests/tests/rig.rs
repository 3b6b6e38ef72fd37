//! A host with its agent, without a network: tasks are signed here, and receipts are verified here.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::CleanupProof;
use gpuaas_contract::envelope;
use gpuaas_contract::guest::{DriverStrategy, GuestSpec, ImageFormat, ImageSource};
use gpuaas_contract::id::{AgentInstanceId, AllocationId, ClusterId, CorrelationId, NodeId, SlotId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::from_node::Message;
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::{Task, TaskType, slice_topology_discover, slice_vm_power, slice_vm_provision, slice_vm_release};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState};
use gpuaas_host::{Host, Profile, SimHost, topology};
use tokio::sync::mpsc;

use crate::guests::Guests;
use crate::journal::Journal;
use crate::pipeline::{Limits, Parts, Pipeline, Round};
use crate::policy::Policy;
use crate::spool::Spool;
use crate::trust::Trust;

const EPOCH: u64 = 3;

/// Everything is allowed.
pub(super) static PERMISSIVE: LazyLock<String> =
    LazyLock::new(|| format!("allowed_tasks = {}\n{PERMISSIVE_RULES}", TaskType::list(TaskType::ALL)));

const PERMISSIVE_RULES: &str = r#"
[slices]
pci_addresses = ["*"]
nvme_serials = ["*"]
image_sources = ["https://images.example/"]
image_formats = ["qcow2", "raw"]
bridges = ["br-slices", "br-other"]
usernames = ["*"]
driver_strategies = ["cloud-init", "preinstalled"]
allow_graphics = true
max_shutdown_seconds = 900
destroys_per_hour = 1000000
[bare_metal]
usernames = ["tenant-*"]
allow_sudo = true
destroys_per_hour = 1000000
"#;

/// The machine, which outlives its agents.
pub(super) struct Rig {
    pub(super) folder: tempfile::TempDir,
    cluster_id: ClusterId,
    node_id: NodeId,
    signer: SigningKey,
    receipt_key: SigningKey,
    slots: Vec<LeasedSlot>,
    journal_bytes: u64,
    pub(super) life: Life,
}

/// One run of the agent.
pub(super) struct Life {
    pub(super) pipeline: Pipeline,
    pub(super) sim: SimHost,
    pub(super) guests: Guests,
    round: Round,
    _said: mpsc::Receiver<Message>,
}

impl Life {
    pub(super) fn use_round(&mut self, round: Round) {
        self.round = round;
    }
}

/// The end of a task.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) proof: Option<CleanupProof>,
    pub(super) output: Option<serde_json::Value>,
    pub(super) phases: Vec<String>,
}

impl Rig {
    /// Creates a fresh machine with a running agent, for one task at a time.
    pub(super) async fn new() -> Self {
        Self::with_journal(4 << 20).await
    }

    /// Creates a machine with room for more tasks at the same time.
    pub(super) async fn with_journal(journal_bytes: u64) -> Self {
        // In memory if possible: the speed of a disk does not matter here.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("folder");
        let policy = folder.path().join("policy.toml");
        gpuaas_host::private_file::write(&policy, PERMISSIVE.as_bytes()).expect("policy");
        let (cluster_id, node_id) = (ClusterId::generate(), NodeId::generate());
        let life = start(folder.path(), cluster_id, node_id, journal_bytes).await;
        life.sim.slow_boot(0).expect("set");
        let host = Host::Sim(life.sim.clone());
        let params = slice_topology_discover::Params::default();
        let network = host.slice_network(&params.ovs_bridge).await;
        let found = topology::discover(&host.inventory().expect("known"), network, &params);
        let slots = found.candidate_slots.iter().map(|candidate| {
            let mut id = [7; 16];
            id[15] = u8::try_from(candidate.slot_index).expect("small");
            LeasedSlot { slot_id: SlotId::from_bytes(id), spec: candidate.spec().expect("complete") }
        });
        let slots = slots.collect();
        Self { folder, cluster_id, node_id, signer: signer(), receipt_key: receipt_key(), slots, journal_bytes, life }
    }

    /// Runs the agent on this machine instead of a simulated one, with all its files in a temporary folder.
    pub(super) async fn on_this_machine(policy: &str) -> Self {
        let mut rig = Self::new().await;
        rig.kill().await;
        let folder = rig.folder.path();
        gpuaas_host::private_file::write(&folder.join("policy.toml"), policy.as_bytes()).expect("policy");
        let inside = |name: &str| folder.join("this-machine").join(name);
        let layout = gpuaas_host::guests::Layout {
            leases: inside("leases"),
            instances: inside("instances"),
            images: inside("images"),
            image_folders: Vec::new(),
            image_cache_bytes: 1,
            dhcp_hosts: inside("dhcp-hosts"),
            dnsmasq_pid: inside("dnsmasq.pid"),
            console_bytes: 1,
            huge_pages: false,
        };
        let host = Host::Real(gpuaas_host::RealHost::new(folder, layout));
        rig.life = start_on(folder, rig.cluster_id, rig.node_id, rig.journal_bytes, (host, rig.life.sim.clone())).await;
        rig
    }

    /// Returns the slots with these indexes.
    pub(super) fn slots(&self, indexes: &[usize]) -> Vec<LeasedSlot> {
        indexes.iter().map(|index| self.slots[*index].clone()).collect()
    }

    pub(super) fn host(&self) -> Host {
        Host::Sim(self.life.sim.clone())
    }

    /// Kills the agent where it is.
    pub(super) async fn kill(&self) {
        self.life.pipeline.close(Duration::ZERO).await;
    }

    /// Starts the agent again on the same machine.
    pub(super) async fn revive(&mut self) {
        self.life = start(self.folder.path(), self.cluster_id, self.node_id, self.journal_bytes).await;
    }

    /// Reboots the machine.
    pub(super) async fn reboot(&mut self) {
        self.kill().await;
        SimHost::reboot(&self.folder.path().join("host")).expect("reboots");
        self.revive().await;
    }

    /// Signs a task and passes it to the agent.
    pub(super) fn give(&self, task: &Task) -> TaskId {
        let (task_id, bytes) = self.sign(task, task.holder());
        self.life.pipeline.offer(self.life.round, task_id.to_string(), bytes);
        task_id
    }

    /// Signs a task for any node.
    pub(super) fn sign(&self, task: &Task, holder: Option<gpuaas_contract::slice::Holder>) -> (TaskId, Vec<u8>) {
        let (task_id, now) = (TaskId::generate(), Timestamp::now());
        let payload = envelope::Payload {
            cluster_id: self.cluster_id,
            node_id: self.node_id,
            node_epoch: EPOCH,
            task_id,
            task_type: task.task_type().as_str().to_owned(),
            params: task.params_json(),
            allocation_id: holder.map(|holder| holder.allocation_id),
            lease_epoch: holder.map(|holder| holder.lease_epoch),
            issued_at: now,
            start_by: now.plus(Duration::from_secs(300)),
            deadline: now.plus(Duration::from_secs(7200)),
            correlation_id: CorrelationId::generate(),
        };
        (task_id, payload.sign(&self.signer).envelope)
    }

    pub(super) fn offer(&self, task_id: TaskId, envelope: Vec<u8>) {
        self.life.pipeline.offer(self.life.round, task_id.to_string(), envelope);
    }

    /// Waits for the receipt of a task and confirms it.
    pub(super) async fn receipt(&self, task_id: TaskId, kind: TaskType) -> Ended {
        let mut changes = self.life.pipeline.receipt_changes();
        loop {
            let mut sequence = 0;
            while let Some((unreported, bytes)) = self.life.pipeline.next_receipt(sequence).await {
                if unreported.task_id == task_id {
                    self.life.pipeline.reported(task_id, "");
                    return self.read(task_id, kind, &bytes);
                }
                sequence = unreported.sequence;
            }
            changes.changed().await.expect("the pipeline lives");
        }
    }

    fn read(&self, task_id: TaskId, kind: TaskType, bytes: &[u8]) -> Ended {
        let report: receipt::Payload =
            serde_json::from_slice(&gpuaas_contract::dsse::payload_unverified(bytes).expect("signed")).expect("a receipt");
        let key = self.receipt_key.verifying_key();
        let expect = receipt::Expectation {
            key: &key,
            cluster_id: self.cluster_id,
            node_id: self.node_id,
            node_epoch: EPOCH,
            task_id,
            task_type: kind,
            envelope_digests: &[report.task_digest],
        };
        let verified = receipt::verify(bytes, &expect).expect("the control plane believes it");
        let payload = verified.payload();
        Ended {
            outcome: payload.outcome,
            code: payload.code.clone(),
            message: payload.message.clone(),
            proof: verified.cleanup_proof().cloned(),
            output: payload.output.as_ref().map(|output| serde_json::from_str(output.get()).expect("JSON")),
            phases: payload.phases.iter().map(|phase| phase.phase.clone()).collect(),
        }
    }

    /// Returns whether the receipt of a task is available.
    pub(super) async fn is_finished(&self, task_id: TaskId) -> bool {
        let mut sequence = 0;
        while let Some((unreported, _)) = self.life.pipeline.next_receipt(sequence).await {
            if unreported.task_id == task_id {
                return true;
            }
            sequence = unreported.sequence;
        }
        false
    }

    /// Runs a task to its end.
    pub(super) async fn run(&self, task: &Task) -> Ended {
        let task_id = self.give(task);
        self.receipt(task_id, task.task_type()).await
    }
}

fn signer() -> SigningKey {
    SigningKey::from_seed(&[11; 32])
}

fn receipt_key() -> SigningKey {
    SigningKey::from_seed(&[12; 32])
}

async fn start(folder: &Path, cluster_id: ClusterId, node_id: NodeId, journal_bytes: u64) -> Life {
    let sim = SimHost::open(&folder.join("host"), Profile::H100, "guests").expect("host");
    start_on(folder, cluster_id, node_id, journal_bytes, (Host::Sim(sim.clone()), sim)).await
}

async fn start_on(
    folder: &Path,
    cluster_id: ClusterId,
    node_id: NodeId,
    journal_bytes: u64,
    (host, sim): (Host, SimHost),
) -> Life {
    let root = SigningKey::from_seed(&[13; 32]);
    let public_key = signer().verifying_key();
    let entry = Entry { key_id: public_key.id(), public_key, state: KeyState::Active };
    let document = Document { cluster_id, version: 1, issued_at: Timestamp(1), keys: vec![entry] };
    let trust = Trust::new(&folder.join("set"), &document.sign(&root), root.verifying_key(), cluster_id).expect("trusted");
    let (journal, opened) = Journal::open(folder, journal_bytes, Timestamp::now()).expect("journal");
    let guests = Guests::new(None);
    let (outbound, report) = mpsc::channel(1 << 10);
    let parts = Parts {
        cluster_id,
        node_id,
        node_epoch: EPOCH,
        receipt_key: receipt_key(),
        instance_id: AgentInstanceId::generate(),
        boot_id: host.boot_id(),
        trust: Arc::new(trust),
        journal,
        policy: Arc::new(Policy::load(&folder.join("policy.toml")).expect("policy").counting_in(folder).expect("counts")),
        host,
        guests: guests.clone(),
        spool: Spool::open(&folder.join("logs"), 8 << 20).expect("spool"),
        outbound,
        limits: Limits {
            max_tasks: 8,
            journal_bytes,
            task_timeout: Duration::from_secs(3600),
            log_drain_timeout: Duration::from_secs(5),
        },
    };
    let pipeline = Pipeline::start(parts, opened).await.expect("starts");
    Life { round: pipeline.begin_round().1, pipeline, sim, guests, _said: report }
}

/// Returns the provision of a guest on these slots.
pub(super) fn provision(allocation_id: AllocationId, lease_epoch: u64, slots: Vec<LeasedSlot>) -> Task {
    Task::SliceVmProvision(slice_vm_provision::Params {
        allocation_id,
        lease_epoch,
        guest: GuestSpec {
            vm_name: "guest-1".parse().expect("a name"),
            image: ImageSource {
                path: None,
                url: Some("https://images.example/debian.qcow2".to_owned()),
                sha256: Digest::of(b"debian"),
                format: ImageFormat::Qcow2,
                trusted: false,
            },
            driver_strategy: DriverStrategy::None,
            default_username: "debian".parse().expect("a name"),
            ssh_public_keys: Vec::new(),
            ovs_bridge: Some("br-slices".parse().expect("a name")),
            graceful_timeout_seconds: Some(30),
            graphics: false,
        },
        slots,
    })
}

/// Returns its release.
pub(super) fn release(allocation_id: AllocationId, lease_epoch: u64, slots: Vec<LeasedSlot>) -> slice_vm_release::Params {
    slice_vm_release::Params { allocation_id, lease_epoch, slots, graceful_timeout_seconds: 30, wipe: true, take_over: false }
}

/// Returns a stop, start or reboot.
pub(super) fn power(
    allocation_id: AllocationId,
    lease_epoch: u64,
    slots: Vec<LeasedSlot>,
    action: slice_vm_power::PowerAction,
) -> Task {
    Task::SliceVmPower(slice_vm_power::Params {
        allocation_id,
        lease_epoch,
        slots,
        action,
        graceful_timeout_seconds: 30,
        answer_timeout_seconds: 3600,
    })
}
