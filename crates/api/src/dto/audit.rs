//! The audit chain.

use gpuaas_contract::time::{Rfc3339, Timestamp};

/// One row of the hash-chained audit log.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AuditRow {
    /// Position in the chain, from 1.
    pub seq: u64,
    /// When.
    #[serde(serialize_with = "Rfc3339::serialize", deserialize_with = "Rfc3339::deserialize_lenient")]
    #[schemars(with = "Rfc3339")]
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What, such as `task.create`.
    pub action: String,
    /// To what.
    pub target: String,
    /// Follows the request.
    pub correlation_id: String,
    /// The exact JSON text under the hash. It repeats the fields above and holds the detail.
    pub body: String,
    /// Hash of the row before; for the first row, `sha256:` and 64 zeros.
    pub prev_hash: String,
    /// SHA-256 of `prev_hash`, a line feed and `body`.
    pub hash: String,
}

/// Which audit rows; oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Only rows after this position ([`super::Page::next`] of the page before).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Most rows; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only rows about this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The newest rows instead of the oldest, still in ascending order; not together with `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<bool>,
}

/// Which part of the audit chain to export; the whole chain unless given.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditExportQuery {
    /// Only rows after this position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Most rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}
