//! Writes a group of decisions with one statement.
//!
//! PostgreSQL gets one statement with many `WITH` parts, whose rows are passed as one array per table: one round trip for any
//! number of rows and tables. SQLite runs in the same process but on its own thread, so it gets one text of several statements,
//! whose rows are passed as JSON. Both texts depend only on which tables the group writes, never on the number of rows, so few
//! texts have to be prepared.
//!
//! The statement checks itself: unless every version is the expected one and the audit chain ends where it should, it fails and
//! nothing is written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpuaas_contract::id::ServerId;
use gpuaas_domain::Wakeup;
use gpuaas_domain::audit_chain::Head;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgTypeInfo};
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Postgres, Sqlite};

use crate::db::Arg;
use crate::error::StoreError;
use crate::prepare::{Aggregate, Prepared, Record, chain};
use crate::table::{ColumnKind, Row, Table};
use crate::{audit, outbox, server, task, wakeups};

type PgQuery = sqlx::query::Query<'static, Postgres, PgArguments>;
type SqliteQuery = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// Everything that a group writes, except the statements that run afterwards.
pub(crate) struct Script<'a> {
    servers: Vec<Row>,
    /// Inserts and updates per table, in the order in which they are written.
    aggregates: Vec<(Aggregate, Vec<&'a Row>, Vec<&'a Row>)>,
    records: Vec<(Record, Vec<&'a Row>)>,
    /// The number of tasks that the decisions move to each state.
    states: BTreeMap<&'static str, i64>,
    events: Vec<&'a Row>,
    audit: Vec<Row>,
    /// The required end of the audit chain before the statement, and its end after it.
    moves: Option<(Head, Head)>,
    payloads: Vec<String>,
}

impl<'a> Script<'a> {
    /// Creates a script from decisions that write no row twice. `head` is the end of the audit chain before it; without one there
    /// must be nothing to append.
    pub(crate) fn new(process: ServerId, decisions: &[&'a Prepared], head: Option<Head>) -> Result<Self, StoreError> {
        let mut seen = BTreeMap::new();
        for (server, at) in decisions.iter().flat_map(|prepared| &prepared.servers) {
            let latest = seen.entry(*server).or_insert(*at);
            *latest = (*latest).max(*at);
        }
        let aggregates = Aggregate::ALL.into_iter().filter_map(|aggregate| {
            let writes = decisions.iter().flat_map(|prepared| &prepared.writes).filter(|write| write.aggregate == aggregate);
            let (inserts, mut updates): (Vec<_>, Vec<_>) = writes.partition(|write| write.over.is_none());
            // Every process writes in the same order, so that two of them never deadlock.
            updates.sort_unstable_by(|one, other| one.id.cmp(&other.id));
            let rows = |writes: Vec<&'a crate::prepare::Write>| writes.into_iter().map(|write| &write.row).collect::<Vec<_>>();
            let (inserts, updates) = (rows(inserts), rows(updates));
            (!inserts.is_empty() || !updates.is_empty()).then_some((aggregate, inserts, updates))
        });
        let records = Record::ALL.into_iter().filter_map(|record| {
            let rows = decisions.iter().flat_map(|prepared| &prepared.records).filter(|(kind, _)| *kind == record);
            let rows: Vec<&Row> = rows.map(|(_, row)| row).collect();
            (!rows.is_empty()).then_some((record, rows))
        });
        let mut states = BTreeMap::new();
        let tasks = decisions.iter().flat_map(|prepared| &prepared.writes).filter(|write| write.aggregate == Aggregate::Task);
        for write in tasks {
            *states.entry(write.state).or_default() += 1;
        }
        let (audit, moves) = match head {
            Some(before) => {
                let (after, rows) = chain(before.clone(), decisions.iter().flat_map(|prepared| &prepared.audit))?;
                let moves = (!rows.is_empty()).then_some((before, after));
                (rows.iter().map(audit::to_row).collect(), moves)
            }
            None => (Vec::new(), None),
        };
        Ok(Self {
            servers: server::to_rows(&seen),
            aggregates: aggregates.collect(),
            records: records.collect(),
            states,
            events: decisions.iter().flat_map(|prepared| &prepared.events).collect(),
            audit,
            moves,
            payloads: wakeups::payloads(process, distinct(decisions.iter().flat_map(|prepared| &prepared.wakeups))),
        })
    }

    /// Returns the end of the audit chain afterwards, if it grows.
    pub(crate) fn end(&self) -> Option<&Head> {
        self.moves.as_ref().map(|(_, after)| after)
    }

    /// Returns the number of overwritten rows.
    pub(crate) fn updates(&self) -> i64 {
        self.aggregates.iter().map(|(_, _, updates)| length(updates)).sum()
    }

    /// Returns the ids of the overwritten tasks.
    fn updated_tasks(&self) -> Option<&[&'a Row]> {
        let tasks = self.aggregates.iter().find(|(aggregate, ..)| *aggregate == Aggregate::Task)?;
        (!tasks.2.is_empty()).then_some(&tasks.2)
    }

    /// Returns the statement for PostgreSQL. Its one row has the number of overwritten rows in `changed`.
    pub(crate) fn on_postgres(&self) -> Result<PgQuery, StoreError> {
        let mut pg = Pg::default();
        let mut changed = vec!["0::bigint".to_owned()];
        let mut expected = String::new();
        if !self.servers.is_empty() {
            pg.insert(&server::TABLE, &self.servers.iter().collect::<Vec<_>>(), "", server::ON_CONFLICT)?;
        }
        for (aggregate, inserts, updates) in &self.aggregates {
            let table = aggregate.table();
            if !updates.is_empty() {
                // PostgreSQL runs the parts that others refer to first, so updates run before inserts: a new row may take the
                // name that another row gives up in the same decision.
                let part = pg.update(table, updates)?;
                let count = format!("(SELECT count(*) FROM {part})");
                // The head is locked after these rows.
                let wanted = pg.bind(length(updates))?;
                write!(expected, " AND {count} = {wanted}").map_err(text_error)?;
                changed.push(count);
            }
            if !inserts.is_empty() {
                pg.insert(table, inserts, "", "")?;
            }
        }
        for (record, rows) in &self.records {
            pg.insert(record.table(), rows, "", record.on_conflict())?;
        }
        let mut answer = format!("SELECT {} AS changed", changed.join(" + "));
        // The rest is appended under the lock of the head, so that the order of rows is the order of commits.
        let mut locked = String::new();
        if let Some((before, after)) = &self.moves {
            let (seq, hash) = (pg.bind(number(after.seq))?, pg.bind(after.hash.as_str())?);
            let (old_seq, old_hash) = (pg.bind(number(before.seq))?, pg.bind(before.hash.as_str())?);
            let head = pg.part(&format!(
                "UPDATE audit_head SET seq = {seq}, hash = {hash} \
                 WHERE id = 1 AND seq = {old_seq} AND hash = {old_hash}{expected} RETURNING 1"
            ))?;
            locked = format!("WHERE (SELECT count(*) FROM {head}) = 1");
            // Fails, and with it the whole statement, unless the head was moved.
            write!(answer, ", 1 / (SELECT count(*) FROM {head}) AS moved").map_err(text_error)?;
        }
        if !self.events.is_empty() {
            let events = pg.insert(&outbox::TABLE, &self.events, &locked, "RETURNING lane, position")?;
            pg.part(&format!("INSERT INTO outbox_waiting (lane, position) SELECT lane, position FROM {events}"))?;
        }
        if !self.audit.is_empty() {
            pg.insert(&audit::TABLE, &self.audit.iter().collect::<Vec<_>>(), &locked, "")?;
        }
        if !self.states.is_empty() {
            let states = pg.bind(self.states.keys().copied().collect::<Vec<_>>())?;
            let counts = pg.bind(self.states.values().copied().collect::<Vec<_>>())?;
            let mut change = format!("SELECT state, by FROM UNNEST({states}, {counts}) AS after (state, by)");
            if let Some(tasks) = self.updated_tasks() {
                let ids = pg.bind(tasks.iter().filter_map(|row| row.first()?.as_text()).collect::<Vec<_>>())?;
                // All parts see the rows as they were before the statement.
                write!(change, " UNION ALL SELECT state, -1 FROM tasks WHERE id = ANY({ids})").map_err(text_error)?;
            }
            pg.part(&format!(
                "INSERT INTO task_count (state, count) SELECT state, SUM(by)::bigint FROM ({change}) AS change {locked} \
                 GROUP BY state HAVING SUM(by) <> 0 ORDER BY state {}",
                task::COUNT_ON_CONFLICT
            ))?;
        }
        if !self.payloads.is_empty() {
            let payloads = pg.bind(self.payloads.iter().map(String::as_str).collect::<Vec<_>>())?;
            write!(answer, ", ({}) AS notified", wakeups::notify(&payloads)).map_err(text_error)?;
        }
        let sql = if pg.parts.is_empty() { answer } else { format!("WITH {} {answer}", pg.parts) };
        Ok(sqlx::query_with(AssertSqlSafe(sql), pg.args))
    }

    /// Returns the text for SQLite. With `whole` it is a transaction of its own; otherwise it runs inside one.
    pub(crate) fn on_sqlite(&self, whole: bool) -> Result<SqliteQuery, StoreError> {
        let mut lite = Lite::default();
        if whole {
            lite.add("BEGIN IMMEDIATE");
        }
        if !self.states.is_empty() {
            // Before the tasks change.
            let after = lite.bind(json_text(&self.states.iter().collect::<Vec<_>>())?)?;
            let mut change = format!("SELECT value ->> 0 AS state, value ->> 1 AS by FROM json_each({after})");
            if let Some(tasks) = self.updated_tasks() {
                let ids = lite.bind(json_text(&tasks.iter().filter_map(|row| row.first()?.as_text()).collect::<Vec<_>>())?)?;
                write!(change, " UNION ALL SELECT state, -1 FROM tasks WHERE id IN (SELECT value FROM json_each({ids}))")
                    .map_err(text_error)?;
            }
            lite.add(&format!(
                "INSERT INTO task_count (state, count) SELECT state, SUM(by) FROM ({change}) AS change WHERE TRUE \
                 GROUP BY state HAVING SUM(by) <> 0 {}",
                task::COUNT_ON_CONFLICT
            ));
        }
        if !self.servers.is_empty() {
            lite.insert(&server::TABLE, &self.servers.iter().collect::<Vec<_>>(), server::ON_CONFLICT)?;
        }
        for (aggregate, inserts, updates) in &self.aggregates {
            // Updates first: a new row may take the name that another row gives up in the same decision.
            if !updates.is_empty() {
                lite.update(aggregate.table(), updates)?;
                lite.guard(length(updates))?;
            }
            if !inserts.is_empty() {
                lite.insert(aggregate.table(), inserts, "")?;
            }
        }
        for (record, rows) in &self.records {
            lite.insert(record.table(), rows, record.on_conflict())?;
        }
        if let Some((before, after)) = &self.moves {
            let (seq, hash) = (lite.bind(number(after.seq))?, lite.bind(after.hash.clone())?);
            let (old_seq, old_hash) = (lite.bind(number(before.seq))?, lite.bind(before.hash.clone())?);
            lite.add(&format!(
                "UPDATE audit_head SET seq = {seq}, hash = {hash} WHERE id = 1 AND seq = {old_seq} AND hash = {old_hash}"
            ));
            lite.guard(1)?;
        }
        if !self.events.is_empty() {
            lite.insert(&outbox::TABLE, &self.events, "")?;
            // There is no other writer, so the positions are consecutive.
            lite.add(
                "INSERT INTO outbox_waiting (lane, position) SELECT lane, position FROM outbox \
                 WHERE position > last_insert_rowid() - changes()",
            );
        }
        if !self.audit.is_empty() {
            lite.insert(&audit::TABLE, &self.audit.iter().collect::<Vec<_>>(), "")?;
        }
        if whole {
            lite.add("COMMIT");
        }
        Ok(sqlx::query_with(AssertSqlSafe(lite.sql), lite.args))
    }
}

/// Returns each wake-up once, in the order of first occurrence.
pub(crate) fn distinct<'a>(wakeups: impl Iterator<Item = &'a Wakeup>) -> Vec<&'a Wakeup> {
    let mut seen = std::collections::HashSet::new();
    wakeups.filter(|wakeup| seen.insert(*wakeup)).collect()
}

/// The parts of a statement for PostgreSQL.
#[derive(Default)]
struct Pg {
    parts: String,
    count: usize,
    args: PgArguments,
}

impl Pg {
    /// Adds a value and returns its placeholder.
    fn bind<'q, T>(&mut self, value: T) -> Result<String, StoreError>
    where
        T: sqlx::Encode<'q, Postgres> + sqlx::Type<Postgres>,
    {
        self.args.add(value).map_err(|error| StoreError::BadDecision { what: error.to_string() })?;
        Ok(format!("${}::{}", self.args.len(), T::type_info()))
    }

    /// Adds a part and returns its name.
    fn part(&mut self, sql: &str) -> Result<String, StoreError> {
        let name = format!("part_{}", self.count);
        self.count += 1;
        let comma = if self.parts.is_empty() { "" } else { ", " };
        write!(self.parts, "{comma}{name} AS ({sql})").map_err(text_error)?;
        Ok(name)
    }

    /// Returns `UNNEST($1::tasks_row[])` over these rows.
    fn unnest(&mut self, table: &'static Table, rows: &[&Row]) -> Result<String, StoreError> {
        debug_assert!(rows.iter().all(|row| row.len() == table.width()), "a row of {} has the wrong width", table.name);
        let rows: Vec<Composite<'_>> = rows.iter().map(|row| Composite { table, row }).collect();
        self.args.add(Rows { table, rows }).map_err(|error| StoreError::BadDecision { what: error.to_string() })?;
        Ok(format!("UNNEST(${}::{}[])", self.args.len(), table.row_type))
    }

    /// Adds rows and returns the name of the part.
    fn insert(&mut self, table: &'static Table, rows: &[&Row], condition: &str, ending: &str) -> Result<String, StoreError> {
        let rows = self.unnest(table, rows)?;
        let (name, names) = (table.name, table.names());
        self.part(&format!("INSERT INTO {name} ({names}) SELECT {names} FROM {rows} {condition} {ending}"))
    }

    /// Overwrites old versions of rows. The first column is the id, the second the version they were loaded with.
    fn update(&mut self, table: &'static Table, rows: &[&Row]) -> Result<String, StoreError> {
        let rows = self.unnest(table, rows)?;
        let (name, set) = (table.name, table.assignments());
        self.part(&format!(
            "UPDATE {name} SET version = {name}.version + 1, {set} FROM {rows} AS new \
             WHERE {name}.id = new.id AND {name}.version = new.version RETURNING 1"
        ))
    }
}

/// Rows as one array of the table's [`Table::row_type`]. An array per column would be far more work for PostgreSQL: it runs a
/// function and keeps a table for each of them.
struct Rows<'a> {
    table: &'static Table,
    rows: Vec<Composite<'a>>,
}

struct Composite<'a> {
    table: &'static Table,
    row: &'a Row,
}

impl sqlx::Type<Postgres> for Rows<'_> {
    /// Never used: every value has its own type.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("record[]")
    }
}

impl sqlx::Type<Postgres> for Composite<'_> {
    /// Never used: every value has its own type.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("record")
    }
}

impl sqlx::Encode<'_, Postgres> for Rows<'_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.rows.as_slice().encode_by_ref(buffer)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::array_of(self.table.row_type))
    }
}

impl sqlx::Encode<'_, Postgres> for Composite<'_> {
    /// Encodes the number of columns, then for each its type, its length (-1 for NULL) and its bytes.
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        const TEXT: u32 = 25;
        const BIGINT: u32 = 20;
        const BYTEA: u32 = 17;
        buffer.extend_from_slice(&u32::try_from(self.table.width())?.to_be_bytes());
        for ((_, kind), arg) in self.table.written().zip(self.row) {
            let number;
            let (kind, bytes) = match kind {
                ColumnKind::Text => (TEXT, arg.as_text().map(str::as_bytes)),
                ColumnKind::Bytes => (BYTEA, arg.as_bytes()),
                ColumnKind::Int | ColumnKind::IntOfDatabase => {
                    number = arg.as_int().map(i64::to_be_bytes);
                    (BIGINT, number.as_ref().map(<[u8; 8]>::as_slice))
                }
            };
            buffer.extend_from_slice(&kind.to_be_bytes());
            match bytes {
                Some(bytes) => {
                    buffer.extend_from_slice(&i32::try_from(bytes.len())?.to_be_bytes());
                    buffer.extend_from_slice(bytes);
                }
                None => buffer.extend_from_slice(&(-1_i32).to_be_bytes()),
            }
        }
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_name(self.table.row_type))
    }
}

/// A text of several statements for SQLite.
#[derive(Default)]
struct Lite {
    sql: String,
    args: SqliteArguments,
}

impl Lite {
    /// Adds a value and returns its placeholder. Placeholders are numbered through the whole text.
    fn bind<'q, T>(&mut self, value: T) -> Result<String, StoreError>
    where
        T: sqlx::Encode<'q, Sqlite> + sqlx::Type<Sqlite>,
    {
        self.args.add(value).map_err(|error| StoreError::BadDecision { what: error.to_string() })?;
        Ok(format!("${}", self.args.len()))
    }

    fn add(&mut self, sql: &str) {
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
    }

    /// Returns a `SELECT …` over the columns of these rows.
    fn select(&mut self, table: &Table, rows: &[&Row]) -> Result<String, StoreError> {
        debug_assert!(rows.iter().all(|row| row.len() == table.width()), "a row of {} has the wrong width", table.name);
        let rows = self.bind(json_text(&rows)?)?;
        let columns = table.written().enumerate().map(|(n, (name, kind))| match kind {
            ColumnKind::Text | ColumnKind::Int | ColumnKind::IntOfDatabase => format!("value ->> {n} AS {name}"),
            ColumnKind::Bytes => format!("unhex(value ->> {n}) AS {name}"),
        });
        Ok(format!("SELECT {} FROM json_each({rows})", columns.collect::<Vec<_>>().join(", ")))
    }

    fn insert(&mut self, table: &Table, rows: &[&Row], on_conflict: &str) -> Result<(), StoreError> {
        let rows = self.select(table, rows)?;
        // Without a condition, SQLite would parse ON CONFLICT as the end of a join.
        self.add(&format!("INSERT INTO {} ({}) {rows} WHERE TRUE {on_conflict}", table.name, table.names()));
        Ok(())
    }

    fn update(&mut self, table: &Table, rows: &[&Row]) -> Result<(), StoreError> {
        let rows = self.select(table, rows)?;
        let (name, set) = (table.name, table.assignments());
        self.add(&format!(
            "UPDATE {name} SET version = {name}.version + 1, {set} FROM ({rows}) AS new \
             WHERE {name}.id = new.id AND {name}.version = new.version"
        ));
        Ok(())
    }

    /// Fails unless the previous statement changed this many rows: the head of the audit chain can only be row 1.
    fn guard(&mut self, rows: i64) -> Result<(), StoreError> {
        let rows = self.bind(rows)?;
        self.add(&format!("INSERT INTO audit_head (id, seq, hash) SELECT 0, 0, '' WHERE changes() <> {rows}"));
        Ok(())
    }
}

/// Writes a value of a row as JSON, with bytes as hexadecimal digits.
impl serde::Serialize for Arg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Int(int) => int.serialize(serializer),
            Self::Bytes(bytes) => bytes.as_deref().map(gpuaas_contract::hex).serialize(serializer),
        }
    }
}

fn json_text(document: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(document).map_err(|error| StoreError::BadDecision { what: error.to_string() })
}

fn length<T>(rows: &[T]) -> i64 {
    i64::try_from(rows.len()).unwrap_or(i64::MAX)
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn text_error(error: std::fmt::Error) -> StoreError {
    StoreError::BadDecision { what: error.to_string() }
}
