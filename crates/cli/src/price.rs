//! Prices as people read them.

use gpuaas_contract::money::Money;

/// A price per hour, such as `2.50 USD/h`.
pub(crate) fn per_hour(price: Money) -> String {
    format!("{price}/h")
}
