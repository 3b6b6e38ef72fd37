//! A small common interface to both engines. The same SQL text with `$1` works on both.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Postgres, Row as _, SqlSafeStr, Sqlite, Transaction};

use gpuaas_contract::Digest;
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::time::Timestamp;

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::readers::{ACQUIRE_TIMEOUT, Readers};

/// Connections that read a SQLite file at the same time.
const SQLITE_READERS: u32 = 4;
/// A client that disappears inside a transaction must not hold the audit head for long. This is longer than
/// [`crate::RELAY_DEADLINE`], because a relay that waits for its broker is alive.
const PG_IDLE_IN_TRANSACTION: &str = "15s";
/// Outbox lanes that a process publishes at the same time, if it may open enough connections.
const PG_RELAYS: u32 = 2;
/// Fewest connections that allow [`PG_RELAYS`].
const PG_MANY_CONNECTIONS: u32 = 8;
/// Settings of the planner. Every written row is found by its key, and every query has its index. Connections, and the plans of
/// their statements, live as long as the server: a plan from a time when the table was small would read the whole table until the
/// next ANALYZE. Plans never depend on values, so planning or compiling a statement every time would cost more than running most
/// of them.
const PG_PLANS: [(&str, &str); 5] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
];

/// The database: how to open the writing connection, and the connections that read.
#[derive(Clone)]
pub(crate) enum Db {
    Sqlite {
        writer: Arc<SqliteConnectOptions>,
        reader: Arc<Readers<SqliteConnection>>,
    },
    /// Relays have their own connections: a slow broker must not block readers.
    Pg {
        writer: Arc<PgConnectOptions>,
        reader: Arc<Readers<PgConnection>>,
        relay: Arc<Readers<PgConnection>>,
    },
}

/// The writing connection. Only the committer has it.
pub(crate) enum WriteConnection {
    Sqlite(SqliteConnection),
    Pg(PgConnection),
}

/// An open write transaction.
pub(crate) enum WriteTransaction<'c> {
    Sqlite(Transaction<'c, Sqlite>),
    Pg(Transaction<'c, Postgres>),
}

/// A bound value. Each of the three may be NULL.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    Text(Option<String>),
    Int(Option<i64>),
    Bytes(Option<Vec<u8>>),
}

impl Arg {
    /// Creates a text without NUL characters. PostgreSQL does not store NUL, and an odd log line of a host must not block its
    /// receipts.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self::Text(Some(if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }))
    }

    /// Creates the text form of an id or digest.
    pub(crate) fn id(id: impl std::fmt::Display) -> Self {
        Self::Text(Some(id.to_string()))
    }

    /// Creates the text form of an id or digest, or NULL.
    pub(crate) fn opt_id(id: Option<impl std::fmt::Display>) -> Self {
        Self::Text(id.map(|id| id.to_string()))
    }

    /// Creates a timestamp.
    pub(crate) fn time(at: Timestamp) -> Self {
        Self::Int(Some(at.0))
    }

    /// Creates a timestamp, or NULL.
    pub(crate) fn opt_time(at: Option<Timestamp>) -> Self {
        Self::Int(at.map(|at| at.0))
    }

    /// Creates a count, limited to the largest value that the database can hold.
    pub(crate) fn count(count: u64) -> Self {
        Self::Int(Some(i64::try_from(count).unwrap_or(i64::MAX)))
    }

    /// Creates a byte value.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Some(bytes.to_vec()))
    }

    /// Creates one argument from several texts: a JSON list without NUL characters.
    pub(crate) fn list<T: AsRef<str>>(texts: &[T]) -> Result<Self, StoreError> {
        Self::json(&texts.iter().map(|text| text.as_ref().replace('\0', "\u{fffd}")).collect::<Vec<_>>())
    }

    /// Creates the JSON text of a document.
    pub(crate) fn json(document: &impl serde::Serialize) -> Result<Self, StoreError> {
        let text = serde_json::to_string(document).map_err(|error| StoreError::BadDecision { what: error.to_string() })?;
        Ok(Self::text(text))
    }
}

/// Reads columns from a row of either engine.
pub(crate) trait Columns {
    fn text(&self, column: &str) -> Result<Option<String>, sqlx::Error>;
    fn int(&self, column: &str) -> Result<Option<i64>, sqlx::Error>;
    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>, sqlx::Error>;
}

macro_rules! columns {
    ($($row:ty),*) => {$(
        impl Columns for $row {
            fn text(&self, column: &str) -> Result<Option<String>, sqlx::Error> {
                self.try_get(column)
            }

            fn int(&self, column: &str) -> Result<Option<i64>, sqlx::Error> {
                self.try_get(column)
            }

            fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
                self.try_get(column)
            }
        }
    )*};
}
columns!(SqliteRow, PgRow);

/// Reads one row of a table into our types. Every error names the table and the column.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'r> {
    table: &'static str,
    row: &'r dyn Columns,
}

impl<'r> Reader<'r> {
    pub(crate) fn new(table: &'static str, row: &'r dyn Columns) -> Self {
        Self { table, row }
    }

    pub(crate) fn corrupt(&self, column: &'static str, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt { table: self.table, column, what: what.into() }
    }

    fn present<T>(&self, column: &'static str, value: Result<Option<T>, sqlx::Error>) -> Result<T, StoreError> {
        value.map_err(|error| self.corrupt(column, error.to_string()))?.ok_or_else(|| self.corrupt(column, "it is missing"))
    }

    pub(crate) fn opt_text(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        self.row.text(column).map_err(|error| self.corrupt(column, error.to_string()))
    }

    pub(crate) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        self.present(column, self.row.text(column))
    }

    pub(crate) fn opt_int(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        self.row.int(column).map_err(|error| self.corrupt(column, error.to_string()))
    }

    pub(crate) fn int(&self, column: &'static str) -> Result<i64, StoreError> {
        self.present(column, self.row.int(column))
    }

    pub(crate) fn bytes(&self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        self.present(column, self.row.bytes(column))
    }

    /// Reads a count as any unsigned type.
    pub(crate) fn count<T: TryFrom<i64>>(&self, column: &'static str) -> Result<T, StoreError> {
        T::try_from(self.int(column)?).map_err(|_| self.corrupt(column, "the number is out of range"))
    }

    pub(crate) fn time(&self, column: &'static str) -> Result<Timestamp, StoreError> {
        self.int(column).map(Timestamp)
    }

    pub(crate) fn opt_time(&self, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.opt_int(column)?.map(Timestamp))
    }

    /// Reads a text that has its own parser: ids, digests, correlation ids.
    pub(crate) fn parsed<T: TryFrom<String, Error: std::fmt::Display>>(&self, column: &'static str) -> Result<T, StoreError> {
        T::try_from(self.text(column)?).map_err(|error| self.corrupt(column, error.to_string()))
    }

    pub(crate) fn opt_parsed<T: TryFrom<String, Error: std::fmt::Display>>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let text = self.opt_text(column)?;
        text.map(|text| T::try_from(text).map_err(|error| self.corrupt(column, error.to_string()))).transpose()
    }

    /// Reads a value of one of our closed sets of names.
    pub(crate) fn named<T>(&self, column: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let name = self.text(column)?;
        parse(&name).ok_or_else(|| self.corrupt(column, format!("`{name}` is not known")))
    }

    /// Reads a value of one of our closed sets of names, or NULL.
    pub(crate) fn opt_named<T>(&self, column: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, StoreError> {
        match self.opt_text(column)? {
            Some(_) => self.named(column, parse).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn digest(&self, column: &'static str) -> Result<Digest, StoreError> {
        self.parsed(column)
    }

    pub(crate) fn key(&self, column: &'static str) -> Result<VerifyingKey, StoreError> {
        VerifyingKey::from_bytes(&self.bytes(column)?).map_err(|error| self.corrupt(column, error.to_string()))
    }

    pub(crate) fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| self.corrupt(column, error.to_string()))
    }

    pub(crate) fn opt_json<T: DeserializeOwned>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        match self.opt_text(column)? {
            Some(_) => self.json(column).map(Some),
            None => Ok(None),
        }
    }
}

/// The engine, where the SQL differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Pg,
}

/// A query built from fixed pieces. Values are passed only as arguments.
pub(crate) struct Select {
    sql: String,
    args: Vec<Arg>,
}

impl Select {
    /// Starts with a text that ends in a condition, such as `… WHERE TRUE`.
    pub(crate) fn new(sql: &'static str) -> Self {
        Self { sql: sql.to_owned(), args: Vec::new() }
    }

    /// Starts with a text that already has arguments.
    pub(crate) fn with(sql: &'static str, args: Vec<Arg>) -> Self {
        Self { sql: sql.to_owned(), args }
    }

    /// Adds fixed text.
    pub(crate) fn push(mut self, sql: &'static str) -> Self {
        self.sql.push_str(sql);
        self
    }

    /// Adds ` AND <condition> $n`.
    pub(crate) fn and(mut self, condition: &'static str, arg: Arg) -> Self {
        self.args.push(arg);
        self.sql.push_str(&format!(" AND {condition} ${}", self.args.len()));
        self
    }

    /// Adds ` AND <condition> $n` if there is a value.
    pub(crate) fn and_if(self, condition: &'static str, arg: Option<Arg>) -> Self {
        match arg {
            Some(arg) => self.and(condition, arg),
            None => self,
        }
    }

    /// Adds ` AND ` and a condition made of several pieces, with an argument between each two of them.
    pub(crate) fn and_between(mut self, pieces: &[&'static str], args: Vec<Arg>) -> Self {
        debug_assert!(pieces.len() == args.len() + 1, "an argument between each two pieces of {pieces:?}");
        self.sql.push_str(" AND ");
        let mut args = args.into_iter();
        for piece in pieces {
            self.sql.push_str(piece);
            if let Some(arg) = args.next() {
                self.args.push(arg);
                self.sql.push_str(&format!("${}", self.args.len()));
            }
        }
        self
    }

    /// Limits the query to rows with one of these ids, ordered by id.
    pub(crate) fn of_ids<I: std::fmt::Display>(self, engine: Engine, ids: &[I]) -> Result<Self, StoreError> {
        let any = match engine {
            Engine::Sqlite => ["id IN (SELECT value FROM json_each(", ")) ORDER BY id"],
            Engine::Pg => ["id = ANY(ARRAY(SELECT json_array_elements_text(", "::json))) ORDER BY id"],
        };
        let ids: Vec<String> = ids.iter().map(I::to_string).collect();
        Ok(self.and_between(&any, vec![Arg::list(&ids)?]))
    }

    /// Adds the order and the limit.
    pub(crate) fn page(mut self, order: &'static str, limit: u32) -> Self {
        self.args.push(Arg::Int(Some(i64::from(limit.min(crate::MAX_PAGE)))));
        self.sql.push_str(&format!(" ORDER BY {order} LIMIT ${}", self.args.len()));
        self
    }

    /// Returns the text and the arguments, for EXPLAIN.
    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (String, Vec<Arg>) {
        (self.sql, self.args)
    }

    /// Runs the query.
    pub(crate) async fn fetch<T>(
        self,
        db: &Db,
        doing: &'static str,
        read: impl Fn(&dyn Columns) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        db.fetch(doing, sqlx::AssertSqlSafe(self.sql), self.args, read).await
    }
}

macro_rules! bound {
    ($engine:ty, $sql:expr, $args:expr) => {{
        let mut query = sqlx::query::<$engine>($sql);
        for arg in $args {
            query = match arg {
                Arg::Text(text) => query.bind(text),
                Arg::Int(int) => query.bind(int),
                Arg::Bytes(bytes) => query.bind(bytes),
            };
        }
        query
    }};
}
#[cfg(test)]
pub(crate) use bound;

impl Db {
    /// Prepares both sides without connecting. A connection error of the pool would only be a timeout.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        match config {
            StoreConfig::Sqlite { path } => {
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .busy_timeout(Duration::from_secs(10))
                    .foreign_keys(true)
                    .synchronous(SqliteSynchronous::Full)
                    .statement_cache_capacity(256)
                    .disable_statement_logging();
                let reader = Readers::new(options.clone().pragma("query_only", "ON"), SQLITE_READERS, false);
                let writer = Arc::new(options.journal_mode(SqliteJournalMode::Wal));
                Ok(Self::Sqlite { writer, reader: Arc::new(reader) })
            }
            StoreConfig::Postgres { url, max_connections } => {
                let options = url.parse::<PgConnectOptions>().map_err(StoreError::doing("read its address"))?;
                let options = options
                    .application_name("gpuaas")
                    .options([("idle_in_transaction_session_timeout", PG_IDLE_IN_TRANSACTION)])
                    .options(PG_PLANS)
                    .statement_cache_capacity(256)
                    .disable_statement_logging();
                let relays = if *max_connections < PG_MANY_CONNECTIONS { 1 } else { PG_RELAYS };
                let relay = Readers::new(options.clone(), relays, true);
                // One connection is for the committer and one for the listener.
                let reader = Readers::new(options.clone(), max_connections.saturating_sub(2 + relays).max(1), true);
                Ok(Self::Pg { writer: Arc::new(options), reader: Arc::new(reader), relay: Arc::new(relay) })
            }
        }
    }

    /// Returns the engine.
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Sqlite { .. } => Engine::Sqlite,
            Self::Pg { .. } => Engine::Pg,
        }
    }

    /// Opens a connection for writing.
    pub(crate) async fn connect(&self) -> Result<WriteConnection, sqlx::Error> {
        match self {
            Self::Sqlite { writer, .. } => writer.connect().await.map(WriteConnection::Sqlite),
            Self::Pg { writer, .. } => match tokio::time::timeout(ACQUIRE_TIMEOUT, writer.connect()).await {
                Ok(connected) => connected.map(WriteConnection::Pg),
                Err(_) => Err(timed_out()),
            },
        }
    }

    /// Reads rows.
    pub(crate) async fn fetch<T>(
        &self,
        doing: &'static str,
        sql: impl SqlSafeStr,
        args: Vec<Arg>,
        read: impl Fn(&dyn Columns) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Sqlite { reader, .. } => {
                let rows = gpuaas_runtime::answer(async {
                    let mut reading = reader.acquire().await?;
                    let rows = bound!(Sqlite, sql, args).fetch_all(&mut reading.connection).await?;
                    reading.done();
                    Ok::<_, sqlx::Error>(rows)
                });
                rows.await.map_err(StoreError::doing(doing))?.iter().map(|row| read(row)).collect()
            }
            Self::Pg { reader, .. } => {
                let mut reading = reader.acquire().await.map_err(StoreError::doing(doing))?;
                let rows = bound!(Postgres, sql, args).fetch_all(&mut reading.connection).await;
                let rows = rows.map_err(StoreError::doing(doing))?;
                reading.done();
                rows.iter().map(|row| read(row)).collect()
            }
        }
    }

    /// Reads at most one row.
    pub(crate) async fn fetch_one<T>(
        &self,
        doing: &'static str,
        sql: impl SqlSafeStr,
        args: Vec<Arg>,
        read: impl Fn(&dyn Columns) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        Ok(self.fetch(doing, sql, args, read).await?.pop())
    }

    /// Closes the reading connections.
    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite { reader, .. } => reader.close().await,
            Self::Pg { reader, relay, .. } => {
                reader.close().await;
                relay.close().await;
            }
        }
    }
}

/// Returns the error for a database that does not answer.
pub(crate) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time"))
}

impl WriteConnection {
    /// Begins a write transaction.
    pub(crate) async fn begin(&mut self) -> Result<WriteTransaction<'_>, sqlx::Error> {
        match self {
            // Taking the write lock at once guarantees that no other writer changes what this transaction reads.
            Self::Sqlite(connection) => connection.begin_with("BEGIN IMMEDIATE").await.map(WriteTransaction::Sqlite),
            Self::Pg(connection) => connection.begin().await.map(WriteTransaction::Pg),
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(connection) => connection.close().await,
            Self::Pg(connection) => connection.close().await,
        }
    }
}

impl WriteTransaction<'_> {
    /// Runs one statement and returns the number of affected rows.
    pub(crate) async fn execute(&mut self, sql: impl SqlSafeStr, args: Vec<Arg>) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(tx) => bound!(Sqlite, sql, args).execute(&mut **tx).await?.rows_affected(),
            Self::Pg(tx) => bound!(Postgres, sql, args).execute(&mut **tx).await?.rows_affected(),
        })
    }

    /// Runs a text of several statements without arguments.
    pub(crate) async fn execute_script(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop),
            Self::Pg(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop),
        }
    }

    /// Reads rows inside the transaction.
    pub(crate) async fn fetch<T>(
        &mut self,
        doing: &'static str,
        sql: impl SqlSafeStr,
        args: Vec<Arg>,
        read: impl Fn(&dyn Columns) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Sqlite(tx) => {
                let rows = bound!(Sqlite, sql, args).fetch_all(&mut **tx).await.map_err(StoreError::doing(doing))?;
                rows.iter().map(|row| read(row)).collect()
            }
            Self::Pg(tx) => {
                let rows = bound!(Postgres, sql, args).fetch_all(&mut **tx).await.map_err(StoreError::doing(doing))?;
                rows.iter().map(|row| read(row)).collect()
            }
        }
    }

    /// Commits the transaction.
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => tx.commit().await,
            Self::Pg(tx) => tx.commit().await,
        }
    }

    /// Rolls the transaction back.
    pub(crate) async fn rollback(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => tx.rollback().await,
            Self::Pg(tx) => tx.rollback().await,
        }
    }
}
