//! Certificates issued to nodes.

use constcat::concat;
use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::Certificate;

use crate::db::{Arg, Columns, Reader};
use crate::prepare::Afterwards;
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "certificates" as "certificates_row" {
        "serial": Text,
        "node_id": Text,
        "node_epoch": Int,
        "not_before": Int,
        "not_after": Int,
        "revoked_at": Int,
    }
}

const REVOKE: &str = "UPDATE certificates SET revoked_at = $3 WHERE node_id = $1 AND node_epoch <= $2 AND revoked_at IS NULL";

pub(crate) fn to_row(certificate: &Certificate) -> Row {
    let Certificate { serial, node_id, node_epoch, not_before, not_after, revoked_at } = certificate;
    vec![
        Arg::text(serial),
        Arg::id(node_id),
        Arg::count(*node_epoch),
        Arg::time(*not_before),
        Arg::time(*not_after),
        Arg::opt_time(*revoked_at),
    ]
}

/// Revokes the node's certificates up to this epoch, from `at` on.
pub(crate) fn revoke(node_id: NodeId, up_to_epoch: u64, at: Timestamp) -> Afterwards {
    let args = vec![Arg::id(node_id), Arg::count(up_to_epoch), Arg::time(at)];
    Afterwards { doing: "revoke certificates", sqlite: REVOKE, postgres: REVOKE, args, touched: None }
}

fn from_row(row: &dyn Columns) -> Result<Certificate> {
    let row = Reader::new(TABLE.name, row);
    Ok(Certificate {
        serial: row.text("serial")?,
        node_id: row.parsed("node_id")?,
        node_epoch: row.count("node_epoch")?,
        not_before: row.time("not_before")?,
        not_after: row.time("not_after")?,
        revoked_at: row.opt_time("revoked_at")?,
    })
}

impl Store {
    /// Returns the certificate with this serial number.
    pub async fn certificate_get(&self, serial: &str) -> Result<Option<Certificate>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM certificates WHERE serial = $1");
        self.db().fetch_one("read a certificate", sql, vec![Arg::text(serial)], from_row).await
    }

    /// Returns the serial numbers that are revoked but not yet expired at `live_at`: the deny-list.
    pub async fn certificates_revoked(&self, live_at: Timestamp) -> Result<Vec<String>> {
        let sql = "SELECT serial FROM certificates WHERE revoked_at IS NOT NULL AND not_after >= $1 ORDER BY not_after, serial";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).text("serial");
        self.db().fetch("read the deny-list", sql, vec![Arg::time(live_at)], read).await
    }
}
