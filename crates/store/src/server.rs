//! Server processes and when they were last seen alive.

use std::collections::BTreeMap;

use gpuaas_contract::id::ServerId;
use gpuaas_contract::time::Timestamp;

use crate::db::{Arg, Columns, Reader};
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "servers" as "servers_row" {
        "id": Text,
        "seen_at": Int,
    }
}

/// A late message never moves the time back.
pub(crate) const ON_CONFLICT: &str =
    "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at WHERE excluded.seen_at > servers.seen_at";

/// Returns one row per server, however often it reported in this group. The order is fixed, so that two processes never deadlock.
pub(crate) fn to_rows(seen: &BTreeMap<ServerId, Timestamp>) -> Vec<Row> {
    seen.iter().map(|(server, at)| vec![Arg::id(server), Arg::time(*at)]).collect()
}

impl Store {
    /// Returns when a server process last reported that it is alive, or `None` if it never did.
    pub async fn server_seen_at(&self, server: ServerId) -> Result<Option<Timestamp>> {
        let sql = "SELECT seen_at FROM servers WHERE id = $1";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).time("seen_at");
        self.db().fetch_one("read a server's presence", sql, vec![Arg::id(server)], read).await
    }
}
