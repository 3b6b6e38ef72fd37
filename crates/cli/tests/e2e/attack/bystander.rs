//! A legitimate user who works with the server during an attack: over REST, on the server's local socket, and with a host.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuaas_testkit::{Launch, PATIENCE};

use super::http::{self, Answer, Request};
use super::target::Target;

/// Address of the bystander; the attack comes from other addresses.
const FROM: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Pause between two rounds of work.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a task is polled until it is done.
const LOOK: Duration = Duration::from_millis(20);

/// Works in the background until it is told to finish.
pub(super) struct Bystander {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Served>,
}

/// What the bystander experienced.
#[derive(Debug, Default)]
pub(super) struct Served {
    pub(super) requests: usize,
    pub(super) tasks: usize,
    pub(super) slowest: Duration,
    pub(super) slowest_what: &'static str,
    pub(super) failures: Vec<String>,
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slowest = self.slowest.as_secs_f64() * 1000.0;
        write!(f, "served {} times with {} tasks, slowest {slowest:.0} ms ({})", self.requests, self.tasks, self.slowest_what)
    }
}

struct Worker {
    api: SocketAddr,
    /// The CLI on the server's local socket. It is a process of its own, because connections there are limited per process.
    at_the_server: Launch,
    folder: PathBuf,
    node: String,
    token: String,
    served: Served,
}

impl Bystander {
    pub(super) fn start(target: &Target) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut worker = Worker {
            api: target.api(),
            at_the_server: Launch::new("gpuaas")
                .arg("--socket")
                .arg(target.local_socket())
                .args(["cluster", "info", "-o", "json"]),
            folder: target.cluster.dir.path().to_owned(),
            node: target.node.clone(),
            token: target.token.clone(),
            served: Served::default(),
        };
        let stopped = Arc::clone(&stop);
        // A thread and a runtime of its own, so that the attack in this process does not delay the bystander's clock.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                while !stopped.load(Ordering::SeqCst) {
                    worker.round().await;
                    tokio::time::sleep(PAUSE).await;
                }
                worker.round().await;
            });
            worker.served
        });
        Self { stop, thread }
    }

    pub(super) fn finish(self) -> Served {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the bystander does not panic")
    }
}

impl Worker {
    async fn round(&mut self) {
        let started = Instant::now();
        let answer = http::send(FROM, self.api, &Request::get("/api/v1/nodes", &self.token)).await;
        self.note("a list of nodes", started, expect(answer, 200));

        let started = Instant::now();
        let (status, _, reported) = self.at_the_server.run(&self.folder, PATIENCE);
        self.note("the local socket", started, if status.success() { Ok(()) } else { Err(reported) });

        // A task goes all the way: REST, the store, the node's link, and back.
        let started = Instant::now();
        let order = format!(r#"{{"node":"{}","task_type":"diag.ping","params":{{"message":"still here"}}}}"#, self.node);
        let answer = http::send(FROM, self.api, &Request::json("/api/v1/tasks", &self.token, &order)).await;
        let id = answer.as_ref().ok().filter(|answer| answer.status == 201).map(|answer| answer.json()["id"].to_string());
        let Some(id) = id else { return self.note("a task", started, expect(answer, 201)) };
        let path = format!("/api/v1/tasks/{}", id.trim_matches('"'));
        loop {
            let answer = http::send(FROM, self.api, &Request::get(&path, &self.token)).await;
            let ended = answer.as_ref().is_ok_and(|answer| answer.status == 200 && answer.json()["state"] == "succeeded");
            if ended || answer.is_err() || started.elapsed() > Duration::from_secs(30) {
                self.served.tasks += usize::from(ended);
                if !ended {
                    self.served.failures.push(format!("the task did not end: {answer:?}"));
                }
                return self.note("a task", started, expect(answer, 200));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn note(&mut self, what: &'static str, started: Instant, served: Result<(), String>) {
        let took = started.elapsed();
        if took > self.served.slowest {
            (self.served.slowest, self.served.slowest_what) = (took, what);
        }
        match served {
            Ok(()) => self.served.requests += 1,
            Err(reported) => self.served.failures.push(format!("{what}: {reported}")),
        }
    }
}

fn expect(answer: Result<Answer, String>, status: u16) -> Result<(), String> {
    match answer? {
        answer if answer.status == status => Ok(()),
        answer => Err(format!("{answer:?}")),
    }
}
