//! The audit chain. The check of the chain is a pure function in [`gpuaas_domain::audit_chain`].

use constcat::concat;
use gpuaas_domain::audit_chain::{AuditRow, Head};

use crate::db::{Arg, Columns, Reader, Select};
use crate::error::StoreError;
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "audit" as "audit_row" {
        "seq": Int,
        "at": Int,
        "actor": Text,
        "action": Text,
        "target": Text,
        "correlation_id": Text,
        "body": Text,
        "prev_hash": Text,
        "hash": Text,
    }
}

/// Reads the end of the chain.
pub(crate) const HEAD: &str = "SELECT seq, hash FROM audit_head WHERE id = 1";
/// Reads the end of the chain on PostgreSQL and prevents others from appending until the commit.
pub(crate) const HEAD_LOCK_PG: &str = "SELECT seq, hash FROM audit_head WHERE id = 1 FOR UPDATE";

pub(crate) fn to_row(entry: &AuditRow) -> Row {
    let AuditRow { seq, at, actor, action, target, correlation_id, body, prev_hash, hash } = entry;
    vec![
        Arg::count(*seq),
        Arg::time(*at),
        Arg::text(actor),
        Arg::text(action),
        Arg::text(target),
        Arg::text(correlation_id),
        Arg::text(body),
        Arg::text(prev_hash),
        Arg::text(hash),
    ]
}

fn from_row(row: &dyn Columns) -> Result<AuditRow> {
    let row = Reader::new(TABLE.name, row);
    Ok(AuditRow {
        seq: row.count("seq")?,
        at: row.time("at")?,
        actor: row.text("actor")?,
        action: row.text("action")?,
        target: row.text("target")?,
        correlation_id: row.text("correlation_id")?,
        body: row.text("body")?,
        prev_hash: row.text("prev_hash")?,
        hash: row.text("hash")?,
    })
}

pub(crate) fn head_from_row(row: &dyn Columns) -> Result<Head> {
    let row = Reader::new("audit_head", row);
    Ok(Head { seq: row.count("seq")?, hash: row.text("hash")? })
}

/// Returns the error for a chain without an end. Such a chain was tampered with, so the store never starts a new one over it.
pub(crate) fn head_missing() -> StoreError {
    StoreError::Corrupt { table: "audit_head", column: "id", what: "its only row is missing".to_owned() }
}

/// Which audit rows to list.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only rows about this target.
    pub target: Option<String>,
    /// Only rows of this actor.
    pub actor: Option<String>,
    /// Only rows of this action.
    pub action: Option<String>,
}

impl Store {
    /// Lists audit rows with a number above `after_seq`, in order. Only an unfiltered list can be verified.
    pub async fn audit_list(&self, after_seq: u64, limit: u32, filter: &AuditFilter) -> Result<Vec<AuditRow>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM audit WHERE TRUE"))
            .and("seq >", Arg::count(after_seq))
            .and_if("target =", filter.target.as_ref().map(Arg::text))
            .and_if("actor =", filter.actor.as_ref().map(Arg::text))
            .and_if("action =", filter.action.as_ref().map(Arg::text))
            .page("seq", limit)
            .fetch(self.db(), "read the audit log", from_row)
            .await
    }

    /// Returns the current end of the chain.
    pub async fn audit_head(&self) -> Result<Head> {
        let head = self.db().fetch_one("read the audit log", HEAD, Vec::new(), head_from_row).await?;
        head.ok_or_else(head_missing)
    }
}
