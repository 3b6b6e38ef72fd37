//! One method per endpoint: allocations, and who is told about them.

use reqwest::Method;

use super::{Client, ClientError};
use crate::dto::{
    Allocation, AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationPlan, AllocationRetry,
    AllocationSearchQuery, Delivery, DeliveryListQuery, Empty, EventRow, Page, PageQuery, Reason, SliceConsole, Task, Webhook,
    WebhookChange, WebhookChanged, WebhookCreate, WebhookCreated,
};
use crate::routes;

impl Client {
    /// One page of a project's allocations.
    pub async fn project_allocations(&self, project: &str, query: &AllocationListQuery) -> Result<Page<Allocation>, ClientError> {
        self.list(routes::PROJECT_ALLOCATIONS, &[project], query).await
    }

    /// One page of the whole platform's allocations.
    pub async fn allocations(&self, query: &AllocationSearchQuery) -> Result<Page<Allocation>, ClientError> {
        self.list(routes::ALLOCATIONS, &[], query).await
    }

    /// Lease something. With an idempotency key, asking twice leases one.
    pub async fn allocation_create(
        &self,
        project: &str,
        create: &AllocationCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Allocation, ClientError> {
        let create = AllocationCreate { dry_run: false, ..create.clone() };
        self.post_once(routes::PROJECT_ALLOCATIONS, &[project], &create, idempotency_key).await
    }

    /// What would come of a request now. Nothing is made.
    pub async fn allocation_plan(&self, project: &str, create: &AllocationCreate) -> Result<AllocationPlan, ClientError> {
        let create = AllocationCreate { dry_run: true, ..create.clone() };
        self.post(routes::PROJECT_ALLOCATIONS, &[project], &create).await
    }

    /// One allocation.
    pub async fn allocation(&self, allocation: &str) -> Result<Allocation, ClientError> {
        self.get(routes::ALLOCATION, &[allocation]).await
    }

    /// Change an allocation's name or tags. With `if_match`, the `etag` of what was seen, only if it is still that.
    pub async fn allocation_change(
        &self,
        allocation: &str,
        change: &AllocationChange,
        if_match: Option<&str>,
    ) -> Result<Allocation, ClientError> {
        self.change(Method::PATCH, (routes::ALLOCATION, &[allocation]), change, if_match).await
    }

    /// Shut a guest down; it keeps everything it has.
    pub async fn allocation_stop(&self, allocation: &str) -> Result<Allocation, ClientError> {
        self.post(routes::ALLOCATION_STOP, &[allocation], &Empty {}).await
    }

    /// Start a guest again.
    pub async fn allocation_start(&self, allocation: &str) -> Result<Allocation, ClientError> {
        self.post(routes::ALLOCATION_START, &[allocation], &Empty {}).await
    }

    /// Shut a guest down and start it again.
    pub async fn allocation_reboot(&self, allocation: &str) -> Result<Allocation, ClientError> {
        self.post(routes::ALLOCATION_REBOOT, &[allocation], &Empty {}).await
    }

    /// Move the end of a lease. With an idempotency key, asking twice moves it once.
    pub async fn allocation_extend(
        &self,
        allocation: &str,
        extend: &AllocationExtend,
        idempotency_key: Option<&str>,
    ) -> Result<Allocation, ClientError> {
        self.post_once(routes::ALLOCATION_EXTEND, &[allocation], extend, idempotency_key).await
    }

    /// Give an allocation back.
    pub async fn allocation_release(&self, allocation: &str, reason: &Reason) -> Result<Allocation, ClientError> {
        self.post(routes::ALLOCATION_RELEASE, &[allocation], reason).await
    }

    /// Try again what failed.
    pub async fn allocation_retry(&self, allocation: &str, retry: &AllocationRetry) -> Result<Allocation, ClientError> {
        self.post(routes::ALLOCATION_RETRY, &[allocation], retry).await
    }

    /// Read a guest's serial console into the log of the task it answers with.
    pub async fn allocation_console(
        &self,
        allocation: &str,
        console: &SliceConsole,
        idempotency_key: Option<&str>,
    ) -> Result<Task, ClientError> {
        self.post_once(routes::ALLOCATION_CONSOLE, &[allocation], console, idempotency_key).await
    }

    /// One page of an allocation's history, the oldest first.
    pub async fn allocation_events(&self, allocation: &str, query: &PageQuery) -> Result<Page<EventRow>, ClientError> {
        self.list(routes::ALLOCATION_EVENTS, &[allocation], query).await
    }

    /// One page of webhooks.
    pub async fn webhooks(&self, project: &str, query: &PageQuery) -> Result<Page<Webhook>, ClientError> {
        self.list(routes::WEBHOOKS, &[project], query).await
    }

    /// Make a webhook.
    pub async fn webhook_create(
        &self,
        project: &str,
        create: &WebhookCreate,
        idempotency_key: Option<&str>,
    ) -> Result<WebhookCreated, ClientError> {
        self.post_once(routes::WEBHOOKS, &[project], create, idempotency_key).await
    }

    /// One webhook.
    pub async fn webhook(&self, webhook: &str) -> Result<Webhook, ClientError> {
        self.get(routes::WEBHOOK, &[webhook]).await
    }

    /// Change a webhook.
    pub async fn webhook_change(
        &self,
        webhook: &str,
        change: &WebhookChange,
        if_match: Option<&str>,
    ) -> Result<WebhookChanged, ClientError> {
        self.change(Method::PATCH, (routes::WEBHOOK, &[webhook]), change, if_match).await
    }

    /// Delete a webhook.
    pub async fn webhook_delete(&self, webhook: &str, if_match: Option<&str>) -> Result<Webhook, ClientError> {
        self.delete_if(routes::WEBHOOK, &[webhook], if_match).await
    }

    /// One page of a webhook's deliveries, the newest first.
    pub async fn webhook_deliveries(&self, webhook: &str, query: &DeliveryListQuery) -> Result<Page<Delivery>, ClientError> {
        self.list(routes::WEBHOOK_DELIVERIES, &[webhook], query).await
    }

    /// Try a delivery again.
    pub async fn delivery_replay(&self, delivery: &str) -> Result<Delivery, ClientError> {
        self.post(routes::DELIVERY_REPLAY, &[delivery], &Empty {}).await
    }
}
