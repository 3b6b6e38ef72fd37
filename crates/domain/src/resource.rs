//! Resources: the documents of the control plane that are not in a table of their own: organizations, projects, members, the catalog,
//! allocations, webhooks and their like.
//!
//! They share one table. What is asked for is in [`Keys`], the rest is the document itself. Every row carries a seal, a MAC of the
//! control plane over all of it ([`seal_text`]): a role, a quota or an allocation that somebody wrote into the database counts for nothing.

use gpuaas_contract::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a resource is.
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
    /// Every kind.
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

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a resource can be found by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// What it belongs to: the id of a project, an organization, a webhook; empty for what belongs to the platform.
    pub parent: String,
    /// Its name, if no other of its kind may have the same within `parent`. Given up by what is over.
    pub name: Option<String>,
    /// A key that no other of its kind has: how somebody else calls it.
    pub lookup: Option<String>,
    /// A second thing it belongs to: the node of an allocation, the one who is a member.
    pub owner: Option<String>,
    /// Where it stands.
    pub state: &'static str,
    /// When time alone changes it next.
    pub due_at: Option<Timestamp>,
    /// From when on the row may be forgotten.
    pub expires_at: Option<Timestamp>,
}

/// A document with an id and a version.
pub trait Resource: Clone + Serialize + DeserializeOwned {
    /// What it is.
    const KIND: ResourceKind;

    /// Its id, as text.
    fn id(&self) -> String;
    /// Row version it was loaded with.
    fn version(&self) -> i64;
    /// Tells it the version of its row.
    fn set_version(&mut self, version: i64);
    /// What it can be found by.
    fn keys(&self) -> Keys;
}

/// A resource as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// What it is.
    pub kind: ResourceKind,
    /// Its id.
    pub id: String,
    /// Row version it was loaded with; 0 for a new one.
    pub version: i64,
    /// What it can be found by.
    pub keys: Keys,
    /// The rest, JSON.
    pub body: String,
    /// MAC over [`seal_text`].
    pub seal: String,
}

impl Document {
    /// A resource as it is to be written; not sealed yet.
    pub fn of<R: Resource>(resource: &R) -> Self {
        Self {
            kind: R::KIND,
            id: resource.id(),
            version: resource.version(),
            keys: resource.keys(),
            // Documents are made of texts, numbers and lists of them; a map with other keys than texts would be a mistake of ours.
            body: serde_json::to_string(resource).unwrap_or_default(),
            seal: String::new(),
        }
    }

    /// The resource itself.
    pub fn read<R: Resource>(&self) -> Result<R, serde_json::Error> {
        let mut resource: R = serde_json::from_str(&self.body)?;
        resource.set_version(self.version);
        Ok(resource)
    }
}

/// The text whose MAC is [`Document::seal`], for the row with version `version`. Everything that decides about anything is in `body`; the
/// keys are derived from it again when a row is read.
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
