//! One method per endpoint, generated from the declarations of [`crate::endpoints`]. The arguments are the segments of the path, the
//! query, the body, and an optional precondition: an idempotency key, with which a repeated request takes effect once, or the `etag` of
//! the document that the caller has seen, with which the request changes that version or nothing. Methods that are declared `by_hand`
//! are below, in `watch.rs` and in `export.rs`.

use std::time::Duration;

use super::{Call, Client, ClientError};
use crate::dto::{
    Allocation, AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationPlan, AllocationRetry,
    AllocationSearchQuery, ApiKey, ApiKeyCreate, ApiKeyCreated, ApiToken, ApiTokenCreate, ApiTokenCreated, AuditQuery, AuditRow,
    Budget, BudgetLift, Capacity, CatalogItem, ClusterInfo, Delivery, DeliveryListQuery, DrainPreview, Empty, Enrollment,
    EnrollmentApprove, EnrollmentListQuery, EventRow, Image, ImageCreate, ImageListQuery, JoinToken, JoinTokenCreate,
    JoinTokenCreated, Limits, Machine, MachineListQuery, MachineOffer, MaintenanceCreate, MaintenanceListQuery,
    MaintenanceWindow, Member, MemberAdd, MemberChange, Node, NodeChange, NodeListQuery, NodeRetire, Organization,
    OrganizationChange, OrganizationCreate, OrganizationListQuery, OwnPassword, Page, PageQuery, Project, ProjectChange,
    ProjectCreate, ProjectListQuery, Quota, Reason, ServiceAccount, ServiceAccountCreate, SigningKey, Sku, SkuChange, SkuCreate,
    Slice, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, Slot, SlotListQuery, SshKey,
    SshKeyCreate, Task, TaskCreate, TaskEvidence, TaskListQuery, TaskLogs, TaskLogsQuery, TaskTypeInfo, Topology,
    TopologyApprove, User, UserCreate, UserCreated, UserListQuery, UserPassword, UserPasswordSet, Webhook, WebhookChange,
    WebhookChanged, WebhookCreate, WebhookCreated, WebhookTest, WhoAmI,
};
use crate::endpoints::Method;
use crate::routes;

macro_rules! client_methods {
    ($($resource:literal: $($route:ident = $path:literal $segments:tt { $(
        $name:ident: $method:ident => $module:ident::$handler:ident, $action:ident of $about:ident, $summary:literal, ($($part:tt)*);
    )* })*)*) => {
        impl Client {$($($(
            client_method! { {$name $method $route $segments $summary} [] [] [] $($part)* }
        )*)*)*}
    };
}

/// Generates one method. The macro consumes the parts of the declaration one by one, and collects in this order: the arguments, each with
/// the name of the function of [`Call`] that takes it; further calls of such functions; and the type of the response.
macro_rules! client_method {
    ($head:tt [$($argument:tt)*] $more:tt $answer:tt query<$query:ty> $($part:tt)*) => {
        client_method! { $head [$($argument)* query: &$query,] $more $answer $($part)* }
    };
    ($head:tt [$($argument:tt)*] $more:tt $answer:tt body<$body:ty> $($part:tt)*) => {
        client_method! { $head [$($argument)* body: &$body,] $more $answer $($part)* }
    };
    ($head:tt $arguments:tt [] $answer:tt empty_body $($part:tt)*) => {
        client_method! { $head $arguments [.body(&Empty {})?] $answer $($part)* }
    };
    ($head:tt $arguments:tt $more:tt [] answer<$answer:ty> $($part:tt)*) => {
        client_method! { $head $arguments $more [$answer] $($part)* }
    };
    ($head:tt $arguments:tt $more:tt [] creates<$created:ty> $($part:tt)*) => {
        client_method! { $head $arguments $more [$created] once $($part)* }
    };
    // The response for something that was created before has the same type; where it does not, the method is `by_hand`.
    ($head:tt $arguments:tt $more:tt $answer:tt once or_finds<$found:ty> $($part:tt)*) => {
        client_method! { $head $arguments $more $answer once $($part)* }
    };
    ($head:tt [$($argument:tt)*] $more:tt $answer:tt once $($part:tt)*) => {
        client_method! { $head [$($argument)* idempotency_key: Option<&str>,] $more $answer $($part)* }
    };
    ({$name:ident Get $($head:tt)*} $arguments:tt $more:tt $answer:tt versioned $($part:tt)*) => {
        client_method! { {$name Get $($head)*} $arguments $more $answer $($part)* }
    };
    ($head:tt [$($argument:tt)*] $more:tt $answer:tt versioned $($part:tt)*) => {
        client_method! { $head [$($argument)* if_match: Option<&str>,] $more $answer $($part)* }
    };
    // Streams have no method, or one that is `by_hand`.
    ($head:tt $arguments:tt $more:tt $answer:tt stream($stream:expr) $($part:tt)*) => {};
    ($head:tt $arguments:tt $more:tt $answer:tt by_hand) => {};
    (
        {$name:ident $method:ident $route:ident ($($segment:ident),*) $summary:literal}
        [$($argument:ident: $type:ty,)*] [$($more:tt)*] [$answer:ty]
    ) => {
        #[doc = $summary]
        pub async fn $name(&self, $($segment: &str,)* $($argument: $type),*) -> Result<$answer, ClientError> {
            let segments = [$($segment),*];
            self.json(self.call(Method::$method, routes::$route, &segments)$(.$argument($argument)?)*$($more)*).await
        }
    };
}

crate::for_each_endpoint!(client_methods);

/// How much longer than usual a request that follows a log may take: the server holds it for up to 20 s.
const FOLLOW_EXTRA: Duration = Duration::from_secs(25);

impl Client {
    /// Creates an allocation, also if the document asks for a dry run.
    pub async fn allocation_create(
        &self,
        project: &str,
        create: &AllocationCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Allocation, ClientError> {
        let create = AllocationCreate { dry_run: false, ..create.clone() };
        let segments = [project];
        let call = self.call(Method::Post, routes::PROJECT_ALLOCATIONS, &segments);
        self.json(call.body(&create)?.idempotency_key(idempotency_key)?).await
    }

    /// Shows what a request for an allocation would result in now. Creates nothing.
    pub async fn allocation_plan(&self, project: &str, create: &AllocationCreate) -> Result<AllocationPlan, ClientError> {
        let create = AllocationCreate { dry_run: true, ..create.clone() };
        self.json(self.call(Method::Post, routes::PROJECT_ALLOCATIONS, &[project]).body(&create)?).await
    }

    /// Shows the metrics of the process, in the text format of OpenMetrics.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let response = self.send(self.call(Method::Get, routes::METRICS, &[])).await?;
        let bytes = self.read_capped(response, super::MAX_RESPONSE_BYTES).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Shows log lines of a task. With `follow`, waits for more lines.
    pub async fn task_logs(&self, task: &str, query: &TaskLogsQuery) -> Result<TaskLogs, ClientError> {
        let extra = if query.follow == Some(true) { FOLLOW_EXTRA } else { Duration::ZERO };
        let segments = [task];
        let call = self.call(Method::Get, routes::TASK_LOGS, &segments).query(query)?;
        self.json(Call { timeout: Some(self.timeout + extra), ..call }).await
    }
}

#[cfg(test)]
mod tests {
    use super::Client;

    macro_rules! written_by_hand {
        ($($resource:literal: $($route:ident = $path:literal $segments:tt { $(
            $name:ident: $method:ident => $module:ident::$handler:ident, $action:ident of $about:ident, $summary:literal, ($($part:tt)*);
        )* })*)*) => {$($($(
            written_by_hand! { $name $($part)* }
        )*)*)*};
        ($name:ident by_hand) => {
            let _ = Client::$name;
        };
        ($name:ident $part:tt $($rest:tt)*) => {
            written_by_hand! { $name $($rest)* }
        };
        ($name:ident) => {};
    }

    #[test]
    fn what_is_declared_by_hand_is_there() {
        crate::for_each_endpoint!(written_by_hand);
    }
}
