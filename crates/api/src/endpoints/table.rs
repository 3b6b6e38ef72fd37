//! The declaration of every endpoint, by resource. Everything else about an endpoint comes from its row: the path in [`crate::routes`],
//! the entry in [`super::ENDPOINTS`] that the server's guard and the OpenAPI document read, the method of [`crate::Client`], and the route
//! of the server's router, which calls the handler that the row names.

/// Calls the macro `$callback` with the declaration of every endpoint. A declaration is
///
/// ```text
/// ROUTE = "/path/with/{segment}" (segment) {
///     name: Method => module::handler, Action of About, "Summary.",
///         (documents);
/// }
/// ```
///
/// - `ROUTE` names the path in `routes`, and the parentheses list its segments in order.
/// - `name` is the operation of the OpenAPI document and the method of `Client`.
/// - `module::handler` is the function in `control/src/http` that answers.
/// - `Action of About` is the permission that a caller needs, and on what.
/// - The documents are some of these, in this order: `query<T>`, `body<T>` or `empty_body` for an empty object, `answer<T>` or
///   `creates<T>` for an answer with status 201 that needs an idempotency key, `or_finds<T>` for its answer with status 200,
///   `stream(kind)`, `versioned` for a document with an `ETag`, `once` for a `POST` that creates nothing but may have an idempotency
///   key, and `by_hand` where the method of `Client` is written by hand.
#[macro_export]
macro_rules! for_each_endpoint {
    ($callback:ident) => {
        $callback! {
            "Caller":
            WHOAMI = "/api/v1/whoami" () {
                whoami: Get => whoami::show, SelfRead of Platform, "Shows who the caller is and which roles they have.",
                    (answer<WhoAmI>);
            }
            OWN_PASSWORD = "/api/v1/whoami/password" () {
                own_password_set: Post => users::set_own_password, SelfManage of Platform,
                    "Changes the caller's own password and ends all their sessions.",
                    (body<OwnPassword> answer<User>);
            }

            "Catalog":
            CATALOG = "/api/v1/catalog" () {
                catalog: Get => catalog::offers, CatalogRead of Platform,
                    "Lists the products on offer, with prices and current availability.",
                    (query<PageQuery> answer<Page<CatalogItem>>);
            }
            IMAGES = "/api/v1/images" () {
                images: Get => images::list, CatalogRead of Platform,
                    "Lists the images of the platform, which every project can use.",
                    (query<ImageListQuery> answer<Page<Image>>);
                image_create: Post => images::create, CatalogManage of Platform, "Creates an image that every project can use.",
                    (body<ImageCreate> creates<Image>);
            }
            IMAGE = "/api/v1/images/{image}" (image) {
                image: Get => images::show, CatalogRead of Platform, "Shows an image of the platform.",
                    (answer<Image>);
                image_delete: Delete => images::delete, CatalogManage of Platform,
                    "Deletes an image of the platform. Guests that were created from it keep running.",
                    (answer<Image>);
            }
            SKUS = "/api/v1/skus" () {
                skus: Get => catalog::list, PlatformRead of Platform, "Lists all products, including retired ones.",
                    (query<PageQuery> answer<Page<Sku>>);
                sku_create: Post => catalog::create, CatalogManage of Platform, "Creates a product.",
                    (body<SkuCreate> creates<Sku>);
            }
            SKU = "/api/v1/skus/{sku}" (sku) {
                sku_change: Patch => catalog::change, CatalogManage of Platform,
                    "Updates a product for future allocations, or retires it.",
                    (body<SkuChange> answer<Sku> versioned);
            }

            "Organizations":
            ORGANIZATIONS = "/api/v1/organizations" () {
                organizations: Get => organizations::list, OrganizationList of Platform,
                    "Lists the organizations that the caller can see.",
                    (query<OrganizationListQuery> answer<Page<Organization>>);
                organization_create: Post => organizations::create, OrganizationCreate of Platform, "Creates an organization.",
                    (body<OrganizationCreate> creates<Organization>);
            }
            ORGANIZATION = "/api/v1/organizations/{organization}" (organization) {
                organization: Get => organizations::show, OrganizationRead of Organization, "Shows an organization.",
                    (answer<Organization> versioned);
                organization_change: Patch => organizations::change, OrganizationManage of Organization,
                    "Updates an organization.",
                    (body<OrganizationChange> answer<Organization> versioned);
                organization_delete: Delete => organizations::delete, OrganizationManage of Organization,
                    "Deletes an organization that has no projects.",
                    (answer<Organization> versioned);
            }
            ORGANIZATION_MEMBERS = "/api/v1/organizations/{organization}/members" (organization) {
                organization_members: Get => members::list, MemberRead of Organization,
                    "Lists the members of an organization and their roles.",
                    (query<PageQuery> answer<Page<Member>>);
                organization_member_add: Post => members::add, MemberManage of Organization,
                    "Adds a member to an organization, with a role in all its projects.",
                    (body<MemberAdd> creates<Member>);
            }
            ORGANIZATION_MEMBER = "/api/v1/organizations/{organization}/members/{member}" (organization, member) {
                organization_member_change: Patch => members::change, MemberManage of Organization,
                    "Changes the role of a member of an organization.",
                    (body<MemberChange> answer<Member> versioned);
                organization_member_remove: Delete => members::remove, MemberManage of Organization,
                    "Removes a member from an organization.",
                    (answer<Member> versioned);
            }
            ORGANIZATION_QUOTA = "/api/v1/organizations/{organization}/quota" (organization) {
                organization_quota: Get => quotas::of_organization, QuotaRead of Organization,
                    "Shows the quota of an organization and how much of it is used.",
                    (answer<Quota> versioned);
                organization_quota_set: Put => quotas::set_of_organization, QuotaSet of Organization,
                    "Sets the quota of an organization.",
                    (body<Limits> answer<Quota> versioned);
            }

            "Projects":
            ORGANIZATION_PROJECTS = "/api/v1/organizations/{organization}/projects" (organization) {
                organization_projects: Get => projects::list_of, OrganizationRead of Organization,
                    "Lists the projects of an organization.",
                    (query<PageQuery> answer<Page<Project>>);
                project_create: Post => projects::create, ProjectCreate of Organization, "Creates a project.",
                    (body<ProjectCreate> creates<Project>);
            }
            PROJECTS = "/api/v1/projects" () {
                projects: Get => projects::list, ProjectList of Platform, "Lists the projects that the caller can see.",
                    (query<ProjectListQuery> answer<Page<Project>>);
            }
            PROJECT = "/api/v1/projects/{project}" (project) {
                project: Get => projects::show, ProjectRead of Project, "Shows a project.",
                    (answer<Project> versioned);
                project_change: Patch => projects::change, ProjectManage of Project, "Updates a project.",
                    (body<ProjectChange> answer<Project> versioned);
                project_delete: Delete => projects::delete, ProjectManage of Project,
                    "Deletes a project that has no open allocations.",
                    (answer<Project> versioned);
            }
            PROJECT_MEMBERS = "/api/v1/projects/{project}/members" (project) {
                project_members: Get => members::list, MemberRead of Project, "Lists the members of a project and their roles.",
                    (query<PageQuery> answer<Page<Member>>);
                project_member_add: Post => members::add, MemberManage of Project, "Adds a member to a project.",
                    (body<MemberAdd> creates<Member>);
            }
            PROJECT_MEMBER = "/api/v1/projects/{project}/members/{member}" (project, member) {
                project_member_change: Patch => members::change, MemberManage of Project,
                    "Changes the role of a member of a project.",
                    (body<MemberChange> answer<Member> versioned);
                project_member_remove: Delete => members::remove, MemberManage of Project, "Removes a member from a project.",
                    (answer<Member> versioned);
            }
            PROJECT_QUOTA = "/api/v1/projects/{project}/quota" (project) {
                project_quota: Get => quotas::of_project, QuotaRead of Project,
                    "Shows the quota of a project and how much of it is used.",
                    (answer<Quota> versioned);
                project_quota_set: Put => quotas::set_of_project, QuotaSet of Project, "Sets the quota of a project.",
                    (body<Limits> answer<Quota> versioned);
            }

            "Service accounts":
            SERVICE_ACCOUNTS = "/api/v1/projects/{project}/service-accounts" (project) {
                service_accounts: Get => service_accounts::list, KeyRead of Project, "Lists the service accounts of a project.",
                    (query<PageQuery> answer<Page<ServiceAccount>>);
                service_account_create: Post => service_accounts::create, KeyManage of Project, "Creates a service account.",
                    (body<ServiceAccountCreate> creates<ServiceAccount>);
            }
            SERVICE_ACCOUNT = "/api/v1/projects/{project}/service-accounts/{service_account}" (project, service_account) {
                service_account_delete: Delete => service_accounts::delete, KeyManage of Project,
                    "Deletes a service account and all its keys.",
                    (answer<ServiceAccount>);
            }
            API_KEYS = "/api/v1/projects/{project}/service-accounts/{service_account}/keys" (project, service_account) {
                api_keys: Get => service_accounts::keys, KeyRead of Project,
                    "Lists the keys of a service account, without their secrets.",
                    (query<PageQuery> answer<Page<ApiKey>>);
                api_key_create: Post => service_accounts::key_create, KeyManage of Project,
                    "Creates a key for a service account. Its secret is shown once.",
                    (body<ApiKeyCreate> creates<ApiKeyCreated>);
            }
            API_KEY = "/api/v1/projects/{project}/service-accounts/{service_account}/keys/{key}" (project, service_account, key) {
                api_key_revoke: Delete => service_accounts::key_revoke, KeyManage of Project,
                    "Revokes a key of a service account.",
                    (answer<ApiKey>);
            }

            "SSH keys":
            SSH_KEYS = "/api/v1/projects/{project}/ssh-keys" (project) {
                ssh_keys: Get => ssh_keys::list, SshKeyRead of Project, "Lists the SSH keys of a project.",
                    (query<PageQuery> answer<Page<SshKey>>);
                ssh_key_add: Post => ssh_keys::create, SshKeyManage of Project, "Adds an SSH key to a project.",
                    (body<SshKeyCreate> creates<SshKey>);
            }
            SSH_KEY = "/api/v1/projects/{project}/ssh-keys/{ssh_key}" (project, ssh_key) {
                ssh_key_delete: Delete => ssh_keys::delete, SshKeyManage of Project,
                    "Deletes an SSH key. Existing allocations keep it.",
                    (answer<SshKey>);
            }

            "Images":
            PROJECT_IMAGES = "/api/v1/projects/{project}/images" (project) {
                project_images: Get => images::list, ImageRead of Project,
                    "Lists the images that a project can use: those of its organization and of the platform.",
                    (query<ImageListQuery> answer<Page<Image>>);
                project_image_create: Post => images::create, ImageManage of Project,
                    "Creates an image for all projects of the project's organization.",
                    (body<ImageCreate> creates<Image>);
            }
            PROJECT_IMAGE = "/api/v1/projects/{project}/images/{image}" (project, image) {
                project_image: Get => images::show, ImageRead of Project, "Shows an image that a project can use.",
                    (answer<Image>);
                project_image_delete: Delete => images::delete, ImageManage of Project,
                    "Deletes an image of the project's organization. Guests that were created from it keep running.",
                    (answer<Image>);
            }

            "Allocations":
            PROJECT_ALLOCATIONS = "/api/v1/projects/{project}/allocations" (project) {
                project_allocations: Get => allocations::list, AllocationRead of Project, "Lists the allocations of a project.",
                    (query<AllocationListQuery> answer<Page<Allocation>>);
                allocation_create: Post => allocations::create, AllocationCreate of Project,
                    "Creates an allocation. A dry run shows what would be created.",
                    (body<AllocationCreate> creates<Allocation> or_finds<MadeOrPlanned> by_hand);
            }
            ALLOCATION = "/api/v1/allocations/{allocation}" (allocation) {
                allocation: Get => allocations::show, AllocationRead of Allocation, "Shows an allocation.",
                    (answer<Allocation> versioned);
                allocation_change: Patch => allocations::change, AllocationOperate of Allocation,
                    "Updates the name and the tags of an allocation.",
                    (body<AllocationChange> answer<Allocation> versioned);
            }
            ALLOCATION_STOP = "/api/v1/allocations/{allocation}/stop" (allocation) {
                allocation_stop: Post => allocations::stop, AllocationOperate of Allocation,
                    "Stops the guest of an allocation, which keeps its slots and drives.",
                    (empty_body answer<Allocation>);
            }
            ALLOCATION_START = "/api/v1/allocations/{allocation}/start" (allocation) {
                allocation_start: Post => allocations::start, AllocationOperate of Allocation,
                    "Starts the guest of a stopped allocation.",
                    (empty_body answer<Allocation>);
            }
            ALLOCATION_REBOOT = "/api/v1/allocations/{allocation}/reboot" (allocation) {
                allocation_reboot: Post => allocations::reboot, AllocationOperate of Allocation,
                    "Reboots the guest of an allocation.",
                    (empty_body answer<Allocation>);
            }
            ALLOCATION_EXTEND = "/api/v1/allocations/{allocation}/extend" (allocation) {
                allocation_extend: Post => allocations::extend, AllocationOperate of Allocation,
                    "Changes the end of the lease of an allocation.",
                    (body<AllocationExtend> answer<Allocation> once);
            }
            ALLOCATION_RELEASE = "/api/v1/allocations/{allocation}/release" (allocation) {
                allocation_release: Post => allocations::release, AllocationOperate of Allocation,
                    "Releases an allocation and wipes its drives.",
                    (body<Reason> answer<Allocation>);
            }
            ALLOCATION_RETRY = "/api/v1/allocations/{allocation}/retry" (allocation) {
                allocation_retry: Post => allocations::retry, AllocationOperate of Allocation,
                    "Retries the step at which an allocation failed or is blocked.",
                    (body<AllocationRetry> answer<Allocation>);
            }
            ALLOCATION_CONSOLE = "/api/v1/allocations/{allocation}/console" (allocation) {
                allocation_console: Post => allocations::console, AllocationConsole of Allocation,
                    "Reads the serial console of a guest. Creates a task; the output is in its log.",
                    (body<SliceConsole> creates<Task> or_finds<Task>);
            }
            ALLOCATION_EVENTS = "/api/v1/allocations/{allocation}/events" (allocation) {
                allocation_events: Get => allocations::history, AllocationRead of Allocation,
                    "Lists the events of an allocation, oldest first.",
                    (query<PageQuery> answer<Page<EventRow>>);
            }
            ALLOCATION_WATCH = "/api/v1/allocations/{allocation}/watch" (allocation) {
                allocation_watch: Get => allocations::watch, AllocationRead of Allocation,
                    "Streams an allocation: its current state and every change.",
                    (query<AllocationWatchQuery> answer<Allocation> stream(Sse(&[EVENT_ALLOCATION, EVENT_PROGRESS])) by_hand);
            }
            ALLOCATIONS = "/api/v1/allocations" () {
                allocations: Get => allocations::search, PlatformRead of Platform, "Lists the allocations of all projects.",
                    (query<AllocationSearchQuery> answer<Page<Allocation>>);
            }

            "Events":
            PROJECT_EVENTS = "/api/v1/projects/{project}/events" (project) {
                project_events: Get => events::of_project, EventRead of Project, "Streams the events of a project.",
                    (query<EventsQuery> answer<CloudEvent> stream(Sse(&[EVENT_CLOUD_EVENT])) by_hand);
            }
            PROJECT_EVENTS_WS = "/api/v1/projects/{project}/events/ws" (project) {
                project_events_ws: Get => events::socket, EventRead of Project,
                    "Streams the events of a project over a WebSocket.",
                    (query<EventsQuery> answer<CloudEvent> stream(WebSocket));
            }
            EVENTS = "/api/v1/events" () {
                events: Get => events::of_everything, PlatformRead of Platform, "Streams the events of the whole platform.",
                    (query<EventsQuery> answer<CloudEvent> stream(Sse(&[EVENT_CLOUD_EVENT])) by_hand);
            }

            "Webhooks":
            WEBHOOKS = "/api/v1/projects/{project}/webhooks" (project) {
                webhooks: Get => webhooks::list, WebhookRead of Project, "Lists the webhooks of a project.",
                    (query<PageQuery> answer<Page<Webhook>>);
                webhook_create: Post => webhooks::create, WebhookManage of Project,
                    "Creates a webhook. Its secret is shown once.",
                    (body<WebhookCreate> creates<WebhookCreated>);
            }
            WEBHOOK = "/api/v1/webhooks/{webhook}" (webhook) {
                webhook: Get => webhooks::show, WebhookRead of Webhook, "Shows a webhook.",
                    (answer<Webhook> versioned);
                webhook_change: Patch => webhooks::change, WebhookManage of Webhook,
                    "Updates, disables or enables a webhook, or replaces its secret.",
                    (body<WebhookChange> answer<WebhookChanged> versioned);
                webhook_delete: Delete => webhooks::delete, WebhookManage of Webhook, "Deletes a webhook.",
                    (answer<Webhook> versioned);
            }
            WEBHOOK_DELIVERIES = "/api/v1/webhooks/{webhook}/deliveries" (webhook) {
                webhook_deliveries: Get => webhooks::deliveries, WebhookRead of Webhook,
                    "Lists the deliveries to a webhook, newest first.",
                    (query<DeliveryListQuery> answer<Page<Delivery>>);
            }
            WEBHOOK_TEST = "/api/v1/webhooks/{webhook}/test" (webhook) {
                webhook_test: Post => webhooks::test, WebhookManage of Webhook,
                    "Sends a test event to a webhook.",
                    (empty_body answer<WebhookTest>);
            }
            DELIVERY_REPLAY = "/api/v1/deliveries/{delivery}/replay" (delivery) {
                delivery_replay: Post => webhooks::replay, WebhookManage of Delivery,
                    "Repeats a delivery, whether or not it succeeded before.",
                    (empty_body answer<Delivery>);
            }

            "Platform members":
            PLATFORM_MEMBERS = "/api/v1/platform/members" () {
                platform_members: Get => members::list, PlatformRead of Platform,
                    "Lists the members of the platform and their roles.",
                    (query<PageQuery> answer<Page<Member>>);
                platform_member_add: Post => members::add, PlatformAdmin of Platform, "Adds a member to the platform.",
                    (body<MemberAdd> creates<Member>);
            }
            PLATFORM_MEMBER = "/api/v1/platform/members/{member}" (member) {
                platform_member_change: Patch => members::change, PlatformAdmin of Platform,
                    "Changes the role of a member of the platform.",
                    (body<MemberChange> answer<Member> versioned);
                platform_member_remove: Delete => members::remove, PlatformAdmin of Platform,
                    "Removes a member from the platform.",
                    (answer<Member> versioned);
            }

            "Users":
            USERS = "/api/v1/users" () {
                users: Get => users::list, PlatformRead of Platform, "Lists the users who have signed in or can sign in.",
                    (query<UserListQuery> answer<Page<User>>);
                user_create: Post => users::create, PlatformAdmin of Platform, "Creates a user of the built-in issuer.",
                    (body<UserCreate> creates<UserCreated>);
            }
            USER = "/api/v1/users/{user}" (user) {
                user: Get => users::show, PlatformRead of Platform, "Shows a user.",
                    (answer<User>);
                user_delete: Delete => users::delete, PlatformAdmin of Platform,
                    "Deletes a user, with their roles, their sign-ins and the keys they created.",
                    (answer<User>);
            }
            USER_REACTIVATE = "/api/v1/users/{user}/reactivate" (user) {
                user_reactivate: Post => users::reactivate, PlatformAdmin of Platform,
                    "Reactivates a user, who can then sign in again.",
                    (body<Reason> answer<User>);
            }
            USER_DEACTIVATE = "/api/v1/users/{user}/deactivate" (user) {
                user_deactivate: Post => users::deactivate, PlatformAdmin of Platform,
                    "Deactivates a user, who can then no longer sign in.",
                    (body<Reason> answer<User>);
            }
            USER_PASSWORD = "/api/v1/users/{user}/password" (user) {
                user_password_set: Post => users::set_password, PlatformAdmin of Platform,
                    "Sets the password of a user of the built-in issuer.",
                    (body<UserPassword> answer<UserPasswordSet>);
            }

            "Capacity":
            CAPACITY = "/api/v1/capacity" () {
                capacity: Get => fleet::capacity, CapacityRead of Platform,
                    "Shows how many slots exist, how many are healthy and how many are free.",
                    (answer<Capacity>);
            }
            NODE_MACHINE_OFFER = "/api/v1/nodes/{node}/machine/offer" (node) {
                node_machine_offer: Post => fleet::offer, PlatformOperate of Platform,
                    "Offers a node for lease as a whole machine.",
                    (body<MachineOffer> answer<Machine>);
            }
            NODE_MACHINE_WITHDRAW = "/api/v1/nodes/{node}/machine/withdraw" (node) {
                node_machine_withdraw: Post => fleet::withdraw, PlatformOperate of Platform,
                    "Withdraws the offer of a node as a whole machine.",
                    (body<Reason> answer<Machine>);
            }
            MACHINES = "/api/v1/machines" () {
                machines: Get => fleet::machines, PlatformRead of Platform, "Lists the nodes that are offered as whole machines.",
                    (query<MachineListQuery> answer<Page<Machine>>);
            }

            "Maintenance":
            MAINTENANCE_WINDOWS = "/api/v1/maintenance-windows" () {
                maintenance_windows: Get => fleet::windows, PlatformRead of Platform, "Lists maintenance windows.",
                    (query<MaintenanceListQuery> answer<Page<MaintenanceWindow>>);
                maintenance_announce: Post => fleet::announce, MaintenanceManage of Platform,
                    "Announces a maintenance window and notifies the tenants that it affects.",
                    (body<MaintenanceCreate> creates<MaintenanceWindow>);
            }
            MAINTENANCE_WINDOW = "/api/v1/maintenance-windows/{maintenance}" (maintenance) {
                maintenance_cancel: Delete => fleet::cancel, MaintenanceManage of Platform,
                    "Cancels a maintenance window and notifies the tenants that it affects.",
                    (answer<MaintenanceWindow>);
            }
            NODE_DRAIN_PREVIEW = "/api/v1/nodes/{node}/drain-preview" (node) {
                node_drain_preview: Get => fleet::drain_preview, PlatformRead of Platform,
                    "Shows which allocations have to end before a node is empty.",
                    (answer<DrainPreview>);
            }

            "Nodes":
            NODES = "/api/v1/nodes" () {
                nodes: Get => nodes::list, PlatformRead of Platform, "Lists nodes.",
                    (query<NodeListQuery> answer<Page<Node>>);
            }
            NODE = "/api/v1/nodes/{node}" (node) {
                node: Get => nodes::show, PlatformRead of Platform, "Shows a node.",
                    (answer<Node>);
                node_change: Patch => nodes::change, PlatformOperate of Platform, "Renames a node.",
                    (body<NodeChange> answer<Node>);
            }
            NODE_DRAIN = "/api/v1/nodes/{node}/drain" (node) {
                node_drain: Post => nodes::drain, PlatformOperate of Platform,
                    "Drains a node: it gets no new work, and running work continues.",
                    (body<Reason> answer<Node>);
            }
            NODE_UNDRAIN = "/api/v1/nodes/{node}/undrain" (node) {
                node_undrain: Post => nodes::undrain, PlatformOperate of Platform, "Returns a drained node to service.",
                    (body<Reason> answer<Node>);
            }
            NODE_QUARANTINE = "/api/v1/nodes/{node}/quarantine" (node) {
                node_quarantine: Post => nodes::quarantine, PlatformOperate of Platform, "Quarantines a node.",
                    (body<Reason> answer<Node>);
            }
            NODE_UNQUARANTINE = "/api/v1/nodes/{node}/unquarantine" (node) {
                node_unquarantine: Post => nodes::unquarantine, PlatformOperate of Platform, "Ends the quarantine of a node.",
                    (body<Reason> answer<Node>);
            }
            NODE_RETIRE = "/api/v1/nodes/{node}/retire" (node) {
                node_retire: Post => nodes::retire, PlatformAdmin of Platform,
                    "Retires a node permanently. Refused while tenants have allocations on it, unless forced.",
                    (body<NodeRetire> answer<Node>);
            }
            NODE_TOPOLOGY = "/api/v1/nodes/{node}/topology" (node) {
                node_topology: Get => slots::topology, PlatformRead of Platform,
                    "Shows the last discovered topology of a node, and its slots.",
                    (answer<Topology>);
            }
            NODE_TOPOLOGY_APPROVE = "/api/v1/nodes/{node}/topology/approve" (node) {
                node_topology_approve: Post => slots::approve, PlatformOperate of Platform,
                    "Approves discovered slots of a node.",
                    (body<TopologyApprove> answer<Page<Slot>>);
            }

            "Slots":
            SLOTS = "/api/v1/slots" () {
                slots: Get => slots::list, PlatformRead of Platform, "Lists slots.",
                    (query<SlotListQuery> answer<Page<Slot>>);
            }
            SLOT = "/api/v1/slots/{slot}" (slot) {
                slot: Get => slots::show, PlatformRead of Platform, "Shows a slot.",
                    (answer<Slot>);
            }
            SLOT_QUARANTINE = "/api/v1/slots/{slot}/quarantine" (slot) {
                slot_quarantine: Post => slots::quarantine, PlatformOperate of Platform,
                    "Quarantines a slot. The rest of the node stays in service.",
                    (body<Reason> answer<Slot>);
            }
            SLOT_UNQUARANTINE = "/api/v1/slots/{slot}/unquarantine" (slot) {
                slot_unquarantine: Post => slots::unquarantine, PlatformOperate of Platform, "Ends the quarantine of a slot.",
                    (body<Reason> answer<Slot>);
            }
            SLOT_WITHDRAW = "/api/v1/slots/{slot}/withdraw" (slot) {
                slot_withdraw: Post => slots::withdraw, PlatformOperate of Platform,
                    "Withdraws a slot until it is approved again.",
                    (body<Reason> answer<Slot>);
            }
            SLOT_FORCE_CLEANUP = "/api/v1/slots/{slot}/force-cleanup" (slot) {
                slot_force_cleanup: Post => slices::force_cleanup, PlatformOperate of Platform,
                    "Cleans up what is left of a slice on a slot. Frees the slot only with a complete cleanup proof.",
                    (body<Reason> creates<SliceOrder> or_finds<SliceOrder>);
            }

            "Slices":
            SLICES = "/api/v1/slices" () {
                slices: Get => slices::list, PlatformRead of Platform, "Lists slices.",
                    (query<SliceListQuery> answer<Page<Slice>>);
                slice_create: Post => slices::create, PlatformOperate of Platform, "Creates a slice on the named slots.",
                    (body<SliceCreate> creates<SliceOrder> or_finds<SliceOrder>);
            }
            SLICE = "/api/v1/slices/{slice}" (slice) {
                slice: Get => slices::show, PlatformRead of Platform, "Shows a slice.",
                    (answer<Slice>);
            }
            SLICE_RELEASE = "/api/v1/slices/{slice}/release" (slice) {
                slice_release: Post => slices::release, PlatformOperate of Platform,
                    "Releases a slice: removes its guest, cleans up and frees its slots.",
                    (body<SliceRelease> creates<SliceOrder> or_finds<SliceOrder>);
            }
            SLICE_POWER = "/api/v1/slices/{slice}/power" (slice) {
                slice_power: Post => slices::power, PlatformOperate of Platform, "Stops, starts or reboots the guest of a slice.",
                    (body<SlicePower> creates<SliceOrder> or_finds<SliceOrder>);
            }
            SLICE_CONSOLE = "/api/v1/slices/{slice}/console" (slice) {
                slice_console: Post => slices::console, PlatformOperate of Platform,
                    "Reads the serial console of a slice's guest. Creates a task; the output is in its log.",
                    (body<SliceConsole> creates<SliceOrder> or_finds<SliceOrder>);
            }

            "Tasks":
            TASKS = "/api/v1/tasks" () {
                tasks: Get => tasks::list, PlatformRead of Platform, "Lists tasks, newest first.",
                    (query<TaskListQuery> answer<Page<Task>>);
                task_create: Post => tasks::create, PlatformOperate of Platform, "Creates a task for a node.",
                    (body<TaskCreate> creates<Task> or_finds<Task>);
            }
            TASK = "/api/v1/tasks/{task}" (task) {
                task: Get => tasks::show, PlatformRead of Platform, "Shows a task.",
                    (answer<Task>);
            }
            TASK_CANCEL = "/api/v1/tasks/{task}/cancel" (task) {
                task_cancel: Post => tasks::cancel, PlatformOperate of Platform, "Cancels a task.",
                    (body<Reason> answer<Task>);
            }
            TASK_LOGS = "/api/v1/tasks/{task}/logs" (task) {
                task_logs: Get => tasks::logs, PlatformRead of Platform, "Shows the log of a task.",
                    (query<TaskLogsQuery> answer<TaskLogs> by_hand);
            }
            TASK_WATCH = "/api/v1/tasks/{task}/watch" (task) {
                task_watch: Get => tasks::watch, PlatformRead of Platform, "Streams a task until it ends.",
                    (answer<Task> stream(Sse(&[EVENT_TASK, EVENT_PROGRESS])) by_hand);
            }
            TASK_EVIDENCE = "/api/v1/tasks/{task}/evidence" (task) {
                task_evidence: Get => tasks::evidence, PlatformRead of Platform,
                    "Shows everything that is needed to verify a task offline.",
                    (answer<TaskEvidence>);
            }
            TASK_TYPES = "/api/v1/task-types" () {
                task_types: Get => system::task_types, PlatformRead of Platform, "Lists the task types and their parameters.",
                    (answer<Page<TaskTypeInfo>>);
            }

            "Enrollment":
            ENROLLMENTS = "/api/v1/enrollments" () {
                enrollments: Get => enrollments::list, PlatformRead of Platform, "Lists enrollment requests of hosts.",
                    (query<EnrollmentListQuery> answer<Page<Enrollment>>);
            }
            ENROLLMENT = "/api/v1/enrollments/{enrollment}" (enrollment) {
                enrollment: Get => enrollments::show, PlatformRead of Platform, "Shows an enrollment request of a host.",
                    (answer<Enrollment>);
            }
            ENROLLMENT_APPROVE = "/api/v1/enrollments/{enrollment}/approve" (enrollment) {
                enrollment_approve: Post => enrollments::approve, PlatformOperate of Platform,
                    "Approves an enrollment request. If the host is already a node, `replace_node` is required.",
                    (body<EnrollmentApprove> answer<Enrollment>);
            }
            ENROLLMENT_REJECT = "/api/v1/enrollments/{enrollment}/reject" (enrollment) {
                enrollment_reject: Post => enrollments::reject, PlatformOperate of Platform, "Rejects an enrollment request.",
                    (body<Reason> answer<Enrollment>);
            }
            JOIN_TOKENS = "/api/v1/join-tokens" () {
                join_tokens: Get => enrollments::token_list, PlatformRead of Platform,
                    "Lists join tokens, without their secrets.",
                    (query<PageQuery> answer<Page<JoinToken>>);
                join_token_create: Post => enrollments::token_create, PlatformOperate of Platform,
                    "Creates a join token for one or several hosts. Its secret is shown once.",
                    (body<JoinTokenCreate> creates<JoinTokenCreated>);
            }
            JOIN_TOKEN = "/api/v1/join-tokens/{token}" (token) {
                join_token_revoke: Delete => enrollments::token_revoke, PlatformOperate of Platform,
                    "Revokes a join token, which then enrolls no more hosts. Nodes that joined with it stay.",
                    (answer<JoinToken>);
            }

            "API tokens":
            API_TOKENS = "/api/v1/api-tokens" () {
                api_tokens: Get => access::tokens, PlatformRead of Platform, "Lists API tokens, without their secrets.",
                    (query<PageQuery> answer<Page<ApiToken>>);
                api_token_create: Post => access::token_create, PlatformAdmin of Platform,
                    "Creates an API token with a role on the platform. Its secret is shown once.",
                    (body<ApiTokenCreate> creates<ApiTokenCreated>);
            }
            API_TOKEN = "/api/v1/api-tokens/{token}" (token) {
                api_token_revoke: Delete => access::token_revoke, PlatformAdmin of Platform, "Revokes an API token.",
                    (answer<ApiToken>);
            }

            "Signing keys":
            SIGNING_KEYS = "/api/v1/signing-keys" () {
                signing_keys: Get => access::keys, PlatformRead of Platform, "Lists current and former keys that sign tasks.",
                    (answer<Page<SigningKey>>);
            }
            SIGNING_KEYS_STAGE = "/api/v1/signing-keys/stage" () {
                signing_keys_stage: Post => access::stage, PlatformAdmin of Platform,
                    "Creates and publishes the next signing key ahead of its use.",
                    (answer<Page<SigningKey>>);
            }
            SIGNING_KEYS_ROTATE = "/api/v1/signing-keys/rotate" () {
                signing_keys_rotate: Post => access::rotate, PlatformAdmin of Platform, "Starts signing with the next key.",
                    (answer<Page<SigningKey>>);
            }
            SIGNING_KEY_REVOKE = "/api/v1/signing-keys/{key}/revoke" (key) {
                signing_key_revoke: Post => access::revoke_key, PlatformAdmin of Platform,
                    "Revokes a signing key. Nodes no longer accept its signatures.",
                    (body<Reason> answer<Page<SigningKey>>);
            }

            "Audit":
            AUDIT = "/api/v1/audit" () {
                audit: Get => audit::list, AuditRead of Platform, "Lists entries of the audit log.",
                    (query<AuditQuery> answer<Page<AuditRow>>);
            }
            AUDIT_EXPORT = "/api/v1/audit/export" () {
                audit_export: Get => audit::export, AuditRead of Platform, "Exports the audit log, one entry per line.",
                    (query<AuditExportQuery> answer<AuditRow> stream(JsonLines) by_hand);
            }

            "Cluster":
            BUDGET = "/api/v1/cluster/budget" () {
                budget: Get => budget::show, PlatformRead of Platform,
                    "Shows the hourly budget of destructive commands and how much of it is used.",
                    (answer<Budget>);
            }
            BUDGET_LIFT = "/api/v1/cluster/budget/lift" () {
                budget_lift: Post => budget::lift, PlatformAdmin of Platform,
                    "Raises the budget of destructive commands for an hour. Needs a sign-in or the local socket; API tokens cannot do it.",
                    (body<BudgetLift> answer<Budget>);
            }
            CLUSTER = "/api/v1/cluster" () {
                cluster: Get => system::cluster, PlatformRead of Platform,
                    "Shows the identity, version and certificate authority of the installation.",
                    (answer<ClusterInfo>);
            }
            METRICS = "/metrics" () {
                metrics: Get => system::metrics, PlatformRead of Platform, "Shows the metrics of the process.",
                    (stream(Metrics) by_hand);
            }
        }
    };
}
