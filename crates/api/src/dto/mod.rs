//! Documents of the REST API, one file per resource.
//!
//! Times are RFC 3339 in UTC with microseconds, and durations are integers whose names end in `_seconds`. A state is an [`Open`] value, so
//! that an older client can still show the state that a newer server sends. Documents from clients must not have unknown fields;
//! documents from the server may get new fields.
//!
//! [`Open`]: gpuaas_contract::names::Open

use gpuaas_contract::names::{Named, UnknownName};

mod access;
mod allocation;
mod allocation_requests;
mod audit;
mod budget;
mod capacity;
mod catalog;
mod cluster;
mod enrollment;
mod event;
mod gpu;
mod identity;
mod image;
mod maintenance;
mod member;
mod node;
mod organization;
mod problem;
mod project;
mod quota;
mod service_account;
mod slice;
mod slot;
mod ssh_key;
mod task;
mod user;
mod webhook;

pub use access::{ApiToken, ApiTokenCreate, ApiTokenCreated, SigningKey};
pub use allocation::{Allocation, AllocationMaintenance, AllocationPhase, AllocationPlan, NodeReasons};
pub use allocation_requests::{
    AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationRetry, AllocationSearchQuery,
    AllocationWatchQuery, BadTags, Tags,
};
pub use audit::{AuditExportQuery, AuditQuery, AuditRow};
pub use budget::{Budget, BudgetLift, BudgetScope};
pub use capacity::{Capacity, CapacityRow, Machine, MachineListQuery, MachineOffer, NodeCapacity, SkuCapacity};
pub use catalog::{CatalogItem, Product, Sku, SkuChange, SkuCreate};
pub use cluster::{CaInfo, CaState, ClusterInfo, ListenerInfo, TaskTypeInfo};
pub use enrollment::{
    Enrollment, EnrollmentApprove, EnrollmentListQuery, ExistingNode, JoinToken, JoinTokenCreate, JoinTokenCreated, JoinedNode,
};
pub use event::{CloudEvent, EventRow, EventsQuery};
pub use gpu::Gpu;
pub use gpuaas_contract::state::ProductKind;
pub use identity::{WhoAmI, WhoAmIMembership};
pub use image::{Image, ImageCreate, ImageListQuery};
pub use maintenance::{DrainAllocation, DrainPreview, MaintenanceCreate, MaintenanceListQuery, MaintenanceWindow};
pub use member::{Member, MemberAdd, MemberChange};
pub use node::{Node, NodeChange, NodeGuestMetrics, NodeListQuery, NodeMetrics, NodeRetire, NodeSession};
pub use organization::{Organization, OrganizationChange, OrganizationCreate, OrganizationListQuery};
pub use problem::{Fault, PROBLEM_CONTENT_TYPE, Problem};
pub use project::{Project, ProjectChange, ProjectCreate, ProjectListQuery};
pub use quota::{Limits, Quota, QuotaLimits, QuotaUsed};
pub use service_account::{ApiKey, ApiKeyCreate, ApiKeyCreated, ServiceAccount, ServiceAccountCreate};
pub use slice::{Slice, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, SlotName};
pub use slot::{Slot, SlotListQuery, Topology, TopologyApprove, TopologyProposal};
pub use ssh_key::{SshKey, SshKeyCreate};
pub use task::{
    EnvelopeEvidence, Task, TaskCreate, TaskEvidence, TaskListQuery, TaskLogLine, TaskLogs, TaskLogsQuery, TaskProgress,
};
pub use user::{OwnPassword, User, UserCreate, UserCreated, UserListQuery, UserPassword, UserPasswordSet};
pub use webhook::{
    Delivery, DeliveryListQuery, Webhook, WebhookChange, WebhookChanged, WebhookCreate, WebhookCreated, WebhookTest,
};

/// Default number of items per page.
pub const DEFAULT_PAGE: u32 = 100;
/// Maximum number of items per page.
pub const MAX_PAGE: u32 = 1000;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A single page with the whole list.
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// Page of a list without filters.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// Returns the items after this one: [`Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A filter of a list by state: one state, or all states that are not final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFilter<T> {
    /// `open`: every state that is not final.
    Open,
    /// Exactly this state.
    Is(T),
}

/// The name of [`StateFilter::Open`].
const OPEN: &str = "open";

impl<T: Named> serde::Serialize for StateFilter<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Open => OPEN,
            Self::Is(state) => state.name(),
        })
    }
}

impl<'de, T: Named> serde::Deserialize<'de> for StateFilter<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl<T: Named> std::str::FromStr for StateFilter<T> {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == OPEN {
            return Ok(Self::Open);
        }
        T::from_name(name).map(Self::Is).ok_or_else(|| format!("{}, {OPEN}", UnknownName::of::<T>(name)))
    }
}

impl<T: Named> schemars::JsonSchema for StateFilter<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StateFilter".into()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        std::any::type_name::<Self>().into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = T::VALUES.iter().map(|state| state.name()).chain([OPEN]).collect();
        schemars::json_schema!({ "type": "string", "enum": names })
    }
}

/// Body of an operation with a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Reason, recorded in the audit log; may be empty.
    #[serde(default)]
    pub reason: String,
}

/// An empty body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}
