//! Errors of the store.

use std::path::PathBuf;
use std::sync::Arc;

/// An error of the store. Cheap to clone, because every waiter of a failed group of commits receives it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The database address is of neither kind.
    #[error("the database address must be `sqlite:PATH` or `postgres://USER@HOST/NAME`: {what}")]
    BadAddress {
        /// What is wrong with the address, without repeating it: it may contain a password.
        what: String,
    },
    /// Another server has this SQLite file open.
    #[error(
        "{} is in use by another process; stop it, or use PostgreSQL to run several servers on one database",
        path.display()
    )]
    InUse {
        /// The database file.
        path: PathBuf,
    },
    /// A file could not be created or opened.
    #[error("cannot open {}; check that its folder exists and may be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The database was written by a newer program.
    #[error("the database has schema {found}, this program supports schema {known}; run a newer gpuaas, or restore a backup")]
    SchemaNewer {
        /// The schema version of the database.
        found: i64,
        /// The schema version of this program.
        known: i64,
    },
    /// An applied migration differs from this program's migration.
    #[error("schema {version} of the database was made by another build of gpuaas (checksums differ); run that build instead")]
    SchemaOther {
        /// The version of the migration.
        version: i64,
    },
    /// The database refused, or could not be reached.
    #[error("the database failed to {doing}")]
    Database {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the database.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A stored value that this program cannot have written.
    #[error("column {column} of table {table} holds a value that is not valid ({what}); restore the database from a backup")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// A decision that cannot be written: a bug in the code that created it.
    #[error("the decision cannot be written: {what}")]
    BadDecision {
        /// What is wrong with it.
        what: String,
    },
    /// The store was closed.
    #[error("the store is closed; the server is shutting down")]
    Closed,
}

impl StoreError {
    /// Whether there is no connection to the database: it is down, or not where it is looked for.
    pub fn is_unreachable(&self) -> bool {
        let Self::Database { source, .. } = self else { return false };
        matches!(**source, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut)
    }

    /// Creates an error for `map_err`: the database failed while doing this.
    pub(crate) fn doing(doing: &'static str) -> impl Fn(sqlx::Error) -> Self {
        move |source| Self::Database { doing, source: Arc::new(source) }
    }
}

/// Why a decision was not committed. Nothing of it was written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Another writer was faster: a row has another version, or an id or key exists already. Load and decide again.
    #[error("the resource was changed by another request; load it and decide again")]
    Conflict,
    /// The store failed. If the connection broke during the commit itself, the outcome is unknown. Deciding again is safe,
    /// because decisions are conditional on versions.
    #[error(transparent)]
    Store(#[from] StoreError),
}
