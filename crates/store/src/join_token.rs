//! Join tokens.

use constcat::concat;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{JoinTokenId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::enrollment::JoinToken;

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "join_tokens" as "join_tokens_row_2" {
        "id": Text,
        "version": Int,
        "secret_digest": Text,
        "note": Text,
        "created_at": Int,
        "expires_at": Int,
        "used_at": Int,
        "used_by": Text,
        "revoked_at": Int,
        "replace_node": Text,
        "uses": Int,
        "joined": Text,
    }
}

pub(crate) fn to_row(token: &JoinToken) -> Result<Row> {
    let JoinToken { id, version, secret_digest, note, created_at, expires_at, uses, used, revoked_at, replace_node } = token;
    // Servers of the version before know one use only: to them a token is used up after the first.
    let first = used.first();
    Ok(vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::id(secret_digest),
        Arg::text(note),
        Arg::time(*created_at),
        Arg::time(*expires_at),
        Arg::opt_time(first.map(|(at, _)| *at)),
        Arg::opt_id(first.map(|(_, node)| *node)),
        Arg::opt_time(*revoked_at),
        Arg::opt_id(*replace_node),
        Arg::Int(Some(i64::from(*uses))),
        Arg::json(used)?,
    ])
}

fn from_row(row: &dyn Columns) -> Result<JoinToken> {
    let row = Reader::new(TABLE.name, row);
    Ok(JoinToken {
        id: row.parsed("id")?,
        version: row.int("version")?,
        secret_digest: row.digest("secret_digest")?,
        note: row.text("note")?,
        created_at: row.time("created_at")?,
        expires_at: row.time("expires_at")?,
        uses: match row.opt_int("uses")? {
            Some(uses) => u32::try_from(uses).map_err(|error| row.corrupt("uses", error.to_string()))?,
            None => 1,
        },
        used: used(&row)?,
        revoked_at: row.opt_time("revoked_at")?,
        replace_node: row.opt_parsed("replace_node")?,
    })
}

/// The uses of a token. A server of the version before writes the first one only, in columns of its own.
fn used(row: &Reader<'_>) -> Result<Vec<(Timestamp, NodeId)>> {
    let joined: Option<Vec<(Timestamp, NodeId)>> = row.opt_json("joined")?;
    let mut joined = joined.unwrap_or_default();
    if let Some(at) = row.opt_time("used_at")? {
        let node = row.parsed("used_by")?;
        if !joined.iter().any(|(_, known)| *known == node) {
            joined.insert(0, (at, node));
        }
    }
    Ok(joined)
}

impl Store {
    /// Returns the join token with this id.
    pub async fn join_token_get(&self, id: JoinTokenId) -> Result<Option<JoinToken>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM join_tokens WHERE id = $1");
        self.db().fetch_one("read a join token", sql, vec![Arg::id(id)], from_row).await
    }

    /// Returns the join token with this secret.
    pub async fn join_token_by_secret(&self, secret: &Digest) -> Result<Option<JoinToken>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM join_tokens WHERE secret_digest = $1");
        self.db().fetch_one("read a join token", sql, vec![Arg::id(secret)], from_row).await
    }

    /// Lists join tokens in the order in which they were created, after `after`.
    pub async fn join_token_list(&self, after: Option<JoinTokenId>, limit: u32) -> Result<Vec<JoinToken>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM join_tokens WHERE TRUE"))
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list join tokens", from_row)
            .await
    }
}
