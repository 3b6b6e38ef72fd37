//! The catalog: products with a price.

use gpuaas_contract::id::SkuId;
use gpuaas_contract::time::Timestamp;

/// What is leased.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Product {
    /// `slice` (a guest on slots of one host) or `bare_metal` (a whole host).
    pub kind: String,
    /// How many slots a slice has; 0 for a whole host.
    pub slots: u32,
}

/// What can be leased: a kind of product to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProductKind {
    /// A guest on slots of one host.
    Slice,
    /// A whole host, with a user of its own on it.
    BareMetal,
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
    /// Price, in millionths of the currency unit.
    pub price_per_hour: i64,
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
    /// Price, in millionths of the currency unit.
    pub price_per_hour: i64,
    /// `active` or `retired`.
    pub state: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it is no longer on offer. What was leased goes on at its price.
    #[serde(default)]
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
    /// Price, in millionths of the currency unit.
    pub price_per_hour: i64,
}

/// What to change of a product; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuChange {
    /// Other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Another price, in millionths of the currency unit, for allocations that are made from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<i64>,
    /// No longer on offer, or on offer again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<bool>,
}
