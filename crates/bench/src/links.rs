//! Many streams to one server, kept open as agents do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::link::{Heartbeat, Pong, from_node, to_node};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::Result;
use crate::cluster::{Host, Link};
use crate::report::progress;
use crate::worker::Done;

/// Number of concurrent handshakes.
const TOGETHER: usize = 64;

/// The links of some hosts. They close when this is dropped.
pub(crate) struct Links {
    hosts: Arc<Vec<Host>>,
    address: SocketAddr,
    kept: JoinSet<()>,
    handles: HashMap<usize, (AbortHandle, Freezer)>,
    done: mpsc::UnboundedSender<Done>,
}

impl Links {
    /// Opens one link per host.
    pub(crate) async fn open_all(hosts: &Arc<Vec<Host>>, address: SocketAddr) -> Result<Self> {
        let (mut links, _) = Self::none(hosts, address);
        links.open(0..hosts.len()).await?;
        Ok(links)
    }

    /// Creates an empty set of links, and the receiver for the tasks that they finish.
    pub(crate) fn none(hosts: &Arc<Vec<Host>>, address: SocketAddr) -> (Self, mpsc::UnboundedReceiver<Done>) {
        let (done, tasks) = mpsc::unbounded_channel();
        (Self { hosts: Arc::clone(hosts), address, kept: JoinSet::new(), handles: HashMap::new(), done }, tasks)
    }

    /// Opens the links of these hosts and keeps them open like an agent.
    pub(crate) async fn open(&mut self, hosts: impl IntoIterator<Item = usize>) -> Result<()> {
        let opening = hosts.into_iter().map(|number| {
            let (hosts, address) = (Arc::clone(&self.hosts), self.address);
            async move { Result::<_>::Ok((number, hosts[number].connect(address).await?)) }
        });
        let links: Vec<(usize, Link)> = futures::stream::iter(opening).buffer_unordered(TOGETHER).try_collect().await?;
        for (number, link) in links {
            let (hosts, done, freezer) = (Arc::clone(&self.hosts), self.done.clone(), link.freezer.clone());
            let handle = self.kept.spawn(async move {
                if let Err(error) = keep(&hosts[number], number, link, &done).await {
                    progress(format_args!("the link of host {number} ended: {error}"));
                }
            });
            self.handles.insert(number, (handle, freezer));
        }
        Ok(())
    }

    /// Returns how many links are still open.
    pub(crate) fn alive(&mut self) -> usize {
        while self.kept.try_join_next().is_some() {}
        self.kept.len()
    }

    /// Closes a link, as if the agent's process had ended.
    pub(crate) fn close(&mut self, host: usize) {
        if let Some((handle, _)) = self.handles.remove(&host) {
            handle.abort();
        }
    }

    /// Silences this host without closing its link, like a power cut or a cut cable.
    pub(crate) fn freeze(&mut self, host: usize) {
        if let Some((_, freezer)) = self.handles.get(&host) {
            freezer.freeze();
        }
    }
}

/// Sends heartbeats and answers offered tasks until the stream ends.
async fn keep(host: &Host, number: usize, mut link: Link, done: &mpsc::UnboundedSender<Done>) -> Result<()> {
    let period = Duration::from_secs(u64::from(link.heartbeat_seconds));
    // Agents do not send heartbeats in lockstep: each has its own offset within the period.
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let phase = period.mul_f64((number as f64 * 0.618_034).fract());
    let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + phase, period);
    let mut under_way: HashMap<TaskId, Instant> = HashMap::new();
    loop {
        let answer = tokio::select! {
            _ = beats.tick() => {
                link.say.send(from_node::Message::Heartbeat(Heartbeat::default()).into()).await?;
                continue;
            }
            answer = link.answers.message() => answer?,
        };
        match answer.ok_or("the server closed it")?.message {
            Some(to_node::Message::Offer(offer)) => {
                let started = Instant::now();
                let answer = host.answer(&offer)?;
                under_way.insert(answer.task, started);
                for message in answer.messages() {
                    link.say.send(message.into()).await?;
                }
            }
            Some(to_node::Message::ReceiptAck(ack)) => {
                if !ack.rejected_code.is_empty() {
                    return Err(format!("a receipt was not believed: {}", ack.rejected_code).into());
                }
                let task = ack.task_id.parse()?;
                let started = under_way.remove(&task).ok_or("a receipt was acknowledged that was never sent")?;
                // There may be no receiver.
                let _ = done.send(Done { task, started, stored: Instant::now() });
            }
            Some(to_node::Message::Ping(ping)) => {
                link.say.send(from_node::Message::Pong(Pong { nonce: ping.nonce }).into()).await?;
            }
            Some(to_node::Message::Goodbye(goodbye)) => return Err(format!("{}: {}", goodbye.code, goodbye.message).into()),
            Some(
                to_node::Message::Welcome(_)
                | to_node::Message::Cancel(_)
                | to_node::Message::VerifierSet(_)
                | to_node::Message::LogAck(_),
            )
            | None => {}
        }
    }
}

/// Silences a connection without closing it.
#[derive(Clone, Default)]
pub(crate) struct Freezer(Arc<AtomicBool>);

impl Freezer {
    fn freeze(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_frozen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A connection that can be silenced.
pub(crate) struct Freezable {
    stream: TcpStream,
    freezer: Freezer,
}

impl Freezable {
    pub(crate) fn new(stream: TcpStream, freezer: Freezer) -> Self {
        Self { stream, freezer }
    }
}

// A frozen connection returns `Pending` without registering a waker, on purpose: it never becomes ready again.
impl AsyncRead for Freezable {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.freezer.is_frozen() { Poll::Pending } else { Pin::new(&mut self.stream).poll_read(context, buffer) }
    }
}

impl AsyncWrite for Freezable {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        if self.freezer.is_frozen() { Poll::Pending } else { Pin::new(&mut self.stream).poll_write(context, bytes) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
