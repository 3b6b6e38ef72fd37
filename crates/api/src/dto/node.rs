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
    /// Id of the node, stable for the life of the machine.
    pub id: NodeId,
    /// Host name; not necessarily unique.
    pub name: String,
    /// Number of enrollments of the machine.
    pub epoch: u64,
    /// Stable digest of the machine's hardware identity.
    pub fingerprint: String,
    /// Public key of its receipts in this epoch.
    #[schemars(with = "String")]
    pub receipt_key: VerifyingKey,
    /// Service state: whether the node accepts work.
    pub service: Open<NodeService>,
    /// Reason for the service state; empty while in service.
    pub service_reason: String,
    /// Whether the node is connected.
    pub online: bool,
    /// The current link, if the node is connected.
    #[serde(default)]
    pub session: Option<NodeSession>,
    /// When the node was last seen.
    #[serde(default, with = "OptionalRfc3339")]
    pub last_seen_at: Option<Timestamp>,
    /// Facts that the node reports about itself.
    pub facts: HostFacts,
    /// The last sample of its metrics, if there is one.
    #[serde(default)]
    pub metrics: Option<NodeMetrics>,
    /// Whether the host is simulated.
    pub simulated: bool,
    /// When its newest certificate expires.
    #[serde(default, with = "OptionalRfc3339")]
    pub certificate_not_after: Option<Timestamp>,
    /// Number of rejoins with an expired certificate since the last regular renewal.
    pub rejoins: u32,
    /// When it was last enrolled.
    #[serde(with = "Rfc3339")]
    pub enrolled_at: Timestamp,
    /// When it was first enrolled.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Number of its open tasks.
    pub tasks_open: u64,
}

/// A connection of a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeSession {
    /// Id of the link.
    pub id: SessionId,
    /// Transport of the link.
    pub transport: Open<LinkTransport>,
    /// When the link was opened.
    #[serde(with = "Rfc3339")]
    pub since: Timestamp,
    /// Id of the agent process; new at every start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// Id of the boot of the host.
    pub boot_id: String,
}

/// A sample of the metrics of a node.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeMetrics {
    /// When the sample was taken, by the clock of the host.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// CPU usage since the last sample, in percent of all CPUs.
    pub cpu_percent: u32,
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Bytes received on all interfaces but loopback since boot.
    pub network_received_bytes: u64,
    /// Bytes sent on all interfaces but loopback since boot.
    pub network_sent_bytes: u64,
    /// Bytes read from all disks since boot.
    pub disk_read_bytes: u64,
    /// Bytes written to all disks since boot.
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
    /// The allocation that owns the guest.
    #[serde(default)]
    pub allocation_id: Option<AllocationId>,
    /// Whether the guest runs, as the hypervisor reports.
    pub running: bool,
    /// Source of the report.
    pub source: TelemetrySource,
    /// Why the guest does not report; empty if it does.
    pub reason: String,
    /// When the report arrived.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// Report of the guest; zeros if it sends none.
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

/// Retirement of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRetire {
    /// Reason, recorded in the audit log; may be empty.
    #[serde(default)]
    pub reason: String,
    /// Retires the node even if tenants have allocations on it. The tenants lose these allocations, which show the reason.
    #[serde(default)]
    pub force: bool,
}

/// Changes to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// New name: 1 to 253 letters, digits, dashes, dots and underscores.
    pub name: String,
}

/// Filter for a list of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeListQuery {
    /// Only nodes in this service state. By default, retired nodes are left out unless `all` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<NodeService>,
    /// Includes retired nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
