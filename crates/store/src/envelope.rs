//! Envelopes: every signed task, as it was sent.

use constcat::concat;
use gpuaas_contract::Digest;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::key::KeyId;
use gpuaas_contract::time::Timestamp;

use crate::db::{Arg, Columns, Reader};
use crate::table::table;
use crate::{Result, Store};

table! {
    "envelopes" as "envelopes_row" {
        "task_id": Text,
        "digest": Text,
        "envelope": Bytes,
        "key_id": Text,
        "signed_at": Int,
    }
}

/// One signed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeRow {
    /// Digest of the signed payload.
    pub digest: Digest,
    /// DSSE bytes.
    pub envelope: Vec<u8>,
    /// The key that signed.
    pub key_id: KeyId,
    /// The time of the signature.
    pub signed_at: Timestamp,
}

fn from_row(row: &dyn Columns) -> Result<EnvelopeRow> {
    let row = Reader::new(TABLE.name, row);
    Ok(EnvelopeRow {
        digest: row.digest("digest")?,
        envelope: row.bytes("envelope")?,
        key_id: row.text("key_id")?.into(),
        signed_at: row.time("signed_at")?,
    })
}

impl Store {
    /// Returns every envelope that was signed for the task, oldest first.
    pub async fn envelope_list(&self, task: TaskId) -> Result<Vec<EnvelopeRow>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM envelopes WHERE task_id = $1 ORDER BY signed_at, digest");
        self.db().fetch("read envelopes", sql, vec![Arg::id(task)], from_row).await
    }
}
