//! Reads over the API with a large store: one allocation, a page of a project's allocations, a page of nodes.
//!
//! The peer is axum in a separate process that responds with the same bytes as the server, and does nothing else. It shows the cost of
//! HTTP alone for a response of that size, on this machine, with this client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, try_join_all};
use gpuaas_api::dto::{AllocationListQuery, NodeListQuery};
use gpuaas_api::routes;

use crate::child::{self, Companion};
use crate::measure::{Effort, Goal, Quantile, Round, Row, Side, count, interleave};
use crate::report::progress;
use crate::rows::allocations::stores;
use crate::site::Site;
use crate::times::{Schedule, TimeUnit, Times};
use crate::{Result, Setup};

const NODES: usize = 1000;
/// Number of active allocations of all tenants together.
const ALLOCATIONS: usize = 5000;
/// The same, with `--quick`.
const FEWER_ALLOCATIONS: usize = 1000;
const TENANTS: usize = 16;
/// Items per page.
const PAGE: u32 = 50;
/// Calls per second while the machine is mostly idle.
const PER_SECOND: u32 = 100;
/// Number of clients at full speed. Each waits for a response before it sends the next request.
const CLIENTS: usize = 8;
/// The index distance between two consecutive requests: a prime, so that all are used and consecutive ones are not neighbors in the
/// store.
const STRIDE: usize = 379;

#[derive(Clone)]
struct Ask {
    url: String,
    key: String,
}

/// Sends one request of a list after the other.
struct Reading {
    name: &'static str,
    http: reqwest::Client,
    asks: Vec<Ask>,
    turn: AtomicUsize,
}

impl Reading {
    fn new(name: &'static str, http: &reqwest::Client, asks: Vec<Ask>) -> Self {
        Self { name, http: http.clone(), asks, turn: AtomicUsize::new(0) }
    }

    /// Sends one request and reads the whole response.
    async fn once(&self) -> Result<usize> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let Ask { url, key } = &self.asks[turn.wrapping_mul(STRIDE) % self.asks.len()];
        let answer = self.http.get(url).bearer_auth(key).send().await?;
        if !answer.status().is_success() {
            return Err(format!("{url}: {} {}", answer.status(), answer.text().await?).into());
        }
        Ok(answer.bytes().await?.len())
    }

    /// Sends requests at fixed times, whatever the result of earlier ones.
    async fn paced(&self, time: Duration) -> Result<Times> {
        let schedule = Schedule::new(Duration::from_secs(1) / PER_SECOND, time)?;
        let took = try_join_all((0..schedule.calls()).map(|number| async move {
            let begin = schedule.wait(number).await;
            self.once().await?;
            Result::<Duration>::Ok(begin.at.elapsed())
        }));
        let mut times = Times::new()?;
        took.await?.into_iter().try_for_each(|took| times.record(took))?;
        Ok(times)
    }

    /// Sends requests as fast as the clients can.
    async fn at_full_speed(&self, time: Duration) -> Result<(f64, Times)> {
        let begun = Instant::now();
        let clients = try_join_all((0..CLIENTS).map(|_| async {
            let mut times = Times::new()?;
            while begun.elapsed() < time {
                let at = Instant::now();
                self.once().await?;
                times.record(at.elapsed())?;
            }
            Result::<Times>::Ok(times)
        }))
        .await?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut times = Times::new()?;
        clients.iter().try_for_each(|client| times.merge(client))?;
        Ok((count(usize::try_from(times.len())?) / seconds, times))
    }
}

impl Side for Reading {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let paced = self.paced(time / 2).await?;
            let (per_second, full) = self.at_full_speed(time / 2).await?;
            Ok(Round { values: vec![per_second], times: vec![paced, full] })
        })
    }
}

/// A kind of read: its description, and all its requests.
struct Read {
    what: &'static str,
    file: &'static str,
    asks: Vec<Ask>,
}

/// Fills the store through the API, like tenants.
async fn fill(site: &mut Site, allocations: usize) -> Result<Vec<Read>> {
    progress(format_args!("making {allocations} allocations"));
    site.forget_done();
    let each = allocations / site.tenants.len();
    let made = try_join_all(site.tenants.iter().map(|tenant| async move {
        let mut ids = Vec::with_capacity(each);
        for _ in 0..each {
            ids.push(tenant.create().await?);
        }
        Result::<_>::Ok(ids)
    }))
    .await?;
    site.until_done(each * made.len()).await?;
    let base = site.cluster.api_url();
    let path = |route: &str, values: &[&str]| -> Result<String> {
        Ok(format!("{base}{}", routes::fill(route, values).ok_or("a path with a hole")?))
    };
    let (mut one, mut of_project, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    for (tenant, ids) in site.tenants.iter().zip(&made) {
        tenant.until(ids, "active").await?;
        for id in ids {
            one.push(Ask { url: path(routes::ALLOCATION, &[&id.to_string()])?, key: tenant.account().key.clone() });
        }
        let list = path(routes::PROJECT_ALLOCATIONS, &[&tenant.project])?;
        let mut query = AllocationListQuery { limit: Some(PAGE), ..AllocationListQuery::default() };
        loop {
            let page = tenant.account().client.project_allocations(&tenant.project, &query).await?;
            // The last page may be shorter.
            if page.items.len() < usize::try_from(PAGE)? {
                break;
            }
            let after = query.after.as_ref().map_or_else(String::new, |after| format!("&after={after}"));
            // Uses the accounts of the tenant in turn.
            for _ in 0..4 {
                of_project.push(Ask { url: format!("{list}?limit={PAGE}{after}"), key: tenant.account().key.clone() });
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
    }
    let mut query = NodeListQuery { limit: Some(PAGE), ..NodeListQuery::default() };
    let operator = std::fs::read_to_string(site.cluster.data.join("admin-token"))?.trim().to_owned();
    loop {
        let after = query.after.as_ref().map_or_else(String::new, |after| format!("&after={after}"));
        nodes.push(Ask { url: format!("{}?limit={PAGE}{after}", path(routes::NODES, &[])?), key: operator.clone() });
        match site.cluster.client.nodes(&query).await?.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    Ok(vec![
        Read { what: "GET an allocation", file: "allocation", asks: one },
        Read { what: "50 allocations of a project", file: "allocations", asks: of_project },
        Read { what: "50 nodes", file: "nodes", asks: nodes },
    ])
}

/// Starts the peer with the current responses of the server.
async fn start_bare(setup: &Setup, http: &reqwest::Client, reads: &[Read], name: &str) -> Result<(Companion, String)> {
    let folder = setup.disk.join(format!("{name}-answers"));
    std::fs::create_dir_all(&folder)?;
    for read in reads {
        let Ask { url, key } = read.asks.first().ok_or("nothing to read")?;
        let answer = http.get(url).bearer_auth(key).send().await?.error_for_status()?.bytes().await?;
        progress(format_args!("{}: {} bytes", read.what, answer.len()));
        std::fs::write(folder.join(read.file), answer)?;
    }
    let mut command = child::command(std::env::current_exe()?, &setup.folder);
    command.arg("bare-http").arg(&folder);
    let mut bare = Companion::start("bare axum", command, &setup.folder)?;
    let address = bare.hear().await?["address"].as_str().ok_or("no address")?.to_owned();
    Ok((bare, format!("http://{address}")))
}

async fn on_store(setup: &Setup, effort: Effort, name: &'static str, store: Option<&str>) -> Result<Vec<Row>> {
    progress(format_args!("on {name}"));
    let folder = format!("reads-{name}").to_lowercase();
    let mut site = Site::open(setup, &folder, store, NODES, TENANTS).await?;
    let allocations = if setup.quick { FEWER_ALLOCATIONS } else { ALLOCATIONS };
    let reads = fill(&mut site, allocations).await?;
    let http = reqwest::Client::builder().tcp_nodelay(true).no_proxy().build()?;
    let (bare, address) = start_bare(setup, &http, &reads, &folder).await?;
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    for Read { file, asks, .. } in &reads {
        let same = asks.iter().map(|ask| Ask { url: format!("{address}/{file}"), key: ask.key.clone() }).collect();
        sides.push(Box::new(Reading::new("gpuaas", &http, asks.clone())));
        sides.push(Box::new(Reading::new("bare axum, same bytes", &http, same)));
    }
    let measured = interleave(&mut sides, effort).await;
    let mut rows = Vec::new();
    for (place, read) in reads.iter().enumerate() {
        let (ours, peer) = (2 * place, 2 * place + 1);
        let path = |how: &str| format!("{}, {how}, {name}", read.what);
        let time = |how: &str, metric, share| {
            let quantile = Quantile { metric, share, unit: TimeUnit::Milliseconds };
            measured.time_row(&path(how), ours, peer, quantile, Goal::Open)
        };
        rows.push(time(&format!("{PER_SECOND}/s, p50"), 0, 0.5));
        rows.push(time(&format!("{PER_SECOND}/s, p99"), 0, 0.99));
        rows.push(measured.row(&path(&format!("{CLIENTS} clients")), "1/s", ours, peer, 0, Goal::Open));
        rows.push(time(&format!("{CLIENTS} clients, p50"), 1, 0.5));
        rows.push(time(&format!("{CLIENTS} clients, p99"), 1, 0.99));
    }
    drop(bare);
    site.check()?;
    site.close().await?;
    Ok(rows)
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    child::check_descriptor_limit(NODES)?;
    let mut rows = Vec::new();
    for (name, store) in stores(setup, "reads").await? {
        rows.extend(on_store(setup, effort, name, store.as_deref()).await?);
    }
    Ok(rows)
}
