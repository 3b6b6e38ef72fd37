//! Join tokens.

use constcat::concat;
use gpuaas_contract::Digest;
use gpuaas_contract::id::JoinTokenId;
use gpuaas_domain::enrollment::JoinToken;

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "join_tokens" as "join_tokens_row" {
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
    }
}

pub(crate) fn to_row(token: &JoinToken) -> Row {
    let JoinToken { id, version, secret_digest, note, created_at, expires_at, used, revoked_at, replace_node } = token;
    vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::id(secret_digest),
        Arg::text(note),
        Arg::time(*created_at),
        Arg::time(*expires_at),
        Arg::opt_time(used.map(|(at, _)| at)),
        Arg::opt_id(used.map(|(_, node)| node)),
        Arg::opt_time(*revoked_at),
        Arg::opt_id(*replace_node),
    ]
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
        used: match row.opt_time("used_at")? {
            Some(at) => Some((at, row.parsed("used_by")?)),
            None => None,
        },
        revoked_at: row.opt_time("revoked_at")?,
        replace_node: row.opt_parsed("replace_node")?,
    })
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
