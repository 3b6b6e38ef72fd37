//! Events of organizations, projects, service accounts, webhooks and the catalog.

use super::payload::payloads;
use crate::Digest;
use crate::id::{DeliveryId, EventId, ImageId, OrgId, ProjectId, ServiceAccountId, SkuId, SshKeyId, WebhookId};
use crate::money::Money;
use crate::product::Product;
use crate::quota::Limits;

payloads! {
    /// A new organization.
    pub struct OrganizationCreated {
        /// The organization.
        tenant organization_id: OrgId,
        /// Its name.
        tenant name: String,
        /// Its quota.
        tenant limits: Limits,
    }

    /// A changed organization.
    pub struct OrganizationChanged {
        /// The organization.
        tenant organization_id: OrgId,
        /// Its description.
        tenant description: String,
    }

    /// A deleted organization.
    pub struct OrganizationDeleted {
        /// The organization.
        tenant organization_id: OrgId,
        /// Its name.
        tenant name: String,
    }

    /// A new project.
    pub struct ProjectCreated {
        /// The project.
        tenant project_id: ProjectId,
        /// Its organization.
        tenant organization_id: OrgId,
        /// Its name.
        tenant name: String,
        /// Its quota.
        tenant limits: Limits,
    }

    /// A changed project.
    pub struct ProjectChanged {
        /// The project.
        tenant project_id: ProjectId,
        /// Its description.
        tenant description: String,
    }

    /// A deleted project.
    pub struct ProjectDeleted {
        /// The project.
        tenant project_id: ProjectId,
        /// Its name.
        tenant name: String,
    }

    /// A changed quota.
    pub struct QuotaSet {
        /// The id of the organization or project.
        operator of: String,
        /// The limits before.
        operator before: Limits,
        /// The limits now.
        tenant limits: Limits,
    }

    /// A service account.
    pub struct ServiceAccountEvent {
        /// The service account.
        tenant service_account_id: ServiceAccountId,
        /// Its project.
        tenant project_id: ProjectId,
        /// Its name.
        tenant name: String,
    }

    /// An SSH key of a project.
    pub struct SshKeyEvent {
        /// The key.
        tenant ssh_key_id: SshKeyId,
        /// Its project.
        tenant project_id: ProjectId,
        /// Its name.
        tenant name: String,
    }

    /// A product of the catalog.
    pub struct SkuEvent {
        /// The product.
        operator sku_id: SkuId,
        /// Its name.
        tenant name: String,
        /// The kind of product and its size.
        operator product: Product,
        /// GPU model; null for slots without a GPU.
        operator gpu_model: Option<String>,
        /// Price per hour.
        tenant price_per_hour: Money,
        /// Whether it is no longer offered.
        operator retired: bool,
    }

    /// A new image.
    pub struct ImageCreated {
        /// The image.
        tenant image_id: ImageId,
        /// Its name.
        tenant name: String,
        /// The organization that owns it; null for an image of the platform.
        tenant organization_id: Option<OrgId>,
        /// Digest of the file.
        tenant sha256: Digest,
        /// URL from which hosts download it.
        tenant url: Option<String>,
    }

    /// A deleted image.
    pub struct ImageDeleted {
        /// The image.
        tenant image_id: ImageId,
        /// Its name.
        tenant name: String,
    }

    /// A new webhook.
    pub struct WebhookCreated {
        /// The webhook.
        tenant webhook_id: WebhookId,
        /// Its project.
        tenant project_id: ProjectId,
        /// URL that it delivers to.
        tenant url: String,
        /// The kinds of events it delivers; empty for all.
        tenant kinds: Vec<String>,
    }

    /// A changed webhook.
    pub struct WebhookChanged {
        /// The webhook.
        tenant webhook_id: WebhookId,
        /// Its project.
        tenant project_id: ProjectId,
        /// URL that it delivers to.
        tenant url: String,
        /// The kinds of events it delivers; empty for all.
        tenant kinds: Vec<String>,
        /// Why it is disabled; null if it is not.
        tenant disabled: Option<String>,
        /// Whether it was deleted.
        tenant deleted: bool,
        /// Whether it has a new secret.
        tenant secret_rotated: bool,
    }

    /// A webhook that was disabled because its deliveries fail.
    pub struct WebhookDisabled {
        /// The webhook.
        tenant webhook_id: WebhookId,
        /// Its project.
        tenant project_id: ProjectId,
        /// URL that it delivers to.
        tenant url: String,
        /// Number of consecutive failed deliveries.
        tenant failed: u32,
        /// Reason.
        tenant reason: String,
    }

    /// A test of a webhook.
    pub struct WebhookTest {
        /// The webhook.
        tenant webhook_id: WebhookId,
        /// Its project.
        tenant project_id: ProjectId,
        /// URL that it delivers to.
        tenant url: String,
    }

    /// A delivery that is sent again.
    pub struct DeliveryReplayed {
        /// The delivery.
        tenant delivery_id: DeliveryId,
        /// The project of its webhook.
        tenant project_id: ProjectId,
        /// Its webhook.
        tenant webhook_id: WebhookId,
        /// The event that is delivered.
        tenant event_id: EventId,
    }
}
