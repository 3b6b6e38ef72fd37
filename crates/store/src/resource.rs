//! Resources: documents of all kinds in one table.
//!
//! The columns are only for lookups. The content of a document is in its body, and readers derive the keys from the body again.

use constcat::concat;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::resource::{Document, Keys, ResourceKind};

use crate::db::{Arg, Columns, Engine, Reader, Select};
use crate::error::StoreError;
use crate::prepare::Afterwards;
use crate::table::{Row, table};
use crate::{MAX_PAGE, Result, Store};

table! {
    "resources" as "resources_row" {
        "id": Text,
        "version": Int,
        "kind": Text,
        "parent": Text,
        "name": Text,
        "lookup": Text,
        "owner": Text,
        "state": Text,
        "due_at": Int,
        "expires_at": Int,
        "body": Text,
        "seal": Text,
    }
}

pub(crate) const GET: &str = concat!("SELECT ", COLUMNS, " FROM resources WHERE kind = $1 AND id = $2");
pub(crate) const BY_NAME: &str =
    concat!("SELECT ", COLUMNS, " FROM resources WHERE kind = $1 AND parent = $2 AND name IS NOT NULL AND name = $3");
pub(crate) const BY_LOOKUP: &str =
    concat!("SELECT ", COLUMNS, " FROM resources WHERE kind = $1 AND lookup IS NOT NULL AND lookup = $2");
pub(crate) const DUE: &str = concat!(
    "SELECT ",
    COLUMNS,
    " FROM resources WHERE kind = $1 AND due_at IS NOT NULL AND due_at <= $2 \
     ORDER BY due_at, id LIMIT $3"
);

/// Deletes at most a thousand rows at a time, the longest expired first, so that commits do not wait for long.
pub(crate) const FORGET: &str = "DELETE FROM resources WHERE id IN \
     (SELECT id FROM resources WHERE expires_at IS NOT NULL AND expires_at < $1 ORDER BY expires_at LIMIT 1000)";
/// Skips rows that another process is writing: it may hold such a row while it waits for the audit log, which this process may
/// hold.
pub(crate) const FORGET_PG: &str = "DELETE FROM resources WHERE id = ANY(ARRAY(SELECT id FROM resources \
     WHERE expires_at IS NOT NULL AND expires_at < $1 ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED))";

/// Which resources to list. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceFilter {
    /// Only resources of this parent.
    pub parent: Option<String>,
    /// Only resources of one of these parents; an empty list matches nothing.
    pub parents: Option<Vec<String>>,
    /// Only resources of this owner.
    pub owner: Option<String>,
    /// Only resources in one of these states; empty for any state.
    pub states: Vec<&'static str>,
    /// Only resources whose body has all of these under `tags`.
    pub tags: Vec<(String, String)>,
    /// Only resources whose `name` in the body contains this text. ASCII letters match in either case.
    pub name_contains: Option<String>,
}

pub(crate) fn to_row(document: &Document) -> Result<Row> {
    let Document { kind, id, version, keys, body, seal } = document;
    let Keys { parent, name, lookup, owner, state, due_at, expires_at } = keys;
    if has_nul(body) {
        // PostgreSQL cannot query such a document: a single one would break every list that might contain it.
        let what = format!("{id} has a text with a NUL character; the API must reject such input");
        return Err(StoreError::BadDecision { what });
    }
    let opt = |text: &Option<String>| text.as_ref().map_or(Arg::Text(None), Arg::text);
    Ok(vec![
        Arg::text(id),
        Arg::Int(Some(*version)),
        Arg::text(kind.as_str()),
        Arg::text(parent),
        opt(name),
        opt(lookup),
        opt(owner),
        Arg::text(*state),
        Arg::opt_time(*due_at),
        Arg::opt_time(*expires_at),
        Arg::text(body),
        Arg::text(seal),
    ])
}

/// Returns whether a JSON text contains a NUL character, plain or escaped.
fn has_nul(json: &str) -> bool {
    let mut rest = json.as_bytes();
    loop {
        match rest {
            [] => return false,
            [0, ..] | [b'\\', b'u', b'0', b'0', b'0', b'0', ..] => return true,
            [b'\\', _, after @ ..] | [_, after @ ..] => rest = after,
        }
    }
}

fn from_row(row: &dyn Columns) -> Result<Document> {
    let row = Reader::new(TABLE.name, row);
    Ok(Document {
        kind: row.named("kind", ResourceKind::parse)?,
        id: row.text("id")?,
        version: row.int("version")?,
        keys: Keys::default(),
        body: row.text("body")?,
        seal: row.text("seal")?,
    })
}

/// Deletes what expired before `before`, a bounded number of rows.
pub(crate) fn forget(before: Timestamp) -> Afterwards {
    let args = vec![Arg::time(before)];
    Afterwards { doing: "forget what has expired", sqlite: FORGET, postgres: FORGET_PG, args, touched: None }
}

fn kind_arg(kind: ResourceKind) -> Arg {
    Arg::text(kind.as_str())
}

impl Store {
    /// Returns the resource with this id.
    pub async fn resource_get(&self, kind: ResourceKind, id: &str) -> Result<Option<Document>> {
        self.db().fetch_one("read a resource", GET, vec![kind_arg(kind), Arg::text(id)], from_row).await
    }

    /// Returns the resource with this name within `parent`.
    pub async fn resource_by_name(&self, kind: ResourceKind, parent: &str, name: &str) -> Result<Option<Document>> {
        let args = vec![kind_arg(kind), Arg::text(parent), Arg::text(name)];
        self.db().fetch_one("read a resource", BY_NAME, args, from_row).await
    }

    /// Returns the resource with this external key.
    pub async fn resource_by_lookup(&self, kind: ResourceKind, lookup: &str) -> Result<Option<Document>> {
        self.db().fetch_one("read a resource", BY_LOOKUP, vec![kind_arg(kind), Arg::text(lookup)], from_row).await
    }

    /// Lists resources by id after `after`, or from the newest to the oldest before `after`.
    pub async fn resource_list(
        &self,
        kind: ResourceKind,
        filter: &ResourceFilter,
        after: Option<&str>,
        newest_first: bool,
        limit: u32,
    ) -> Result<Vec<Document>> {
        let query = list_query(self.db().engine(), kind, filter, after, newest_first, limit)?;
        query.fetch(self.db(), "list resources", from_row).await
    }

    /// Counts the resources.
    pub async fn resource_count(&self, kind: ResourceKind, filter: &ResourceFilter) -> Result<u64> {
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("found");
        let query = count_query(self.db().engine(), kind, filter)?;
        Ok(query.fetch(self.db(), "count resources", read).await?.pop().unwrap_or_default())
    }

    /// Lists resources that change because of the time at `now`, the longest overdue first.
    pub async fn resource_due(&self, kind: ResourceKind, now: Timestamp, limit: u32) -> Result<Vec<Document>> {
        let args = vec![kind_arg(kind), Arg::time(now), Arg::count(u64::from(limit.min(MAX_PAGE)))];
        self.db().fetch("list due resources", DUE, args, from_row).await
    }

    /// Returns these resources. Unknown ids are left out.
    pub async fn resource_many(&self, kind: ResourceKind, ids: &[String]) -> Result<Vec<Document>> {
        let mut found = Vec::new();
        for ids in ids.chunks(usize::try_from(MAX_PAGE).unwrap_or(usize::MAX)) {
            let query = many_query(self.db().engine(), kind, ids)?;
            found.extend(query.fetch(self.db(), "read resources", from_row).await?);
        }
        Ok(found)
    }
}

pub(crate) fn list_query(
    engine: Engine,
    kind: ResourceKind,
    filter: &ResourceFilter,
    after: Option<&str>,
    newest_first: bool,
    limit: u32,
) -> Result<Select> {
    let (cursor, order) = if newest_first { ("id <", "id DESC") } else { ("id >", "id") };
    let paged = |select: Select| select.and_if(cursor, after.map(Arg::text)).page(order, limit);
    let owned = filter.parent.is_some() || filter.owner.is_some();
    let several = match (&filter.parents, filter.states.as_slice()) {
        _ if owned => Several::Neither,
        (Some(parents), _) => Several::Parents(parents),
        (None, states @ [_, _, ..]) => Several::States(states),
        (None, _) => Several::Neither,
    };
    // No index has the rows of several parents or states ordered by id. Both engines would rather read every row of the kind in
    // that order than sort. SQLite is told not to; PostgreSQL reads a page of each and sorts these.
    let select = match (engine, several) {
        (_, Several::Neither) => Select::new(concat!("SELECT ", COLUMNS, " FROM resources WHERE TRUE")),
        (Engine::Sqlite, Several::Parents(_)) => {
            Select::new(concat!("SELECT ", COLUMNS, " FROM resources INDEXED BY resources_of_parent WHERE TRUE"))
        }
        (Engine::Sqlite, Several::States(_)) => {
            Select::new(concat!("SELECT ", COLUMNS, " FROM resources INDEXED BY resources_by_state WHERE TRUE"))
        }
        (Engine::Pg, Several::Parents(parents)) => {
            let each = concat!(
                "SELECT found.* FROM json_array_elements_text($1::json) AS one (value) CROSS JOIN LATERAL (SELECT ",
                COLUMNS,
                " FROM resources WHERE parent = one.value"
            );
            let rest = ResourceFilter { parents: None, ..filter.clone() };
            let select = filtered(Select::with(each, vec![Arg::list(&distinct(parents))?]), engine, kind, &rest)?;
            return Ok(paged(select).push(") AS found").page(order, limit));
        }
        (Engine::Pg, Several::States(states)) => {
            let each = concat!(
                "SELECT found.* FROM json_array_elements_text($1::json) AS one (value) CROSS JOIN LATERAL (SELECT ",
                COLUMNS,
                " FROM resources WHERE state = one.value"
            );
            let rest = ResourceFilter { states: Vec::new(), ..filter.clone() };
            let select = filtered(Select::with(each, vec![Arg::list(&distinct(states))?]), engine, kind, &rest)?;
            return Ok(paged(select).push(") AS found").page(order, limit));
        }
    };
    Ok(paged(filtered(select, engine, kind, filter)?))
}

/// What a list is combined from, if no narrower condition is given.
enum Several<'a> {
    Parents(&'a [String]),
    States(&'a [&'static str]),
    Neither,
}

pub(crate) fn count_query(engine: Engine, kind: ResourceKind, filter: &ResourceFilter) -> Result<Select> {
    filtered(Select::new("SELECT COUNT(*) AS found FROM resources WHERE TRUE"), engine, kind, filter)
}

pub(crate) fn many_query(engine: Engine, kind: ResourceKind, ids: &[String]) -> Result<Select> {
    Select::new(concat!("SELECT ", COLUMNS, " FROM resources WHERE TRUE")).and("kind =", kind_arg(kind)).of_ids(engine, ids)
}

/// Removes duplicates: a repeated text would be listed twice.
fn distinct<T: AsRef<str>>(texts: &[T]) -> Vec<&str> {
    texts.iter().map(AsRef::as_ref).collect::<std::collections::BTreeSet<&str>>().into_iter().collect()
}

/// Adds the conditions of a filter.
fn filtered(select: Select, engine: Engine, kind: ResourceKind, filter: &ResourceFilter) -> Result<Select> {
    let ResourceFilter { parent, parents, owner, states, tags, name_contains } = filter;
    let mut select = select.and("kind =", kind_arg(kind)).and_if("parent =", parent.as_ref().map(Arg::text));
    if let Some(parents) = parents {
        let any = match engine {
            Engine::Sqlite => ["parent IN (SELECT value FROM json_each(", "))"],
            Engine::Pg => ["parent = ANY(ARRAY(SELECT json_array_elements_text(", "::json)))"],
        };
        select = select.and_between(&any, vec![Arg::list(parents)?]);
    }
    if let Some(owner) = owner {
        select = select.push(" AND owner IS NOT NULL").and("owner =", Arg::text(owner));
    }
    // Rows of one parent or owner are few, rows in one state may be almost all. SQLite does not know that; the plus prevents a
    // lookup by state.
    let by_lookup = parent.is_some() || parents.is_some() || owner.is_some();
    match (states.as_slice(), engine) {
        ([], _) => {}
        ([state], Engine::Sqlite) if by_lookup => select = select.and("+state =", Arg::text(*state)),
        ([state], _) => select = select.and("state =", Arg::text(*state)),
        (states, engine) => {
            let any = match engine {
                Engine::Sqlite if by_lookup => ["+state IN (SELECT value FROM json_each(", "))"],
                Engine::Sqlite => ["state IN (SELECT value FROM json_each(", "))"],
                Engine::Pg => ["state = ANY(ARRAY(SELECT json_array_elements_text(", "::json)))"],
            };
            select = select.and_between(&any, vec![Arg::list(states)?]);
        }
    }
    for (key, value) in tags {
        let pieces = match engine {
            Engine::Sqlite => ["EXISTS (SELECT 1 FROM json_each(body, '$.tags') WHERE key = ", " AND value = ", ")"],
            Engine::Pg => ["(body::json -> 'tags' ->> ", ") = ", ""],
        };
        select = select.and_between(&pieces, vec![Arg::text(key), Arg::text(value)]);
    }
    if let Some(part) = name_contains {
        // Both engines lowercase only ASCII, like the search text itself, so that both find the same rows.
        let pieces = match engine {
            Engine::Sqlite => ["instr(lower(body ->> '$.name'), ", ") > 0"],
            Engine::Pg => ["strpos(lower((body::json ->> 'name') COLLATE \"C\"), ", ") > 0"],
        };
        select = select.and_between(&pieces, vec![Arg::text(part.to_ascii_lowercase())]);
    }
    Ok(select)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_seen_however_it_is_written_and_nothing_else_is_taken_for_one() {
        for text in ["\0", "a\0b", "\\", "\\u0000", "\\\0", "u0000", "\u{1}0000", "\"", "\\\\u0000\\"] {
            let json = serde_json::json!({ "text": text }).to_string();
            assert_eq!(has_nul(&json), text.contains('\0'), "{json}");
        }
        assert!(has_nul("plain \0"));
    }
}
