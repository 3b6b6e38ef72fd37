//! Every endpoint, by resource.

use gpuaas_contract::access::Action;
use schemars::JsonSchema;

use super::StreamKind::{JsonLines, Metrics, Sse, WebSocket};
use super::{About, Endpoint, Method};
use crate::dto::{
    Allocation, AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationPlan, AllocationRetry,
    AllocationSearchQuery, AllocationWatchQuery, ApiKey, ApiKeyCreate, ApiKeyCreated, ApiToken, ApiTokenCreate, ApiTokenCreated,
    AuditExportQuery, AuditQuery, AuditRow, Budget, BudgetLift, Capacity, CatalogItem, CloudEvent, ClusterInfo, Delivery,
    DeliveryListQuery, DrainPreview, Empty, Enrollment, EnrollmentApprove, EnrollmentListQuery, EventRow, EventsQuery, Image,
    ImageCreate, ImageListQuery, JoinToken, JoinTokenCreate, JoinTokenCreated, Limits, Machine, MachineListQuery, MachineOffer,
    MaintenanceCreate, MaintenanceListQuery, MaintenanceWindow, Member, MemberAdd, MemberChange, Node, NodeChange, NodeListQuery,
    NodeRetire, Organization, OrganizationChange, OrganizationCreate, OrganizationListQuery, OwnPassword, Page, PageQuery,
    Project, ProjectChange, ProjectCreate, ProjectListQuery, Quota, Reason, ServiceAccount, ServiceAccountCreate, SigningKey,
    Sku, SkuChange, SkuCreate, Slice, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, Slot,
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
        $name:ident: $method:ident $route:ident, $action:ident of $about:ident, $summary:literal,
        $($part:ident $(<$document:ty>)? $(($stream:expr))?)*;
    )*)*) => {
        /// Every method of every path.
        pub const ENDPOINTS: &[Endpoint] = &[$($(
            Endpoint::new($resource, (stringify!($name), Method::$method, routes::$route), (Action::$action, About::$about), $summary)
                $(.$part$(::<$document>)?($($stream)?))*,
        )*)*];
    };
}

endpoints! {
    "Caller":
    whoami: Get WHOAMI, SelfRead of Platform, "Says who the caller is and which roles they have.",
        answer<WhoAmI>;

    own_password_set: Post OWN_PASSWORD, SelfManage of Platform, "Changes the caller's own password, and ends all their sign-ins.",
        body<OwnPassword> answer<User>;

    "Catalog":
    catalog: Get CATALOG, CatalogRead of Platform, "Lists what is on offer, with prices and how many there are now.",
        query<PageQuery> answer<Page<CatalogItem>>;
    images: Get IMAGES, CatalogRead of Platform, "Lists the images of the platform, which everybody can use.",
        query<ImageListQuery> answer<Page<Image>>;
    image_create: Post IMAGES, CatalogManage of Platform, "Makes an image for everybody.",
        body<ImageCreate> makes<Image>;
    image: Get IMAGE, CatalogRead of Platform, "Shows an image of the platform.",
        answer<Image>;
    image_delete: Delete IMAGE, CatalogManage of Platform, "Deletes an image of the platform; guests made from it go on.",
        answer<Image>;
    skus: Get SKUS, PlatformRead of Platform, "Lists all products, also those that are no longer on offer.",
        query<PageQuery> answer<Page<Sku>>;
    sku_create: Post SKUS, CatalogManage of Platform, "Makes a product.",
        body<SkuCreate> makes<Sku>;
    sku_change: Patch SKU, CatalogManage of Platform,
        "Changes a product for allocations that come, or takes it off the offer.",
        body<SkuChange> answer<Sku> versioned;

    "Organizations":
    organizations: Get ORGANIZATIONS, OrganizationList of Platform, "Lists the organizations that the caller can see.",
        query<OrganizationListQuery> answer<Page<Organization>>;
    organization_create: Post ORGANIZATIONS, OrganizationCreate of Platform, "Makes an organization.",
        body<OrganizationCreate> makes<Organization>;
    organization: Get ORGANIZATION, OrganizationRead of Organization, "Shows an organization.",
        answer<Organization> versioned;
    organization_change: Patch ORGANIZATION, OrganizationManage of Organization, "Changes an organization.",
        body<OrganizationChange> answer<Organization> versioned;
    organization_delete: Delete ORGANIZATION, OrganizationManage of Organization, "Deletes an organization that has no projects.",
        answer<Organization> versioned;
    organization_members: Get ORGANIZATION_MEMBERS, MemberRead of Organization, "Lists who has which role in an organization.",
        query<PageQuery> answer<Page<Member>>;
    organization_member_add: Post ORGANIZATION_MEMBERS, MemberManage of Organization,
        "Gives somebody a role in an organization, and so in all its projects.",
        body<MemberAdd> makes<Member>;
    organization_member_change: Patch ORGANIZATION_MEMBER, MemberManage of Organization,
        "Gives a member of an organization another role.",
        body<MemberChange> answer<Member> versioned;
    organization_member_remove: Delete ORGANIZATION_MEMBER, MemberManage of Organization,
        "Takes the role of a member of an organization away.",
        answer<Member> versioned;
    organization_projects: Get ORGANIZATION_PROJECTS, OrganizationRead of Organization,
        "Lists the projects of an organization.",
        query<PageQuery> answer<Page<Project>>;
    organization_quota: Get ORGANIZATION_QUOTA, QuotaRead of Organization, "Shows how much an organization may have and has.",
        answer<Quota> versioned;
    organization_quota_set: Put ORGANIZATION_QUOTA, QuotaSet of Organization, "Sets how much an organization may have.",
        body<Limits> answer<Quota> versioned;

    "Projects":
    project_create: Post ORGANIZATION_PROJECTS, ProjectCreate of Organization, "Makes a project.",
        body<ProjectCreate> makes<Project>;
    projects: Get PROJECTS, ProjectList of Platform, "Lists the projects that the caller can see.",
        query<ProjectListQuery> answer<Page<Project>>;
    project: Get PROJECT, ProjectRead of Project, "Shows a project.",
        answer<Project> versioned;
    project_change: Patch PROJECT, ProjectManage of Project, "Changes a project.",
        body<ProjectChange> answer<Project> versioned;
    project_delete: Delete PROJECT, ProjectManage of Project, "Deletes a project that has no allocations any more.",
        answer<Project> versioned;
    project_members: Get PROJECT_MEMBERS, MemberRead of Project, "Lists who has which role in a project.",
        query<PageQuery> answer<Page<Member>>;
    project_member_add: Post PROJECT_MEMBERS, MemberManage of Project, "Gives somebody a role in a project.",
        body<MemberAdd> makes<Member>;
    project_member_change: Patch PROJECT_MEMBER, MemberManage of Project, "Gives a member of a project another role.",
        body<MemberChange> answer<Member> versioned;
    project_member_remove: Delete PROJECT_MEMBER, MemberManage of Project, "Takes the role of a member of a project away.",
        answer<Member> versioned;
    project_quota: Get PROJECT_QUOTA, QuotaRead of Project, "Shows how much a project may have and has.",
        answer<Quota> versioned;
    project_quota_set: Put PROJECT_QUOTA, QuotaSet of Project, "Sets how much a project may have.",
        body<Limits> answer<Quota> versioned;

    "Service accounts":
    service_accounts: Get SERVICE_ACCOUNTS, KeyRead of Project, "Lists the service accounts of a project.",
        query<PageQuery> answer<Page<ServiceAccount>>;
    service_account_create: Post SERVICE_ACCOUNTS, KeyManage of Project, "Makes a service account.",
        body<ServiceAccountCreate> makes<ServiceAccount>;
    service_account_delete: Delete SERVICE_ACCOUNT, KeyManage of Project,
        "Deletes a service account, and with it every key it has.",
        answer<ServiceAccount>;
    api_keys: Get API_KEYS, KeyRead of Project, "Lists the keys of a service account, without their secrets.",
        query<PageQuery> answer<Page<ApiKey>>;
    api_key_create: Post API_KEYS, KeyManage of Project, "Makes a key for a service account; its secret is shown once.",
        body<ApiKeyCreate> makes<ApiKeyCreated>;
    api_key_revoke: Delete API_KEY, KeyManage of Project, "Takes a key of a service account back.",
        answer<ApiKey>;

    "SSH keys":
    ssh_keys: Get SSH_KEYS, SshKeyRead of Project, "Lists the SSH keys of a project.",
        query<PageQuery> answer<Page<SshKey>>;
    ssh_key_add: Post SSH_KEYS, SshKeyManage of Project, "Stores an SSH key.",
        body<SshKeyCreate> makes<SshKey>;
    ssh_key_delete: Delete SSH_KEY, SshKeyManage of Project, "Deletes an SSH key; allocations that have it keep it.",
        answer<SshKey>;

    "Images":
    project_images: Get PROJECT_IMAGES, ImageRead of Project,
        "Lists the images a project can use: its organization's and the platform's.",
        query<ImageListQuery> answer<Page<Image>>;
    project_image_create: Post PROJECT_IMAGES, ImageManage of Project,
        "Makes an image for all projects of the project's organization.",
        body<ImageCreate> makes<Image>;
    project_image: Get PROJECT_IMAGE, ImageRead of Project, "Shows an image that a project can use.",
        answer<Image>;
    project_image_delete: Delete PROJECT_IMAGE, ImageManage of Project,
        "Deletes an image of the project's organization; guests made from it go on.",
        answer<Image>;

    "Allocations":
    project_allocations: Get PROJECT_ALLOCATIONS, AllocationRead of Project, "Lists the allocations of a project.",
        query<AllocationListQuery> answer<Page<Allocation>>;
    allocation_create: Post PROJECT_ALLOCATIONS, AllocationCreate of Project,
        "Leases something, or says for a dry run what would come of it.",
        body<AllocationCreate> makes<Allocation> or_finds<MadeOrPlanned>;
    allocation: Get ALLOCATION, AllocationRead of Allocation, "Shows an allocation.",
        answer<Allocation> versioned;
    allocation_change: Patch ALLOCATION, AllocationOperate of Allocation, "Changes the name and the tags of an allocation.",
        body<AllocationChange> answer<Allocation> versioned;
    allocation_stop: Post ALLOCATION_STOP, AllocationOperate of Allocation,
        "Shuts the guest of an allocation down; it keeps everything it has.",
        body<Empty> answer<Allocation>;
    allocation_start: Post ALLOCATION_START, AllocationOperate of Allocation, "Starts the guest of an allocation again.",
        body<Empty> answer<Allocation>;
    allocation_reboot: Post ALLOCATION_REBOOT, AllocationOperate of Allocation,
        "Shuts the guest of an allocation down and starts it again.",
        body<Empty> answer<Allocation>;
    allocation_extend: Post ALLOCATION_EXTEND, AllocationOperate of Allocation, "Moves the end of a lease.",
        body<AllocationExtend> answer<Allocation>;
    allocation_release: Post ALLOCATION_RELEASE, AllocationOperate of Allocation,
        "Gives an allocation back; its drives are wiped.",
        body<Reason> answer<Allocation>;
    allocation_retry: Post ALLOCATION_RETRY, AllocationOperate of Allocation, "Tries again what failed.",
        body<AllocationRetry> answer<Allocation>;
    allocation_console: Post ALLOCATION_CONSOLE, AllocationConsole of Allocation,
        "Reads a guest's serial console into the log of the task it answers with.",
        body<SliceConsole> makes<Task> or_finds<Task>;
    allocation_events: Get ALLOCATION_EVENTS, AllocationRead of Allocation,
        "Shows the history of an allocation, the oldest first.",
        query<PageQuery> answer<Page<EventRow>>;
    allocation_watch: Get ALLOCATION_WATCH, AllocationRead of Allocation,
        "Follows an allocation: what it is now, and every change.",
        query<AllocationWatchQuery> answer<Allocation> stream(Sse(&[routes::EVENT_ALLOCATION, routes::EVENT_PROGRESS]));
    allocations: Get ALLOCATIONS, PlatformRead of Platform, "Lists the allocations of the whole platform.",
        query<AllocationSearchQuery> answer<Page<Allocation>>;

    "Events":
    project_events: Get PROJECT_EVENTS, EventRead of Project, "Streams what happens in a project.",
        query<EventsQuery> answer<CloudEvent> stream(Sse(&[routes::EVENT_CLOUD_EVENT]));
    project_events_ws: Get PROJECT_EVENTS_WS, EventRead of Project, "Streams what happens in a project, over a WebSocket.",
        query<EventsQuery> answer<CloudEvent> stream(WebSocket);
    events: Get EVENTS, PlatformRead of Platform, "Streams what happens on the whole platform.",
        query<EventsQuery> answer<CloudEvent> stream(Sse(&[routes::EVENT_CLOUD_EVENT]));

    "Webhooks":
    webhooks: Get WEBHOOKS, WebhookRead of Project, "Lists the webhooks of a project.",
        query<PageQuery> answer<Page<Webhook>>;
    webhook_create: Post WEBHOOKS, WebhookManage of Project, "Makes a webhook; its secret is shown once.",
        body<WebhookCreate> makes<WebhookCreated>;
    webhook: Get WEBHOOK, WebhookRead of Webhook, "Shows a webhook.",
        answer<Webhook> versioned;
    webhook_change: Patch WEBHOOK, WebhookManage of Webhook, "Changes a webhook, turns it off or on, or makes another secret.",
        body<WebhookChange> answer<WebhookChanged> versioned;
    webhook_delete: Delete WEBHOOK, WebhookManage of Webhook, "Deletes a webhook.",
        answer<Webhook> versioned;
    webhook_deliveries: Get WEBHOOK_DELIVERIES, WebhookRead of Webhook, "Lists the deliveries to a webhook, the newest first.",
        query<DeliveryListQuery> answer<Page<Delivery>>;
    delivery_replay: Post DELIVERY_REPLAY, WebhookManage of Delivery, "Tries a delivery again, whatever came of it before.",
        body<Empty> answer<Delivery>;

    "Platform members":
    platform_members: Get PLATFORM_MEMBERS, PlatformRead of Platform, "Lists who has which role on the platform.",
        query<PageQuery> answer<Page<Member>>;
    platform_member_add: Post PLATFORM_MEMBERS, PlatformAdmin of Platform, "Gives somebody a role on the platform.",
        body<MemberAdd> makes<Member>;
    platform_member_change: Patch PLATFORM_MEMBER, PlatformAdmin of Platform, "Gives a member of the platform another role.",
        body<MemberChange> answer<Member> versioned;
    platform_member_remove: Delete PLATFORM_MEMBER, PlatformAdmin of Platform,
        "Takes the role of a member of the platform away.",
        answer<Member> versioned;

    "Users":
    users: Get USERS, PlatformRead of Platform, "Lists the people who have signed in, or can.",
        query<UserListQuery> answer<Page<User>>;
    user_create: Post USERS, PlatformAdmin of Platform, "Makes a user of the built-in issuer.",
        body<UserCreate> makes<UserCreated>;
    user: Get USER, PlatformRead of Platform, "Shows a user.",
        answer<User>;
    user_reactivate: Post USER_REACTIVATE, PlatformAdmin of Platform, "Lets a deactivated user sign in again.",
        body<Reason> answer<User>;
    user_deactivate: Post USER_DEACTIVATE, PlatformAdmin of Platform, "Keeps a user from signing in from now on.",
        body<Reason> answer<User>;
    user_password_set: Post USER_PASSWORD, PlatformAdmin of Platform, "Sets the password of a user of the built-in issuer.",
        body<UserPassword> answer<UserPasswordSet>;

    "Capacity":
    capacity: Get CAPACITY, CapacityRead of Platform, "Shows what there is, what of it works and what of that is free.",
        answer<Capacity>;
    node_machine_offer: Post NODE_MACHINE_OFFER, PlatformOperate of Platform, "Offers a node for lease as a whole.",
        body<MachineOffer> answer<Machine>;
    node_machine_withdraw: Post NODE_MACHINE_WITHDRAW, PlatformOperate of Platform, "Takes the offer of a whole node back.",
        body<Reason> answer<Machine>;
    machines: Get MACHINES, PlatformRead of Platform, "Lists the nodes that are offered as a whole.",
        query<MachineListQuery> answer<Page<Machine>>;

    "Maintenance":
    maintenance_windows: Get MAINTENANCE_WINDOWS, PlatformRead of Platform, "Lists announced maintenance.",
        query<MaintenanceListQuery> answer<Page<MaintenanceWindow>>;
    maintenance_announce: Post MAINTENANCE_WINDOWS, MaintenanceManage of Platform,
        "Announces maintenance; tenants who have something there are told.",
        body<MaintenanceCreate> makes<MaintenanceWindow>;
    maintenance_cancel: Delete MAINTENANCE_WINDOW, MaintenanceManage of Platform,
        "Cancels announced maintenance; the same tenants are told.",
        answer<MaintenanceWindow>;
    node_drain_preview: Get NODE_DRAIN_PREVIEW, PlatformRead of Platform, "Shows what is in the way before a node is empty.",
        answer<DrainPreview>;

    "Nodes":
    nodes: Get NODES, PlatformRead of Platform, "Lists nodes.",
        query<NodeListQuery> answer<Page<Node>>;
    node: Get NODE, PlatformRead of Platform, "Shows a node.",
        answer<Node>;
    node_change: Patch NODE, PlatformOperate of Platform, "Gives a node another name.",
        body<NodeChange> answer<Node>;
    node_drain: Post NODE_DRAIN, PlatformOperate of Platform, "Takes a node out of service; what runs there keeps running.",
        body<Reason> answer<Node>;
    node_undrain: Post NODE_UNDRAIN, PlatformOperate of Platform, "Brings a drained node back into service.",
        body<Reason> answer<Node>;
    node_quarantine: Post NODE_QUARANTINE, PlatformOperate of Platform, "Holds a node back.",
        body<Reason> answer<Node>;
    node_unquarantine: Post NODE_UNQUARANTINE, PlatformOperate of Platform, "Lets a node go again.",
        body<Reason> answer<Node>;
    node_retire: Post NODE_RETIRE, PlatformAdmin of Platform, "Ends a node for good. Refused while tenants have something on it, unless forced.",
        body<NodeRetire> answer<Node>;
    node_topology: Get NODE_TOPOLOGY, PlatformRead of Platform, "Shows what a node found on itself last, and its slots.",
        answer<Topology>;
    node_topology_approve: Post NODE_TOPOLOGY_APPROVE, PlatformOperate of Platform,
        "Makes slots of what a node found on itself.",
        body<TopologyApprove> answer<Page<Slot>>;

    "Slots":
    slots: Get SLOTS, PlatformRead of Platform, "Lists slots.",
        query<SlotListQuery> answer<Page<Slot>>;
    slot: Get SLOT, PlatformRead of Platform, "Shows a slot.",
        answer<Slot>;
    slot_quarantine: Post SLOT_QUARANTINE, PlatformOperate of Platform, "Holds a slot back; the rest of the node stays in service.",
        body<Reason> answer<Slot>;
    slot_unquarantine: Post SLOT_UNQUARANTINE, PlatformOperate of Platform, "Lets a slot go again.",
        body<Reason> answer<Slot>;
    slot_withdraw: Post SLOT_WITHDRAW, PlatformOperate of Platform, "Ends a slot until it is approved again.",
        body<Reason> answer<Slot>;
    slot_force_cleanup: Post SLOT_FORCE_CLEANUP, PlatformOperate of Platform,
        "Cleans up what is left of a slice on a slot, and frees nothing without proof.",
        body<Reason> makes<SliceOrder> or_finds<SliceOrder>;

    "Slices":
    slices: Get SLICES, PlatformRead of Platform, "Lists slices.",
        query<SliceListQuery> answer<Page<Slice>>;
    slice_create: Post SLICES, PlatformOperate of Platform, "Makes a slice on slots that the operator names.",
        body<SliceCreate> makes<SliceOrder> or_finds<SliceOrder>;
    slice: Get SLICE, PlatformRead of Platform, "Shows a slice.",
        answer<Slice>;
    slice_release: Post SLICE_RELEASE, PlatformOperate of Platform,
        "Ends the guest of a slice, cleans up and gives its slots back.",
        body<SliceRelease> makes<SliceOrder> or_finds<SliceOrder>;
    slice_power: Post SLICE_POWER, PlatformOperate of Platform, "Stops, starts or reboots the guest of a slice.",
        body<SlicePower> makes<SliceOrder> or_finds<SliceOrder>;
    slice_console: Post SLICE_CONSOLE, PlatformOperate of Platform,
        "Reads the serial console of a slice's guest into the log of the task it answers with.",
        body<SliceConsole> makes<SliceOrder> or_finds<SliceOrder>;

    "Tasks":
    tasks: Get TASKS, PlatformRead of Platform, "Lists tasks, the newest first.",
        query<TaskListQuery> answer<Page<Task>>;
    task_create: Post TASKS, PlatformOperate of Platform, "Asks a node to do something.",
        body<TaskCreate> makes<Task> or_finds<Task>;
    task: Get TASK, PlatformRead of Platform, "Shows a task.",
        answer<Task>;
    task_cancel: Post TASK_CANCEL, PlatformOperate of Platform, "Asks for a task to be stopped.",
        body<Reason> answer<Task>;
    task_logs: Get TASK_LOGS, PlatformRead of Platform, "Shows log lines of a task.",
        query<TaskLogsQuery> answer<TaskLogs>;
    task_watch: Get TASK_WATCH, PlatformRead of Platform, "Follows a task until it ends.",
        answer<Task> stream(Sse(&[routes::EVENT_TASK, routes::EVENT_PROGRESS]));
    task_evidence: Get TASK_EVIDENCE, PlatformRead of Platform, "Shows everything it takes to verify a task offline.",
        answer<TaskEvidence>;
    task_types: Get TASK_TYPES, PlatformRead of Platform, "Lists what nodes can be asked to do.",
        answer<Page<TaskTypeInfo>>;

    "Enrollment":
    enrollments: Get ENROLLMENTS, PlatformRead of Platform, "Lists hosts that want to be enrolled.",
        query<EnrollmentListQuery> answer<Page<Enrollment>>;
    enrollment: Get ENROLLMENT, PlatformRead of Platform, "Shows the request of a host to be enrolled.",
        answer<Enrollment>;
    enrollment_approve: Post ENROLLMENT_APPROVE, PlatformOperate of Platform, "Says yes to a host. One that is a node already needs `replace_node`.",
        body<EnrollmentApprove> answer<Enrollment>;
    enrollment_reject: Post ENROLLMENT_REJECT, PlatformOperate of Platform, "Says no to a host.",
        body<Reason> answer<Enrollment>;
    join_tokens: Get JOIN_TOKENS, PlatformRead of Platform, "Lists join tokens, without their secrets.",
        query<PageQuery> answer<Page<JoinToken>>;
    join_token_create: Post JOIN_TOKENS, PlatformOperate of Platform,
        "Makes a join token for one host; its secret is shown once.",
        body<JoinTokenCreate> makes<JoinTokenCreated>;
    join_token_revoke: Delete JOIN_TOKEN, PlatformOperate of Platform, "Takes a join token back.",
        answer<JoinToken>;

    "API tokens":
    api_tokens: Get API_TOKENS, PlatformRead of Platform, "Lists API tokens, without their secrets.",
        query<PageQuery> answer<Page<ApiToken>>;
    api_token_create: Post API_TOKENS, PlatformAdmin of Platform,
        "Makes an API token with a role on the platform; its secret is shown once.",
        body<ApiTokenCreate> makes<ApiTokenCreated>;
    api_token_revoke: Delete API_TOKEN, PlatformAdmin of Platform, "Takes an API token back.",
        answer<ApiToken>;

    "Signing keys":
    signing_keys: Get SIGNING_KEYS, PlatformRead of Platform, "Lists the keys that sign tasks, or signed them.",
        answer<Page<SigningKey>>;
    signing_keys_stage: Post SIGNING_KEYS_STAGE, PlatformAdmin of Platform,
        "Makes and publishes the next signing key ahead of its use.",
        answer<Page<SigningKey>>;
    signing_keys_rotate: Post SIGNING_KEYS_ROTATE, PlatformAdmin of Platform, "Signs with the next key from now on.",
        answer<Page<SigningKey>>;
    signing_key_revoke: Post SIGNING_KEY_REVOKE, PlatformAdmin of Platform,
        "Declares that a signing key is never to be believed again.",
        body<Reason> answer<Page<SigningKey>>;

    "Audit":
    audit: Get AUDIT, AuditRead of Platform, "Lists rows of the audit log.",
        query<AuditQuery> answer<Page<AuditRow>>;
    audit_export: Get AUDIT_EXPORT, AuditRead of Platform, "Exports the audit log, a row per line.",
        query<AuditExportQuery> answer<AuditRow> stream(JsonLines);

    "Cluster":
    budget: Get BUDGET, PlatformRead of Platform, "Shows how much may be destroyed per hour, and how much was.",
        answer<Budget>;
    budget_lift: Post BUDGET_LIFT, PlatformAdmin of Platform, "Allows more destructive commands for an hour; only a person can.",
        body<BudgetLift> answer<Budget>;
    cluster: Get CLUSTER, PlatformRead of Platform, "Shows what a client needs to know about the installation.",
        answer<ClusterInfo>;
    metrics: Get METRICS, PlatformRead of Platform, "Shows the metrics of the process.",
        stream(Metrics);
}
