//! What can go wrong between us and the database.

use std::path::PathBuf;
use std::sync::Arc;

/// Why the store did not do what was asked. Cheap to clone: a failed group of commits tells every waiter.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A database address that is neither of the two kinds.
    #[error("the database address must be `sqlite:PATH` or `postgres://USER@HOST/NAME`: {what}")]
    BadAddress {
        /// What is wrong with it, without repeating it: it may hold a password.
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
    /// A file could not be made or opened.
    #[error("cannot open {}; check that its folder exists and may be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The database was written by a newer program.
    #[error("the database has schema {found}, this program knows schema {known}; run a newer gpuaas, or restore a backup")]
    SchemaNewer {
        /// What the database has.
        found: i64,
        /// What this program has.
        known: i64,
    },
    /// A migration that was applied is not the one this program has.
    #[error("schema {version} of the database was made by another build of gpuaas (checksums differ); run that build instead")]
    SchemaOther {
        /// The migration.
        version: i64,
    },
    /// The database said no, or could not be reached.
    #[error("the database failed to {doing}")]
    Database {
        /// What was tried.
        doing: &'static str,
        /// What it said.
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
    /// A decision that cannot be written as it is: a mistake in the program that made it.
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
    /// For `map_err`: the database failed while doing this.
    pub(crate) fn doing(doing: &'static str) -> impl Fn(sqlx::Error) -> Self {
        move |source| Self::Database { doing, source: Arc::new(source) }
    }
}

/// Why a decision was not committed. Nothing of it was written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Somebody else was faster: a row has another version, or an id or key exists already. Load and decide again.
    #[error("somebody else changed the same thing; load it and decide again")]
    Conflict,
    /// The store failed. If the connection broke during the commit itself the outcome is unknown; deciding again is
    /// safe, because decisions are conditional on versions.
    #[error(transparent)]
    Store(#[from] StoreError),
}
