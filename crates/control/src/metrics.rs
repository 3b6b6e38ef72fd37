//! Counters for Prometheus.

mod agent_versions;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gpuaas_contract::receipt::Outcome;
use gpuaas_domain::node::LinkTransport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use self::agent_versions::AgentVersions;
use crate::listener::ConnectionCounts;
use crate::pki::CaRequests;

/// All metrics of this process.
pub(crate) struct Metrics {
    registry: Registry,
    links: Family<TransportLabel, Gauge>,
    agents: AgentVersions,
    dispatched: Counter,
    dispatch_wait: Histogram,
    ended: Family<OutcomeLabel, Counter>,
    task_time: Histogram,
    receipts_rejected: Family<CodeLabel, Counter>,
    envelopes_rejected: Counter,
    requests: Family<StatusLabel, Counter>,
    events: Counter,
    events_waiting: Gauge<f64, AtomicU64>,
    steps: Family<StepLabel, Counter>,
    overtaken: Counter,
    connections: ConnectionCounts,
    rights_lost: Counter,
    refusals: Family<ReasonLabel, Counter>,
    nodes_locked: Counter,
    budget_exceeded: Family<KindLabel, Counter>,
    ca_requests: CaRequests,
    ca_available: Gauge,
    listener_certificates: Family<ListenerLabel, Gauge>,
    listener_renewal_failing: Family<ListenerLabel, Gauge>,
    destructions: Counter,
    destructions_refused: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl Metrics {
    /// Creates the metrics, all at zero.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("gpuaas");
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let metrics = Self {
            links: Family::default(),
            agents: AgentVersions::default(),
            dispatched: Counter::default(),
            dispatch_wait: seconds(),
            ended: Family::default(),
            task_time: seconds(),
            receipts_rejected: Family::default(),
            envelopes_rejected: Counter::default(),
            requests: Family::default(),
            events: Counter::default(),
            events_waiting: Gauge::default(),
            steps: Family::default(),
            overtaken: Counter::default(),
            connections: ConnectionCounts::default(),
            rights_lost: Counter::default(),
            refusals: Family::default(),
            nodes_locked: Counter::default(),
            budget_exceeded: Family::default(),
            ca_requests: CaRequests::default(),
            ca_available: Gauge::default(),
            listener_certificates: Family::default(),
            listener_renewal_failing: Family::default(),
            destructions: Counter::default(),
            destructions_refused: Counter::default(),
            registry: Registry::default(),
        };
        registry.register("links", "Open links of agents to this process", metrics.links.clone());
        registry.register("agents", "Open links of agents to this process, by the agent's version", metrics.agents.gauges());
        registry.register("tasks_dispatched", "Envelopes signed and sent", metrics.dispatched.clone());
        registry.register("task_dispatch_seconds", "From the request to the signed envelope", metrics.dispatch_wait.clone());
        registry.register("tasks_ended", "Accepted receipts, by outcome", metrics.ended.clone());
        registry.register("task_seconds", "From the request to the accepted receipt", metrics.task_time.clone());
        registry.register("receipts_rejected", "Rejected receipts, by code", metrics.receipts_rejected.clone());
        registry.register(
            "envelopes_rejected",
            "Envelopes that an agent could not accept as its own",
            metrics.envelopes_rejected.clone(),
        );
        registry.register("api_requests", "Answers of the REST interface, by status", metrics.requests.clone());
        registry.register("events_published", "Events of the outbox that the bus has stored", metrics.events.clone());
        registry.register(
            "events_waiting_seconds",
            "How long the oldest event has waited in the outbox; 0 if none waits",
            metrics.events_waiting.clone(),
        );
        registry.register("run_steps", "Steps of allocations' runs that were written, by step", metrics.steps.clone());
        registry.register(
            "destructive_commands",
            "Commands counted in the budget of destructive commands",
            metrics.destructions.clone(),
        );
        registry.register(
            "destructive_commands_refused",
            "Commands that the budget of destructive commands refused or delayed",
            metrics.destructions_refused.clone(),
        );
        registry.register(
            "decisions_overtaken",
            "Decisions that were repeated because another writer was faster",
            metrics.overtaken.clone(),
        );
        metrics.connections.register(&mut registry);
        registry.register(
            "rights_lost",
            "Open requests and streams that ended because their caller lost the right to them",
            metrics.rights_lost.clone(),
        );
        registry.register(
            "refusals",
            "Requests refused because a budget or a cap is used up, by reason",
            metrics.refusals.clone(),
        );
        registry.register(
            "nodes_locked",
            "Nodes locked because two live copies of their identity were seen",
            metrics.nodes_locked.clone(),
        );
        registry.register(
            "node_budget_exceeded",
            "Things that nodes sent beyond their budget and that were dropped, by kind",
            metrics.budget_exceeded.clone(),
        );
        registry.register("ca_requests", "Certificates asked of the CA, by how that ended", metrics.ca_requests.clone());
        // The built-in CA is always available.
        metrics.ca_available.set(1);
        registry.register(
            "ca_available",
            "1 if the certificate authority answers, 0 if it does not",
            metrics.ca_available.clone(),
        );
        registry.register(
            "listener_certificate_seconds_left",
            "Seconds until the certificate of a listener expires; below 0 once it has",
            metrics.listener_certificates.clone(),
        );
        registry.register(
            "listener_certificate_renewal_failing",
            "1 if the certificate of a listener could not be replaced when that was last tried",
            metrics.listener_renewal_failing.clone(),
        );
        Self { registry, ..metrics }
    }

    /// Returns the counters of listeners.
    pub(crate) fn connections(&self) -> &ConnectionCounts {
        &self.connections
    }

    /// Returns the name under which the agent's version was counted.
    pub(crate) fn link_opened(&self, transport: LinkTransport, agent_version: &str) -> String {
        self.links.get_or_create(&TransportLabel { transport: transport.as_str() }).inc();
        self.agents.opened(agent_version)
    }

    /// `version` is what [`Self::link_opened`] returned.
    pub(crate) fn link_closed(&self, transport: LinkTransport, version: &str) {
        self.links.get_or_create(&TransportLabel { transport: transport.as_str() }).dec();
        self.agents.closed(version);
    }

    pub(crate) fn task_dispatched(&self, waited: Duration) {
        self.dispatched.inc();
        self.dispatch_wait.observe(waited.as_secs_f64());
    }

    pub(crate) fn task_ended(&self, outcome: Outcome, took: Duration) {
        self.ended.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }).inc();
        self.task_time.observe(took.as_secs_f64());
    }

    pub(crate) fn receipt_rejected(&self, code: &str) {
        self.receipts_rejected.get_or_create(&CodeLabel { code: code.to_owned() }).inc();
    }

    pub(crate) fn envelope_rejected(&self) {
        self.envelopes_rejected.inc();
    }

    pub(crate) fn node_locked(&self) {
        self.nodes_locked.inc();
    }

    pub(crate) fn budget_exceeded(&self, kind: &'static str, count: u64) {
        self.budget_exceeded.get_or_create(&KindLabel { kind }).inc_by(count);
    }

    pub(crate) fn request(&self, status: u16) {
        self.requests.get_or_create(&StatusLabel { status }).inc();
    }

    pub(crate) fn events_published(&self, count: usize) {
        self.events.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Sets how long the oldest event has waited.
    pub(crate) fn events_wait(&self, waited: Duration) {
        self.events_waiting.set(waited.as_secs_f64());
    }

    pub(crate) fn step_written(&self, step: &'static str) {
        self.steps.get_or_create(&StepLabel { step }).inc();
    }

    /// Returns the counters of certificate requests.
    pub(crate) fn ca_requests(&self) -> CaRequests {
        self.ca_requests.clone()
    }

    pub(crate) fn ca_available(&self, available: bool) {
        self.ca_available.set(available.into());
    }

    /// The certificate of a listener, as of now.
    pub(crate) fn listener_certificate(&self, listener: &'static str, seconds_left: i64, renewal_fails: bool) {
        let label = ListenerLabel { listener };
        self.listener_certificates.get_or_create(&label).set(seconds_left);
        self.listener_renewal_failing.get_or_create(&label).set(renewal_fails.into());
    }

    pub(crate) fn destruction_counted(&self) {
        self.destructions.inc();
    }

    pub(crate) fn destruction_refused(&self) {
        self.destructions_refused.inc();
    }

    pub(crate) fn decision_overtaken(&self) {
        self.overtaken.inc();
    }

    pub(crate) fn right_lost(&self) {
        self.rights_lost.inc();
    }

    /// Counts a refusal by a budget or a limit. `reason` is its stable code.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Returns the text for Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
