//! A cluster like a provider's: nodes with slots, a catalog, and tenants with their own keys.
//!
//! The nodes are simulated and answer immediately. Tenants use the API, each with several service accounts, because the requests of one
//! account are rate-limited.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use gpuaas_api::dto::{
    Allocation, AllocationCreate, AllocationListQuery, ApiKeyCreate, ImageCreate, Limits, OrganizationCreate, ProductKind,
    ProjectCreate, ServiceAccountCreate, SkuCreate, TaskCreate, TopologyApprove,
};
use gpuaas_api::{Client, ClientError, ClientOptions};
use gpuaas_contract::Digest;
use gpuaas_contract::access::ProjectRole;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::money::{Currency, Money};
use tokio::sync::mpsc;

use crate::answers::SLOTS;
use crate::cluster::{Cluster, Host};
use crate::links::Links;
use crate::report::progress;
use crate::worker::Done;
use crate::{Result, Setup};

/// Maximum wait for anything that should be fast.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of concurrent requests while the site is prepared.
const TOGETHER: usize = 16;
/// Number of accounts per tenant. Each may send 600 changes and 3,000 reads per minute.
const ACCOUNTS: usize = 4;
/// Maximum number of attempts for one request, when it conflicts with others.
const AGAIN: usize = 100;
/// Items per page when many are read.
const PAGE: u32 = 500;
const SSH_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHKEEv6ijKqyQ2vQ6nA1WbKOL3vVv1YxmgG1bbbLW2uV";

/// A running site. Its links close when this is dropped.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) hosts: Arc<Vec<Host>>,
    links: Links,
    done: mpsc::UnboundedReceiver<Done>,
    pub(crate) tenants: Vec<Tenant>,
}

/// An organization with one project.
pub(crate) struct Tenant {
    pub(crate) project: String,
    accounts: Vec<Account>,
    next: AtomicUsize,
    contended: AtomicUsize,
}

/// A service account and its API key.
pub(crate) struct Account {
    pub(crate) client: Client,
    pub(crate) key: String,
}

/// Returns a request for a guest on one slot, with a unique name: no two live allocations of a project may have the same name.
fn wanted() -> Result<AllocationCreate> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Ok(AllocationCreate {
        name: format!("bench-{}", NEXT.fetch_add(1, Ordering::Relaxed)).parse()?,
        sku: "one".to_owned(),
        image: Some("ubuntu".to_owned()),
        ssh_keys: Vec::new(),
        ssh_public_keys: vec![SSH_KEY.parse()?],
        username: None,
        tags: [("team".to_owned(), "bench".to_owned())].into(),
        lease_seconds: None,
        wait_seconds: None,
        spread: false,
        sudo: false,
        graceful_timeout_seconds: None,
        dry_run: false,
    })
}

impl Tenant {
    /// Returns the accounts in turn.
    pub(crate) fn account(&self) -> &Account {
        &self.accounts[self.next.fetch_add(1, Ordering::Relaxed) % self.accounts.len()]
    }

    /// Requests a guest on one slot.
    pub(crate) async fn create(&self) -> Result<AllocationId> {
        let wanted = wanted()?;
        for _ in 0..AGAIN {
            let answer = self.account().client.allocation_create(&self.project, &wanted, None).await;
            if !self.is_contended(&answer) {
                return Ok(answer?.id);
            }
        }
        Err(format!("others were faster {AGAIN} times in a row").into())
    }

    /// Releases a guest.
    pub(crate) async fn release(&self, id: AllocationId) -> Result<()> {
        let id = id.to_string();
        for _ in 0..AGAIN {
            let answer = self.account().client.allocation_release(&id, &Default::default()).await;
            if !self.is_contended(&answer) {
                return Ok(answer.map(drop)?);
            }
        }
        Err(format!("others were faster {AGAIN} times in a row").into())
    }

    /// Returns whether the server reports a conflict with concurrent requests, so that the request must be retried. Counts such conflicts.
    fn is_contended(&self, answer: &Result<Allocation, ClientError>) -> bool {
        let problem = answer.as_ref().err().and_then(ClientError::problem);
        let contended = problem.is_some_and(|problem| problem.code == "contended");
        self.contended.fetch_add(usize::from(contended), Ordering::Relaxed);
        contended
    }

    /// Returns the number of conflicts so far.
    pub(crate) fn contended(&self) -> usize {
        self.contended.load(Ordering::Relaxed)
    }

    /// Waits until all of these allocations are in this state, and returns them in the same order. They must be the tenant's newest ones.
    pub(crate) async fn until(&self, ids: &[AllocationId], state: &str) -> Result<Vec<Allocation>> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let found = self.newest(ids).await?;
            let there = |id: &AllocationId| found.get(id).filter(|allocation| allocation.state.as_str() == state).cloned();
            if let Some(all) = ids.iter().map(there).collect::<Option<Vec<_>>>() {
                return Ok(all);
            }
            if let Some(failed) = found.values().find(|one| matches!(one.state.as_str(), "failed" | "release_blocked")) {
                return Err(format!("{} is {}: {:?}", failed.id, failed.state, failed.detail).into());
            }
            if tokio::time::Instant::now() > deadline {
                let others = ids.iter().filter(|id| there(id).is_none()).count();
                return Err(format!("{others} of {} allocations are not {state} after two minutes", ids.len()).into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn newest(&self, ids: &[AllocationId]) -> Result<HashMap<AllocationId, Allocation>> {
        let mut found = HashMap::new();
        let mut query = AllocationListQuery { newest_first: Some(true), limit: Some(PAGE), ..AllocationListQuery::default() };
        while found.len() < ids.len() {
            let page = self.account().client.project_allocations(&self.project, &query).await?;
            found.extend(page.items.into_iter().filter(|one| ids.contains(&one.id)).map(|one| (one.id, one)));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        Ok(found)
    }
}

impl Site {
    /// Starts the server on this store or, if `None`, on SQLite. Enrolls the nodes, creates their slots, and creates the tenants.
    pub(crate) async fn open(setup: &Setup, name: &str, store: Option<&str>, nodes: usize, tenants: usize) -> Result<Self> {
        let cluster = Cluster::start(setup, name, store).await?;
        let hosts = Arc::new(cluster.enroll(nodes).await?);
        // Restarts the server: one that has run for long has no memory left over from the enrollment.
        let cluster = cluster.restart(setup, name, store).await?;
        let (mut links, done) = Links::none(&hosts, cluster.link);
        links.open(0..nodes).await?;
        let mut site = Self { cluster, hosts, links, done, tenants: Vec::new() };
        progress(format_args!("making {} slots on {nodes} nodes", nodes * usize::try_from(SLOTS)?));
        site.make_slots().await?;
        site.make_catalog().await?;
        site.tenants = try_join_all((0..tenants).map(|number| site.tenant(number))).await?;
        // A dry run before the measurement, because the server builds its view of the fleet at the first placement.
        let first = site.tenants.first().ok_or("a site without tenants")?;
        let plan = first.account().client.allocation_plan(&first.project, &wanted()?).await?;
        if plan.fits { Ok(site) } else { Err(format!("nothing fits: {:?}", plan.reason).into()) }
    }

    async fn make_slots(&mut self) -> Result<()> {
        let client = &self.cluster.client;
        let nodes: Vec<String> = self.hosts.iter().map(|host| host.grant.node_id.to_string()).collect();
        let looks = nodes.iter().map(|node| async move {
            let look = TaskCreate {
                node: node.clone(),
                task_type: "slice.topology_discover".to_owned(),
                params: serde_json::json!({}),
                queue_seconds: None,
                timeout_seconds: None,
            };
            Result::<_>::Ok((node, client.task_create(&look, None).await?.id))
        });
        let looks: Vec<_> = futures::stream::iter(looks).buffer_unordered(TOGETHER).try_collect().await?;
        until_done(&mut self.done, nodes.len()).await?;
        let approvals = looks.into_iter().map(|(node, task_id)| async move {
            let slots = client.node_topology_approve(node, &TopologyApprove { task_id, slots: None }).await?.items;
            if slots.len() == usize::try_from(SLOTS)? { Ok(()) } else { Err("a node has not all of its slots".into()) }
        });
        futures::stream::iter(approvals).buffer_unordered(TOGETHER).try_collect::<Vec<()>>().await.map(drop)
    }

    async fn make_catalog(&self) -> Result<()> {
        let sku = SkuCreate {
            name: "one".to_owned(),
            description: String::new(),
            kind: ProductKind::Slice,
            slots: Some(1),
            gpu_model: None,
            allow_unknown_gpu: false,
            min_vcpus: 0,
            min_memory_mib: 0,
            price_per_hour: Money::of_millionths(2_500_000, Currency::USD),
        };
        self.cluster.client.sku_create(&sku, None).await?;
        let image = ImageCreate {
            name: "ubuntu".to_owned(),
            description: String::new(),
            url: None,
            path: Some("ubuntu.qcow2".to_owned()),
            sha256: Digest::of(b"image"),
            format: Default::default(),
            driver_strategy: Default::default(),
            default_username: None,
        };
        self.cluster.client.image_create(&image, None).await?;
        Ok(())
    }

    async fn tenant(&self, number: usize) -> Result<Tenant> {
        let (client, name) = (&self.cluster.client, format!("tenant-{number}"));
        let (description, limits, owner_email) = (String::new(), Limits::default(), None);
        let wanted = OrganizationCreate { name: name.clone(), description, limits, owner_email };
        let organization = client.organization_create(&wanted, None).await?.id.to_string();
        let wanted = ProjectCreate { name, description: String::new(), limits, owner_email: None };
        let project = client.project_create(&organization, &wanted, None).await?.id.to_string();
        let mut accounts = Vec::new();
        for number in 0..ACCOUNTS {
            let wanted = ServiceAccountCreate {
                name: format!("account-{number}"),
                description: String::new(),
                role: Some(ProjectRole::Member),
            };
            let account = client.service_account_create(&project, &wanted, None).await?.id.to_string();
            let wanted = ApiKeyCreate { name: "bench".to_owned(), scopes: None, life_seconds: None };
            let key = client.api_key_create(&project, &account, &wanted, None).await?.secret;
            let mut options = ClientOptions::new(self.cluster.api_url());
            options.token = Some(key.clone());
            accounts.push(Account { client: Client::new(options)?, key });
        }
        Ok(Tenant { project, accounts, next: AtomicUsize::new(0), contended: AtomicUsize::new(0) })
    }

    /// Closes the links and stops the server.
    pub(crate) async fn close(self) -> Result<()> {
        drop(self.links);
        self.cluster.server.stop().await
    }

    /// Forgets the tasks that are done so far.
    pub(crate) fn forget_done(&mut self) {
        while self.done.try_recv().is_ok() {}
    }

    /// Waits until this many more tasks are done.
    pub(crate) async fn until_done(&mut self, tasks: usize) -> Result<Vec<Done>> {
        until_done(&mut self.done, tasks).await
    }

    /// Returns an error if a link was lost, because the measurement is then invalid.
    pub(crate) fn check(&mut self) -> Result<()> {
        let alive = self.links.alive();
        if alive == self.hosts.len() {
            Ok(())
        } else {
            Err(format!("{alive} of {} links are still open", self.hosts.len()).into())
        }
    }
}

async fn until_done(done: &mut mpsc::UnboundedReceiver<Done>, tasks: usize) -> Result<Vec<Done>> {
    let mut ended = Vec::with_capacity(tasks);
    while ended.len() < tasks {
        let next = tokio::time::timeout(PATIENCE, done.recv()).await;
        let next = next.map_err(|_| format!("{} of {tasks} tasks have a receipt after two minutes", ended.len()))?;
        ended.push(next.ok_or("all links are gone")?);
    }
    Ok(ended)
}
