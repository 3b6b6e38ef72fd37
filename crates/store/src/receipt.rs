//! Receipts: every accepted receipt of a node, as received.

use constcat::concat;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::task::ReceiptHead;

use crate::db::{Arg, Columns, Reader, Select};
use crate::error::StoreError;
use crate::table::table;
use crate::{Result, Store};

table! {
    "receipts" as "receipts_row" {
        "task_id": Text,
        "node_id": Text,
        "node_epoch": Int,
        "sequence": Int,
        "digest": Text,
        "previous": Text,
        "receipt": Bytes,
        "received_at": Int,
    }
}

pub(crate) const HEAD: &str = "SELECT sequence, digest FROM receipts WHERE node_id = $1 AND node_epoch = $2 \
     ORDER BY sequence DESC, received_at DESC LIMIT 1";

/// One accepted receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptRow {
    /// The task it answers.
    pub task_id: TaskId,
    /// The node that signed it.
    pub node_id: NodeId,
    /// The node's epoch.
    pub node_epoch: u64,
    /// The node's sequence number of the receipt.
    pub sequence: u64,
    /// Digest of the signed payload.
    pub digest: Digest,
    /// Digest of the previous receipt, according to the node.
    pub previous: Option<Digest>,
    /// DSSE bytes.
    pub receipt: Vec<u8>,
    /// The time of arrival.
    pub received_at: Timestamp,
}

fn from_row(row: &dyn Columns) -> Result<ReceiptRow> {
    let row = Reader::new(TABLE.name, row);
    Ok(ReceiptRow {
        task_id: row.parsed("task_id")?,
        node_id: row.parsed("node_id")?,
        node_epoch: row.count("node_epoch")?,
        sequence: row.count("sequence")?,
        digest: row.digest("digest")?,
        previous: row.opt_parsed("previous")?,
        receipt: row.bytes("receipt")?,
        received_at: row.time("received_at")?,
    })
}

impl Store {
    /// Returns the task's receipt.
    pub async fn receipt_get(&self, task: TaskId) -> Result<Option<ReceiptRow>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM receipts WHERE task_id = $1");
        self.db().fetch_one("read a receipt", sql, vec![Arg::id(task)], from_row).await
    }

    /// Returns the receipt with the highest sequence number in this epoch of the node; number 0 before the first.
    pub async fn receipt_head(&self, node: NodeId, epoch: u64) -> Result<ReceiptHead> {
        let head = self.db().fetch_one("read a receipt", HEAD, vec![Arg::id(node), Arg::count(epoch)], |row| {
            let row = Reader::new(TABLE.name, row);
            Ok::<_, StoreError>(ReceiptHead { sequence: row.count("sequence")?, digest: Some(row.digest("digest")?) })
        });
        Ok(head.await?.unwrap_or_default())
    }

    /// Lists receipts of this epoch of the node with a sequence number above `after_sequence`, in order.
    pub async fn receipt_list(&self, node: NodeId, epoch: u64, after_sequence: u64, limit: u32) -> Result<Vec<ReceiptRow>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM receipts WHERE TRUE"))
            .and("node_id =", Arg::id(node))
            .and("node_epoch =", Arg::count(epoch))
            .and("sequence >", Arg::count(after_sequence))
            .page("sequence, received_at", limit)
            .fetch(self.db(), "list receipts", from_row)
            .await
    }
}
