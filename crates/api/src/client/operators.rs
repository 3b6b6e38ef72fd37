//! One method per endpoint: those of operators.

use std::time::Duration;

use reqwest::Method;

use super::{Call, Client, ClientError};
use crate::dto::{
    ApiToken, ApiTokenCreate, ApiTokenCreated, AuditQuery, AuditRow, Budget, BudgetLift, Capacity, ClusterInfo, DrainPreview,
    Enrollment, EnrollmentApprove, EnrollmentListQuery, JoinToken, JoinTokenCreate, JoinTokenCreated, Machine, MachineListQuery,
    MachineOffer, MaintenanceCreate, MaintenanceListQuery, MaintenanceWindow, Node, NodeChange, NodeListQuery, NodeRetire, Page,
    PageQuery, Reason, SigningKey, Slice, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, Slot,
    SlotListQuery, Task, TaskCreate, TaskEvidence, TaskListQuery, TaskLogs, TaskLogsQuery, TaskTypeInfo, Topology,
    TopologyApprove,
};
use crate::routes;

/// How much longer than usual a log request that follows may take: the server holds it for up to 20 s.
const FOLLOW_EXTRA: Duration = Duration::from_secs(25);

impl Client {
    /// What the server says about the cluster.
    pub async fn cluster(&self) -> Result<ClusterInfo, ClientError> {
        self.get(routes::CLUSTER, &[]).await
    }

    /// One page of nodes.
    pub async fn nodes(&self, query: &NodeListQuery) -> Result<Page<Node>, ClientError> {
        self.list(routes::NODES, &[], query).await
    }

    /// One node, by id or unique name.
    pub async fn node(&self, node: &str) -> Result<Node, ClientError> {
        self.get(routes::NODE, &[node]).await
    }

    /// Gives a node another name.
    pub async fn node_change(&self, node: &str, change: &NodeChange) -> Result<Node, ClientError> {
        self.change(Method::PATCH, (routes::NODE, &[node]), change, None).await
    }

    /// Maintenance on.
    pub async fn node_drain(&self, node: &str, reason: &Reason) -> Result<Node, ClientError> {
        self.post(routes::NODE_DRAIN, &[node], reason).await
    }

    /// Maintenance off.
    pub async fn node_undrain(&self, node: &str, reason: &Reason) -> Result<Node, ClientError> {
        self.post(routes::NODE_UNDRAIN, &[node], reason).await
    }

    /// Hold a node back.
    pub async fn node_quarantine(&self, node: &str, reason: &Reason) -> Result<Node, ClientError> {
        self.post(routes::NODE_QUARANTINE, &[node], reason).await
    }

    /// Let a node go again.
    pub async fn node_unquarantine(&self, node: &str, reason: &Reason) -> Result<Node, ClientError> {
        self.post(routes::NODE_UNQUARANTINE, &[node], reason).await
    }

    /// End a node.
    pub async fn node_retire(&self, node: &str, retire: &NodeRetire) -> Result<Node, ClientError> {
        self.post(routes::NODE_RETIRE, &[node], retire).await
    }

    /// What a node found on itself last, and its slots.
    pub async fn node_topology(&self, node: &str) -> Result<Topology, ClientError> {
        self.get(routes::NODE_TOPOLOGY, &[node]).await
    }

    /// Make slots of what a node found.
    pub async fn node_topology_approve(&self, node: &str, approve: &TopologyApprove) -> Result<Page<Slot>, ClientError> {
        self.post(routes::NODE_TOPOLOGY_APPROVE, &[node], approve).await
    }

    /// One page of slots.
    pub async fn slots(&self, query: &SlotListQuery) -> Result<Page<Slot>, ClientError> {
        self.list(routes::SLOTS, &[], query).await
    }

    /// One slot.
    pub async fn slot(&self, slot: &str) -> Result<Slot, ClientError> {
        self.get(routes::SLOT, &[slot]).await
    }

    /// Hold a slot back.
    pub async fn slot_quarantine(&self, slot: &str, reason: &Reason) -> Result<Slot, ClientError> {
        self.post(routes::SLOT_QUARANTINE, &[slot], reason).await
    }

    /// Let a slot go again.
    pub async fn slot_unquarantine(&self, slot: &str, reason: &Reason) -> Result<Slot, ClientError> {
        self.post(routes::SLOT_UNQUARANTINE, &[slot], reason).await
    }

    /// End a slot.
    pub async fn slot_withdraw(&self, slot: &str, reason: &Reason) -> Result<Slot, ClientError> {
        self.post(routes::SLOT_WITHDRAW, &[slot], reason).await
    }

    /// Clean up what is left of a slice on a slot.
    pub async fn slot_force_cleanup(
        &self,
        slot: &str,
        reason: &Reason,
        idempotency_key: Option<&str>,
    ) -> Result<SliceOrder, ClientError> {
        self.post_once(routes::SLOT_FORCE_CLEANUP, &[slot], reason, idempotency_key).await
    }

    /// One page of slices.
    pub async fn slices(&self, query: &SliceListQuery) -> Result<Page<Slice>, ClientError> {
        self.list(routes::SLICES, &[], query).await
    }

    /// One slice.
    pub async fn slice(&self, slice: &str) -> Result<Slice, ClientError> {
        self.get(routes::SLICE, &[slice]).await
    }

    /// Make a slice. With an idempotency key, asking twice makes one, here and below.
    pub async fn slice_create(&self, create: &SliceCreate, idempotency_key: Option<&str>) -> Result<SliceOrder, ClientError> {
        self.post_once(routes::SLICES, &[], create, idempotency_key).await
    }

    /// Give a slice back.
    pub async fn slice_release(
        &self,
        slice: &str,
        release: &SliceRelease,
        idempotency_key: Option<&str>,
    ) -> Result<SliceOrder, ClientError> {
        self.post_once(routes::SLICE_RELEASE, &[slice], release, idempotency_key).await
    }

    /// Stop, start or reboot a guest.
    pub async fn slice_power(
        &self,
        slice: &str,
        power: &SlicePower,
        idempotency_key: Option<&str>,
    ) -> Result<SliceOrder, ClientError> {
        self.post_once(routes::SLICE_POWER, &[slice], power, idempotency_key).await
    }

    /// Read a guest's serial console into the task's log.
    pub async fn slice_console(&self, slice: &str, console: &SliceConsole) -> Result<SliceOrder, ClientError> {
        self.post(routes::SLICE_CONSOLE, &[slice], console).await
    }

    /// One page of enrollment requests.
    pub async fn enrollments(&self, query: &EnrollmentListQuery) -> Result<Page<Enrollment>, ClientError> {
        self.list(routes::ENROLLMENTS, &[], query).await
    }

    /// One enrollment request.
    pub async fn enrollment(&self, enrollment: &str) -> Result<Enrollment, ClientError> {
        self.get(routes::ENROLLMENT, &[enrollment]).await
    }

    /// Say yes to a host.
    pub async fn enrollment_approve(&self, enrollment: &str, approve: &EnrollmentApprove) -> Result<Enrollment, ClientError> {
        self.post(routes::ENROLLMENT_APPROVE, &[enrollment], approve).await
    }

    /// Say no to a host.
    pub async fn enrollment_reject(&self, enrollment: &str, reason: &Reason) -> Result<Enrollment, ClientError> {
        self.post(routes::ENROLLMENT_REJECT, &[enrollment], reason).await
    }

    /// One page of join tokens.
    pub async fn join_tokens(&self, query: &PageQuery) -> Result<Page<JoinToken>, ClientError> {
        self.list(routes::JOIN_TOKENS, &[], query).await
    }

    /// Make a join token.
    pub async fn join_token_create(&self, create: &JoinTokenCreate) -> Result<JoinTokenCreated, ClientError> {
        self.post(routes::JOIN_TOKENS, &[], create).await
    }

    /// Take a join token back.
    pub async fn join_token_revoke(&self, token: &str) -> Result<JoinToken, ClientError> {
        self.delete(routes::JOIN_TOKEN, &[token]).await
    }

    /// One page of tasks, newest first.
    pub async fn tasks(&self, query: &TaskListQuery) -> Result<Page<Task>, ClientError> {
        self.list(routes::TASKS, &[], query).await
    }

    /// Ask for a task. With an idempotency key, asking twice makes one task.
    pub async fn task_create(&self, create: &TaskCreate, idempotency_key: Option<&str>) -> Result<Task, ClientError> {
        self.post_once(routes::TASKS, &[], create, idempotency_key).await
    }

    /// One task.
    pub async fn task(&self, task: &str) -> Result<Task, ClientError> {
        self.get(routes::TASK, &[task]).await
    }

    /// Ask for a task to be stopped.
    pub async fn task_cancel(&self, task: &str, reason: &Reason) -> Result<Task, ClientError> {
        self.post(routes::TASK_CANCEL, &[task], reason).await
    }

    /// Some log lines of a task.
    pub async fn task_logs(&self, task: &str, query: &TaskLogsQuery) -> Result<TaskLogs, ClientError> {
        let extra = if query.follow == Some(true) { FOLLOW_EXTRA } else { Duration::ZERO };
        let call = Call {
            query: super::to_value(query)?,
            timeout: Some(self.timeout + extra),
            ..self.call(Method::GET, routes::TASK_LOGS, &[])
        };
        self.json(Call { segments: &[task], ..call }).await
    }

    /// Everything it takes to verify a task offline.
    pub async fn task_evidence(&self, task: &str) -> Result<TaskEvidence, ClientError> {
        self.get(routes::TASK_EVIDENCE, &[task]).await
    }

    /// The budget of destructive commands.
    pub async fn budget(&self) -> Result<Budget, ClientError> {
        self.get(routes::BUDGET, &[]).await
    }

    /// Allow more destructive commands for an hour.
    pub async fn budget_lift(&self, lift: &BudgetLift) -> Result<Budget, ClientError> {
        self.post(routes::BUDGET_LIFT, &[], lift).await
    }

    /// The catalog of tasks.
    pub async fn task_types(&self) -> Result<Page<TaskTypeInfo>, ClientError> {
        self.get(routes::TASK_TYPES, &[]).await
    }

    /// One page of audit rows.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Page<AuditRow>, ClientError> {
        self.list(routes::AUDIT, &[], query).await
    }

    /// The keys that sign, or signed, tasks.
    pub async fn signing_keys(&self) -> Result<Page<SigningKey>, ClientError> {
        self.get(routes::SIGNING_KEYS, &[]).await
    }

    /// Publish the next key ahead of its use.
    pub async fn signing_keys_stage(&self) -> Result<Page<SigningKey>, ClientError> {
        self.json(self.call(Method::POST, routes::SIGNING_KEYS_STAGE, &[])).await
    }

    /// Sign with the staged or a new key from now on.
    pub async fn signing_keys_rotate(&self) -> Result<Page<SigningKey>, ClientError> {
        self.json(self.call(Method::POST, routes::SIGNING_KEYS_ROTATE, &[])).await
    }

    /// Never believe a key again.
    pub async fn signing_key_revoke(&self, key: &str, reason: &Reason) -> Result<Page<SigningKey>, ClientError> {
        self.post(routes::SIGNING_KEY_REVOKE, &[key], reason).await
    }

    /// One page of API tokens.
    pub async fn api_tokens(&self, query: &PageQuery) -> Result<Page<ApiToken>, ClientError> {
        self.list(routes::API_TOKENS, &[], query).await
    }

    /// Make an API token.
    pub async fn api_token_create(&self, create: &ApiTokenCreate) -> Result<ApiTokenCreated, ClientError> {
        self.post(routes::API_TOKENS, &[], create).await
    }

    /// Take an API token back.
    pub async fn api_token_revoke(&self, token: &str) -> Result<ApiToken, ClientError> {
        self.delete(routes::API_TOKEN, &[token]).await
    }

    /// What there is, what of it works and what of that is free.
    pub async fn capacity(&self) -> Result<Capacity, ClientError> {
        self.get(routes::CAPACITY, &[]).await
    }

    /// What is in the way before a node is empty.
    pub async fn node_drain_preview(&self, node: &str) -> Result<DrainPreview, ClientError> {
        self.get(routes::NODE_DRAIN_PREVIEW, &[node]).await
    }

    /// One page of the nodes that are offered as a whole.
    pub async fn machines(&self, query: &MachineListQuery) -> Result<Page<Machine>, ClientError> {
        self.list(routes::MACHINES, &[], query).await
    }

    /// Offer a node for lease as a whole.
    pub async fn node_machine_offer(&self, node: &str, offer: &MachineOffer) -> Result<Machine, ClientError> {
        self.post(routes::NODE_MACHINE_OFFER, &[node], offer).await
    }

    /// Take the offer of a whole node back.
    pub async fn node_machine_withdraw(&self, node: &str, reason: &Reason) -> Result<Machine, ClientError> {
        self.post(routes::NODE_MACHINE_WITHDRAW, &[node], reason).await
    }

    /// One page of announced maintenance.
    pub async fn maintenance_windows(&self, query: &MaintenanceListQuery) -> Result<Page<MaintenanceWindow>, ClientError> {
        self.list(routes::MAINTENANCE_WINDOWS, &[], query).await
    }

    /// Announce maintenance.
    pub async fn maintenance_announce(
        &self,
        create: &MaintenanceCreate,
        idempotency_key: Option<&str>,
    ) -> Result<MaintenanceWindow, ClientError> {
        self.post_once(routes::MAINTENANCE_WINDOWS, &[], create, idempotency_key).await
    }

    /// Cancel announced maintenance.
    pub async fn maintenance_cancel(&self, maintenance: &str) -> Result<MaintenanceWindow, ClientError> {
        self.delete(routes::MAINTENANCE_WINDOW, &[maintenance]).await
    }
}
