//! The audit chain.

use gpuaas_contract::time::{Rfc3339, Timestamp};

/// An entry of the hash-chained audit log.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AuditRow {
    /// Position in the chain, from 1.
    pub seq: u64,
    /// When it happened.
    #[serde(serialize_with = "Rfc3339::serialize", deserialize_with = "Rfc3339::deserialize_lenient")]
    #[schemars(with = "Rfc3339")]
    pub at: Timestamp,
    /// Who did it.
    pub actor: String,
    /// Action, such as `task.create`.
    pub action: String,
    /// Id of the object of the action.
    pub target: String,
    /// Correlation id of the request.
    pub correlation_id: String,
    /// The exact JSON text that is hashed. It repeats the fields above and contains the details.
    pub body: String,
    /// Hash of the previous entry; for the first entry, `sha256:` and 64 zeros.
    pub prev_hash: String,
    /// SHA-256 of `prev_hash`, a line feed and `body`.
    pub hash: String,
}

/// Filter for a list of audit entries, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Only entries after this position: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of entries, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only entries about this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Returns the newest entries instead of the oldest, in ascending order. Cannot be combined with `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<bool>,
}

/// Part of the audit log to export; the whole log by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditExportQuery {
    /// Only entries after this position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}
