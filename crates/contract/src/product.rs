//! The products that tenants lease.

use crate::state::ProductKind;

/// The product that is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "LeasedProduct")]
pub enum Product {
    /// A guest on slots of one node.
    Slice {
        /// Number of slots, 1 to 16.
        slots: u32,
    },
    /// A whole host, with a user account for the tenant.
    BareMetal,
}

impl Product {
    /// The kind of product.
    pub const fn kind(self) -> ProductKind {
        match self {
            Self::Slice { .. } => ProductKind::Slice,
            Self::BareMetal => ProductKind::BareMetal,
        }
    }

    /// How many slots the product takes.
    pub const fn slots(self) -> u32 {
        match self {
            Self::Slice { slots } => slots,
            Self::BareMetal => 0,
        }
    }
}
