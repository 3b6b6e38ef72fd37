//! Resources: the documents of the control plane that have no table of their own, such as organizations, projects, members, the catalog,
//! allocations and webhooks.
//!
//! They share one table. What can be searched for is in [`Keys`]; the rest is the document itself. Each row carries a seal, a MAC by the
//! control plane over all of it ([`seal_text`]): a role, a quota or an allocation that someone writes directly into the database has no
//! effect.

use gpuaas_contract::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The kind of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// [`crate::tenancy::Organization`].
    Organization,
    /// [`crate::tenancy::Project`].
    Project,
    /// [`crate::tenancy::User`].
    User,
    /// [`crate::tenancy::ServiceAccount`].
    ServiceAccount,
    /// [`crate::access::Membership`].
    Member,
    /// [`crate::tenancy::SignIn`]: codes, device grants, refresh tokens.
    SignIn,
    /// [`crate::catalog::Sku`].
    Sku,
    /// [`crate::catalog::Image`].
    Image,
    /// [`crate::catalog::SshKey`].
    SshKey,
    /// [`crate::quota::Quota`].
    Quota,
    /// [`crate::machine::Machine`].
    Machine,
    /// [`crate::allocation::Allocation`].
    Allocation,
    /// [`crate::webhook::Webhook`].
    Webhook,
    /// [`crate::webhook::Delivery`].
    Delivery,
    /// [`crate::maintenance::Window`].
    Maintenance,
    /// [`crate::idempotency::KeyRecord`].
    Idempotency,
    /// [`crate::webhook::Cursor`].
    Cursor,
    /// [`crate::budget::BudgetRow`].
    Budget,
}

impl ResourceKind {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::Organization,
        Self::Project,
        Self::User,
        Self::ServiceAccount,
        Self::Member,
        Self::SignIn,
        Self::Sku,
        Self::Image,
        Self::SshKey,
        Self::Quota,
        Self::Machine,
        Self::Allocation,
        Self::Webhook,
        Self::Delivery,
        Self::Maintenance,
        Self::Idempotency,
        Self::Cursor,
        Self::Budget,
    ];

    /// Name in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Organization => "organization",
            Self::Project => "project",
            Self::User => "user",
            Self::ServiceAccount => "service_account",
            Self::Member => "member",
            Self::SignIn => "sign_in",
            Self::Sku => "sku",
            Self::Image => "image",
            Self::SshKey => "ssh_key",
            Self::Quota => "quota",
            Self::Machine => "machine",
            Self::Allocation => "allocation",
            Self::Webhook => "webhook",
            Self::Delivery => "delivery",
            Self::Maintenance => "maintenance",
            Self::Idempotency => "idempotency",
            Self::Cursor => "cursor",
            Self::Budget => "budget",
        }
    }

    /// Looks a kind up by name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The searchable properties of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// What it belongs to: the id of a project, an organization or a webhook; empty if it belongs to the platform.
    pub parent: String,
    /// Name, if it must be unique among resources of the same kind within `parent`. `None` once the resource has ended, which frees the
    /// name.
    pub name: Option<String>,
    /// A key that is unique among all resources of the kind, such as an external identifier.
    pub lookup: Option<String>,
    /// A second thing it belongs to, such as the node of an allocation or the holder of a membership.
    pub owner: Option<String>,
    /// Name of its state.
    pub state: &'static str,
    /// When something becomes due by time alone.
    pub due_at: Option<Timestamp>,
    /// When the row may be deleted.
    pub expires_at: Option<Timestamp>,
}

/// A document with an id and a version.
pub trait Resource: Clone + Serialize + DeserializeOwned {
    /// The kind of this type.
    const KIND: ResourceKind;

    /// The id as text.
    fn id(&self) -> String;
    /// The row version it was loaded with.
    fn version(&self) -> i64;
    /// Sets the version when the resource is loaded.
    fn set_version(&mut self, version: i64);
    /// The properties it can be searched by.
    fn keys(&self) -> Keys;
}

/// A resource in the form in which it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The kind of the resource.
    pub kind: ResourceKind,
    /// The id as text.
    pub id: String,
    /// Row version it was loaded with; 0 for a new one.
    pub version: i64,
    /// The properties it can be searched by.
    pub keys: Keys,
    /// The whole resource as JSON.
    pub body: String,
    /// MAC over [`seal_text`].
    pub seal: String,
}

impl Document {
    /// Converts a resource for writing; not sealed yet.
    pub fn of<R: Resource>(resource: &R) -> Self {
        Self {
            kind: R::KIND,
            id: resource.id(),
            version: resource.version(),
            keys: resource.keys(),
            // Resources consist of strings, numbers and lists; a map with keys that are not strings would be a bug.
            body: serde_json::to_string(resource).unwrap_or_default(),
            seal: String::new(),
        }
    }

    /// Parses the resource.
    pub fn read<R: Resource>(&self) -> Result<R, serde_json::Error> {
        let mut resource: R = serde_json::from_str(&self.body)?;
        resource.set_version(self.version);
        Ok(resource)
    }
}

/// The text whose MAC is [`Document::seal`], for the row with this version. Everything that matters is in `body`; the keys are derived from
/// it again when a row is read.
pub fn seal_text(document: &Document, version: i64) -> String {
    format!("gpuaas-resource-v1\n{}\n{}\n{version}\n{}", document.kind.as_str(), document.id, document.body)
}

/// Implements [`Resource`] for a type with fields `id` and `version` and a method `found_by`.
macro_rules! resource {
    ($name:ident, $kind:ident) => {
        impl crate::resource::Resource for $name {
            const KIND: crate::resource::ResourceKind = crate::resource::ResourceKind::$kind;

            fn id(&self) -> String {
                self.id.to_string()
            }

            fn version(&self) -> i64 {
                self.version
            }

            fn set_version(&mut self, version: i64) {
                self.version = version;
            }

            fn keys(&self) -> crate::resource::Keys {
                self.found_by()
            }
        }
    };
}

pub(crate) use resource;
