//! A fresh PostgreSQL database per test.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// The variable with the URL of a PostgreSQL server in which tests create databases. `cargo xtask test` sets it.
pub const PG_URL_VARIABLE: &str = "GPUAAS_TEST_PG_URL";

/// An empty database. It is dropped together with this value.
#[derive(Debug)]
pub struct PgDatabase {
    server: String,
    name: String,
    url: String,
}

impl PgDatabase {
    /// Returns the URL of the database.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Creates a fresh database. Returns `None` and prints a line if there is no PostgreSQL server.
pub fn pg_database() -> Option<PgDatabase> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let Some(server) = std::env::var(PG_URL_VARIABLE).ok().filter(|url| !url.is_empty()) else {
        let why = format!("{PG_URL_VARIABLE} is not set; run `cargo xtask test`, which starts a private PostgreSQL");
        crate::skip("a test on PostgreSQL", &why);
        return None;
    };
    let name = format!("gpuaas_test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let url = with_database(&server, &name);
    // A killed test may have left a database with the same name.
    execute(&server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).expect("an old test database can be dropped");
    execute(&server, format!("CREATE DATABASE {name} TEMPLATE template0")).expect("a test database can be made");
    Some(PgDatabase { server, name, url })
}

impl Drop for PgDatabase {
    fn drop(&mut self) {
        // FORCE, because pools of the test may still be open.
        if let Err(error) = execute(&self.server, format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)) {
            eprintln!("the test database {} was not dropped: {error}", self.name);
        }
    }
}

/// Runs one statement on its own thread, so that it works inside and outside an async test and in `drop`.
fn execute(url: &str, statement: String) -> Result<(), String> {
    let url = url.to_owned();
    let work = move || -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&url).await.map_err(|error| format!("no connection: {error}"))?;
            let outcome = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await;
            outcome.map_err(|error| error.to_string())?;
            connection.close().await.map_err(|error| error.to_string())
        })
    };
    std::thread::spawn(work).join().unwrap_or_else(|_| Err("the thread panicked".to_owned()))
}

/// Returns `url` with another database and the same options.
fn with_database(url: &str, name: &str) -> String {
    let (location, options) = url.split_once('?').map_or((url, None), |(location, options)| (location, Some(options)));
    let authority = location.find("://").map_or(0, |at| at + 3);
    let end = location[authority..].find('/').map_or(location.len(), |at| authority + at);
    let options = options.map_or_else(String::new, |options| format!("?{options}"));
    format!("{}/{name}{options}", &location[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_the_url_is_replaced() {
        for (given, wanted) in [
            ("postgres://postgres@127.0.0.1:2001/postgres", "postgres://postgres@127.0.0.1:2001/x"),
            ("postgres://postgres@127.0.0.1:2001", "postgres://postgres@127.0.0.1:2001/x"),
            ("postgres://a:b@h/db?sslmode=disable", "postgres://a:b@h/x?sslmode=disable"),
        ] {
            assert_eq!(with_database(given, "x"), wanted);
        }
    }
}
