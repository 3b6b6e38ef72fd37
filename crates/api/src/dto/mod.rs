//! Documents of the REST interface, a file per resource.
//!
//! Times are microseconds since the epoch. States are strings, so that an older client can still show what a newer
//! server says. Documents that a client sends refuse unknown fields; documents that a server sends may grow.

mod access;
mod audit;
mod cluster;
mod enrolment;
mod node;
mod problem;
mod slice;
mod slot;
mod task;

pub use access::{ApiToken, ApiTokenCreate, ApiTokenCreated, SigningKey};
pub use audit::{AuditQuery, AuditRow};
pub use cluster::{ClusterInfo, TaskTypeInfo};
pub use enrolment::{Enrolment, EnrolmentListQuery, JoinToken, JoinTokenCreate, JoinTokenCreated};
pub use node::{Node, NodeListQuery, NodeSession};
pub use problem::{PROBLEM_CONTENT_TYPE, Problem};
pub use slice::{
    DEFAULT_BRIDGE, DEFAULT_USERNAME, Slice, SliceConsole, SliceCreate, SliceImage, SliceListQuery, SliceOrder, SlicePower,
    SliceRelease, SlotName,
};
pub use slot::{Slot, SlotListQuery, Topology, TopologyApprove, TopologyProposal};
pub use task::{
    EnvelopeEvidence, Task, TaskCreate, TaskEvidence, TaskListQuery, TaskLogLine, TaskLogs, TaskLogsQuery, TaskProgress,
};

/// Items of one page unless the caller says otherwise.
pub const DEFAULT_PAGE: u32 = 100;
/// Most items of one page.
pub const MAX_PAGE: u32 = 1000;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// Give this as `after` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A page that is the whole list.
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// Which page of a list without filters.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// [`Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Body of an operation that can be given a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Why, in the operator's words; may be empty. Kept in the audit log.
    #[serde(default)]
    pub reason: String,
}
