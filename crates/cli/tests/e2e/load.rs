//! Clients that ask for pings as fast as they are done, and remember every answer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuaas_api::client::{Client, ClientError, ClientOptions};
use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{Task, TaskCreate, TaskListQuery};
use gpuaas_contract::id::TaskId;
use gpuaas_testkit::{PATIENCE, eventually};

use crate::cluster::Cluster;

/// Clients at the same time.
const CLIENTS: usize = 6;
/// Tasks a client leaves open before it waits for the oldest.
const WINDOW: usize = 12;
/// Pause before the same request is sent again.
const RETRY: Duration = Duration::from_millis(25);

/// Load on a cluster until it is ended.
pub(crate) struct Load {
    client: Client,
    shared: Arc<Shared>,
    clients: Vec<tokio::task::JoinHandle<()>>,
    runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Key of the request → the task that the server said it made.
    acknowledged: Mutex<HashMap<String, TaskId>>,
    /// Keys that were sent at all.
    asked: AtomicUsize,
    /// Requests that failed in a way that passes.
    failures: AtomicUsize,
}

/// What was asked of the server and what it said.
pub(crate) struct Asked {
    pub(crate) acknowledged: HashMap<String, TaskId>,
    pub(crate) asked: usize,
    pub(crate) failures: usize,
}

impl Load {
    /// Starts asking for pings on these nodes.
    pub(crate) fn start(cluster: &Cluster, nodes: &[String]) -> Self {
        let token = std::fs::read_to_string(cluster.admin_token_file()).unwrap();
        let options = ClientOptions { token: Some(token), timeout: Duration::from_secs(20), ..ClientOptions::new(cluster.url()) };
        let client = Client::new(options).unwrap();
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let clients = (0..CLIENTS)
            .map(|number| {
                let node = nodes[number % nodes.len()].clone();
                runtime.spawn(ask(client.clone(), Arc::clone(&shared), node, number))
            })
            .collect();
        Self { client, shared, clients, runtime }
    }

    /// How many tasks the server has promised so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().unwrap().len()
    }

    /// How many requests failed so far.
    pub(crate) fn failures(&self) -> usize {
        self.shared.failures.load(Ordering::SeqCst)
    }

    /// Waits until the server has promised this many more tasks.
    pub(crate) fn wait_for_more(&self, count: usize) {
        let wanted = self.acknowledged() + count;
        eventually(PATIENCE, "the server goes on taking tasks", || {
            assert!(!self.clients.iter().any(tokio::task::JoinHandle::is_finished), "a client gave up; see its panic");
            (self.acknowledged() >= wanted).then_some(())
        });
    }

    /// Waits until a request has failed since there were `before` failures.
    pub(crate) fn wait_for_failure(&self, before: usize) {
        eventually(PATIENCE, "a client notices the outage", || (self.failures() > before).then_some(()));
    }

    /// Stops asking.
    pub(crate) fn stop(&mut self) -> Asked {
        self.shared.stop.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            self.runtime.block_on(client).expect("no client panicked");
        }
        let acknowledged = self.shared.acknowledged.lock().unwrap().clone();
        Asked { acknowledged, asked: self.shared.asked.load(Ordering::SeqCst), failures: self.failures() }
    }

    /// Waits until no task is open, then returns every task there is.
    pub(crate) fn settled(&self) -> HashMap<TaskId, Task> {
        let mut left = Vec::new();
        let open = TaskListQuery { state: Some(StateFilter::Open), ..TaskListQuery::default() };
        let started = std::time::Instant::now();
        // Not `eventually`, so that the tasks that are stuck can be named.
        while started.elapsed() < PATIENCE * 2 {
            left = self.runtime.block_on(self.client.tasks(&open)).map(|page| page.items).unwrap_or(left);
            if left.is_empty() {
                return self.all();
            }
            self.runtime.block_on(async { tokio::time::sleep(RETRY * 4).await });
        }
        panic!("{} tasks are stuck, such as {:?}", left.len(), left.first());
    }

    fn all(&self) -> HashMap<TaskId, Task> {
        let mut tasks = HashMap::new();
        let mut query = TaskListQuery { limit: Some(gpuaas_api::dto::MAX_PAGE), ..TaskListQuery::default() };
        loop {
            let page = self.runtime.block_on(self.client.tasks(&query)).unwrap();
            tasks.extend(page.items.into_iter().map(|task| (task.id, task)));
            match page.next {
                Some(next) => query.after = Some(next),
                None => return tasks,
            }
        }
    }

    /// How often the server wrote that it believed a receipt of each task, in the audit log.
    pub(crate) fn receipts_believed(&self) -> HashMap<TaskId, usize> {
        let mut counts = HashMap::new();
        let mut query = gpuaas_api::dto::AuditQuery { limit: Some(gpuaas_api::dto::MAX_PAGE), ..Default::default() };
        loop {
            let page = self.runtime.block_on(self.client.audit(&query)).unwrap();
            for row in page.items.iter().filter(|row| row.action == "task.receipt") {
                *counts.entry(row.target.parse().unwrap()).or_default() += 1;
            }
            match page.next {
                Some(next) => query.after = Some(next.parse().unwrap()),
                None => return counts,
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

/// One client: every request has a key; two of three are sent again until they are answered, the third is given up.
async fn ask(client: Client, shared: Arc<Shared>, node: String, number: usize) {
    let mut open = VecDeque::new();
    for request in 0.. {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let key = format!("client-{number}-request-{request}");
        let params = serde_json::json!({ "message": key });
        let create = TaskCreate {
            node: node.clone(),
            task_type: "diag.ping".to_owned(),
            params,
            queue_seconds: None,
            timeout_seconds: None,
        };
        shared.asked.fetch_add(1, Ordering::SeqCst);
        while !shared.stop.load(Ordering::SeqCst) {
            match client.task_create(&create, Some(&key)).await {
                Ok(task) => {
                    shared.acknowledged.lock().unwrap().insert(key.clone(), task.id);
                    open.push_back(task.id);
                    break;
                }
                Err(error) => passes(&shared, &error),
            }
            if request % 3 == 2 {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        while open.len() >= WINDOW && !shared.stop.load(Ordering::SeqCst) {
            match client.task(&open[0].to_string()).await {
                Ok(task) if task.ended() => {
                    open.pop_front();
                }
                Ok(_) => tokio::time::sleep(RETRY).await,
                Err(error) => {
                    passes(&shared, &error);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// An outage may show as an error that says so, and as nothing else: not as a missing task, not as a conflict.
fn passes(shared: &Shared, error: &ClientError) {
    assert!(error.is_transient(), "an outage was answered with {error} ({error:?})");
    shared.failures.fetch_add(1, Ordering::SeqCst);
}
