//! Migrates the schema. Each engine has its own scripts with the same version numbers.

use gpuaas_contract::Digest;
use gpuaas_contract::id::ClusterId;
use gpuaas_contract::time::Timestamp;

use crate::db::{Arg, Db, Reader, WriteConnection, WriteTransaction};
use crate::error::StoreError;

struct Migration {
    version: i64,
    /// The oldest version whose servers keep working with this schema. For a migration that only adds, this is the previous
    /// version or an older one: servers are replaced one by one. For a migration that removes something the previous version
    /// uses, this is its own version, and the upgrade needs a stop.
    runs_with: i64,
    sqlite: &'static str,
    postgres: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        runs_with: 1,
        sqlite: include_str!("../migrations/sqlite/0001_initial.sql"),
        postgres: include_str!("../migrations/postgres/0001_initial.sql"),
    },
    Migration {
        version: 2,
        runs_with: 2,
        sqlite: include_str!("../migrations/sqlite/0002_slots.sql"),
        postgres: include_str!("../migrations/postgres/0002_slots.sql"),
    },
    Migration {
        version: 3,
        runs_with: 3,
        sqlite: include_str!("../migrations/sqlite/0003_leases.sql"),
        postgres: include_str!("../migrations/postgres/0003_leases.sql"),
    },
    Migration {
        version: 4,
        runs_with: 4,
        sqlite: include_str!("../migrations/sqlite/0004_resources.sql"),
        postgres: include_str!("../migrations/postgres/0004_resources.sql"),
    },
    Migration {
        version: 5,
        runs_with: 5,
        sqlite: include_str!("../migrations/sqlite/0005_outbox_waiting.sql"),
        postgres: include_str!("../migrations/postgres/0005_outbox_waiting.sql"),
    },
    Migration {
        version: 6,
        runs_with: 6,
        sqlite: include_str!("../migrations/sqlite/0006_strangers.sql"),
        postgres: include_str!("../migrations/postgres/0006_strangers.sql"),
    },
    Migration {
        version: 7,
        runs_with: 7,
        sqlite: include_str!("../migrations/sqlite/0007_replace_node.sql"),
        postgres: include_str!("../migrations/postgres/0007_replace_node.sql"),
    },
    Migration {
        version: 8,
        runs_with: 8,
        sqlite: include_str!("../migrations/sqlite/0008_row_types.sql"),
        postgres: include_str!("../migrations/postgres/0008_row_types.sql"),
    },
    Migration {
        version: 9,
        runs_with: 8,
        sqlite: include_str!("../migrations/sqlite/0009_key_makers.sql"),
        postgres: include_str!("../migrations/postgres/0009_key_makers.sql"),
    },
    Migration {
        version: 10,
        runs_with: 8,
        sqlite: include_str!("../migrations/sqlite/0010_join_token_uses.sql"),
        postgres: include_str!("../migrations/postgres/0010_join_token_uses.sql"),
    },
];

/// An arbitrary number that nothing else locks in our database.
const PG_LOCK: &str = "SELECT pg_advisory_xact_lock(7305808869231650401)";
const VERSIONS_SQLITE: &str = "CREATE TABLE IF NOT EXISTS schema_version \
     (version INTEGER NOT NULL PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL, runs_with INTEGER NOT NULL) STRICT";
const VERSIONS_PG: &str = "CREATE TABLE IF NOT EXISTS schema_version \
     (version BIGINT NOT NULL PRIMARY KEY, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL, runs_with BIGINT NOT NULL)";

/// Applies the missing migrations in one transaction and returns the cluster's id, which is generated on the first start.
pub(crate) async fn migrate(db: &Db) -> Result<ClusterId, StoreError> {
    const DOING: &str = "bring its schema up to date";
    let mut connection = db.connect().await.map_err(StoreError::doing("accept a connection"))?;
    let cluster = {
        let mut tx = connection.begin().await.map_err(StoreError::doing(DOING))?;
        let versions = match &tx {
            WriteTransaction::Sqlite(_) => VERSIONS_SQLITE,
            WriteTransaction::Pg(_) => {
                // Servers that start at the same time migrate one after the other.
                tx.execute_script(PG_LOCK).await.map_err(StoreError::doing(DOING))?;
                VERSIONS_PG
            }
        };
        tx.execute_script(versions).await.map_err(StoreError::doing(DOING))?;
        apply_missing(&mut tx).await?;
        let cluster = cluster_id(&mut tx).await?;
        tx.commit().await.map_err(StoreError::doing(DOING))?;
        cluster
    };
    close(connection).await;
    Ok(cluster)
}

async fn apply_missing(tx: &mut WriteTransaction<'_>) -> Result<(), StoreError> {
    const DOING: &str = "bring its schema up to date";
    let sql = "SELECT version, checksum, runs_with FROM schema_version ORDER BY version";
    let applied = tx.fetch(DOING, sql, Vec::new(), |row| {
        let row = Reader::new("schema_version", row);
        Ok::<_, StoreError>((row.int("version")?, row.text("checksum")?, row.int("runs_with")?))
    });
    let applied = applied.await?;
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    if let Some((found, ..)) = applied.iter().find(|(version, _, runs_with)| *version > known && *runs_with > known) {
        return Err(StoreError::SchemaNewer { found: *found, known });
    }
    for Migration { version, runs_with, sqlite, postgres } in MIGRATIONS {
        let sql: &'static str = match tx {
            WriteTransaction::Sqlite(_) => sqlite,
            WriteTransaction::Pg(_) => postgres,
        };
        let checksum = Digest::of(sql.as_bytes());
        match applied.iter().find(|(applied, ..)| applied == version) {
            Some((_, stored, _)) if stored == checksum.as_str() => {}
            Some(_) => return Err(StoreError::SchemaOther { version: *version }),
            None => {
                tx.execute_script(sql).await.map_err(StoreError::doing(DOING))?;
                let args =
                    vec![Arg::Int(Some(*version)), Arg::id(checksum), Arg::time(Timestamp::now()), Arg::Int(Some(*runs_with))];
                let insert = "INSERT INTO schema_version (version, checksum, applied_at, runs_with) VALUES ($1, $2, $3, $4)";
                tx.execute(insert, args).await.map_err(StoreError::doing(DOING))?;
                tracing::info!(version, "database schema applied");
            }
        }
    }
    Ok(())
}

async fn cluster_id(tx: &mut WriteTransaction<'_>) -> Result<ClusterId, StoreError> {
    const DOING: &str = "keep the cluster's id";
    let insert = "INSERT INTO meta (name, value) VALUES ('cluster_id', $1) ON CONFLICT (name) DO NOTHING";
    tx.execute(insert, vec![Arg::id(ClusterId::generate())]).await.map_err(StoreError::doing(DOING))?;
    let sql = "SELECT value FROM meta WHERE name = 'cluster_id'";
    let found = tx.fetch(DOING, sql, Vec::new(), |row| Reader::new("meta", row).parsed("value")).await?;
    found.into_iter().next().ok_or_else(|| StoreError::Corrupt {
        table: "meta",
        column: "value",
        what: "the cluster's id is missing".to_owned(),
    })
}

async fn close(connection: WriteConnection) {
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "closing a connection failed");
    }
}
