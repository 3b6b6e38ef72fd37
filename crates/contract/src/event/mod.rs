//! All events. Each kind is declared once, with its CloudEvents type, its data and its action in the audit log.
//!
//! The AsyncAPI document, the validation of webhook filters, shell completion, what tenants see and the audit log are all derived from this
//! declaration.

mod access;
mod allocation;
mod node;
mod payload;
mod slot;
mod task;
mod tenancy;

pub use access::*;
pub use allocation::*;
pub use node::*;
pub use payload::Payload;
pub use slot::*;
pub use task::*;
pub use tenancy::*;

use crate::names::named;

/// Declares events: a sentence for people, the kind with the type of its data, its CloudEvents type, and its action in the audit log. A
/// kind with several actions lists them all, and the data picks one (`audit_action`).
macro_rules! events {
    ($(#[doc = $summary:literal] $kind:ident($payload:ty) = $name:literal, $action:tt;)+) => {
        named! {
            /// A kind of event, by its CloudEvents type.
            pub enum EventKind {
                $(#[doc = $summary] $kind = $name,)+
            }
        }

        /// An event with its data.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event {
            $(#[doc = $summary] $kind($payload),)+
        }

        impl Event {
            /// The kind of the event.
            pub const fn kind(&self) -> EventKind {
                match self {
                    $(Self::$kind(_) => EventKind::$kind,)+
                }
            }

            /// The event's action in the audit log.
            pub fn action(&self) -> &'static str {
                match self {
                    $(Self::$kind(data) => audit_action!(data, $action),)+
                }
            }

            /// The event's data as JSON.
            pub fn data(&self) -> serde_json::Value {
                let data = match self {
                    $(Self::$kind(data) => serde_json::to_value(data),)+
                };
                // Serialization fails only for maps whose keys are not strings, and no payload has one.
                data.unwrap_or_default()
            }

            /// Reads the data of an event of this kind.
            pub fn read(kind: EventKind, data: serde_json::Value) -> serde_json::Result<Self> {
                match kind {
                    $(EventKind::$kind => serde_json::from_value(data).map(Self::$kind),)+
                }
            }
        }

        impl EventKind {
            /// One sentence for people.
            pub const fn summary(self) -> &'static str {
                match self {
                    $(Self::$kind => $summary.trim_ascii_start(),)+
                }
            }

            /// Every action that the audit log can have for this kind.
            pub const fn actions(self) -> &'static [&'static str] {
                match self {
                    $(Self::$kind => audit_actions!($action),)+
                }
            }

            /// The names of the data fields that tenants see.
            pub fn tenant_fields(self) -> Vec<&'static str> {
                let mut fields = Vec::new();
                match self {
                    $(Self::$kind => <$payload as Payload>::tenant_fields(&mut fields),)+
                }
                fields
            }

            /// The JSON Schema of the data.
            pub fn data_schema(self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                match self {
                    $(Self::$kind => generator.subschema_for::<$payload>(),)+
                }
            }
        }
    };
}

macro_rules! audit_action {
    ($data:ident, $action:literal) => {{
        let _ = $data;
        $action
    }};
    ($data:ident, [$($action:literal),+]) => {
        $data.audit_action()
    };
}

macro_rules! audit_actions {
    ($action:literal) => {
        &[$action]
    };
    ([$($action:literal),+]) => {
        &[$($action),+]
    };
}

events! {
    /// The allocation is active: its tenant can use it.
    AllocationActive(AllocationActive) = "gpuaas.allocation.active.v1", "allocation.advance";
    /// The name or the tags of the allocation were changed.
    AllocationDescribed(AllocationDescribed) = "gpuaas.allocation.described.v1", "allocation.describe";
    /// The lease of the allocation was extended.
    AllocationExtended(AllocationExtended) = "gpuaas.allocation.extended.v1", "allocation.extend";
    /// The allocation failed; `code` says why.
    AllocationFailed(AllocationEnded) = "gpuaas.allocation.failed.v1", "allocation.advance";
    /// Maintenance of the allocation's host was announced.
    AllocationMaintenanceAnnounced(AllocationMaintenance) = "gpuaas.allocation.maintenance_announced.v1", "maintenance.tell";
    /// Maintenance of the allocation's host was canceled.
    AllocationMaintenanceCancelled(AllocationMaintenance) = "gpuaas.allocation.maintenance_cancelled.v1", "maintenance.tell";
    /// An operator acts on the allocation or its host; `action` says how.
    AllocationOperatorActed(AllocationOperatorActed) = "gpuaas.allocation.operator_acted.v1", "allocation.operate";
    /// The allocation waits for free capacity, for the first time or again.
    AllocationPlacing(AllocationPlacing) = "gpuaas.allocation.placing.v1", "allocation.advance";
    /// The allocation could not be stopped, started or rebooted.
    AllocationPowerFailed(AllocationProblem) = "gpuaas.allocation.power_failed.v1", "allocation.advance";
    /// The host was ordered to stop, start or reboot the guest of the allocation.
    AllocationPowerOrdered(AllocationPowerOrdered) = "gpuaas.allocation.power_ordered.v1", "allocation.advance";
    /// A stop, start or reboot of the allocation was requested.
    AllocationPowerRequested(AllocationPowerRequested) = "gpuaas.allocation.power_requested.v1", "allocation.power";
    /// The allocation was placed on a host, which prepares it.
    AllocationProvisioning(AllocationProvisioning) = "gpuaas.allocation.provisioning.v1", "allocation.advance";
    /// The allocation was rebooted.
    AllocationRebooted(AllocationPowerDone) = "gpuaas.allocation.rebooted.v1", "allocation.advance";
    /// The allocation has ended, but its host is not proven clean; an operator has to act.
    AllocationReleaseBlocked(AllocationProblem) = "gpuaas.allocation.release_blocked.v1", "allocation.advance";
    /// A release of the allocation failed and will be attempted again.
    AllocationReleaseFailed(AllocationReleaseDelayed) = "gpuaas.allocation.release_failed.v1", "allocation.advance";
    /// The host was ordered to release the allocation.
    AllocationReleaseOrdered(AllocationReleaseOrdered) = "gpuaas.allocation.release_ordered.v1", "allocation.advance";
    /// A release of the allocation was requested.
    AllocationReleaseRequested(AllocationReleaseRequested) = "gpuaas.allocation.release_requested.v1", "allocation.release";
    /// The release of the allocation waits for the budget of destructive commands and continues by itself.
    AllocationReleaseWaiting(AllocationReleaseDelayed) = "gpuaas.allocation.release_waiting.v1", "allocation.advance";
    /// The allocation was released and its host is proven clean.
    AllocationReleased(AllocationEnded) = "gpuaas.allocation.released.v1", "allocation.advance";
    /// The allocation is being released.
    AllocationReleasing(AllocationProgress) = "gpuaas.allocation.releasing.v1", "allocation.advance";
    /// An allocation was requested.
    AllocationRequested(AllocationRequested) = "gpuaas.allocation.requested.v1", "allocation.request";
    /// A retry of the failed allocation or its blocked release was requested.
    AllocationRetried(AllocationRetried) = "gpuaas.allocation.retried.v1", "allocation.retry";
    /// The allocation was started.
    AllocationStarted(AllocationPowerDone) = "gpuaas.allocation.started.v1", "allocation.advance";
    /// The allocation was stopped and keeps its slots.
    AllocationStopped(AllocationPowerDone) = "gpuaas.allocation.stopped.v1", "allocation.advance";
    /// A key of a service account was created.
    ApiKeyCreated(ApiKeyCreated) = "gpuaas.api_key.created.v1", "api_key.create";
    /// A key of a service account was revoked.
    ApiKeyRevoked(ApiKeyRevoked) = "gpuaas.api_key.revoked.v1", "api_key.revoke";
    /// An API token of the platform was created.
    ApiTokenCreated(ApiTokenCreated) = "gpuaas.api_token.created.v1", "api_token.create";
    /// An API token of the platform was revoked.
    ApiTokenRevoked(ApiTokenRevoked) = "gpuaas.api_token.revoked.v1", "api_token.revoke";
    /// The budget of destructive commands is used up until the hour is over or an operator lifts it.
    BudgetExhausted(BudgetExhausted) = "gpuaas.budget.exhausted.v1", "budget.exhaust";
    /// An operator allowed more destructive commands for an hour.
    BudgetLifted(BudgetLifted) = "gpuaas.budget.lifted.v1", "budget.lift";
    /// The certificate authority answers again.
    CaAvailable(CaState) = "gpuaas.ca.available.v1", "ca.available";
    /// The certificate authority does not answer; certificates stay valid until they expire.
    CaUnavailable(CaState) = "gpuaas.ca.unavailable.v1", "ca.unavailable";
    /// A delivery to a webhook is sent again.
    DeliveryReplayed(DeliveryReplayed) = "gpuaas.delivery.replayed.v1", "delivery.replay";
    /// An operator approved the enrollment of a host.
    EnrollmentApproved(EnrollmentDecided) = "gpuaas.enrollment.approved.v1", "enrollment.approve";
    /// A pending enrollment request was dropped because the queue was full and its address had the most requests.
    EnrollmentDisplaced(EnrollmentDisplaced) = "gpuaas.enrollment.displaced.v1", "enrollment.displace";
    /// An operator rejected the enrollment of a host.
    EnrollmentRejected(EnrollmentDecided) = "gpuaas.enrollment.rejected.v1", "enrollment.reject";
    /// A host requests enrollment.
    EnrollmentRequested(EnrollmentRequested) = "gpuaas.enrollment.requested.v1", "enrollment.request";
    /// An image was created.
    ImageCreated(ImageCreated) = "gpuaas.image.created.v1", "image.create";
    /// An image was deleted; guests created from it continue.
    ImageDeleted(ImageDeleted) = "gpuaas.image.deleted.v1", "image.delete";
    /// A join token was created.
    JoinTokenCreated(JoinTokenCreated) = "gpuaas.join_token.created.v1", "join_token.create";
    /// A join token was revoked.
    JoinTokenRevoked(JoinTokenRevoked) = "gpuaas.join_token.revoked.v1", "join_token.revoke";
    /// A host joined with a join token.
    JoinTokenUsed(JoinTokenUsed) = "gpuaas.join_token.used.v1", "join_token.use";
    /// A machine is not proven clean; an operator has to act.
    MachineCleanupBlocked(MachineMoved) = "gpuaas.machine.cleanup_blocked.v1", "machine.block";
    /// A machine is proven clean and available.
    MachineFreed(MachineMoved) = "gpuaas.machine.freed.v1", "machine.free";
    /// A machine is in use by its allocation.
    MachineInUse(MachineMoved) = "gpuaas.machine.in_use.v1", "machine.use";
    /// A machine was leased to an allocation.
    MachineLeased(MachineMoved) = "gpuaas.machine.leased.v1", "machine.lease";
    /// A whole machine was offered for lease.
    MachineOffered(MachineMoved) = "gpuaas.machine.offered.v1", "machine.offer";
    /// A machine is being released.
    MachineReleasing(MachineMoved) = "gpuaas.machine.releasing.v1", "machine.release";
    /// A whole machine is no longer offered.
    MachineWithdrawn(MachineMoved) = "gpuaas.machine.withdrawn.v1", "machine.withdraw";
    /// Maintenance of nodes was announced.
    MaintenanceAnnounced(MaintenanceAnnounced) = "gpuaas.maintenance.announced.v1", "maintenance.announce";
    /// Maintenance of nodes was canceled.
    MaintenanceCancelled(MaintenanceCancelled) = "gpuaas.maintenance.cancelled.v1", "maintenance.cancel";
    /// An invited user signed in and is a member.
    MemberAccepted(MemberEvent) = "gpuaas.member.accepted.v1", "member.accept";
    /// A member was added or invited.
    MemberAdded(MemberEvent) = "gpuaas.member.added.v1", "member.add";
    /// The role of a member was changed.
    MemberChanged(MemberEvent) = "gpuaas.member.changed.v1", "member.change";
    /// A member was removed.
    MemberRemoved(MemberEvent) = "gpuaas.member.removed.v1", "member.remove";
    /// A node sent more than the server stores from it within an hour; the rest is dropped.
    NodeBudgetExceeded(NodeBudgetExceeded) = "gpuaas.node.budget_exceeded.v1", "node.budget";
    /// The certificate of a node was renewed.
    NodeCertificateRenewed(NodeCertificateRenewed) = "gpuaas.node.certificate_renewed.v1", "node.renew";
    /// A node is draining: it gets no new work.
    NodeDraining(NodeServiceChanged) = "gpuaas.node.draining.v1", "node.drain";
    /// A host was enrolled as a node.
    NodeEnrolled(NodeEnrolled) = "gpuaas.node.enrolled.v1", "node.enroll";
    /// The facts that a node reports about its host changed.
    NodeFactsChanged(NodeFactsChanged) = "gpuaas.node.facts_changed.v1", "node.facts";
    /// A node is in service again.
    NodeInService(NodeServiceChanged) = "gpuaas.node.in_service.v1", ["node.undrain", "node.unquarantine"];
    /// A node was locked because two live copies of its identity were seen.
    NodeLocked(NodeServiceChanged) = "gpuaas.node.locked.v1", "node.lock";
    /// The link of a node ended.
    NodeOffline(NodeOffline) = "gpuaas.node.offline.v1", "node.disconnect";
    /// A node opened a link.
    NodeOnline(NodeOnline) = "gpuaas.node.online.v1", "node.connect";
    /// A node was quarantined, and its slots with it.
    NodeQuarantined(NodeServiceChanged) = "gpuaas.node.quarantined.v1", "node.quarantine";
    /// A node rejoined after its certificate had expired.
    NodeRejoined(NodeRejoined) = "gpuaas.node.rejoined.v1", "node.rejoin";
    /// An operator renamed a node.
    NodeRenamed(NodeRenamed) = "gpuaas.node.renamed.v1", "node.rename";
    /// A node was retired permanently.
    NodeRetired(NodeServiceChanged) = "gpuaas.node.retired.v1", "node.retire";
    /// An organization was changed.
    OrganizationChanged(OrganizationChanged) = "gpuaas.organization.changed.v1", "organization.change";
    /// An organization was created.
    OrganizationCreated(OrganizationCreated) = "gpuaas.organization.created.v1", "organization.create";
    /// An organization was deleted.
    OrganizationDeleted(OrganizationDeleted) = "gpuaas.organization.deleted.v1", "organization.delete";
    /// A project was changed.
    ProjectChanged(ProjectChanged) = "gpuaas.project.changed.v1", "project.change";
    /// A project was created.
    ProjectCreated(ProjectCreated) = "gpuaas.project.created.v1", "project.create";
    /// A project was deleted.
    ProjectDeleted(ProjectDeleted) = "gpuaas.project.deleted.v1", "project.delete";
    /// The quota of an organization or a project was changed.
    QuotaSet(QuotaSet) = "gpuaas.quota.set.v1", "quota.set";
    /// A service account was created.
    ServiceAccountCreated(ServiceAccountEvent) = "gpuaas.service_account.created.v1", "service_account.create";
    /// A service account was deleted, and its keys with it.
    ServiceAccountDeleted(ServiceAccountEvent) = "gpuaas.service_account.deleted.v1", "service_account.delete";
    /// A user approved the sign-in of a device.
    SignInApproved(SignInEvent) = "gpuaas.sign_in.approved.v1", "sign_in.approve";
    /// A user denied the sign-in of a device.
    SignInDenied(SignInEvent) = "gpuaas.sign_in.denied.v1", "sign_in.deny";
    /// A sign-in was revoked before it expired.
    SignInRevoked(SignInRevoked) = "gpuaas.sign_in.revoked.v1", "sign_in.revoke";
    /// A sign-in began.
    SignInStarted(SignInEvent) = "gpuaas.sign_in.started.v1", "sign_in.start";
    /// The keys that sign tasks were changed.
    SigningKeyChanged(SigningKeyChanged) = "gpuaas.signing_key.changed.v1", ["signing_key.stage", "signing_key.rotate", "signing_key.revoke"];
    /// A product of the catalog was changed.
    SkuChanged(SkuEvent) = "gpuaas.sku.changed.v1", "sku.change";
    /// A product was added to the catalog.
    SkuCreated(SkuEvent) = "gpuaas.sku.created.v1", "sku.create";
    /// An operator approved a slot that its node discovered.
    SlotApproved(SlotApproved) = "gpuaas.slot.approved.v1", "slot.approve";
    /// A slot is not proven clean; an operator has to act.
    SlotCleanupBlocked(SlotMoved) = "gpuaas.slot.cleanup_blocked.v1", "slot.block";
    /// A slot is proven clean and available, unless it is quarantined.
    SlotFreed(SlotMoved) = "gpuaas.slot.freed.v1", "slot.free";
    /// A slot is in use by its allocation.
    SlotInUse(SlotMoved) = "gpuaas.slot.in_use.v1", "slot.use";
    /// A slot was leased to an allocation.
    SlotLeased(SlotMoved) = "gpuaas.slot.leased.v1", "slot.lease";
    /// A slot has to be wiped before it is available.
    SlotNeedsWipe(SlotMoved) = "gpuaas.slot.needs_wipe.v1", "slot.needs_wipe";
    /// A slot was quarantined.
    SlotQuarantined(SlotMoved) = "gpuaas.slot.quarantined.v1", "slot.quarantine";
    /// A slot is being released.
    SlotReleasing(SlotMoved) = "gpuaas.slot.releasing.v1", "slot.release";
    /// An operator forced the cleanup of a slot.
    SlotTakenOver(SlotMoved) = "gpuaas.slot.taken_over.v1", "slot.force_cleanup";
    /// A slot is no longer quarantined.
    SlotUnquarantined(SlotMoved) = "gpuaas.slot.unquarantined.v1", "slot.unquarantine";
    /// A slot was withdrawn.
    SlotWithdrawn(SlotMoved) = "gpuaas.slot.withdrawn.v1", "slot.withdraw";
    /// An SSH key was added to a project.
    SshKeyAdded(SshKeyEvent) = "gpuaas.ssh_key.added.v1", "ssh_key.add";
    /// An SSH key was deleted.
    SshKeyDeleted(SshKeyEvent) = "gpuaas.ssh_key.deleted.v1", "ssh_key.delete";
    /// A node accepted a task.
    TaskAccepted(TaskRef) = "gpuaas.task.accepted.v1", "task.accept";
    /// The cancellation of a task was requested.
    TaskCancelRequested(TaskReason) = "gpuaas.task.cancel_requested.v1", "task.cancel";
    /// A task was canceled before it was done.
    TaskCancelled(TaskCancelled) = "gpuaas.task.cancelled.v1", ["task.receipt", "task.cancelled"];
    /// A task was signed and sent to its node.
    TaskDispatched(TaskDispatched) = "gpuaas.task.dispatched.v1", "task.dispatch";
    /// A task waited too long and was never sent.
    TaskExpired(TaskEnded) = "gpuaas.task.expired.v1", "task.expire";
    /// A node reported that a task failed.
    TaskFailed(TaskReported) = "gpuaas.task.failed.v1", "task.receipt";
    /// A task was interrupted by a restart of its node.
    TaskInterrupted(TaskReported) = "gpuaas.task.interrupted.v1", "task.receipt";
    /// A node went silent with a task; it may have run.
    TaskLost(TaskEnded) = "gpuaas.task.lost.v1", "task.lose";
    /// A task was queued for a node.
    TaskQueued(TaskQueued) = "gpuaas.task.queued.v1", "task.create";
    /// A node refused a task.
    TaskRefused(TaskReported) = "gpuaas.task.refused.v1", "task.receipt";
    /// A node does not have a task that was sent to it, and the task is sent again.
    TaskRequeued(TaskReason) = "gpuaas.task.requeued.v1", "task.requeue";
    /// A node started a task.
    TaskStarted(TaskRef) = "gpuaas.task.started.v1", "task.start";
    /// A node proved that a task is done.
    TaskSucceeded(TaskReported) = "gpuaas.task.succeeded.v1", "task.receipt";
    /// The issuer reported changed information about a user.
    UserChanged(UserChanged) = "gpuaas.user.changed.v1", "user.change";
    /// A user was created, by an operator or by signing in for the first time.
    UserCreated(UserCreated) = "gpuaas.user.created.v1", "user.create";
    /// A user was deactivated and can no longer sign in.
    UserDeactivated(UserEvent) = "gpuaas.user.deactivated.v1", "user.deactivate";
    /// A user was deleted, with their roles and the keys they created.
    UserDeleted(UserDeleted) = "gpuaas.user.deleted.v1", "user.delete";
    /// A user has a new password.
    UserPasswordSet(UserEvent) = "gpuaas.user.password_set.v1", "user.set_password";
    /// A user was reactivated and can sign in again.
    UserReactivated(UserEvent) = "gpuaas.user.reactivated.v1", "user.reactivate";
    /// A sign-in failed because of a wrong password.
    UserSignInFailed(UserSignInFailed) = "gpuaas.user.sign_in_failed.v1", "user.sign_in_failed";
    /// A user signed in after entering wrong passwords.
    UserSignedIn(UserEvent) = "gpuaas.user.signed_in.v1", "user.sign_in";
    /// A webhook was changed, enabled, disabled or deleted, or has a new secret.
    WebhookChanged(WebhookChanged) = "gpuaas.webhook.changed.v1", "webhook.change";
    /// A webhook was created.
    WebhookCreated(WebhookCreated) = "gpuaas.webhook.created.v1", "webhook.create";
    /// A webhook was disabled because its deliveries fail.
    WebhookDisabled(WebhookDisabled) = "gpuaas.webhook.disabled.v1", "webhook.disable";
    /// A webhook is tested. Delivered to that webhook only, whichever event types it receives.
    WebhookTest(WebhookTest) = "gpuaas.webhook.test.v1", "webhook.test";
}

/// Shortens `gpuaas.allocation.active.v1` to `allocation.active`. Also works for kinds that this version does not know.
pub fn short_kind(kind: &str) -> &str {
    let kind = kind.strip_prefix("gpuaas.").unwrap_or(kind);
    match kind.rsplit_once(".v") {
        Some((short, version)) if !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()) => short,
        Some(_) | None => kind,
    }
}

impl EventKind {
    /// The type without the common prefix and version, such as `allocation.active`.
    pub fn short(self) -> &'static str {
        short_kind(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kinds_are_listed_by_name_and_named_alike() {
        assert!(EventKind::ALL.is_sorted_by(|one, next| one.as_str() < next.as_str()));
        for kind in EventKind::ALL {
            let parts: Vec<&str> = kind.as_str().split('.').collect();
            let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(matches!(parts.as_slice(), ["gpuaas", of, what, "v1"] if word(of) && word(what)), "{kind}");
            let variant: String = format!("{kind:?}").to_lowercase();
            assert_eq!(variant, kind.short().replace(['.', '_'], ""), "the variant is named like its kind");
            assert!(kind.summary().ends_with('.') && !kind.actions().is_empty(), "{kind}");
        }
        assert_eq!(short_kind("gpuaas.thing.happened.v12"), "thing.happened");
        assert_eq!(short_kind("other.thing"), "other.thing");
    }

    /// Collects the property names of a schema, including those of its subschemas.
    fn properties(schema: &serde_json::Value, names: &mut BTreeSet<String>) {
        names.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()));
        for part in ["allOf", "anyOf", "oneOf"] {
            schema[part].as_array().into_iter().flatten().for_each(|part| properties(part, names));
        }
    }

    #[test]
    fn tenants_see_fields_that_exist_and_none_that_names_a_host() {
        let mut generator = schemars::SchemaGenerator::default();
        for kind in EventKind::ALL {
            let reference = kind.data_schema(&mut generator).to_value();
            let name =
                reference["$ref"].as_str().and_then(|path| path.rsplit('/').next()).expect("payloads have names").to_owned();
            let mut names = BTreeSet::new();
            properties(&generator.definitions()[&name], &mut names);
            for field in kind.tenant_fields() {
                assert!(names.contains(field), "{kind} has no field {field}: {names:?}");
                let hosts = ["node", "task", "host", "slot", "address"];
                assert!(!hosts.iter().any(|word| field.contains(word)), "{kind} tells tenants {field}");
            }
        }
    }

    #[test]
    fn an_event_reads_as_what_was_written() {
        let progress = serde_json::json!({
            "allocation_id": "alloc_00000000000000000000000000000001", "project_id": "proj_00000000000000000000000000000002",
            "organization_id": "org_00000000000000000000000000000003", "name": "web", "from": "provisioning", "to": "active",
            "step": "serve", "reason": null, "node_id": "node_00000000000000000000000000000004",
            "expires_at": "2027-01-15T08:00:00.000000Z",
        });
        let event = Event::read(EventKind::AllocationActive, progress.clone()).expect("an event");
        assert_eq!(
            (event.kind(), event.action(), event.data()),
            (EventKind::AllocationActive, "allocation.advance", progress.clone())
        );
        // Neither a state nor a field of another version makes an event unreadable.
        let mut other = progress;
        other["to"] = "hibernating".into();
        other["mood"] = "good".into();
        assert_eq!(Event::read(EventKind::AllocationActive, other).expect("an event").data()["to"], "hibernating");
    }

    #[test]
    fn what_a_kind_has_several_actions_for_is_in_its_data() {
        let node = |from: &str| {
            let data = serde_json::json!({
                "node_id": "node_00000000000000000000000000000004", "from": from, "to": "in_service", "reason": "",
            });
            Event::read(EventKind::NodeInService, data).expect("an event").action()
        };
        assert_eq!((node("draining"), node("quarantined")), ("node.undrain", "node.unquarantine"));
        let task = serde_json::json!({
            "task_id": "task_00000000000000000000000000000005", "node_id": "node_00000000000000000000000000000004", "code": "cancelled",
        });
        let mut received = task.clone();
        received["outcome"] = "cancelled".into();
        received["receipt"] = format!("sha256:{}", "0".repeat(64)).into();
        received["sequence"] = 7.into();
        received["chain_intact"] = true.into();
        for (data, action) in [(task, "task.cancelled"), (received, "task.receipt")] {
            let event = Event::read(EventKind::TaskCancelled, data.clone()).expect("an event");
            assert_eq!((event.action(), event.data()), (action, data));
            assert!(event.kind().actions().contains(&event.action()));
        }
    }
}
