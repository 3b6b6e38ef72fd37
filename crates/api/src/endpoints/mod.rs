//! Everything the interface offers: who may use it, what it takes and what it answers.
//!
//! `table.rs` declares each endpoint once. The server's router, its guard, the client, the OpenAPI document and the reference page are
//! generated from it. [`crate::routes::HEALTHZ`], [`crate::routes::READYZ`], [`crate::routes::OPENAPI`] and
//! [`crate::routes::REFERENCE`] are open to everybody and therefore not in it.

mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use gpuaas_contract::access::Action;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::StreamKind::{JsonLines, Metrics, Sse, WebSocket};
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
    WebhookChange, WebhookChanged, WebhookCreate, WebhookCreated, WebhookTest, WhoAmI,
};
use crate::routes::{self, EVENT_ALLOCATION, EVENT_CLOUD_EVENT, EVENT_PROGRESS, EVENT_TASK};

/// What a request for an allocation answers if it creates none now: the one it created before, or a plan.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum MadeOrPlanned {
    /// Created before, under the same idempotency key.
    Made(Box<Allocation>),
    /// A dry run.
    Planned(AllocationPlan),
}

macro_rules! endpoints {
    ($($resource:literal: $($route:ident = $path:literal ($($segment:ident),*) { $(
        $name:ident: $method:ident => $module:ident::$handler:ident, $action:ident of $about:ident, $summary:literal,
            ($($part:ident $(<$document:ty>)? $(($stream:expr))?)*);
    )* })*)*) => {
        /// Every method of every path.
        pub const ENDPOINTS: &[Endpoint] = &[$($($(
            Endpoint::new($resource, (stringify!($name), Method::$method, routes::$route), (Action::$action, About::$about), $summary)
                $(.$part$(::<$document>)?($($stream)?))*,
        )*)*)*];
    };
}

crate::for_each_endpoint!(endpoints);

/// A method of HTTP that the interface uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates something, or starts an operation.
    Post,
    /// Replaces something as a whole.
    Put,
    /// Changes parts of something.
    Patch,
    /// Deletes or revokes something.
    Delete,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// Name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// The method with this name. `HEAD` is a `GET` whose answer is not sent.
    pub fn parse(name: &str) -> Option<Self> {
        let name = if name == "HEAD" { "GET" } else { name };
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an action is about, and so which segment of the path tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// The platform itself; no segment.
    Platform,
    /// The organization in `{organization}`.
    Organization,
    /// The project in `{project}`.
    Project,
    /// The project of the allocation in `{allocation}`.
    Allocation,
    /// The project of the webhook in `{webhook}`.
    Webhook,
    /// The project of the webhook of the delivery in `{delivery}`.
    Delivery,
}

impl About {
    /// The segment of the path, without its braces.
    pub const fn segment(self) -> Option<&'static str> {
        match self {
            Self::Platform => None,
            Self::Organization => Some("organization"),
            Self::Project => Some("project"),
            Self::Allocation => Some("allocation"),
            Self::Webhook => Some("webhook"),
            Self::Delivery => Some("delivery"),
        }
    }
}

/// How an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Not as a stream: one JSON document.
    Document,
    /// `text/event-stream`, with the document in each event of the first name.
    Sse(&'static [&'static str]),
    /// WebSocket, with the document in each text message.
    WebSocket,
    /// `application/x-ndjson`, with the document in each line.
    JsonLines,
    /// Plain text in the format of OpenMetrics, which Prometheus reads.
    Metrics,
}

/// The type of a document.
#[derive(Clone, Copy, Debug)]
pub struct DocumentType {
    /// Makes its schema; what it refers to goes into the generator's definitions.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Whether a value is such a document.
    pub check: fn(Value) -> Result<(), serde_json::Error>,
}

impl DocumentType {
    /// A document by reference.
    const fn of<T: JsonSchema + DeserializeOwned>() -> Self {
        Self { schema: SchemaGenerator::subschema_for::<T>, check: check::<T> }
    }

    /// A document in place: the fields of a query are listed one by one.
    const fn fields_of<T: JsonSchema + DeserializeOwned>() -> Self {
        Self { schema: T::json_schema, check: check::<T> }
    }
}

fn check<T: DeserializeOwned>(value: Value) -> Result<(), serde_json::Error> {
    serde_json::from_value::<T>(value).map(drop)
}

/// One method of one path.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// The kind of thing it is about, for people.
    pub resource: &'static str,
    /// Unique name, that of the client's method.
    pub name: &'static str,
    /// The method.
    pub method: Method,
    /// The path, in the syntax of the server's router.
    pub path: &'static str,
    /// The action a caller needs.
    pub action: Action,
    /// What that action is about.
    pub about: About,
    /// One sentence for people.
    pub summary: &'static str,
    /// The fields of the query.
    pub query: Option<DocumentType>,
    /// The body.
    pub body: Option<DocumentType>,
    /// The answer, or each document of a stream.
    pub answer: Option<DocumentType>,
    /// An answer with status 200 where [`Endpoint::status`] is 201: it was created before, or was only asked about.
    pub not_created: Option<DocumentType>,
    /// Status of success.
    pub status: u16,
    /// How the answer arrives.
    pub stream: StreamKind,
    /// Whether the answer has an `ETag` and, if it changes something, the request may have an `If-Match`.
    pub versioned: bool,
}

impl Endpoint {
    const fn new(
        resource: &'static str,
        (name, method, path): (&'static str, Method, &'static str),
        (action, about): (Action, About),
        summary: &'static str,
    ) -> Self {
        Self {
            resource,
            name,
            method,
            path,
            action,
            about,
            summary,
            query: None,
            body: None,
            answer: None,
            not_created: None,
            status: 200,
            stream: StreamKind::Document,
            versioned: false,
        }
    }

    const fn query<T: JsonSchema + DeserializeOwned>(self) -> Self {
        Self { query: Some(DocumentType::fields_of::<T>()), ..self }
    }

    const fn body<T: JsonSchema + DeserializeOwned>(self) -> Self {
        Self { body: Some(DocumentType::of::<T>()), ..self }
    }

    const fn empty_body(self) -> Self {
        self.body::<Empty>()
    }

    const fn answer<T: JsonSchema + DeserializeOwned>(self) -> Self {
        Self { answer: Some(DocumentType::of::<T>()), ..self }
    }

    /// Success creates something.
    const fn creates<T: JsonSchema + DeserializeOwned>(self) -> Self {
        Self { answer: Some(DocumentType::of::<T>()), status: 201, ..self }
    }

    const fn or_finds<T: JsonSchema + DeserializeOwned>(self) -> Self {
        Self { not_created: Some(DocumentType::of::<T>()), ..self }
    }

    const fn stream(self, stream: StreamKind) -> Self {
        let status = if matches!(stream, StreamKind::WebSocket) { 101 } else { self.status };
        Self { stream, status, ..self }
    }

    const fn versioned(self) -> Self {
        Self { versioned: true, ..self }
    }

    /// Matters to the client's method only: every `POST` takes an idempotency key.
    const fn once(self) -> Self {
        self
    }

    /// Matters to the client's method only.
    const fn by_hand(self) -> Self {
        self
    }

    /// Names of the segments of the path, without their braces.
    pub fn segments(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }
}

/// The endpoint of a request, by the name of its method and the path of the route that matched. What is not found must be refused.
pub fn find(method: &str, matched_path: &str) -> Option<&'static Endpoint> {
    static BY_PATH: LazyLock<HashMap<(Method, &'static str), &'static Endpoint>> =
        LazyLock::new(|| ENDPOINTS.iter().map(|endpoint| ((endpoint.method, endpoint.path), endpoint)).collect());
    BY_PATH.get(&(Method::parse(method)?, matched_path)).copied()
}

/// The methods that a path has. Empty if no endpoint is there.
pub fn methods(matched_path: &str) -> impl Iterator<Item = Method> {
    ENDPOINTS.iter().filter(move |endpoint| endpoint.path == matched_path).map(|endpoint| endpoint.method)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_path_has_each_method_once() {
        let mut offered = BTreeSet::new();
        for endpoint in ENDPOINTS {
            assert!(offered.insert((endpoint.path, endpoint.method)), "{} is there twice", endpoint.name);
        }
    }

    #[test]
    fn an_endpoint_is_found_by_method_and_path_and_nothing_else_is() {
        for endpoint in ENDPOINTS {
            let found = find(endpoint.method.as_str(), endpoint.path).expect("in the table");
            assert_eq!(found.name, endpoint.name);
        }
        assert_eq!(find("HEAD", crate::routes::NODES).map(|endpoint| endpoint.name), Some("nodes"));
        assert!(find("DELETE", crate::routes::NODES).is_none());
        assert!(find("TRACE", crate::routes::NODES).is_none());
        assert!(find("get", crate::routes::NODES).is_none());
        assert!(find("GET", crate::routes::HEALTHZ).is_none());
        assert!(find("GET", "/api/v1/nodes/x").is_none());
    }

    #[test]
    fn the_path_has_the_segment_that_the_action_is_about() {
        for endpoint in ENDPOINTS {
            let expected = endpoint.about.segment();
            assert!(expected.is_none_or(|wanted| endpoint.segments().any(|segment| segment == wanted)), "{}", endpoint.name);
            // What belongs to somebody is never asked for as if it were the platform's.
            let theirs = ["organization", "project", "allocation", "webhook", "delivery"];
            let owned = endpoint.segments().find(|segment| theirs.contains(segment));
            assert_eq!(owned, expected, "{}", endpoint.name);
        }
    }

    #[test]
    fn what_only_looks_needs_an_action_that_only_looks() {
        for endpoint in ENDPOINTS {
            assert_eq!(endpoint.action.reads(), endpoint.method == Method::Get, "{}", endpoint.name);
        }
    }

    #[test]
    fn names_are_unique_and_summaries_are_sentences() {
        let names: BTreeSet<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.name).collect();
        assert_eq!(names.len(), ENDPOINTS.len());
        for Endpoint { name, summary, answer, body, method, .. } in ENDPOINTS {
            assert!(summary.ends_with('.') && summary.starts_with(char::is_uppercase), "{name}: {summary}");
            assert!(answer.is_some() || *name == "metrics", "{name} answers nothing");
            let bodiless = ["signing_keys_stage", "signing_keys_rotate"].contains(name);
            let wants = matches!(method, Method::Post | Method::Put | Method::Patch);
            assert_eq!(body.is_some(), wants && !bodiless, "{name}");
        }
    }

    #[test]
    fn every_action_is_needed_by_something() {
        let used: BTreeSet<Action> = ENDPOINTS.iter().map(|endpoint| endpoint.action).collect();
        assert_eq!(used, Action::ALL.iter().copied().collect());
    }
}
