//! Nodes.

use gpuaas_contract::id::{AgentInstanceId, AllocationId, NodeId, SessionId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{LinkTransport, NodeService};
use gpuaas_contract::task::slice_vm_provision::TelemetrySource;
use gpuaas_contract::telemetry::{GpuMetrics, GuestMetrics, GuestReport, HostFacts, HostMetrics};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// An enrolled host.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Node {
    /// Its id, the same for the life of the machine.
    pub id: NodeId,
    /// Host name; not necessarily unique.
    pub name: String,
    /// Counts the machine's enrollments.
    pub epoch: u64,
    /// Stable digest of the machine's hardware identity.
    pub fingerprint: String,
    /// Public half of the key that signs its receipts in this epoch.
    #[schemars(with = "String")]
    pub receipt_key: VerifyingKey,
    /// Whether it takes work.
    pub service: Open<NodeService>,
    /// Why, in words; empty when in service.
    pub service_reason: String,
    /// Whether its link is open now.
    pub online: bool,
    /// The open link, if any.
    #[serde(default)]
    pub session: Option<NodeSession>,
    /// When it was last heard of.
    #[serde(default, with = "OptionalRfc3339")]
    pub last_seen_at: Option<Timestamp>,
    /// What it says about itself.
    pub facts: HostFacts,
    /// The last sample of its metrics, if there is one.
    #[serde(default)]
    pub metrics: Option<NodeMetrics>,
    /// The host is a simulation.
    pub simulated: bool,
    /// When its newest certificate ends.
    #[serde(default, with = "OptionalRfc3339")]
    pub certificate_not_after: Option<Timestamp>,
    /// Rejoins after expiry since the last regular renewal.
    pub rejoins: u32,
    /// Last enrollment.
    #[serde(with = "Rfc3339")]
    pub enrolled_at: Timestamp,
    /// First enrollment.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Tasks for it that have not ended.
    pub tasks_open: u64,
}

/// One life of a node's link.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeSession {
    /// Its id.
    pub id: SessionId,
    /// How it is carried.
    pub transport: Open<LinkTransport>,
    /// Since when.
    #[serde(with = "Rfc3339")]
    pub since: Timestamp,
    /// Which start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// Which boot of the host.
    pub boot_id: String,
}

/// A sample of a node's fast-changing numbers.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeMetrics {
    /// When it was taken, by the host's clock.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// Busy share of all CPUs since the last sample, times 100.
    pub cpu_percent: u32,
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Bytes received on all interfaces but loopback since boot.
    pub network_received_bytes: u64,
    /// Bytes sent likewise.
    pub network_sent_bytes: u64,
    /// Bytes read from all disks since boot.
    pub disk_read_bytes: u64,
    /// Bytes written likewise.
    pub disk_written_bytes: u64,
    /// Space used on the root file system.
    pub root_used_bytes: u64,
    /// Size of the root file system.
    pub root_size_bytes: u64,
    /// Resident memory of the agent itself.
    pub agent_rss_bytes: u64,
    /// One entry per GPU that answers.
    pub gpus: Vec<GpuMetrics>,
    /// One entry per guest.
    pub guests: Vec<NodeGuestMetrics>,
}

/// A sample of one guest.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeGuestMetrics {
    /// Whose it is.
    #[serde(default)]
    pub allocation_id: Option<AllocationId>,
    /// The hypervisor says that it runs.
    pub running: bool,
    /// Where the rest comes from.
    pub source: TelemetrySource,
    /// Why not from the guest; empty if it does.
    pub reason: String,
    /// When it came.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// What the guest says of itself; zeros if it does not.
    pub report: GuestReport,
}

impl From<HostMetrics> for NodeMetrics {
    fn from(sample: HostMetrics) -> Self {
        Self {
            at: sample.at,
            cpu_percent: sample.cpu_percent,
            load_percent: sample.load_percent,
            memory_used_bytes: sample.memory_used_bytes,
            network_received_bytes: sample.network_received_bytes,
            network_sent_bytes: sample.network_sent_bytes,
            disk_read_bytes: sample.disk_read_bytes,
            disk_written_bytes: sample.disk_written_bytes,
            root_used_bytes: sample.root_used_bytes,
            root_size_bytes: sample.root_size_bytes,
            agent_rss_bytes: sample.agent_rss_bytes,
            gpus: sample.gpus,
            guests: sample.guests.into_iter().map(NodeGuestMetrics::from).collect(),
        }
    }
}

impl From<GuestMetrics> for NodeGuestMetrics {
    fn from(GuestMetrics { allocation_id, running, source, reason, at, report }: GuestMetrics) -> Self {
        Self { allocation_id, running, source, reason, at, report }
    }
}

/// How to end a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRetire {
    /// Why, in the operator's words; may be empty. Kept in the audit log.
    #[serde(default)]
    pub reason: String,
    /// Retire the node even if tenants have something on it. They lose it, and their allocations say so.
    #[serde(default)]
    pub force: bool,
}

/// What an operator changes about a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// Its new name: 1 to 253 letters, digits, dashes, dots and underscores.
    pub name: String,
}

/// Which nodes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeListQuery {
    /// Only those in this service state. Without it, retired nodes are left out unless `all` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<NodeService>,
    /// Retired nodes, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
