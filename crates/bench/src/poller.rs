//! Many long-poll sessions to one server. Each holds two requests open, like an agent without a stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use gpuaas_contract::link::{self, FromNode, Heartbeat, Messages, ReceiptAck, Welcome, from_node, route, to_node};
use gpuaas_contract::resume::{REQUEST_KEY_HEADER, ResumeSecret};
use reqwest::RequestBuilder;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Result;
use crate::cluster::Host;
use crate::report::progress;
use crate::worker::Done;

/// Number of concurrent handshakes.
const TOGETHER: usize = 32;

/// The long-poll sessions of some hosts. They end when this is dropped.
pub(crate) struct Pollers {
    hosts: Arc<Vec<Host>>,
    address: SocketAddr,
    kept: JoinSet<()>,
    done: mpsc::UnboundedSender<Done>,
    woken_for_nothing: Arc<AtomicUsize>,
}

impl Pollers {
    /// Creates an empty set of sessions, and the receiver for the tasks that they finish.
    pub(crate) fn none(hosts: &Arc<Vec<Host>>, address: SocketAddr) -> (Self, mpsc::UnboundedReceiver<Done>) {
        let (done, tasks) = mpsc::unbounded_channel();
        let woken_for_nothing = Arc::default();
        (Self { hosts: Arc::clone(hosts), address, kept: JoinSet::new(), done, woken_for_nothing }, tasks)
    }

    /// Opens the sessions of these hosts. When this returns, all of them have a poll open. Their starts are spread over the hold time of a
    /// poll, so that renewals are evenly distributed.
    pub(crate) async fn open(&mut self, hosts: std::ops::Range<usize>) -> Result<()> {
        let count = hosts.len();
        let opening = hosts.clone().map(|number| {
            let (hosts, address) = (Arc::clone(&self.hosts), self.address);
            async move { Result::<_>::Ok((number, PollSession::open(&hosts[number], address).await?)) }
        });
        let sessions: Vec<(usize, PollSession)> = futures::stream::iter(opening).buffer_unordered(TOGETHER).try_collect().await?;
        let mut longest = Duration::ZERO;
        for (position, (number, session)) in sessions.into_iter().enumerate() {
            // The server considers a session gone if it does not poll within the hold time of one poll.
            let spread = session.hold.saturating_sub(Duration::from_secs(5));
            let delay = spread * u32::try_from(position)? / u32::try_from(count)?.max(1);
            longest = longest.max(delay);
            let (hosts, done, woken) = (Arc::clone(&self.hosts), self.done.clone(), Arc::clone(&self.woken_for_nothing));
            self.kept.spawn(async move {
                tokio::time::sleep(delay).await;
                let host = &hosts[number];
                let ended = tokio::try_join!(session.tasks(host, &done, &woken), session.control(&woken), session.beat());
                if let Err(error) = ended {
                    progress(format_args!("the session of host {number} ended: {error}"));
                }
            });
        }
        tokio::time::sleep(longest + Duration::from_secs(1)).await;
        Ok(())
    }

    /// Returns how many sessions are still open.
    pub(crate) fn alive(&mut self) -> usize {
        while self.kept.try_join_next().is_some() {}
        self.kept.len()
    }

    /// Returns how many polls returned early without a message.
    pub(crate) fn woken_for_nothing(&self) -> usize {
        self.woken_for_nothing.load(Ordering::Relaxed)
    }
}

struct PollSession {
    http: reqwest::Client,
    base: String,
    node: String,
    id: String,
    /// Proves that a request comes from the process that opened the session.
    key: String,
    /// How long the server holds a poll.
    hold: Duration,
    heartbeat: Duration,
}

impl PollSession {
    async fn open(host: &Host, address: SocketAddr) -> Result<Self> {
        let mut tls = (*host.tls).clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .resolve(link::SERVER_NAME, address)
            .tcp_nodelay(true)
            // The server closes idle connections after 10 s; using one at that very moment would fail.
            .pool_idle_timeout(Duration::from_secs(5))
            .no_proxy()
            .build()?;
        let mut session = Self {
            http,
            base: format!("https://{}:{}", link::SERVER_NAME, address.port()),
            node: host.grant.node_id.to_string(),
            id: String::new(),
            key: String::new(),
            hold: Duration::ZERO,
            heartbeat: Duration::ZERO,
        };
        let welcome: Welcome = good(session.http.post(session.url(route::HELLO)).json(&host.hello())).await?;
        session.id = welcome.session_id;
        session.key = ResumeSecret::from_slice(&welcome.resume_secret).ok_or("no secret in the welcome")?.request_key();
        session.hold = Duration::from_secs(u64::from(welcome.poll_seconds.max(1)));
        session.heartbeat = Duration::from_secs(u64::from(welcome.heartbeat_seconds.max(1)));
        Ok(session)
    }

    fn url(&self, route: &str) -> String {
        format!("{}{}", self.base, route.replace("{node}", &self.node))
    }

    fn get(&self, route: &str) -> RequestBuilder {
        self.http.get(self.url(route)).header(link::SESSION_HEADER, &self.id).header(REQUEST_KEY_HEADER, &self.key)
    }

    fn post(&self, route: &str, task: &str) -> RequestBuilder {
        let call = self.http.post(self.url(route).replace("{task}", task));
        call.header(link::SESSION_HEADER, &self.id).header(REQUEST_KEY_HEADER, &self.key)
    }

    /// Sends one poll. Counts it in `woken` if it returns early without a message.
    async fn poll(&self, route: &str, woken: &AtomicUsize) -> Result<Vec<to_node::Message>> {
        let asked = Instant::now();
        let answer: Messages = good(self.get(route)).await?;
        if answer.messages.is_empty() && asked.elapsed() + Duration::from_secs(1) < self.hold {
            woken.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer.messages.into_iter().filter_map(|message| message.message).collect())
    }

    async fn tasks(&self, host: &Host, done: &mpsc::UnboundedSender<Done>, woken: &AtomicUsize) -> Result<()> {
        loop {
            for message in self.poll(route::TASKS_WAIT, woken).await? {
                let to_node::Message::Offer(offer) = message else { return Err("something else than an offer came".into()) };
                let started = Instant::now();
                let answer = host.answer(&offer)?;
                for ack in answer.acks {
                    let message = FromNode::from(from_node::Message::Ack(ack));
                    let sent = self.post(route::TASK_ACK, &offer.task_id).json(&message).send().await?;
                    sent.error_for_status()?;
                }
                let receipt = self.post(route::TASK_RESULT, &offer.task_id).header("content-type", "application/json");
                let ack: ReceiptAck = good(receipt.body(answer.receipt.receipt)).await?;
                if !ack.rejected_code.is_empty() {
                    return Err(format!("a receipt was not believed: {}", ack.rejected_code).into());
                }
                // There may be no receiver.
                let _ = done.send(Done { task: answer.task, started, stored: Instant::now() });
            }
        }
    }

    async fn control(&self, woken: &AtomicUsize) -> Result<()> {
        loop {
            for message in self.poll(route::CONTROL, woken).await? {
                if let to_node::Message::Goodbye(goodbye) = message {
                    return Err(format!("{}: {}", goodbye.code, goodbye.message).into());
                }
            }
        }
    }

    async fn beat(&self) -> Result<()> {
        let mut beats = tokio::time::interval(self.heartbeat);
        loop {
            beats.tick().await;
            self.post(route::HEARTBEAT, "").json(&Heartbeat::default()).send().await?.error_for_status()?;
        }
    }
}

/// Sends a request and returns the document of a successful response.
async fn good<T: DeserializeOwned>(request: RequestBuilder) -> Result<T> {
    let answer = request.send().await?;
    if !answer.status().is_success() {
        return Err(format!("{}: {}", answer.status(), answer.text().await?).into());
    }
    Ok(answer.json().await?)
}
