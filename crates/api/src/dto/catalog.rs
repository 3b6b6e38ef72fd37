//! The catalog: products with a price.

use gpuaas_contract::id::SkuId;
use gpuaas_contract::money::Money;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{ProductKind, SkuState};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::Gpu;

/// The kind of product and its size.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Product {
    /// A guest on slots of one host, or a whole host.
    pub kind: Open<ProductKind>,
    /// Number of slots of a slice; 0 for a whole host.
    pub slots: u32,
}

/// A product on offer and its current availability.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CatalogItem {
    /// Id of the product.
    pub id: SkuId,
    /// Name.
    pub name: String,
    /// Description.
    pub description: String,
    /// The kind of product and its size.
    pub product: Product,
    /// The GPU as the product names it; null for slots without a GPU.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// Vendor, model and PCI id of the GPU; null for slots without a GPU.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// Minimum number of vCPUs per slot.
    pub min_vcpus: u32,
    /// Minimum memory per slot, in MiB.
    pub min_memory_mib: u64,
    /// Price per hour.
    pub price_per_hour: Money,
    /// How many could be created now, one after the other. Not a reservation.
    pub available: u32,
}

/// A product of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Sku {
    /// Id of the product.
    pub id: SkuId,
    /// Name, unique among the products on offer.
    pub name: String,
    /// Description.
    pub description: String,
    /// The kind of product and its size.
    pub product: Product,
    /// GPU model, as hosts report it or as PCI id `vendor:device`; null for slots without a GPU.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// Vendor, model and PCI id of the GPU; null for slots without a GPU.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// Minimum number of vCPUs per slot.
    pub min_vcpus: u32,
    /// Minimum memory per slot, in MiB.
    pub min_memory_mib: u64,
    /// Price per hour.
    pub price_per_hour: Money,
    /// State: whether it is on offer.
    pub state: Open<SkuState>,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was retired. Existing allocations keep their price.
    #[serde(default, with = "OptionalRfc3339")]
    pub retired_at: Option<Timestamp>,
    /// Entity tag of this version, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// A product to create.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuCreate {
    /// Name: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// Description; may be empty.
    #[serde(default)]
    pub description: String,
    /// The kind of product and its size.
    pub kind: ProductKind,
    /// Number of slots of a slice, 1 to 16; absent for a whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// GPU model, as hosts report it or as PCI id `vendor:device`; absent for slots without a GPU. A GPU that no node has reported is
    /// refused unless `allow_unknown_gpu` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// Accept a GPU that no node has reported yet, for hardware that arrives later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unknown_gpu: bool,
    /// Minimum number of vCPUs per slot.
    #[serde(default)]
    pub min_vcpus: u32,
    /// Minimum memory per slot, in MiB.
    #[serde(default)]
    pub min_memory_mib: u64,
    /// Price per hour.
    pub price_per_hour: Money,
}

/// Changes to a product. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuChange {
    /// New description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// New price, for future allocations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<Money>,
    /// Retires the product, or offers it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<bool>,
}
