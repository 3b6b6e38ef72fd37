//! API tokens.

use gpuaas_contract::Digest;
use gpuaas_contract::id::ApiTokenId;
use gpuaas_domain::access::{ApiToken, Role};

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::Kind::{Int, Text};
use crate::table::{Row, Table};
use crate::{Result, Store};

pub(crate) const TABLE: Table = Table {
    name: "api_tokens",
    columns: &[
        ("id", Text),
        ("version", Int),
        ("name", Text),
        ("role", Text),
        ("secret_digest", Text),
        ("created_at", Int),
        ("revoked_at", Int),
    ],
};

pub(crate) fn to_row(token: &ApiToken) -> Row {
    let ApiToken { id, version, name, role, secret_digest, created_at, revoked_at } = token;
    vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::text(name),
        Arg::text(role.as_str()),
        Arg::id(secret_digest),
        Arg::time(*created_at),
        Arg::opt_time(*revoked_at),
    ]
}

fn from_row(row: &dyn Columns) -> Result<ApiToken> {
    let row = Reader::new(TABLE.name, row);
    Ok(ApiToken {
        id: row.parsed("id")?,
        version: row.int("version")?,
        name: row.text("name")?,
        role: row.named("role", Role::parse)?,
        secret_digest: row.digest("secret_digest")?,
        created_at: row.time("created_at")?,
        revoked_at: row.opt_time("revoked_at")?,
    })
}

impl Store {
    /// The token with this id.
    pub async fn api_token_get(&self, id: ApiTokenId) -> Result<Option<ApiToken>> {
        let sql = "SELECT * FROM api_tokens WHERE id = $1";
        self.db().fetch_one("read an API token", sql, vec![Arg::id(id)], from_row).await
    }

    /// The token with this secret, revoked or not.
    pub async fn api_token_by_secret(&self, secret: &Digest) -> Result<Option<ApiToken>> {
        let sql = "SELECT * FROM api_tokens WHERE secret_digest = $1";
        self.db().fetch_one("read an API token", sql, vec![Arg::id(secret)], from_row).await
    }

    /// Tokens in the order in which they were made, after `after`.
    pub async fn api_token_list(&self, after: Option<ApiTokenId>, limit: u32) -> Result<Vec<ApiToken>> {
        Select::new("SELECT * FROM api_tokens WHERE TRUE")
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list API tokens", from_row)
            .await
    }
}
