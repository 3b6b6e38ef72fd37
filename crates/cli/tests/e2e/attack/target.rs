//! The target of the attacks: a server with ordinary limits, and a node that is online.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpuaas_testkit::eventually;

use super::http::{self, Answer, Request};
use crate::cluster::{AgentHost, Carrier, Cluster};

/// Number of file descriptors that an ordinary login or service has.
const OPEN_FILES: u32 = 1024;
/// How long after its end everything that an attack occupied must be released.
const RECOVERY: Duration = Duration::from_secs(10);
/// The same in the short form, which runs next to other tests.
const RECOVERY_BESIDE_TESTS: Duration = Duration::from_secs(40);
/// Number of descriptors that may come and go, such as those of the store's connection pool and of logs.
const OTHER_DESCRIPTORS: usize = 24;

/// Returns how long something may take that must end after an attack.
pub(super) fn patience_after() -> Duration {
    if super::is_long() { RECOVERY } else { RECOVERY_BESIDE_TESTS }
}

pub(super) struct Target {
    pub(super) cluster: Cluster,
    pub(super) node: String,
    pub(super) token: String,
    _host: AgentHost,
}

/// Resources that the server's process uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) resident_kib: u64,
    pub(super) peak_kib: u64,
    pub(super) descriptors: usize,
}

impl Target {
    pub(super) fn start() -> Self {
        // The attacker needs more descriptors than the server that it attacks.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        rustix::process::setrlimit(
            rustix::process::Resource::Nofile,
            rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum },
        )
        .expect("a process may raise its own soft limit");
        let cluster = Cluster::start_with_open_files(OPEN_FILES);
        let token = std::fs::read_to_string(cluster.admin_token_file()).unwrap();
        let mut host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
        let node = host.node_id();
        host.start();
        cluster.wait_online(&node, true);
        Self { cluster, node, token, _host: host }
    }

    /// Returns the address of the REST listener.
    pub(super) fn api(&self) -> SocketAddr {
        self.cluster.url().trim_start_matches("http://").parse().expect("an address")
    }

    /// Returns the address that agents connect to.
    pub(super) fn link(&self) -> SocketAddr {
        self.cluster.link.parse().expect("an address")
    }

    /// Returns the path of the server's local socket.
    pub(super) fn local_socket(&self) -> PathBuf {
        self.cluster.dir.join("server/admin.sock")
    }

    /// Sends a request over REST, from an ordinary address.
    pub(super) fn ask(&self, request: &Request<'_>) -> Answer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let answer = runtime.block_on(http::send(std::net::Ipv4Addr::LOCALHOST, self.api(), request));
        answer.unwrap_or_else(|error| panic!("{} {}: {error}", request.method, request.path))
    }

    /// Returns what the server uses now.
    pub(super) fn usage(&self) -> Usage {
        let id = self.cluster.server_id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("the server runs");
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(0)
        };
        let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count);
        Usage { resident_kib: kib("VmRSS:"), peak_kib: kib("VmHWM:"), descriptors }
    }

    /// Waits until the server has no more descriptors open than before and its node is online. Returns how long that took.
    pub(super) fn wait_recovered(&self, before: &Usage) -> Duration {
        let started = Instant::now();
        eventually(patience_after(), "the server gives back what the attack took", || {
            (self.usage().descriptors <= before.descriptors + OTHER_DESCRIPTORS).then_some(())
        });
        let took = started.elapsed();
        self.cluster.wait_online(&self.node, true);
        took
    }
}
