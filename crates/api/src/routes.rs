//! Every path of the REST interface, in the syntax of the server's router. All but [`HEALTHZ`], [`READYZ`], [`OPENAPI`]
//! and [`REFERENCE`] need `Authorization: Bearer <token>`. [`crate::endpoints`] is the table of who may use which.

/// `GET` → [`crate::dto::ClusterInfo`].
pub const CLUSTER: &str = "/api/v1/cluster";
/// `GET` → [`crate::dto::Budget`]: the budget of destructive commands.
pub const BUDGET: &str = "/api/v1/cluster/budget";
/// `POST` [`crate::dto::BudgetLift`] → [`crate::dto::Budget`]: more than the budget, for an hour.
pub const BUDGET_LIFT: &str = "/api/v1/cluster/budget/lift";

/// `GET` [`crate::dto::NodeListQuery`] → page of [`crate::dto::Node`].
pub const NODES: &str = "/api/v1/nodes";
/// `GET` → [`crate::dto::Node`], `PATCH` [`crate::dto::NodeChange`]; the segment is an id or a unique name, here and in the operations below.
pub const NODE: &str = "/api/v1/nodes/{node}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: maintenance on.
pub const NODE_DRAIN: &str = "/api/v1/nodes/{node}/drain";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: maintenance off.
pub const NODE_UNDRAIN: &str = "/api/v1/nodes/{node}/undrain";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: hold back.
pub const NODE_QUARANTINE: &str = "/api/v1/nodes/{node}/quarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: let go again.
pub const NODE_UNQUARANTINE: &str = "/api/v1/nodes/{node}/unquarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: end.
pub const NODE_RETIRE: &str = "/api/v1/nodes/{node}/retire";

/// `GET` → [`crate::dto::Topology`]: what the node found on itself last, and its slots.
pub const NODE_TOPOLOGY: &str = "/api/v1/nodes/{node}/topology";
/// `POST` [`crate::dto::TopologyApprove`] → page of [`crate::dto::Slot`], always whole: the approved slots.
pub const NODE_TOPOLOGY_APPROVE: &str = "/api/v1/nodes/{node}/topology/approve";

/// `GET` [`crate::dto::SlotListQuery`] → page of [`crate::dto::Slot`].
pub const SLOTS: &str = "/api/v1/slots";
/// `GET` → [`crate::dto::Slot`].
pub const SLOT: &str = "/api/v1/slots/{slot}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Slot`]: hold it back; the rest of the node goes on.
pub const SLOT_QUARANTINE: &str = "/api/v1/slots/{slot}/quarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Slot`]: let it go again.
pub const SLOT_UNQUARANTINE: &str = "/api/v1/slots/{slot}/unquarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Slot`]: no longer a slot, until it is approved again.
pub const SLOT_WITHDRAW: &str = "/api/v1/slots/{slot}/withdraw";

/// `POST` [`crate::dto::Reason`] → 201 [`crate::dto::SliceOrder`]: clean up what is left of a slice on it and on the slots that belong to
/// it, whoever the host thinks has them. Frees nothing without a complete proof.
pub const SLOT_FORCE_CLEANUP: &str = "/api/v1/slots/{slot}/force-cleanup";

/// `GET` [`crate::dto::SliceListQuery`] → page of [`crate::dto::Slice`]; `POST` [`crate::dto::SliceCreate`] → 201
/// [`crate::dto::SliceOrder`] (200 if [`IDEMPOTENCY_KEY_HEADER`] found it made already).
pub const SLICES: &str = "/api/v1/slices";
/// `GET` → [`crate::dto::Slice`], also of one that was released.
pub const SLICE: &str = "/api/v1/slices/{slice}";
/// `POST` [`crate::dto::SliceRelease`] → 201 [`crate::dto::SliceOrder`]: end the guest, clean up, give the slots back.
pub const SLICE_RELEASE: &str = "/api/v1/slices/{slice}/release";
/// `POST` [`crate::dto::SlicePower`] → 201 [`crate::dto::SliceOrder`]: stop, start or reboot the guest.
pub const SLICE_POWER: &str = "/api/v1/slices/{slice}/power";
/// `POST` [`crate::dto::SliceConsole`] → 201 [`crate::dto::SliceOrder`]: read the guest's serial console into the task's log.
pub const SLICE_CONSOLE: &str = "/api/v1/slices/{slice}/console";

/// `GET` [`crate::dto::EnrollmentListQuery`] → page of [`crate::dto::Enrollment`].
pub const ENROLLMENTS: &str = "/api/v1/enrollments";
/// `GET` → [`crate::dto::Enrollment`].
pub const ENROLLMENT: &str = "/api/v1/enrollments/{enrollment}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Enrollment`].
pub const ENROLLMENT_APPROVE: &str = "/api/v1/enrollments/{enrollment}/approve";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Enrollment`].
pub const ENROLLMENT_REJECT: &str = "/api/v1/enrollments/{enrollment}/reject";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::JoinToken`]; `POST` [`crate::dto::JoinTokenCreate`] → 201
/// [`crate::dto::JoinTokenCreated`].
pub const JOIN_TOKENS: &str = "/api/v1/join-tokens";
/// `DELETE` → [`crate::dto::JoinToken`], revoked.
pub const JOIN_TOKEN: &str = "/api/v1/join-tokens/{token}";

/// `GET` [`crate::dto::TaskListQuery`] → page of [`crate::dto::Task`]; `POST` [`crate::dto::TaskCreate`] → 201
/// [`crate::dto::Task`] (200 if [`IDEMPOTENCY_KEY_HEADER`] found it made already).
pub const TASKS: &str = "/api/v1/tasks";
/// `GET` → [`crate::dto::Task`].
pub const TASK: &str = "/api/v1/tasks/{task}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Task`].
pub const TASK_CANCEL: &str = "/api/v1/tasks/{task}/cancel";
/// `GET` [`crate::dto::TaskLogsQuery`] → [`crate::dto::TaskLogs`].
pub const TASK_LOGS: &str = "/api/v1/tasks/{task}/logs";
/// `GET` → `text/event-stream`: [`EVENT_TASK`] at once and on every change, [`EVENT_PROGRESS`] in between, a comment at
/// least every 15 s; ends after the [`EVENT_TASK`] of a task that has ended.
pub const TASK_WATCH: &str = "/api/v1/tasks/{task}/watch";
/// `GET` → [`crate::dto::TaskEvidence`].
pub const TASK_EVIDENCE: &str = "/api/v1/tasks/{task}/evidence";
/// `GET` → page of [`crate::dto::TaskTypeInfo`], always whole.
pub const TASK_TYPES: &str = "/api/v1/task-types";

/// `GET` [`crate::dto::AuditQuery`] → page of [`crate::dto::AuditRow`].
pub const AUDIT: &str = "/api/v1/audit";
/// `GET` [`crate::dto::AuditExportQuery`] → `application/x-ndjson`, one [`crate::dto::AuditRow`] per line, the whole chain unless less is
/// asked for.
pub const AUDIT_EXPORT: &str = "/api/v1/audit/export";

/// `GET` → page of [`crate::dto::SigningKey`], always whole.
pub const SIGNING_KEYS: &str = "/api/v1/signing-keys";
/// `POST` (empty body) → page of [`crate::dto::SigningKey`]: the next key is made and published, not believed yet.
pub const SIGNING_KEYS_STAGE: &str = "/api/v1/signing-keys/stage";
/// `POST` (empty body) → page of [`crate::dto::SigningKey`]: the staged or a new key signs, the old one goes into grace.
pub const SIGNING_KEYS_ROTATE: &str = "/api/v1/signing-keys/rotate";
/// `POST` [`crate::dto::Reason`] → page of [`crate::dto::SigningKey`]: the key is never believed again.
pub const SIGNING_KEY_REVOKE: &str = "/api/v1/signing-keys/{key}/revoke";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::ApiToken`]; `POST` [`crate::dto::ApiTokenCreate`] → 201
/// [`crate::dto::ApiTokenCreated`].
pub const API_TOKENS: &str = "/api/v1/api-tokens";
/// `DELETE` → [`crate::dto::ApiToken`], revoked.
pub const API_TOKEN: &str = "/api/v1/api-tokens/{token}";

/// `GET` → [`crate::dto::WhoAmI`].
pub const WHOAMI: &str = "/api/v1/whoami";
/// `POST` [`crate::dto::OwnPassword`] → [`crate::dto::User`]: another password, for people whom this server signs in.
pub const OWN_PASSWORD: &str = "/api/v1/whoami/password";

/// `GET` [`crate::dto::OrganizationListQuery`] → page of [`crate::dto::Organization`]; `POST` [`crate::dto::OrganizationCreate`] → 201
/// [`crate::dto::Organization`].
pub const ORGANIZATIONS: &str = "/api/v1/organizations";
/// `GET` → [`crate::dto::Organization`]; `PATCH` [`crate::dto::OrganizationChange`] → the same; `DELETE` → the same, deleted. The segment is an id, here and below.
pub const ORGANIZATION: &str = "/api/v1/organizations/{organization}";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::Member`]; `POST` [`crate::dto::MemberAdd`] → 201 [`crate::dto::Member`].
pub const ORGANIZATION_MEMBERS: &str = "/api/v1/organizations/{organization}/members";
/// `PATCH` [`crate::dto::MemberChange`] → [`crate::dto::Member`]; `DELETE` → the same, removed.
pub const ORGANIZATION_MEMBER: &str = "/api/v1/organizations/{organization}/members/{member}";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::Project`]; `POST` [`crate::dto::ProjectCreate`] → 201 [`crate::dto::Project`].
pub const ORGANIZATION_PROJECTS: &str = "/api/v1/organizations/{organization}/projects";
/// `GET` → [`crate::dto::Quota`]; `PUT` [`crate::dto::Limits`] → the same.
pub const ORGANIZATION_QUOTA: &str = "/api/v1/organizations/{organization}/quota";

/// `GET` [`crate::dto::ProjectListQuery`] → page of [`crate::dto::Project`]: those the caller can see.
pub const PROJECTS: &str = "/api/v1/projects";
/// `GET` → [`crate::dto::Project`]; `PATCH` [`crate::dto::ProjectChange`] → the same; `DELETE` → the same, deleted.
pub const PROJECT: &str = "/api/v1/projects/{project}";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::Member`]; `POST` [`crate::dto::MemberAdd`] → 201 [`crate::dto::Member`].
pub const PROJECT_MEMBERS: &str = "/api/v1/projects/{project}/members";
/// `PATCH` [`crate::dto::MemberChange`] → [`crate::dto::Member`]; `DELETE` → the same, removed.
pub const PROJECT_MEMBER: &str = "/api/v1/projects/{project}/members/{member}";
/// `GET` → [`crate::dto::Quota`]; `PUT` [`crate::dto::Limits`] → the same.
pub const PROJECT_QUOTA: &str = "/api/v1/projects/{project}/quota";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::ServiceAccount`]; `POST` [`crate::dto::ServiceAccountCreate`] → 201
/// [`crate::dto::ServiceAccount`].
pub const SERVICE_ACCOUNTS: &str = "/api/v1/projects/{project}/service-accounts";
/// `DELETE` → [`crate::dto::ServiceAccount`], deleted.
pub const SERVICE_ACCOUNT: &str = "/api/v1/projects/{project}/service-accounts/{service_account}";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::ApiKey`]; `POST` [`crate::dto::ApiKeyCreate`] → 201
/// [`crate::dto::ApiKeyCreated`].
pub const API_KEYS: &str = "/api/v1/projects/{project}/service-accounts/{service_account}/keys";
/// `DELETE` → [`crate::dto::ApiKey`], revoked.
pub const API_KEY: &str = "/api/v1/projects/{project}/service-accounts/{service_account}/keys/{key}";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::SshKey`]; `POST` [`crate::dto::SshKeyCreate`] → 201 [`crate::dto::SshKey`].
pub const SSH_KEYS: &str = "/api/v1/projects/{project}/ssh-keys";
/// `DELETE` → [`crate::dto::SshKey`], deleted.
pub const SSH_KEY: &str = "/api/v1/projects/{project}/ssh-keys/{ssh_key}";
/// `GET` [`crate::dto::ImageListQuery`] → page of [`crate::dto::Image`], those of the platform too; `POST` [`crate::dto::ImageCreate`] →
/// 201 [`crate::dto::Image`] of the project's organization.
pub const PROJECT_IMAGES: &str = "/api/v1/projects/{project}/images";
/// `GET` → [`crate::dto::Image`]; `DELETE` → the same, deleted.
pub const PROJECT_IMAGE: &str = "/api/v1/projects/{project}/images/{image}";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::Member`]; `POST` [`crate::dto::MemberAdd`] → 201 [`crate::dto::Member`].
pub const PLATFORM_MEMBERS: &str = "/api/v1/platform/members";
/// `PATCH` [`crate::dto::MemberChange`] → [`crate::dto::Member`]; `DELETE` → the same, removed.
pub const PLATFORM_MEMBER: &str = "/api/v1/platform/members/{member}";
/// `GET` [`crate::dto::UserListQuery`] → page of [`crate::dto::User`]; `POST` [`crate::dto::UserCreate`] → 201
/// [`crate::dto::UserCreated`].
pub const USERS: &str = "/api/v1/users";
/// `GET` → [`crate::dto::User`].
pub const USER: &str = "/api/v1/users/{user}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::User`], who may no longer sign in.
pub const USER_DEACTIVATE: &str = "/api/v1/users/{user}/deactivate";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::User`], who may sign in again.
pub const USER_REACTIVATE: &str = "/api/v1/users/{user}/reactivate";
/// `POST` [`crate::dto::UserPassword`] → [`crate::dto::UserPasswordSet`].
pub const USER_PASSWORD: &str = "/api/v1/users/{user}/password";
/// `GET` [`crate::dto::ImageListQuery`] → page of [`crate::dto::Image`]; `POST` [`crate::dto::ImageCreate`] → 201 [`crate::dto::Image`]:
/// those of the platform.
pub const IMAGES: &str = "/api/v1/images";
/// `GET` → [`crate::dto::Image`]; `DELETE` → the same, deleted.
pub const IMAGE: &str = "/api/v1/images/{image}";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::CatalogItem`]: what is on offer.
pub const CATALOG: &str = "/api/v1/catalog";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::Sku`], retired ones too; `POST` [`crate::dto::SkuCreate`] → 201
/// [`crate::dto::Sku`].
pub const SKUS: &str = "/api/v1/skus";
/// `PATCH` [`crate::dto::SkuChange`] → [`crate::dto::Sku`]; the segment is an id or a name.
pub const SKU: &str = "/api/v1/skus/{sku}";

/// `GET` [`crate::dto::AllocationListQuery`] → page of [`crate::dto::Allocation`]; `POST` [`crate::dto::AllocationCreate`] → 201
/// [`crate::dto::Allocation`] (200 if [`IDEMPOTENCY_KEY_HEADER`] found it made already), or 200 [`crate::dto::AllocationPlan`] for a dry
/// run.
pub const PROJECT_ALLOCATIONS: &str = "/api/v1/projects/{project}/allocations";
/// `GET` [`crate::dto::AllocationSearchQuery`] → page of [`crate::dto::Allocation`] of the whole platform.
pub const ALLOCATIONS: &str = "/api/v1/allocations";
/// `GET` → [`crate::dto::Allocation`]; `PATCH` [`crate::dto::AllocationChange`] → the same.
pub const ALLOCATION: &str = "/api/v1/allocations/{allocation}";
/// `POST` [`crate::dto::Empty`] → [`crate::dto::Allocation`]: shut its guest down; it keeps everything it has.
pub const ALLOCATION_STOP: &str = "/api/v1/allocations/{allocation}/stop";
/// `POST` [`crate::dto::Empty`] → [`crate::dto::Allocation`]: start its guest again.
pub const ALLOCATION_START: &str = "/api/v1/allocations/{allocation}/start";
/// `POST` [`crate::dto::Empty`] → [`crate::dto::Allocation`]: shut its guest down and start it again.
pub const ALLOCATION_REBOOT: &str = "/api/v1/allocations/{allocation}/reboot";
/// `POST` [`crate::dto::AllocationExtend`] → [`crate::dto::Allocation`]: another end of the lease.
pub const ALLOCATION_EXTEND: &str = "/api/v1/allocations/{allocation}/extend";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Allocation`]: give it back.
pub const ALLOCATION_RELEASE: &str = "/api/v1/allocations/{allocation}/release";
/// `POST` [`crate::dto::AllocationRetry`] → [`crate::dto::Allocation`]: try again what failed.
pub const ALLOCATION_RETRY: &str = "/api/v1/allocations/{allocation}/retry";
/// `POST` [`crate::dto::SliceConsole`] → 201 [`crate::dto::Task`] (200 if [`IDEMPOTENCY_KEY_HEADER`] found it made already): read its guest's
/// serial console into the task's log.
pub const ALLOCATION_CONSOLE: &str = "/api/v1/allocations/{allocation}/console";
/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::EventRow`], the oldest first: its history.
pub const ALLOCATION_EVENTS: &str = "/api/v1/allocations/{allocation}/events";
/// `GET` [`crate::dto::AllocationWatchQuery`] → `text/event-stream`: [`EVENT_ALLOCATION`] at once and on every change, [`EVENT_PROGRESS`]
/// in between, a comment at least every 15 s; ends after the [`EVENT_ALLOCATION`] that was waited for.
pub const ALLOCATION_WATCH: &str = "/api/v1/allocations/{allocation}/watch";

/// `GET` [`crate::dto::EventsQuery`] → `text/event-stream` of [`EVENT_CLOUD_EVENT`], each with its position as `id`. First of all an `id`
/// without data: the position the stream starts from. Goes on after [`LAST_EVENT_ID_HEADER`], which counts more than `after`. A comment at
/// least every 15 s.
pub const PROJECT_EVENTS: &str = "/api/v1/projects/{project}/events";
/// `GET` [`crate::dto::EventsQuery`] → WebSocket: one [`crate::dto::CloudEvent`] per text message.
pub const PROJECT_EVENTS_WS: &str = "/api/v1/projects/{project}/events/ws";
/// `GET` [`crate::dto::EventsQuery`] → like [`PROJECT_EVENTS`], of the whole platform.
pub const EVENTS: &str = "/api/v1/events";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::Webhook`]; `POST` [`crate::dto::WebhookCreate`] → 201
/// [`crate::dto::WebhookCreated`].
pub const WEBHOOKS: &str = "/api/v1/projects/{project}/webhooks";
/// `GET` → [`crate::dto::Webhook`]; `PATCH` [`crate::dto::WebhookChange`] → [`crate::dto::WebhookChanged`]; `DELETE` →
/// [`crate::dto::Webhook`], deleted.
pub const WEBHOOK: &str = "/api/v1/webhooks/{webhook}";
/// `GET` [`crate::dto::DeliveryListQuery`] → page of [`crate::dto::Delivery`].
pub const WEBHOOK_DELIVERIES: &str = "/api/v1/webhooks/{webhook}/deliveries";
/// `POST` [`crate::dto::Empty`] → [`crate::dto::Delivery`]: try it again, whatever came of it before.
pub const DELIVERY_REPLAY: &str = "/api/v1/deliveries/{delivery}/replay";

/// `GET` [`crate::dto::MaintenanceListQuery`] → page of [`crate::dto::MaintenanceWindow`]; `POST` [`crate::dto::MaintenanceCreate`] → 201
/// [`crate::dto::MaintenanceWindow`].
pub const MAINTENANCE_WINDOWS: &str = "/api/v1/maintenance-windows";
/// `DELETE` → [`crate::dto::MaintenanceWindow`], cancelled.
pub const MAINTENANCE_WINDOW: &str = "/api/v1/maintenance-windows/{maintenance}";
/// `GET` → [`crate::dto::DrainPreview`]: what is in the way before the node is empty.
pub const NODE_DRAIN_PREVIEW: &str = "/api/v1/nodes/{node}/drain-preview";
/// `GET` → [`crate::dto::Capacity`].
pub const CAPACITY: &str = "/api/v1/capacity";
/// `GET` [`crate::dto::MachineListQuery`] → page of [`crate::dto::Machine`].
pub const MACHINES: &str = "/api/v1/machines";
/// `POST` [`crate::dto::MachineOffer`] → [`crate::dto::Machine`]: lease it as a whole.
pub const NODE_MACHINE_OFFER: &str = "/api/v1/nodes/{node}/machine/offer";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Machine`]: take that offer back.
pub const NODE_MACHINE_WITHDRAW: &str = "/api/v1/nodes/{node}/machine/withdraw";

/// `GET` → the OpenAPI document of this interface. Needs no token.
pub const OPENAPI: &str = "/openapi.json";
/// `GET` → the same for people, as one page of HTML. Needs no token.
pub const REFERENCE: &str = "/docs";

/// `GET`: the process is alive. Needs no token.
pub const HEALTHZ: &str = "/healthz";
/// `GET`: the process can serve. Needs no token.
pub const READYZ: &str = "/readyz";
/// `GET` → Prometheus text.
pub const METRICS: &str = "/metrics";

/// Header of every `POST`: the same key with the same body is done once and answered alike; with another body it is a conflict.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// Header of answers: `true` if this is the answer to an earlier request with the same key.
pub const IDEMPOTENCY_REPLAYED_HEADER: &str = "idempotency-replayed";
/// Header of answers: names the version of the document.
pub const ETAG_HEADER: &str = "etag";
/// Header of `PATCH`, `PUT` and `DELETE`: only if the document still is of this version; 412 otherwise.
pub const IF_MATCH_HEADER: &str = "if-match";
/// Header of answers: how much of the caller's share is left, as `"name";r=<requests left>;t=<seconds until more>`.
pub const RATE_LIMIT_HEADER: &str = "ratelimit";
/// Header of answers: what the caller's share is, as `"name";q=<requests>;w=<seconds>`.
pub const RATE_LIMIT_POLICY_HEADER: &str = "ratelimit-policy";
/// Header of answers with status 429 and 503: how many seconds to wait.
pub const RETRY_AFTER_HEADER: &str = "retry-after";
/// Header of streams of events: the `id` of the last event that was seen.
pub const LAST_EVENT_ID_HEADER: &str = "last-event-id";
/// Header both ways: follows a request into every log line.
pub const CORRELATION_ID_HEADER: &str = "x-correlation-id";
/// Name of the event that carries a [`crate::dto::Task`].
pub const EVENT_TASK: &str = "task";
/// Name of the event that carries an [`crate::dto::Allocation`].
pub const EVENT_ALLOCATION: &str = "allocation";
/// Name of the event that carries a [`crate::dto::CloudEvent`].
pub const EVENT_CLOUD_EVENT: &str = "event";
/// Name of the event that carries a [`crate::dto::TaskProgress`].
pub const EVENT_PROGRESS: &str = "progress";

/// A path with its `{…}` segments filled in, percent-encoded; `None` if a value cannot be a segment or is one too few.
pub fn fill(route: &str, values: &[&str]) -> Option<String> {
    let mut values = values.iter();
    let mut path = String::with_capacity(route.len() + 40);
    for segment in route.split('/').skip(1) {
        path.push('/');
        if segment.starts_with('{') {
            let value = values.next()?;
            // A dot segment would be resolved away and name another resource.
            if value.is_empty() || *value == "." || *value == ".." {
                return None;
            }
            encode_segment(value, &mut path);
        } else {
            path.push_str(segment);
        }
    }
    values.next().is_none().then_some(path)
}

fn encode_segment(value: &str, path: &mut String) {
    use std::fmt::Write as _;
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(fill(NODE_DRAIN, &["rack 1/7"]).as_deref(), Some("/api/v1/nodes/rack%201%2F7/drain"));
        assert_eq!(fill(NODE, &["a?b#c%"]).as_deref(), Some("/api/v1/nodes/a%3Fb%23c%25"));
        for bad in ["", ".", ".."] {
            assert_eq!(fill(NODE, &[bad]), None);
        }
    }

    #[test]
    fn the_number_of_values_must_fit() {
        assert_eq!(fill(NODES, &[]).as_deref(), Some(NODES));
        assert_eq!(fill(NODE, &[]), None);
        assert_eq!(fill(NODES, &["x"]), None);
    }
}
