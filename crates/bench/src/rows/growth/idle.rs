//! The load of idle agents on the database, which must be zero.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

use crate::cluster::Cluster;
use crate::links::Links;
use crate::measure::{Goal, Row, count, number};
use crate::report::progress;
use crate::rows::durable::create_database;
use crate::{Result, Setup};

/// Returns the number of transactions that PostgreSQL has counted for a database.
async fn transactions(url: &str) -> Result<f64> {
    let (before, name) = url.rsplit_once('/').ok_or("the address has no database")?;
    let mut connection = PgConnection::connect(&format!("{before}/postgres")).await?;
    let sql = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = $1";
    let counted: f64 = sqlx::query_scalar(sql).bind(name).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(counted)
}

pub(crate) async fn run(setup: &Setup) -> Result<Vec<Row>> {
    let path = "database queries per idle agent";
    let goal = Goal::AtMost(0.001);
    let Some(server) = &setup.postgres_disk else { return Ok(vec![Row::skipped(path, "", goal, "there is no PostgreSQL")]) };
    let url = create_database(server, "growth_idle").await?;
    let cluster = Cluster::start(setup, "growth-idle", Some(&url)).await?;
    let agents = if setup.quick { 200 } else { 1000 };
    let hosts = Arc::new(cluster.enroll(agents).await?);
    let watch = Duration::from_secs(30);
    let per_second = async || {
        // PostgreSQL reports the counts of a session up to 10 s late. Waits until earlier transactions are included.
        tokio::time::sleep(Duration::from_secs(13)).await;
        let (before, started) = (transactions(&url).await?, Instant::now());
        tokio::time::sleep(watch).await;
        Result::<f64>::Ok((transactions(&url).await? - before) / started.elapsed().as_secs_f64())
    };
    progress("without agents");
    let without = per_second().await?;
    let mut links = Links::open_all(&hosts, cluster.link).await?;
    progress(format_args!("with {agents} agents"));
    let with = per_second().await?;
    if links.alive() != agents {
        return Err(format!("{} of {agents} links are still open", links.alive()).into());
    }
    drop(links);
    cluster.server.stop().await?;
    let note = format!("{} a second without agents, {} with {agents}", number(without), number(with));
    Ok(vec![Row::alone(path, "1/s", (with - without).max(0.0) / count(agents), goal, note)])
}
