//! Server processes and when they were last alive.

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

/// A late word never makes a server look older.
pub(crate) const ON_CONFLICT: &str =
    "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at WHERE excluded.seen_at > servers.seen_at";

/// One row per server, however often it spoke in this group. In a fixed order, so that two processes never wait for each other.
pub(crate) fn to_rows(seen: &BTreeMap<ServerId, Timestamp>) -> Vec<Row> {
    seen.iter().map(|(server, at)| vec![Arg::id(server), Arg::time(*at)]).collect()
}

impl Store {
    /// When a server process last said that it lives; `None` if it never did.
    pub async fn server_seen_at(&self, server: ServerId) -> Result<Option<Timestamp>> {
        let sql = "SELECT seen_at FROM servers WHERE id = $1";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).time("seen_at");
        self.db().fetch_one("read a server's presence", sql, vec![Arg::id(server)], read).await
    }
}
