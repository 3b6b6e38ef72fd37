//! The audit log as a hash chain. Pure functions, so that anyone who has the rows can verify them without the store.
//!
//! The text of each row (`body`) is hashed together with the hash of the previous row. Changing, removing, inserting or reordering a row
//! breaks the chain at that row. Truncating the chain does not, so keep a [`Head`] elsewhere and compare.

use gpuaas_contract::Digest;
use gpuaas_contract::time::Timestamp;

use crate::decision::AuditEntry;

/// A stored row. The columns repeat fields of the body so that they can be searched; only the body is hashed, and [`verify`] checks that
/// the columns match it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRow {
    /// Position in the chain, from 1 and without gaps.
    pub seq: u64,
    /// When it happened.
    pub at: Timestamp,
    /// Who did it.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// Id of what it was done to.
    pub target: String,
    /// Ties the entry to the request behind it.
    pub correlation_id: String,
    /// The hashed text: JSON of all fields above and the detail.
    pub body: String,
    /// Hash of the previous row; for the first row, the hash of [`Head::genesis`].
    pub prev_hash: String,
    /// Hash of this row.
    pub hash: String,
}

/// The end of a chain.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Head {
    /// Position of the last row; 0 before the first.
    pub seq: u64,
    /// Hash of the last row.
    pub hash: String,
}

impl Head {
    /// The end of an empty chain.
    pub fn genesis() -> Self {
        Self { seq: 0, hash: format!("sha256:{}", "0".repeat(64)) }
    }
}

/// The hashed content. The order of the fields is part of the format.
#[derive(serde::Serialize)]
struct Body<'a> {
    seq: u64,
    at: Timestamp,
    actor: &'a str,
    action: &'a str,
    target: &'a str,
    correlation_id: &'a str,
    detail: &'a serde_json::Value,
}

/// [`Body`] for reading.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadBody {
    seq: u64,
    at: Timestamp,
    actor: String,
    action: String,
    target: String,
    correlation_id: String,
    #[serde(rename = "detail")]
    _detail: serde_json::Value,
}

/// An entry cannot be serialized.
#[derive(Debug, thiserror::Error)]
#[error("an audit entry for {target} cannot be written as JSON")]
pub struct NotJson {
    /// Id of what the entry is about.
    pub target: String,
    /// The serializer's error.
    #[source]
    pub source: serde_json::Error,
}

/// The row that appends this entry to the chain that ends at `head`.
pub fn append(head: &Head, entry: &AuditEntry) -> Result<AuditRow, NotJson> {
    let seq = head.seq + 1;
    let AuditEntry { at, actor, action, target, correlation_id, detail } = entry;
    // Whether serde_json sorts objects depends on features that other crates enable; the hashed text must not.
    let mut detail = detail.clone();
    detail.sort_all_objects();
    let body = Body { seq, at: *at, actor, action, target, correlation_id: correlation_id.as_str(), detail: &detail };
    let body = serde_json::to_string(&body).map_err(|source| NotJson { target: target.clone(), source })?;
    Ok(AuditRow {
        seq,
        at: *at,
        actor: actor.clone(),
        action: (*action).to_owned(),
        target: target.clone(),
        correlation_id: correlation_id.as_str().to_owned(),
        hash: hash(&head.hash, &body),
        body,
        prev_hash: head.hash.clone(),
    })
}

/// Hash of a row with this body that follows a row with hash `prev_hash`.
fn hash(prev_hash: &str, body: &str) -> String {
    Digest::of(format!("{prev_hash}\n{body}").as_bytes()).into()
}

/// Where and how a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit chain is broken at row {seq}: {what}")]
pub struct Broken {
    /// Position of the first row that does not fit.
    pub seq: u64,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Checks that `rows` continue the chain from `from` without a break, and returns its new end.
pub fn verify<'a>(from: &Head, rows: impl IntoIterator<Item = &'a AuditRow>) -> Result<Head, Broken> {
    rows.into_iter().try_fold(from.clone(), |head, row| {
        let broken = |what| Err(Broken { seq: row.seq, what });
        if head.seq.checked_add(1) != Some(row.seq) {
            return broken("its number does not follow the row before: rows are missing, added or out of order");
        }
        if row.prev_hash != head.hash {
            return broken("it does not name the hash of the row before");
        }
        if row.hash != hash(&row.prev_hash, &row.body) {
            return broken("its text does not match its hash");
        }
        let Ok(body) = serde_json::from_str::<ReadBody>(&row.body) else {
            return broken("its text is not an audit entry");
        };
        let reported = (body.seq, body.at, &body.actor, &body.action, &body.target, &body.correlation_id);
        if reported != (row.seq, row.at, &row.actor, &row.action, &row.target, &row.correlation_id) {
            return broken("its columns do not say what its hashed text says");
        }
        Ok(Head { seq: row.seq, hash: row.hash.clone() })
    })
}
