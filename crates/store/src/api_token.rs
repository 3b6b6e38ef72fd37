//! API tokens of the platform's operators, and keys of service accounts.

use constcat::concat;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{ApiTokenId, ProjectId, ServiceAccountId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, PlatformRole, PrincipalId};

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "api_tokens" as "api_tokens_row_2" {
        "id": Text,
        "version": Int,
        "name": Text,
        "role": Text,
        "secret_digest": Text,
        "created_at": Int,
        "revoked_at": Int,
        "service_account": Text,
        "project": Text,
        "scopes": Text,
        "expires_at": Int,
        "parent": Text,
        "created_by": Text,
    }
}

const COUNT_OF_ACCOUNT: &str = "SELECT COUNT(*) AS found FROM api_tokens WHERE revoked_at IS NULL \
     AND (expires_at IS NULL OR expires_at > $1) AND service_account IS NOT NULL AND service_account = $2";
const COUNT_OF_PLATFORM: &str = "SELECT COUNT(*) AS found FROM api_tokens WHERE revoked_at IS NULL \
     AND (expires_at IS NULL OR expires_at > $1) AND service_account IS NULL";

/// Which tokens to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiTokenFilter {
    /// Only keys of this service account.
    pub service_account: Option<ServiceAccountId>,
    /// Only keys of service accounts of this project.
    pub project: Option<ProjectId>,
    /// Only those that this caller made.
    pub created_by: Option<PrincipalId>,
}

pub(crate) fn to_row(token: &ApiToken) -> Result<Row> {
    let ApiToken { id, version, name, role, service_account, project, scopes, secret_digest, .. } = token;
    let ApiToken { created_at, expires_at, revoked_at, parent, created_by, .. } = token;
    Ok(vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::text(name),
        Arg::opt_id(role.map(PlatformRole::as_str)),
        Arg::id(secret_digest),
        Arg::time(*created_at),
        Arg::opt_time(*revoked_at),
        Arg::opt_id(*service_account),
        Arg::opt_id(*project),
        scopes.as_ref().map_or(Ok(Arg::Text(None)), Arg::json)?,
        Arg::opt_time(*expires_at),
        Arg::opt_id(*parent),
        Arg::opt_id(*created_by),
    ])
}

fn from_row(row: &dyn Columns) -> Result<ApiToken> {
    let row = Reader::new(TABLE.name, row);
    Ok(ApiToken {
        id: row.parsed("id")?,
        version: row.int("version")?,
        name: row.text("name")?,
        role: row.opt_named("role", PlatformRole::parse)?,
        service_account: row.opt_parsed("service_account")?,
        project: row.opt_parsed("project")?,
        parent: row.opt_parsed("parent")?,
        created_by: row.opt_parsed("created_by")?,
        scopes: row.opt_json("scopes")?,
        secret_digest: row.digest("secret_digest")?,
        created_at: row.time("created_at")?,
        expires_at: row.opt_time("expires_at")?,
        revoked_at: row.opt_time("revoked_at")?,
    })
}

impl Store {
    /// Returns the token with this id.
    pub async fn api_token_get(&self, id: ApiTokenId) -> Result<Option<ApiToken>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM api_tokens WHERE id = $1");
        self.db().fetch_one("read an API token", sql, vec![Arg::id(id)], from_row).await
    }

    /// Returns the token with this secret, even if it is revoked.
    pub async fn api_token_by_secret(&self, secret: &Digest) -> Result<Option<ApiToken>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM api_tokens WHERE secret_digest = $1");
        self.db().fetch_one("read an API token", sql, vec![Arg::id(secret)], from_row).await
    }

    /// Counts the tokens that are valid at `now`: the keys of the service account in the filter, or the tokens of the platform
    /// without one.
    pub async fn api_token_count(&self, filter: &ApiTokenFilter, now: Timestamp) -> Result<u64> {
        let sql = match filter.service_account {
            Some(_) => COUNT_OF_ACCOUNT,
            None => COUNT_OF_PLATFORM,
        };
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("found");
        let values = match filter.service_account {
            Some(account) => vec![Arg::time(now), Arg::id(account)],
            None => vec![Arg::time(now)],
        };
        Ok(self.db().fetch_one("count API tokens", sql, values, read).await?.unwrap_or_default())
    }

    /// Lists tokens in the order in which they were created, after `after`.
    pub async fn api_token_list(&self, filter: &ApiTokenFilter, after: Option<ApiTokenId>, limit: u32) -> Result<Vec<ApiToken>> {
        api_token_list_query(filter, after, limit).fetch(self.db(), "list API tokens", from_row).await
    }
}

pub(crate) fn api_token_list_query(filter: &ApiTokenFilter, after: Option<ApiTokenId>, limit: u32) -> Select {
    let ApiTokenFilter { service_account, project, created_by } = filter;
    let mut select = Select::new(concat!("SELECT ", COLUMNS, " FROM api_tokens WHERE TRUE"));
    // Redundant, but the planners use the partial indexes only if their condition is spelled out.
    if service_account.is_some() {
        select = select.push(" AND service_account IS NOT NULL");
    }
    if project.is_some() {
        select = select.push(" AND project IS NOT NULL");
    }
    if created_by.is_some() {
        select = select.push(" AND created_by IS NOT NULL");
    }
    select
        .and_if("service_account =", service_account.map(Arg::id))
        .and_if("project =", project.map(Arg::id))
        .and_if("created_by =", created_by.map(Arg::id))
        .and_if("id >", after.map(Arg::id))
        .page("id", limit)
}
