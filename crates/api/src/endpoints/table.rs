//! Every endpoint, by resource.

use schemars::JsonSchema;

use super::StreamKind::{JsonLines, Metrics, Sse, WebSocket};
use super::{About, Endpoint, Method};
use crate::dto::{
    Allocation, AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationPlan, AllocationRetry,
    AllocationSearchQuery, AllocationWatchQuery, ApiKey, ApiKeyCreate, ApiKeyCreated, ApiToken, ApiTokenCreate, ApiTokenCreated,
    AuditExportQuery, AuditQuery, AuditRow, Budget, BudgetLift, Capacity, CatalogItem, CloudEvent, ClusterInfo, Delivery,
    DeliveryListQuery, DrainPreview, Empty, Enrollment, EnrollmentApprove, EnrollmentListQuery, EventRow, EventsQuery, Image,
    ImageCreate, ImageListQuery, JoinToken, JoinTokenCreate, JoinTokenCreated, Limits, Machine, MachineListQuery,
    MaintenanceCreate, MaintenanceListQuery, MaintenanceWindow, Member, MemberAdd, MemberChange, Node, NodeChange, NodeListQuery,
    NodeRetire, Organization, OrganizationChange, OrganizationCreate, OrganizationListQuery, Page, PageQuery, Project,
    ProjectChange, ProjectCreate, ProjectListQuery, Quota, Reason, ServiceAccount, ServiceAccountCreate, SigningKey, Sku,
    SkuChange, SkuCreate, Slice, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, Slot,
    SlotListQuery, SshKey, SshKeyCreate, Task, TaskCreate, TaskEvidence, TaskListQuery, TaskLogs, TaskLogsQuery, TaskTypeInfo,
    Topology, TopologyApprove, User, UserCreate, UserCreated, UserListQuery, UserPassword, UserPasswordSet, Webhook,
    WebhookChange, WebhookChanged, WebhookCreate, WebhookCreated, WhoAmI,
};
use crate::routes;

/// What a request for an allocation answers if it makes none now: the one it made before, or a plan.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum MadeOrPlanned {
    /// Made before, under the same idempotency key.
    Made(Box<Allocation>),
    /// A dry run.
    Planned(AllocationPlan),
}

macro_rules! endpoints {
    ($($resource:literal: $(
        $name:ident: $method:ident $route:ident, $action:literal of $about:ident, $summary:literal,
        $($part:ident $(<$document:ty>)? $(($stream:expr))?)*;
    )*)*) => {
        /// Every method of every path.
        pub const ENDPOINTS: &[Endpoint] = &[$($(
            Endpoint::new($resource, (stringify!($name), Method::$method, routes::$route), ($action, About::$about), $summary)
                $(.$part$(::<$document>)?($($stream)?))*,
        )*)*];
    };
}

endpoints! {
    "Caller":
    whoami: Get WHOAMI, "self.read" of Platform, "Says who the caller is and which roles they have.",
        answer<WhoAmI>;

    "Catalog":
    catalog: Get CATALOG, "catalog.read" of Platform, "Lists what is on offer, with prices and how many there are now.",
        query<PageQuery> answer<Page<CatalogItem>>;
    images: Get IMAGES, "catalog.read" of Platform, "Lists the images of the platform, which everybody can use.",
        query<ImageListQuery> answer<Page<Image>>;
    image_create: Post IMAGES, "catalog.manage" of Platform, "Makes an image for everybody.",
        body<ImageCreate> makes<Image>;
    image_delete: Delete IMAGE, "catalog.manage" of Platform, "Deletes an image of the platform; guests made from it go on.",
        answer<Image>;
    skus: Get SKUS, "platform.read" of Platform, "Lists all products, also those that are no longer on offer.",
        query<PageQuery> answer<Page<Sku>>;
    sku_create: Post SKUS, "catalog.manage" of Platform, "Makes a product.",
        body<SkuCreate> makes<Sku>;
    sku_change: Patch SKU, "catalog.manage" of Platform,
        "Changes a product for allocations that come, or takes it off the offer.",
        body<SkuChange> answer<Sku> versioned;

    "Organizations":
    organizations: Get ORGANIZATIONS, "organization.list" of Platform, "Lists the organizations that the caller can see.",
        query<OrganizationListQuery> answer<Page<Organization>>;
    organization_create: Post ORGANIZATIONS, "organization.create" of Platform, "Makes an organization.",
        body<OrganizationCreate> makes<Organization>;
    organization: Get ORGANIZATION, "organization.read" of Organization, "Shows an organization.",
        answer<Organization> versioned;
    organization_change: Patch ORGANIZATION, "organization.manage" of Organization, "Changes an organization.",
        body<OrganizationChange> answer<Organization> versioned;
    organization_members: Get ORGANIZATION_MEMBERS, "member.read" of Organization, "Lists who has which role in an organization.",
        query<PageQuery> answer<Page<Member>>;
    organization_member_add: Post ORGANIZATION_MEMBERS, "member.manage" of Organization,
        "Gives somebody a role in an organization, and so in all its projects.",
        body<MemberAdd> makes<Member>;
    organization_member_change: Patch ORGANIZATION_MEMBER, "member.manage" of Organization,
        "Gives a member of an organization another role.",
        body<MemberChange> answer<Member> versioned;
    organization_member_remove: Delete ORGANIZATION_MEMBER, "member.manage" of Organization,
        "Takes the role of a member of an organization away.",
        answer<Member> versioned;
    organization_projects: Get ORGANIZATION_PROJECTS, "organization.read" of Organization,
        "Lists the projects of an organization.",
        query<PageQuery> answer<Page<Project>>;
    organization_quota: Get ORGANIZATION_QUOTA, "quota.read" of Organization, "Shows how much an organization may have and has.",
        answer<Quota> versioned;
    organization_quota_set: Put ORGANIZATION_QUOTA, "quota.set" of Organization, "Sets how much an organization may have.",
        body<Limits> answer<Quota> versioned;

    "Projects":
    project_create: Post ORGANIZATION_PROJECTS, "project.create" of Organization, "Makes a project.",
        body<ProjectCreate> makes<Project>;
    projects: Get PROJECTS, "project.list" of Platform, "Lists the projects that the caller can see.",
        query<ProjectListQuery> answer<Page<Project>>;
    project: Get PROJECT, "project.read" of Project, "Shows a project.",
        answer<Project> versioned;
    project_change: Patch PROJECT, "project.manage" of Project, "Changes a project.",
        body<ProjectChange> answer<Project> versioned;
    project_delete: Delete PROJECT, "project.manage" of Project, "Deletes a project that has no allocations any more.",
        answer<Project> versioned;
    project_members: Get PROJECT_MEMBERS, "member.read" of Project, "Lists who has which role in a project.",
        query<PageQuery> answer<Page<Member>>;
    project_member_add: Post PROJECT_MEMBERS, "member.manage" of Project, "Gives somebody a role in a project.",
        body<MemberAdd> makes<Member>;
    project_member_change: Patch PROJECT_MEMBER, "member.manage" of Project, "Gives a member of a project another role.",
        body<MemberChange> answer<Member> versioned;
    project_member_remove: Delete PROJECT_MEMBER, "member.manage" of Project, "Takes the role of a member of a project away.",
        answer<Member> versioned;
    project_quota: Get PROJECT_QUOTA, "quota.read" of Project, "Shows how much a project may have and has.",
        answer<Quota> versioned;
    project_quota_set: Put PROJECT_QUOTA, "quota.set" of Project, "Sets how much a project may have.",
        body<Limits> answer<Quota> versioned;

    "Service accounts":
    service_accounts: Get SERVICE_ACCOUNTS, "key.read" of Project, "Lists the service accounts of a project.",
        query<PageQuery> answer<Page<ServiceAccount>>;
    service_account_create: Post SERVICE_ACCOUNTS, "key.manage" of Project, "Makes a service account.",
        body<ServiceAccountCreate> makes<ServiceAccount>;
    service_account_delete: Delete SERVICE_ACCOUNT, "key.manage" of Project,
        "Deletes a service account, and with it every key it has.",
        answer<ServiceAccount>;
    api_keys: Get API_KEYS, "key.read" of Project, "Lists the keys of a service account, without their secrets.",
        query<PageQuery> answer<Page<ApiKey>>;
    api_key_create: Post API_KEYS, "key.manage" of Project, "Makes a key for a service account; its secret is shown once.",
        body<ApiKeyCreate> makes<ApiKeyCreated>;
    api_key_revoke: Delete API_KEY, "key.manage" of Project, "Takes a key of a service account back.",
        answer<ApiKey>;

    "SSH keys":
    ssh_keys: Get SSH_KEYS, "ssh_key.read" of Project, "Lists the SSH keys of a project.",
        query<PageQuery> answer<Page<SshKey>>;
    ssh_key_add: Post SSH_KEYS, "ssh_key.manage" of Project, "Stores an SSH key.",
        body<SshKeyCreate> makes<SshKey>;
    ssh_key_delete: Delete SSH_KEY, "ssh_key.manage" of Project, "Deletes an SSH key; allocations that have it keep it.",
        answer<SshKey>;

    "Images":
    project_images: Get PROJECT_IMAGES, "image.read" of Project,
        "Lists the images a project can use: its organization's and the platform's.",
        query<ImageListQuery> answer<Page<Image>>;
    project_image_create: Post PROJECT_IMAGES, "image.manage" of Project,
        "Makes an image for all projects of the project's organization.",
        body<ImageCreate> makes<Image>;
    project_image_delete: Delete PROJECT_IMAGE, "image.manage" of Project,
        "Deletes an image of the project's organization; guests made from it go on.",
        answer<Image>;

    "Allocations":
    project_allocations: Get PROJECT_ALLOCATIONS, "allocation.read" of Project, "Lists the allocations of a project.",
        query<AllocationListQuery> answer<Page<Allocation>>;
    allocation_create: Post PROJECT_ALLOCATIONS, "allocation.create" of Project,
        "Leases something, or says for a dry run what would come of it.",
        body<AllocationCreate> makes<Allocation> or_finds<MadeOrPlanned>;
    allocation: Get ALLOCATION, "allocation.read" of Allocation, "Shows an allocation.",
        answer<Allocation> versioned;
    allocation_change: Patch ALLOCATION, "allocation.operate" of Allocation, "Changes the name and the tags of an allocation.",
        body<AllocationChange> answer<Allocation> versioned;
    allocation_stop: Post ALLOCATION_STOP, "allocation.operate" of Allocation,
        "Shuts the guest of an allocation down; it keeps everything it has.",
        body<Empty> answer<Allocation>;
    allocation_start: Post ALLOCATION_START, "allocation.operate" of Allocation, "Starts the guest of an allocation again.",
        body<Empty> answer<Allocation>;
    allocation_reboot: Post ALLOCATION_REBOOT, "allocation.operate" of Allocation,
        "Shuts the guest of an allocation down and starts it again.",
        body<Empty> answer<Allocation>;
    allocation_extend: Post ALLOCATION_EXTEND, "allocation.operate" of Allocation, "Moves the end of a lease.",
        body<AllocationExtend> answer<Allocation>;
    allocation_release: Post ALLOCATION_RELEASE, "allocation.operate" of Allocation,
        "Gives an allocation back; its drives are wiped.",
        body<Reason> answer<Allocation>;
    allocation_retry: Post ALLOCATION_RETRY, "allocation.operate" of Allocation, "Tries again what failed.",
        body<AllocationRetry> answer<Allocation>;
    allocation_console: Post ALLOCATION_CONSOLE, "allocation.console" of Allocation,
        "Reads a guest's serial console into the log of the task it answers with.",
        body<SliceConsole> makes<Task> or_finds<Task>;
    allocation_events: Get ALLOCATION_EVENTS, "allocation.read" of Allocation,
        "Shows the history of an allocation, the oldest first.",
        query<PageQuery> answer<Page<EventRow>>;
    allocation_watch: Get ALLOCATION_WATCH, "allocation.read" of Allocation,
        "Follows an allocation: what it is now, and every change.",
        query<AllocationWatchQuery> answer<Allocation> stream(Sse(&[routes::EVENT_ALLOCATION, routes::EVENT_PROGRESS]));
    allocations: Get ALLOCATIONS, "platform.read" of Platform, "Lists the allocations of the whole platform.",
        query<AllocationSearchQuery> answer<Page<Allocation>>;

    "Events":
    project_events: Get PROJECT_EVENTS, "event.read" of Project, "Streams what happens in a project.",
        query<EventsQuery> answer<CloudEvent> stream(Sse(&[routes::EVENT_CLOUD_EVENT]));
    project_events_ws: Get PROJECT_EVENTS_WS, "event.read" of Project, "Streams what happens in a project, over a WebSocket.",
        query<EventsQuery> answer<CloudEvent> stream(WebSocket);
    events: Get EVENTS, "platform.read" of Platform, "Streams what happens on the whole platform.",
        query<EventsQuery> answer<CloudEvent> stream(Sse(&[routes::EVENT_CLOUD_EVENT]));

    "Webhooks":
    webhooks: Get WEBHOOKS, "webhook.read" of Project, "Lists the webhooks of a project.",
        query<PageQuery> answer<Page<Webhook>>;
    webhook_create: Post WEBHOOKS, "webhook.manage" of Project, "Makes a webhook; its secret is shown once.",
        body<WebhookCreate> makes<WebhookCreated>;
    webhook: Get WEBHOOK, "webhook.read" of Webhook, "Shows a webhook.",
        answer<Webhook> versioned;
    webhook_change: Patch WEBHOOK, "webhook.manage" of Webhook, "Changes a webhook, turns it off or on, or makes another secret.",
        body<WebhookChange> answer<WebhookChanged> versioned;
    webhook_delete: Delete WEBHOOK, "webhook.manage" of Webhook, "Deletes a webhook.",
        answer<Webhook> versioned;
    webhook_deliveries: Get WEBHOOK_DELIVERIES, "webhook.read" of Webhook, "Lists the deliveries to a webhook, the newest first.",
        query<DeliveryListQuery> answer<Page<Delivery>>;
    delivery_replay: Post DELIVERY_REPLAY, "webhook.manage" of Delivery, "Tries a delivery again, whatever came of it before.",
        body<Empty> answer<Delivery>;

    "Platform members":
    platform_members: Get PLATFORM_MEMBERS, "platform.read" of Platform, "Lists who has which role on the platform.",
        query<PageQuery> answer<Page<Member>>;
    platform_member_add: Post PLATFORM_MEMBERS, "platform.admin" of Platform, "Gives somebody a role on the platform.",
        body<MemberAdd> makes<Member>;
    platform_member_change: Patch PLATFORM_MEMBER, "platform.admin" of Platform, "Gives a member of the platform another role.",
        body<MemberChange> answer<Member> versioned;
    platform_member_remove: Delete PLATFORM_MEMBER, "platform.admin" of Platform,
        "Takes the role of a member of the platform away.",
        answer<Member> versioned;

    "Users":
    users: Get USERS, "platform.read" of Platform, "Lists the people who have signed in, or can.",
        query<UserListQuery> answer<Page<User>>;
    user_create: Post USERS, "platform.admin" of Platform, "Makes a user of the built-in issuer.",
        body<UserCreate> makes<UserCreated>;
    user_reactivate: Post USER_REACTIVATE, "platform.admin" of Platform, "Lets a deactivated user sign in again.",
        body<Reason> answer<User>;
    user_deactivate: Post USER_DEACTIVATE, "platform.admin" of Platform, "Keeps a user from signing in from now on.",
        body<Reason> answer<User>;
    user_password_set: Post USER_PASSWORD, "platform.admin" of Platform, "Sets the password of a user of the built-in issuer.",
        body<UserPassword> answer<UserPasswordSet>;

    "Capacity":
    capacity: Get CAPACITY, "capacity.read" of Platform, "Shows what there is, what of it works and what of that is free.",
        answer<Capacity>;
    node_machine_offer: Post NODE_MACHINE_OFFER, "platform.operate" of Platform, "Offers a node for lease as a whole.",
        body<Empty> answer<Machine>;
    node_machine_withdraw: Post NODE_MACHINE_WITHDRAW, "platform.operate" of Platform, "Takes the offer of a whole node back.",
        body<Reason> answer<Machine>;
    machines: Get MACHINES, "platform.read" of Platform, "Lists the nodes that are offered as a whole.",
        query<MachineListQuery> answer<Page<Machine>>;

    "Maintenance":
    maintenance_windows: Get MAINTENANCE_WINDOWS, "platform.read" of Platform, "Lists announced maintenance.",
        query<MaintenanceListQuery> answer<Page<MaintenanceWindow>>;
    maintenance_announce: Post MAINTENANCE_WINDOWS, "maintenance.manage" of Platform,
        "Announces maintenance; tenants who have something there are told.",
        body<MaintenanceCreate> makes<MaintenanceWindow>;
    maintenance_cancel: Delete MAINTENANCE_WINDOW, "maintenance.manage" of Platform,
        "Cancels announced maintenance; the same tenants are told.",
        answer<MaintenanceWindow>;
    node_drain_preview: Get NODE_DRAIN_PREVIEW, "platform.read" of Platform, "Shows what is in the way before a node is empty.",
        answer<DrainPreview>;

    "Nodes":
    nodes: Get NODES, "platform.read" of Platform, "Lists nodes.",
        query<NodeListQuery> answer<Page<Node>>;
    node: Get NODE, "platform.read" of Platform, "Shows a node.",
        answer<Node>;
    node_change: Patch NODE, "platform.operate" of Platform, "Gives a node another name.",
        body<NodeChange> answer<Node>;
    node_drain: Post NODE_DRAIN, "platform.operate" of Platform, "Takes a node out of service; what runs there goes on.",
        body<Reason> answer<Node>;
    node_undrain: Post NODE_UNDRAIN, "platform.operate" of Platform, "Brings a drained node back into service.",
        body<Reason> answer<Node>;
    node_quarantine: Post NODE_QUARANTINE, "platform.operate" of Platform, "Holds a node back.",
        body<Reason> answer<Node>;
    node_unquarantine: Post NODE_UNQUARANTINE, "platform.operate" of Platform, "Lets a node go again.",
        body<Reason> answer<Node>;
    node_retire: Post NODE_RETIRE, "platform.admin" of Platform, "Ends a node for good. Refused while tenants have something on it, unless forced.",
        body<NodeRetire> answer<Node>;
    node_topology: Get NODE_TOPOLOGY, "platform.read" of Platform, "Shows what a node found on itself last, and its slots.",
        answer<Topology>;
    node_topology_approve: Post NODE_TOPOLOGY_APPROVE, "platform.operate" of Platform,
        "Makes slots of what a node found on itself.",
        body<TopologyApprove> answer<Page<Slot>>;

    "Slots":
    slots: Get SLOTS, "platform.read" of Platform, "Lists slots.",
        query<SlotListQuery> answer<Page<Slot>>;
    slot: Get SLOT, "platform.read" of Platform, "Shows a slot.",
        answer<Slot>;
    slot_quarantine: Post SLOT_QUARANTINE, "platform.operate" of Platform, "Holds a slot back; the rest of the node goes on.",
        body<Reason> answer<Slot>;
    slot_unquarantine: Post SLOT_UNQUARANTINE, "platform.operate" of Platform, "Lets a slot go again.",
        body<Reason> answer<Slot>;
    slot_withdraw: Post SLOT_WITHDRAW, "platform.operate" of Platform, "Ends a slot until it is approved again.",
        body<Reason> answer<Slot>;
    slot_force_cleanup: Post SLOT_FORCE_CLEANUP, "platform.operate" of Platform,
        "Cleans up what is left of a slice on a slot, and frees nothing without proof.",
        body<Reason> makes<SliceOrder> or_finds<SliceOrder>;

    "Slices":
    slices: Get SLICES, "platform.read" of Platform, "Lists slices.",
        query<SliceListQuery> answer<Page<Slice>>;
    slice_create: Post SLICES, "platform.operate" of Platform, "Makes a slice on slots that the operator names.",
        body<SliceCreate> makes<SliceOrder> or_finds<SliceOrder>;
    slice: Get SLICE, "platform.read" of Platform, "Shows a slice.",
        answer<Slice>;
    slice_release: Post SLICE_RELEASE, "platform.operate" of Platform,
        "Ends the guest of a slice, cleans up and gives its slots back.",
        body<SliceRelease> makes<SliceOrder> or_finds<SliceOrder>;
    slice_power: Post SLICE_POWER, "platform.operate" of Platform, "Stops, starts or reboots the guest of a slice.",
        body<SlicePower> makes<SliceOrder> or_finds<SliceOrder>;
    slice_console: Post SLICE_CONSOLE, "platform.operate" of Platform,
        "Reads the serial console of a slice's guest into the log of the task it answers with.",
        body<SliceConsole> makes<SliceOrder> or_finds<SliceOrder>;

    "Tasks":
    tasks: Get TASKS, "platform.read" of Platform, "Lists tasks, the newest first.",
        query<TaskListQuery> answer<Page<Task>>;
    task_create: Post TASKS, "platform.operate" of Platform, "Asks a node to do something.",
        body<TaskCreate> makes<Task> or_finds<Task>;
    task: Get TASK, "platform.read" of Platform, "Shows a task.",
        answer<Task>;
    task_cancel: Post TASK_CANCEL, "platform.operate" of Platform, "Asks for a task to be stopped.",
        body<Reason> answer<Task>;
    task_logs: Get TASK_LOGS, "platform.read" of Platform, "Shows log lines of a task.",
        query<TaskLogsQuery> answer<TaskLogs>;
    task_watch: Get TASK_WATCH, "platform.read" of Platform, "Follows a task until it ends.",
        answer<Task> stream(Sse(&[routes::EVENT_TASK, routes::EVENT_PROGRESS]));
    task_evidence: Get TASK_EVIDENCE, "platform.read" of Platform, "Shows everything it takes to verify a task offline.",
        answer<TaskEvidence>;
    task_types: Get TASK_TYPES, "platform.read" of Platform, "Lists what nodes can be asked to do.",
        answer<Page<TaskTypeInfo>>;

    "Enrollment":
    enrollments: Get ENROLLMENTS, "platform.read" of Platform, "Lists hosts that want to be enrolled.",
        query<EnrollmentListQuery> answer<Page<Enrollment>>;
    enrollment: Get ENROLLMENT, "platform.read" of Platform, "Shows the request of a host to be enrolled.",
        answer<Enrollment>;
    enrollment_approve: Post ENROLLMENT_APPROVE, "platform.operate" of Platform, "Says yes to a host. One that is a node already needs `replace_node`.",
        body<EnrollmentApprove> answer<Enrollment>;
    enrollment_reject: Post ENROLLMENT_REJECT, "platform.operate" of Platform, "Says no to a host.",
        body<Reason> answer<Enrollment>;
    join_tokens: Get JOIN_TOKENS, "platform.read" of Platform, "Lists join tokens, without their secrets.",
        query<PageQuery> answer<Page<JoinToken>>;
    join_token_create: Post JOIN_TOKENS, "platform.operate" of Platform,
        "Makes a join token for one host; its secret is shown once.",
        body<JoinTokenCreate> makes<JoinTokenCreated>;
    join_token_revoke: Delete JOIN_TOKEN, "platform.operate" of Platform, "Takes a join token back.",
        answer<JoinToken>;

    "API tokens":
    api_tokens: Get API_TOKENS, "platform.read" of Platform, "Lists API tokens, without their secrets.",
        query<PageQuery> answer<Page<ApiToken>>;
    api_token_create: Post API_TOKENS, "platform.admin" of Platform,
        "Makes an API token with a role on the platform; its secret is shown once.",
        body<ApiTokenCreate> makes<ApiTokenCreated>;
    api_token_revoke: Delete API_TOKEN, "platform.admin" of Platform, "Takes an API token back.",
        answer<ApiToken>;

    "Signing keys":
    signing_keys: Get SIGNING_KEYS, "platform.read" of Platform, "Lists the keys that sign tasks, or signed them.",
        answer<Page<SigningKey>>;
    signing_keys_stage: Post SIGNING_KEYS_STAGE, "platform.admin" of Platform,
        "Makes and publishes the next signing key ahead of its use.",
        answer<Page<SigningKey>>;
    signing_keys_rotate: Post SIGNING_KEYS_ROTATE, "platform.admin" of Platform, "Signs with the next key from now on.",
        answer<Page<SigningKey>>;
    signing_key_revoke: Post SIGNING_KEY_REVOKE, "platform.admin" of Platform,
        "Declares that a signing key is never to be believed again.",
        body<Reason> answer<Page<SigningKey>>;

    "Audit":
    audit: Get AUDIT, "audit.read" of Platform, "Lists rows of the audit log.",
        query<AuditQuery> answer<Page<AuditRow>>;
    audit_export: Get AUDIT_EXPORT, "audit.read" of Platform, "Exports the audit log, a row per line.",
        query<AuditExportQuery> answer<AuditRow> stream(JsonLines);

    "Cluster":
    budget: Get BUDGET, "platform.read" of Platform, "Shows how much may be destroyed per hour, and how much was.",
        answer<Budget>;
    budget_lift: Post BUDGET_LIFT, "platform.admin" of Platform, "Allows more destructive commands for an hour; only a person can.",
        body<BudgetLift> answer<Budget>;
    cluster: Get CLUSTER, "platform.read" of Platform, "Shows what a client needs to know about the installation.",
        answer<ClusterInfo>;
    metrics: Get METRICS, "platform.read" of Platform, "Shows the metrics of the process.",
        stream(Metrics);
}
