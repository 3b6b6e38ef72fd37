//! The configuration of the database.

use std::path::PathBuf;

use crate::error::StoreError;

/// Default number of connections that a server opens to PostgreSQL.
pub const DEFAULT_PG_CONNECTIONS: u32 = 12;

/// Which database to use.
#[derive(Clone)]
pub enum StoreConfig {
    /// One file, one server process.
    Sqlite {
        /// The file. Created if it is missing.
        path: PathBuf,
    },
    /// A PostgreSQL server, shared by any number of server processes.
    Postgres {
        /// Its address. It may contain a password: never print it.
        url: String,
        /// Maximum number of connections to open, at least 4: one writes, one listens, one publishes events, the others read.
        max_connections: u32,
    },
}

impl StoreConfig {
    /// Parses `sqlite:PATH` or `postgres://…`.
    pub fn parse(address: &str) -> Result<Self, StoreError> {
        let bad = |what: &str| Err(StoreError::BadAddress { what: what.to_owned() });
        if let Some(path) = address.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.contains(['?', '\0']) || path.starts_with(":memory:") {
                return bad("write the path of a file after `sqlite:`, without options");
            }
            return Ok(Self::Sqlite { path: PathBuf::from(path) });
        }
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            if let Err(error) = address.parse::<sqlx::postgres::PgConnectOptions>() {
                let why = if let sqlx::Error::Configuration(why) = error { why.to_string() } else { error.to_string() };
                let what = format!("the PostgreSQL address does not parse ({why})");
                return Err(StoreError::BadAddress { what });
            }
            return Ok(Self::Postgres { url: address.to_owned(), max_connections: DEFAULT_PG_CONNECTIONS });
        }
        match address.split_once(':') {
            Some((scheme, _)) if scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => bad(&format!("`{scheme}:` is not known")),
            _ => bad("it has no `sqlite:` or `postgres:` in front"),
        }
    }
}

impl std::fmt::Display for StoreConfig {
    /// Shows the location without the password, for log lines.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite { path } => write!(f, "sqlite:{}", path.display()),
            Self::Postgres { url, .. } => match url.parse::<sqlx::postgres::PgConnectOptions>() {
                Ok(options) => {
                    let database = options.get_database().unwrap_or_default();
                    write!(f, "postgres://{}@{}:{}/{database}", options.get_username(), options.get_host(), options.get_port())
                }
                Err(_) => f.write_str("postgres:(address does not parse)"),
            },
        }
    }
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_kinds_of_address_are_understood() {
        for (text, path) in [("sqlite:data/x.db", "data/x.db"), ("sqlite:/var/x.db", "/var/x.db"), ("sqlite:///x.db", "/x.db")] {
            let StoreConfig::Sqlite { path: read } = StoreConfig::parse(text).expect("parses") else {
                panic!("{text} is not SQLite");
            };
            assert_eq!(read, PathBuf::from(path));
        }
        assert!(matches!(StoreConfig::parse("postgres://u:p@h/d"), Ok(StoreConfig::Postgres { .. })));
    }

    #[test]
    fn anything_else_is_refused_with_a_sentence_that_says_what_to_write() {
        for bad in ["", "x.db", "mysql://h/d", "sqlite:", "sqlite::memory:", "sqlite:x.db?mode=ro", "postgres://u:p@h:port/d"] {
            let error = StoreConfig::parse(bad).expect_err(bad).to_string();
            assert!(error.contains("sqlite:PATH"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_password_is_never_shown() {
        let config = StoreConfig::parse("postgres://alice:hunter2@db.example:5433/gpuaas").expect("parses");
        for text in [format!("{config}"), format!("{config:?}")] {
            assert_eq!(text, "postgres://alice@db.example:5433/gpuaas");
        }
        let error = StoreConfig::parse("postgres://alice:hunter2@db.example:port/gpuaas").expect_err("bad port");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
