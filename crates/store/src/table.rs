//! Writing many rows of one table with few statements.
//!
//! PostgreSQL gets one statement for any number of rows (columns travel as arrays), so that a group of commits costs
//! a handful of round trips. SQLite is in the same process; it gets rows in chunks of a fixed size, so that its
//! prepared statements stay few.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Postgres};

use crate::db::{Arg, Reader, WriteTransaction};
use crate::error::StoreError;

/// Type of a column.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Text,
    Int,
    Bytes,
}

/// A table and its columns, in the order in which rows are written. Names come from this crate only.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [(&'static str, Kind)],
}

/// One row to write, in the order of the table's columns.
pub(crate) type Row = Vec<Arg>;

/// Rows per statement on SQLite.
const SQLITE_CHUNK: usize = 16;

/// A row as it is before a decision changes it.
pub(crate) struct Current {
    pub(crate) version: i64,
    pub(crate) state: String,
}

impl Table {
    fn names(&self) -> String {
        self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// `UNNEST($1::text[], …)`.
    fn unnest(&self) -> String {
        let arrays = self.columns.iter().enumerate().map(|(i, (_, kind))| {
            let kind = match kind {
                Kind::Text => "text",
                Kind::Int => "bigint",
                Kind::Bytes => "bytea",
            };
            format!("${}::{kind}[]", i + 1)
        });
        format!("UNNEST({})", arrays.collect::<Vec<_>>().join(", "))
    }

    /// Inserts rows. `on_conflict` is the rest of the statement, or empty.
    pub(crate) async fn insert(
        &self,
        tx: &mut WriteTransaction<'_>,
        rows: Vec<Row>,
        on_conflict: &'static str,
    ) -> Result<(), sqlx::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let head = format!("INSERT INTO {} ({})", self.name, self.names());
        match tx {
            WriteTransaction::Pg(pg) => {
                let sql = format!("{head} SELECT * FROM {} {on_conflict}", self.unnest());
                self.bind_columns(sql, rows).execute(&mut **pg).await?;
            }
            WriteTransaction::Sqlite(_) => {
                let mut rows = rows.into_iter().peekable();
                let width = self.columns.len();
                while rows.peek().is_some() {
                    let chunk: Vec<Row> = rows.by_ref().take(SQLITE_CHUNK).collect();
                    // Full chunks share one prepared statement; the rest goes row by row through another.
                    if chunk.len() == SQLITE_CHUNK {
                        let sql = format!("{head} VALUES {} {on_conflict}", placeholders(SQLITE_CHUNK, width));
                        tx.execute(AssertSqlSafe(sql), chunk.into_iter().flatten().collect()).await?;
                    } else {
                        let sql = format!("{head} VALUES {} {on_conflict}", placeholders(1, width));
                        for row in chunk {
                            tx.execute(AssertSqlSafe(sql.clone()), row).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes rows over their old versions. The first column is the id, the second the version they were loaded with.
    /// Returns how many rows there were to write over.
    pub(crate) async fn update(&self, tx: &mut WriteTransaction<'_>, rows: Vec<Row>) -> Result<u64, sqlx::Error> {
        if rows.is_empty() {
            return Ok(0);
        }
        let name = self.name;
        match tx {
            WriteTransaction::Pg(pg) => {
                let set = self.columns[2..].iter().map(|(column, _)| format!("{column} = new.{column}")).collect::<Vec<_>>();
                let sql = format!(
                    "UPDATE {name} SET version = {name}.version + 1, {} FROM {} AS new ({}) \
                     WHERE {name}.id = new.id AND {name}.version = new.version",
                    set.join(", "),
                    self.unnest(),
                    self.names(),
                );
                Ok(self.bind_columns(sql, rows).execute(&mut **pg).await?.rows_affected())
            }
            WriteTransaction::Sqlite(_) => {
                let set = self.columns[2..].iter().enumerate().map(|(i, (column, _))| format!("{column} = ${}", i + 3));
                let set = set.collect::<Vec<_>>().join(", ");
                let sql = format!("UPDATE {name} SET version = version + 1, {set} WHERE id = $1 AND version = $2");
                let mut written = 0;
                for row in rows {
                    written += tx.execute(AssertSqlSafe(sql.clone()), row).await?;
                }
                Ok(written)
            }
        }
    }

    /// Locks the rows with these ids until the end of the transaction and tells what they are now. `state` is a column
    /// to read along, or a literal.
    pub(crate) async fn lock(
        &self,
        tx: &mut WriteTransaction<'_>,
        mut ids: Vec<String>,
        state: &'static str,
    ) -> Result<HashMap<String, Current>, StoreError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        const DOING: &str = "look at what a decision changes";
        // Every process locks in the same order, so that two of them never wait for each other.
        ids.sort_unstable();
        let name = self.name;
        let sql = format!("SELECT id, version, {state} AS state FROM {name}");
        let read = |reader: Reader<'_>| {
            Ok::<_, StoreError>((reader.text("id")?, Current { version: reader.int("version")?, state: reader.text("state")? }))
        };
        let rows = match tx {
            WriteTransaction::Pg(pg) => {
                // NO KEY UPDATE leaves other processes free to insert rows that refer to these.
                let sql = format!("{sql} WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE");
                let query = sqlx::query::<Postgres>(AssertSqlSafe(sql)).bind(ids);
                let rows = query.fetch_all(&mut **pg).await.map_err(StoreError::doing(DOING))?;
                rows.iter().map(|row| read(Reader::new(name, row))).collect::<Result<_, _>>()?
            }
            WriteTransaction::Sqlite(_) => {
                let sql = format!("{sql} WHERE id IN (SELECT value FROM json_each($1))");
                let ids = Arg::json(&ids)?;
                tx.fetch(DOING, AssertSqlSafe(sql), vec![ids], |row| read(Reader::new(name, row))).await?
            }
        };
        Ok(rows.into_iter().collect())
    }

    /// Turns rows into one array per column.
    fn bind_columns(&self, sql: String, rows: Vec<Row>) -> sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments> {
        let mut columns: Vec<Vec<Arg>> = self.columns.iter().map(|_| Vec::with_capacity(rows.len())).collect();
        for row in rows {
            debug_assert_eq!(row.len(), self.columns.len(), "a row of {} has the wrong width", self.name);
            for (column, arg) in columns.iter_mut().zip(row) {
                column.push(arg);
            }
        }
        let mut query = sqlx::query::<Postgres>(AssertSqlSafe(sql));
        for ((_, kind), column) in self.columns.iter().zip(columns) {
            query = match kind {
                Kind::Text => query.bind(column.into_iter().map(Arg::into_text).collect::<Vec<_>>()),
                Kind::Int => query.bind(column.into_iter().map(Arg::into_int).collect::<Vec<_>>()),
                Kind::Bytes => query.bind(column.into_iter().map(Arg::into_bytes).collect::<Vec<_>>()),
            };
        }
        query
    }
}

impl Arg {
    fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => text,
            Self::Int(_) | Self::Bytes(_) => None,
        }
    }

    fn into_int(self) -> Option<i64> {
        match self {
            Self::Int(int) => int,
            Self::Text(_) | Self::Bytes(_) => None,
        }
    }

    fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Text(_) | Self::Int(_) => None,
        }
    }
}

/// `($1, $2), ($3, $4)` for 2 rows of 2.
fn placeholders(rows: usize, width: usize) -> String {
    let row = |row: usize| {
        let cells = (1..=width).map(|cell| format!("${}", row * width + cell)).collect::<Vec<_>>();
        format!("({})", cells.join(", "))
    };
    (0..rows).map(row).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn placeholders_count_through_all_rows() {
        assert_eq!(super::placeholders(2, 2), "($1, $2), ($3, $4)");
        assert_eq!(super::placeholders(1, 3), "($1, $2, $3)");
    }
}
