//! All endpoints of the API: who may use each, what it takes and what it returns.
//!
//! `table.rs` declares each endpoint once. The server's router, its guard, the client, the OpenAPI document and the reference page are
//! generated from it. [`crate::routes::HEALTHZ`], [`crate::routes::READYZ`], [`crate::routes::OPENAPI`] and
//! [`crate::routes::REFERENCE`] need no authentication and are therefore not in it.

mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use gpuaas_contract::access::Action;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

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

/// Response to a request that creates no allocation: the allocation that an earlier request created, or the plan of a dry run.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum MadeOrPlanned {
    /// The allocation that an earlier request with the same idempotency key created.
    Made(Box<Allocation>),
    /// The plan of a dry run.
    Planned(AllocationPlan),
}

macro_rules! endpoints {
    ($($resource:literal: $($route:ident = $path:literal ($($segment:ident),*) { $(
        $name:ident: $method:ident => $module:ident::$handler:ident, $action:ident of $about:ident, $summary:literal,
            ($($part:ident $(<$document:ty>)? $(($stream:expr))?)*);
    )* })*)*) => {
        /// All endpoints: every method of every path.
        // A `static` and not a `const`, which every crate that names it would compile again, with the schema of every document.
        pub static ENDPOINTS: &[Endpoint] = &[$($($(
            Endpoint::new($resource, (stringify!($name), Method::$method, routes::$route), (Action::$action, About::$about), $summary)
                $(.$part$(::<$document>)?($($stream)?))*,
        )*)*)*];
    };
}

crate::for_each_endpoint!(endpoints);

/// An HTTP method that the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Reads a document or a list.
    Get,
    /// Creates something, or starts an operation.
    Post,
    /// Replaces a whole document.
    Put,
    /// Changes parts of a document.
    Patch,
    /// Deletes or revokes something.
    Delete,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// The name of the method in HTTP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// The method with this name. `HEAD` counts as `GET`, because it differs only in that the body is not sent.
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

/// The resource that an action applies to, and the segment of the path that identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// The platform itself, without a segment.
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
    /// The name of the segment, without braces. `None` for the platform.
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

/// The format in which a response arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// One JSON document, not a stream.
    Document,
    /// `text/event-stream` with these names of events. Events with the first name carry the document.
    Sse(&'static [&'static str]),
    /// A WebSocket with one document per text message.
    WebSocket,
    /// `application/x-ndjson` with one document per line.
    JsonLines,
    /// Plain text in the format of OpenMetrics, which Prometheus reads.
    Metrics,
}

/// The type of a document, with functions that depend on it.
#[derive(Clone, Copy, Debug)]
pub struct DocumentType {
    /// Generates the schema. Schemas that it refers to are added to the definitions of the generator.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Checks that a value is such a document. Only for tests: it is a second parser of every document.
    #[cfg(test)]
    pub(crate) check: fn(serde_json::Value) -> Result<(), serde_json::Error>,
}

impl DocumentType {
    /// A document whose schema is a reference.
    const fn of<T: JsonSchema + DeserializeOwned>() -> Self {
        Self {
            schema: SchemaGenerator::subschema_for::<T>,
            #[cfg(test)]
            check: check::<T>,
        }
    }

    /// A document with an inline schema, because the fields of a query are listed one by one.
    const fn fields_of<T: JsonSchema + DeserializeOwned>() -> Self {
        Self {
            schema: T::json_schema,
            #[cfg(test)]
            check: check::<T>,
        }
    }
}

#[cfg(test)]
fn check<T: DeserializeOwned>(value: serde_json::Value) -> Result<(), serde_json::Error> {
    serde_json::from_value::<T>(value).map(drop)
}

/// One method of one path.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// The kind of resource, as a heading for people.
    pub resource: &'static str,
    /// Unique name, which is also that of the client's method and of the OpenAPI operation.
    pub name: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The path, in the syntax of the server's router.
    pub path: &'static str,
    /// The action that the caller must be allowed to do.
    pub action: Action,
    /// The resource on which the caller must be allowed to do it.
    pub about: About,
    /// One sentence for people.
    pub summary: &'static str,
    /// The fields of the query. `None` if it takes none.
    pub query: Option<DocumentType>,
    /// The body of the request. `None` if it takes none.
    pub body: Option<DocumentType>,
    /// The response, or each document of a stream.
    pub answer: Option<DocumentType>,
    /// The response with status 200 where [`Endpoint::status`] is 201: the resource was created before, or the request was a dry run.
    pub not_created: Option<DocumentType>,
    /// The HTTP status of success.
    pub status: u16,
    /// The format of the response.
    pub stream: StreamKind,
    /// Whether the response has an `ETag` and a request that changes something may have an `If-Match`.
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

    /// Success creates a resource, with status 201.
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

    /// Only affects the client's method: on the server every `POST` takes an idempotency key.
    const fn once(self) -> Self {
        self
    }

    /// Only affects the client's method.
    const fn by_hand(self) -> Self {
        self
    }

    /// Names of the variable segments of the path, without braces.
    pub fn segments(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }
}

/// The endpoint of a request, by its method and the path of the route that matched. A request without an endpoint must be refused.
pub fn find(method: &str, matched_path: &str) -> Option<&'static Endpoint> {
    static BY_PATH: LazyLock<HashMap<(Method, &'static str), &'static Endpoint>> =
        LazyLock::new(|| ENDPOINTS.iter().map(|endpoint| ((endpoint.method, endpoint.path), endpoint)).collect());
    BY_PATH.get(&(Method::parse(method)?, matched_path)).copied()
}

/// The methods of a path. Empty if there is no endpoint at this path.
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
            // A path with a tenant's resource must not be authorized as if it belonged to the platform.
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
