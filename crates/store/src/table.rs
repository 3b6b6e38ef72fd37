//! Tables: their columns and rows, and how rows are locked before a decision changes them.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Postgres};

use crate::db::{Arg, Reader, WriteTransaction};
use crate::error::StoreError;

/// The type of a column.
#[derive(Clone, Copy)]
pub(crate) enum ColumnKind {
    Text,
    Int,
    Bytes,
    /// A number that the database assigns.
    IntOfDatabase,
}

impl ColumnKind {
    /// Returns whether rows contain a value for this column.
    pub(crate) fn is_written(self) -> bool {
        match self {
            Self::Text | Self::Int | Self::Bytes => true,
            Self::IntOfDatabase => false,
        }
    }
}

/// A table and those of its columns that this version knows. All names come from this crate.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The PostgreSQL type of its rows, which has the written columns in this order. The table's own row type would change under
    /// a running server as soon as a newer server adds a column.
    pub(crate) row_type: &'static str,
    pub(crate) columns: &'static [(&'static str, ColumnKind)],
}

/// Declares a module's table: `TABLE`, and the names of its columns as `COLUMNS` for queries that read whole rows. A prepared
/// `SELECT *` would fail when a newer server adds a column.
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

/// One row to write, in the order of the table's written columns.
pub(crate) type Row = Vec<Arg>;

impl Table {
    /// Returns the written columns.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&'static str, ColumnKind)> {
        self.columns.iter().copied().filter(|(_, kind)| kind.is_written())
    }

    /// Returns the number of written columns.
    pub(crate) fn width(&self) -> usize {
        self.written().count()
    }

    /// Returns the names of the written columns, as a list.
    pub(crate) fn names(&self) -> String {
        self.written().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }

    /// Returns `column = new.column` for every column except the id and the version.
    pub(crate) fn assignments(&self) -> String {
        self.written().skip(2).map(|(column, _)| format!("{column} = new.{column}")).collect::<Vec<_>>().join(", ")
    }

    /// Locks the rows with these ids until the end of the transaction and returns their versions.
    pub(crate) async fn lock(
        &self,
        tx: &mut WriteTransaction<'_>,
        mut ids: Vec<String>,
    ) -> Result<HashMap<String, i64>, StoreError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        const DOING: &str = "lock the rows of a decision";
        // Every process locks in the same order, so that two of them never deadlock.
        ids.sort_unstable();
        let name = self.name;
        let sql = format!("SELECT id, version FROM {name}");
        let read = |reader: Reader<'_>| Ok::<_, StoreError>((reader.text("id")?, reader.int("version")?));
        let rows = match tx {
            WriteTransaction::Pg(pg) => {
                // With NO KEY UPDATE, other processes can still insert rows that refer to these.
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
    /// Returns the text, if it is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.as_deref(),
            Self::Int(_) | Self::Bytes(_) => None,
        }
    }

    /// Returns the number, if it is one.
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => *int,
            Self::Text(_) | Self::Bytes(_) => None,
        }
    }

    /// Returns the bytes, if there are any.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => bytes.as_deref(),
            Self::Text(_) | Self::Int(_) => None,
        }
    }
}
