//! Allocations over the API: from a tenant's request until the guest is active, and from the release request until it is released.
//!
//! The server and its store are real; the 1,000 nodes are simulated and finish tasks immediately. This measures everything that the
//! control plane does around a guest. The peer is the same work without an allocation: pings to the same nodes, requested over the same
//! API, signed, sent over the same links, and answered with a receipt that is stored.
//!
//! Each tenant sends one request after the other. What a tenant holds is counted in rows of that tenant, so callers of the same project
//! would also wait for each other; that is measured separately.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, try_join_all};
use gpuaas_contract::id::{AllocationId, TaskId};
use gpuaas_contract::time::Timestamp;
use tokio::sync::Mutex;

use crate::measure::{Effort, Goal, Quantile, Round, Row, Side, count, interleave};
use crate::report::progress;
use crate::rows::durable::create_database;
use crate::rows::latency::ask_for_ping;
use crate::site::{Site, Tenant};
use crate::times::{Schedule, TimeUnit, Times};
use crate::{Result, Setup};

const NODES: usize = 1000;
/// Number of tenants, each with one caller. One more tenant has the project that is measured separately.
const TENANTS: usize = 16;
/// Number of callers of that project.
const CALLERS_OF_ONE: usize = 4;
/// Allocations per second for the latency measurement, below the capacity of either store.
const PER_SECOND: u32 = 20;
/// Maximum number of allocations per round. All of them become active and are released within the round.
const MOST: usize = 500;
/// Index of the first row about the single project.
const ONE_PROJECT: usize = 3;
/// The index distance between two consecutively used nodes.
const STRIDE: usize = 379;

/// The work of a side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Allocations of many tenants.
    Allocations,
    /// Allocations of one project.
    OneProject,
    /// Pings, without an allocation.
    Tasks,
}

/// One side. All sides use the same site in turn.
struct Load {
    work: Work,
    site: Arc<Mutex<Site>>,
    turn: AtomicUsize,
}

/// Created allocations by tenant, oldest first.
type Made<'t> = Vec<(&'t Tenant, Vec<AllocationId>)>;

impl Load {
    fn new(work: Work, site: &Arc<Mutex<Site>>) -> Self {
        Self { work, site: Arc::clone(site), turn: AtomicUsize::new(0) }
    }

    /// Returns the next node.
    fn node(&self, site: &Site) -> String {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        site.hosts[turn.wrapping_mul(STRIDE) % site.hosts.len()].grant.node_id.to_string()
    }

    async fn allocations(&self, site: &mut Site, time: Duration) -> Result<Round> {
        site.forget_done();
        let tenants = std::mem::take(&mut site.tenants);
        let result = self.allocations_of(site, &tenants, time).await;
        site.tenants = tenants;
        result
    }

    async fn allocations_of(&self, site: &mut Site, tenants: &[Tenant], time: Duration) -> Result<Round> {
        let callers: Vec<&Tenant> = match self.work {
            Work::OneProject => vec![&tenants[TENANTS]; CALLERS_OF_ONE],
            Work::Allocations | Work::Tasks => tenants[..TENANTS].iter().collect(),
        };
        // As fast as the callers can, with one open request each.
        let (begun, begun_at, asked) = (Instant::now(), Timestamp::now(), AtomicUsize::new(0));
        let made = try_join_all(callers.iter().map(|tenant| async {
            let (mut times, mut ids) = (Times::new()?, Vec::new());
            while begun.elapsed() < time && asked.fetch_add(1, Ordering::Relaxed) < MOST {
                let at = Instant::now();
                ids.push(tenant.create().await?);
                times.record(at.elapsed())?;
            }
            Result::<_>::Ok((*tenant, times, ids))
        }))
        .await?;
        let created = begun.elapsed().as_secs_f64();
        let (mut posts, mut all): (Times, Made<'_>) = (Times::new()?, Vec::new());
        for (tenant, times, ids) in made {
            posts.merge(&times)?;
            all.push((tenant, ids));
        }
        let number = count(all.iter().map(|(_, ids)| ids.len()).sum());
        let active_at = active(site, &all).await?.into_iter().max().ok_or("nothing was made")?;
        let (released_from, released_at) = release(site, &all).await?;
        Ok(Round {
            values: vec![
                number / created,
                number / active_at.since(begun_at).as_secs_f64(),
                number / released_at.since(released_from).as_secs_f64(),
            ],
            times: vec![posts],
        })
    }

    async fn tasks(&self, site: &mut Site, time: Duration) -> Result<Round> {
        site.forget_done();
        let begun = Instant::now();
        let asked = try_join_all((0..TENANTS).map(|_| async {
            let (mut times, mut asked) = (Times::new()?, 0);
            while begun.elapsed() < time {
                let at = Instant::now();
                ask_for_ping(&site.cluster.client, &self.node(site)).await?;
                times.record(at.elapsed())?;
                asked += 1;
            }
            Result::<(Times, usize)>::Ok((times, asked))
        }))
        .await?;
        let created = begun.elapsed().as_secs_f64();
        let mut posts = Times::new()?;
        asked.iter().try_for_each(|(times, _)| posts.merge(times))?;
        let number: usize = asked.iter().map(|(_, asked)| asked).sum();
        let last = site.until_done(number).await?.into_iter().map(|done| done.stored).max().ok_or("nothing was asked for")?;
        let per_second = count(number) / last.duration_since(begun).as_secs_f64();
        Ok(Round { values: vec![count(number) / created, per_second, per_second], times: vec![posts] })
    }
}

/// Waits until all allocations are active, and returns when each became active. The API is polled, slowly, only once
/// the nodes are done.
async fn active(site: &mut Site, all: &Made<'_>) -> Result<Vec<Timestamp>> {
    site.until_done(all.iter().map(|(_, ids)| ids.len()).sum()).await?;
    let found = try_join_all(all.iter().map(|(tenant, ids)| tenant.until(ids, "active"))).await?;
    found.into_iter().flatten().map(|one| one.active_at.ok_or_else(|| "active since never".into())).collect()
}

/// Releases all allocations and waits until they are released. Returns the start and the end.
async fn release(site: &mut Site, all: &Made<'_>) -> Result<(Timestamp, Timestamp)> {
    let begun = Timestamp::now();
    try_join_all(all.iter().map(|(tenant, ids)| async move {
        for id in ids {
            tenant.release(*id).await?;
        }
        Result::<()>::Ok(())
    }))
    .await?;
    site.until_done(all.iter().map(|(_, ids)| ids.len()).sum()).await?;
    let found = try_join_all(all.iter().map(|(tenant, ids)| tenant.until(ids, "released"))).await?;
    let ended = found.into_iter().flatten().filter_map(|one| one.ended_at).max();
    Ok((begun, ended.ok_or("released never")?))
}

impl Side for Load {
    fn name(&self) -> String {
        match self.work {
            Work::Allocations => "gpuaas",
            Work::OneProject => "gpuaas, one project",
            Work::Tasks => "bare tasks",
        }
        .to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let site = Arc::clone(&self.site);
            let mut site = site.lock().await;
            let round = match self.work {
                Work::Allocations | Work::OneProject => self.allocations(&mut site, time).await?,
                Work::Tasks => self.tasks(&mut site, time).await?,
            };
            site.check()?;
            Ok(round)
        })
    }
}

/// The same work at a rate that leaves the machine idle in between, to measure the latency of a single request.
struct Paced(Load);

impl Paced {
    async fn allocations(&self, site: &mut Site, schedule: Schedule) -> Result<Round> {
        site.forget_done();
        let tenants = std::mem::take(&mut site.tenants);
        let result = paced_allocations(site, &tenants[..TENANTS], schedule).await;
        site.tenants = tenants;
        result
    }

    async fn tasks(&self, site: &mut Site, schedule: Schedule) -> Result<Round> {
        site.forget_done();
        let asked: Vec<(TaskId, Instant, Duration)> = try_join_all((0..schedule.calls()).map(|number| {
            let site = &*site;
            async move {
                let begin = schedule.wait(number).await;
                let id = ask_for_ping(&site.cluster.client, &self.0.node(site)).await?;
                Result::<_>::Ok((id, begin.at, begin.at.elapsed()))
            }
        }))
        .await?;
        let done = site.until_done(asked.len()).await?;
        let (mut posts, mut ends) = (Times::new()?, Times::new()?);
        for (id, begun, took) in asked {
            posts.record(took)?;
            let end = done.iter().find(|done| done.task == id).ok_or("a task was never done")?;
            ends.record(end.stored.duration_since(begun))?;
        }
        Ok(Round::times(vec![posts, ends]))
    }
}

async fn paced_allocations(site: &mut Site, tenants: &[Tenant], schedule: Schedule) -> Result<Round> {
    let asked = try_join_all((0..schedule.calls()).zip(tenants.iter().cycle()).map(|(number, tenant)| async move {
        let begin = schedule.wait(number).await;
        let id = tenant.create().await?;
        Result::<_>::Ok((tenant, id, begin.wall, begin.at.elapsed()))
    }))
    .await?;
    let mut posts = Times::new()?;
    let (mut all, mut asked_at): (Made<'_>, Vec<Timestamp>) = Default::default();
    for (tenant, id, at, took) in asked {
        posts.record(took)?;
        all.push((tenant, vec![id]));
        asked_at.push(at);
    }
    let mut ends = Times::new()?;
    for (at, from) in active(site, &all).await?.into_iter().zip(asked_at) {
        ends.record(at.since(from))?;
    }
    release(site, &all).await?;
    Ok(Round::times(vec![posts, ends]))
}

impl Side for Paced {
    fn name(&self) -> String {
        self.0.name()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let site = Arc::clone(&self.0.site);
            let mut site = site.lock().await;
            // One second would give too few values for the tail of the distribution.
            let schedule = Schedule::new(Duration::from_secs(1) / PER_SECOND, time.max(Duration::from_secs(4)))?;
            let round = match self.0.work {
                Work::Allocations | Work::OneProject => self.allocations(&mut site, schedule).await?,
                Work::Tasks => self.tasks(&mut site, schedule).await?,
            };
            site.check()?;
            Ok(round)
        })
    }
}

/// Returns the available stores, each with its name and the URL of a fresh database. `None` is SQLite.
pub(crate) async fn stores(setup: &Setup, name: &str) -> Result<Vec<(&'static str, Option<String>)>> {
    let mut stores = vec![("SQLite", None)];
    if let Some(server) = &setup.postgres_disk {
        stores.insert(0, ("PostgreSQL", Some(create_database(server, name).await?)));
    }
    Ok(stores)
}

async fn on_store(setup: &Setup, effort: Effort, name: &'static str, store: Option<&str>) -> Result<Vec<Row>> {
    progress(format_args!("on {name}"));
    let folder = format!("allocations-{name}").to_lowercase();
    let site = Arc::new(Mutex::new(Site::open(setup, &folder, store, NODES, TENANTS + 1).await?));
    let mut sides: Vec<Box<dyn Side>> = vec![
        Box::new(Load::new(Work::Allocations, &site)),
        Box::new(Load::new(Work::Tasks, &site)),
        Box::new(Load::new(Work::OneProject, &site)),
        Box::new(Paced(Load::new(Work::Allocations, &site))),
        Box::new(Paced(Load::new(Work::Tasks, &site))),
    ];
    let (ours, bare, one_project, ours_paced, bare_paced) = (0, 1, 2, 3, 4);
    let measured = interleave(&mut sides, effort).await;
    drop(sides);
    let path = |what: &str| format!("{what}, {NODES} nodes, {name}");
    let rate = |what: &str, side, metric| measured.row(&path(what), "1/s", side, bare, metric, Goal::Open);
    let time = |what: &str, metric, share| {
        let quantile = Quantile { metric, share, unit: TimeUnit::Milliseconds };
        measured.time_row(&path(what), ours_paced, bare_paced, quantile, Goal::Open)
    };
    let full = |share| Quantile { metric: 0, share, unit: TimeUnit::Milliseconds };
    let mut rows = vec![
        rate("allocations created", ours, 0),
        rate("allocations active", ours, 1),
        rate("allocations released", ours, 2),
        rate("allocations active, one project", one_project, 1),
        rate("allocations released, one project", one_project, 2),
        measured.time_row(&path("POST at full speed, p50"), ours, bare, full(0.5), Goal::Open),
        measured.time_row(&path("POST at full speed, p99"), ours, bare, full(0.99), Goal::Open),
        time(&format!("POST at {PER_SECOND}/s, p50"), 0, 0.5),
        time(&format!("POST at {PER_SECOND}/s, p99"), 0, 0.99),
        time(&format!("POST → active at {PER_SECOND}/s, p50"), 1, 0.5),
        time(&format!("POST → active at {PER_SECOND}/s, p99"), 1, 0.99),
    ];
    if let Some(site) = Arc::into_inner(site).map(Mutex::into_inner) {
        let (many, one) = site.tenants.split_at(TENANTS);
        let told = |tenants: &[Tenant]| {
            let times: usize = tenants.iter().map(Tenant::contended).sum();
            format!("{times} requests of all rounds were told that others were faster, and made again")
        };
        // The note goes to the first row of each group.
        for (line, tenants) in [(0, many), (ONE_PROJECT, one)] {
            rows[line].note = told(tenants);
        }
        site.close().await?;
    }
    Ok(rows)
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    crate::child::check_descriptor_limit(NODES)?;
    let mut rows = Vec::new();
    for (name, store) in stores(setup, "allocations").await? {
        rows.extend(on_store(setup, effort, name, store.as_deref()).await?);
    }
    Ok(rows)
}
