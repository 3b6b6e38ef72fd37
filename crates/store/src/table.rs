//! Tables: their columns, their rows, and what a row is before a decision changes it.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Postgres};

use crate::db::{Arg, Reader, WriteTransaction};
use crate::error::StoreError;

/// Type of a column.
#[derive(Clone, Copy)]
pub(crate) enum ColumnKind {
    Text,
    Int,
    Bytes,
    /// A number that is not ours to write.
    IntOfDatabase,
}

impl ColumnKind {
    /// Whether rows have a value for it.
    pub(crate) fn is_written(self) -> bool {
        match self {
            Self::Text | Self::Int | Self::Bytes => true,
            Self::IntOfDatabase => false,
        }
    }
}

/// A table and the columns of it that this version knows. Names come from this crate only.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// PostgreSQL gets rows as values of this type, which has the columns that are written, in this order. The table's own row type
    /// would change under a running server as soon as a newer one adds a column.
    pub(crate) row_type: &'static str,
    pub(crate) columns: &'static [(&'static str, ColumnKind)],
}

/// Declares a module's table: `TABLE`, and its columns by name as `COLUMNS`, for what reads whole rows. `SELECT *` would fail on a
/// connection that has prepared it when a newer server adds a column.
macro_rules! table {
    ($name:literal as $row_type:literal { $first:literal: $first_kind:ident $(, $column:literal: $kind:ident)* $(,)? }) => {
        pub(crate) const TABLE: $crate::table::Table = $crate::table::Table {
            name: $name,
            row_type: $row_type,
            columns: &[
                ($first, $crate::table::ColumnKind::$first_kind)
                $(, ($column, $crate::table::ColumnKind::$kind))*
            ],
        };
        #[allow(dead_code, reason = "some tables are never read as a whole")]
        pub(crate) const COLUMNS: &str = concat!($first $(, ", ", $column)*);
    };
}
pub(crate) use table;

/// One row to write, in the order of the table's columns that are written.
pub(crate) type Row = Vec<Arg>;

impl Table {
    /// The columns that are written.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&'static str, ColumnKind)> {
        self.columns.iter().copied().filter(|(_, kind)| kind.is_written())
    }

    /// How many there are.
    pub(crate) fn width(&self) -> usize {
        self.written().count()
    }

    /// Their names, as a list.
    pub(crate) fn names(&self) -> String {
        self.written().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }

    /// `column = new.column` for every one but the id and the version.
    pub(crate) fn assignments(&self) -> String {
        self.written().skip(2).map(|(column, _)| format!("{column} = new.{column}")).collect::<Vec<_>>().join(", ")
    }

    /// Locks the rows with these ids until the end of the transaction and tells their versions.
    pub(crate) async fn lock(
        &self,
        tx: &mut WriteTransaction<'_>,
        mut ids: Vec<String>,
    ) -> Result<HashMap<String, i64>, StoreError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        const DOING: &str = "look at what a decision changes";
        // Every process locks in the same order, so that two of them never wait for each other.
        ids.sort_unstable();
        let name = self.name;
        let sql = format!("SELECT id, version FROM {name}");
        let read = |reader: Reader<'_>| Ok::<_, StoreError>((reader.text("id")?, reader.int("version")?));
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
}

impl Arg {
    /// The text, if it is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.as_deref(),
            Self::Int(_) | Self::Bytes(_) => None,
        }
    }

    /// The number, if it is one.
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => *int,
            Self::Text(_) | Self::Bytes(_) => None,
        }
    }

    /// The bytes, if there are any.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => bytes.as_deref(),
            Self::Text(_) | Self::Int(_) => None,
        }
    }
}
