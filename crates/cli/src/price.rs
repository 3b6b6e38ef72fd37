//! Formats prices for people.

use gpuaas_contract::money::Money;

/// Formats a price per hour, such as `2.50 USD/h`.
pub(crate) fn per_hour(price: Money) -> String {
    format!("{price}/h")
}
