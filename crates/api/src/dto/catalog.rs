//! The catalog: products with a price.

use gpuaas_contract::id::SkuId;
use gpuaas_contract::money::Money;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{ProductKind, SkuState};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// What is leased.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Product {
    /// A guest on slots of one host, or a whole host.
    pub kind: Open<ProductKind>,
    /// How many slots a slice has; 0 for a whole host.
    pub slots: u32,
}

/// A product on offer, and how many of it there are now.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CatalogItem {
    /// Its id.
    pub id: SkuId,
    /// What people type.
    pub name: String,
    /// In words.
    pub description: String,
    /// What is leased.
    pub product: Product,
    /// The GPU; null for slots without one.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// vCPUs of each slot at least.
    pub min_vcpus: u32,
    /// Memory of each slot at least.
    pub min_memory_mib: u64,
    /// Its price.
    pub price_per_hour: Money,
    /// How many could be placed now, one after the other. Others ask as well: it promises nothing.
    pub available: u32,
}

/// A product of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Sku {
    /// Its id.
    pub id: SkuId,
    /// What people type; no other product on offer has it.
    pub name: String,
    /// In words.
    pub description: String,
    /// What is leased.
    pub product: Product,
    /// The GPU, as hosts name it or as `vendor:device`; null for slots without one.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// vCPUs of each slot at least.
    pub min_vcpus: u32,
    /// Memory of each slot at least.
    pub min_memory_mib: u64,
    /// Its price.
    pub price_per_hour: Money,
    /// Whether it is on offer.
    pub state: Open<SkuState>,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Since when it is no longer on offer. What was leased goes on at its price.
    #[serde(default, with = "OptionalRfc3339")]
    pub retired_at: Option<Timestamp>,
    /// Names this version of it, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// A product to make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuCreate {
    /// What people type: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// In words; may be empty.
    #[serde(default)]
    pub description: String,
    /// What is leased.
    pub kind: ProductKind,
    /// How many slots a slice has, 1 to 16; absent for a whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The GPU, as hosts name it or as `vendor:device`; absent for slots without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// vCPUs of each slot at least.
    #[serde(default)]
    pub min_vcpus: u32,
    /// Memory of each slot at least.
    #[serde(default)]
    pub min_memory_mib: u64,
    /// Its price.
    pub price_per_hour: Money,
}

/// What to change of a product; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuChange {
    /// Other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Another price, for allocations that are created from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<Money>,
    /// No longer on offer, or on offer again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<bool>,
}
