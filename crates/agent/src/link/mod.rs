//! The link: keeps a session with the control plane open, over the stream if it works and otherwise over long-poll.
//!
//! Reconnects use full jitter, so that a thousand agents do not return at the same moment. With `transport = auto`, three
//! consecutive failed streams to a reachable control plane lead to long-poll; the stream is then tried in the background and used
//! as soon as it works. A dropped link never affects running work.

mod conversation;
pub(crate) mod dial;
pub(crate) mod http;
mod poll;
mod resume;
mod session;
mod stream;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpuaas_contract::link::from_node;
use gpuaas_contract::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::TransportChoice;
use crate::pipeline::Round;
use crate::renewal::Credentials;
use crate::status::LinkStatus;
use conversation::{Conversation, LinkError};
use dial::Dialer;
pub(crate) use resume::Resume;
pub(crate) use session::Core;

/// Timings of the link. Only tests need other than the defaults.
#[derive(Clone, Copy, Debug)]
pub struct LinkTimings {
    /// Upper limit of the first reconnect delay; it doubles with every failure.
    pub backoff_base: Duration,
    /// Upper limit of every reconnect delay.
    pub backoff_cap: Duration,
    /// After this long a session counts as stable: the next delay is short again.
    pub stable_after: Duration,
    /// A stream without a welcome for this long has failed.
    pub welcome_within: Duration,
    /// How often the stream is tried on long-poll.
    pub stream_retry: Duration,
    /// Consecutive failed streams before long-poll is used.
    pub stream_failures: u32,
    /// Delay after the control plane refused the node itself.
    pub refused_wait: Duration,
    /// How often the certificate's age is checked.
    pub certificate_check: Duration,
}

impl Default for LinkTimings {
    fn default() -> Self {
        Self {
            backoff_base: Duration::from_millis(250),
            backoff_cap: Duration::from_secs(30),
            stable_after: Duration::from_secs(60),
            welcome_within: Duration::from_secs(10),
            stream_retry: Duration::from_secs(60),
            stream_failures: 3,
            refused_wait: Duration::from_secs(300),
            certificate_check: Duration::from_secs(30),
        }
    }
}

/// The transport of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Stream,
    Poll,
}

impl Transport {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Poll => "poll",
        }
    }
}

/// Keeps the link up until `shutdown`.
pub(crate) struct Supervisor {
    pub(crate) core: Core,
    pub(crate) dialer: Dialer,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) choice: TransportChoice,
    pub(crate) timings: LinkTimings,
    pub(crate) request_timeout: Duration,
    /// Acks, progress and rejections of the pipeline.
    pub(crate) volatile: mpsc::Receiver<from_node::Message>,
    pub(crate) status: watch::Sender<LinkStatus>,
}

/// How a session ended.
enum SessionEnd {
    Shutdown,
    Error(LinkError),
    /// Long-poll was replaced by this stream.
    Upgrade(Box<(Conversation, Round)>),
}

impl Supervisor {
    /// Runs until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut transport = match self.choice {
            TransportChoice::Auto | TransportChoice::Stream => Transport::Stream,
            TransportChoice::Poll => Transport::Poll,
        };
        let mut attempt: u32 = 0;
        let mut stream_failures: u32 = 0;
        let mut upgraded: Option<Box<(Conversation, Round)>> = None;
        while !shutdown.is_cancelled() {
            let opened = match upgraded.take() {
                Some(conversation) => Ok(*conversation),
                None => tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    opened = self.open(transport) => opened,
                },
            };
            let began = Instant::now();
            let error = match opened {
                Ok((conversation, round)) => match self.serve(conversation, round, transport, &shutdown).await {
                    SessionEnd::Shutdown => break,
                    SessionEnd::Upgrade(conversation) => {
                        tracing::info!("streams work again; leaving long-poll");
                        (transport, stream_failures, attempt) = (Transport::Stream, 0, 0);
                        upgraded = Some(conversation);
                        continue;
                    }
                    SessionEnd::Error(error) => error,
                },
                Err(error) => error,
            };
            if began.elapsed() >= self.timings.stable_after {
                (attempt, stream_failures) = (0, 0);
            }
            // Nothing works without a valid certificate, so this says nothing about streams.
            let certificate = self.credentials.blamed();
            if transport == Transport::Stream
                && began.elapsed() < self.timings.stable_after
                && !certificate
                && blames_the_stream(&error)
            {
                stream_failures += 1;
            }
            if self.choice == TransportChoice::Auto
                && transport == Transport::Stream
                && stream_failures >= self.timings.stream_failures
            {
                tracing::warn!(stream_failures, "the control plane answers but streams fail here; using long-poll");
                transport = Transport::Poll;
                attempt = 0;
            }
            let wait = self.wait_after(&error, attempt);
            attempt = attempt.saturating_add(1);
            self.note_down(&error, wait);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = self.discard_volatile(wait) => {}
            }
        }
        self.status.send_modify(|status| {
            status.connected = false;
            status.last_error = "the agent is stopping".to_owned();
        });
    }

    async fn open(&self, transport: Transport) -> Result<(Conversation, Round), LinkError> {
        let (hello, round) = self.core.hello();
        let opened = match transport {
            Transport::Stream => stream::open(&self.dialer, &self.core.resume, hello, self.timings.welcome_within).await,
            Transport::Poll => poll::open(&self.dialer, self.core.node_id, &self.core.resume, hello, self.request_timeout).await,
        };
        opened.map(|conversation| (conversation, round))
    }

    async fn serve(
        &mut self,
        conversation: Conversation,
        round: Round,
        transport: Transport,
        shutdown: &CancellationToken,
    ) -> SessionEnd {
        let clock_offset_us = match self.core.greet(&conversation.welcome).await {
            Ok(offset) => offset,
            Err(error) => return SessionEnd::Error(error),
        };
        let session_id = conversation.welcome.session_id.clone();
        let server_version = session::printable(&conversation.welcome.server_version);
        tracing::info!(session_id, transport = transport.as_str(), server_version, "link is up");
        self.status.send_modify(|status| {
            status.connected = true;
            status.transport = transport.as_str().to_owned();
            status.session_id = session_id;
            status.server_version = server_version;
            status.since = Timestamp::now();
            status.last_error = String::new();
            status.clock_offset_us = clock_offset_us;
            status.sessions += 1;
        });
        let Self { core, dialer, timings, volatile, choice, .. } = self;
        let may_upgrade = *choice == TransportChoice::Auto && transport == Transport::Poll;
        let mut upgrade = None;
        let trying = AtomicBool::new(false);
        let mut better = pin!(stream_when_it_works(core, dialer, timings, &trying));
        let ended = {
            let end = async {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    better = better.as_mut(), if may_upgrade => upgrade = Some(better),
                }
            };
            session::run(core, conversation, round, volatile, end).await
        };
        // The new stream may take over before its welcome arrives here.
        if upgrade.is_none() && trying.load(Ordering::Relaxed) && ended.as_ref().is_some_and(LinkError::is_replaced) {
            upgrade = tokio::time::timeout(timings.welcome_within, better).await.ok();
        }
        match (ended, upgrade) {
            (_, Some(better)) => SessionEnd::Upgrade(Box::new(better)),
            (Some(error), None) => SessionEnd::Error(error),
            (None, None) => SessionEnd::Shutdown,
        }
    }

    /// Returns the delay before the next attempt.
    fn wait_after(&self, error: &LinkError, attempt: u32) -> Duration {
        let LinkTimings { backoff_base, backoff_cap, refused_wait, .. } = self.timings;
        let jittered = full_jitter(backoff_base, backoff_cap, attempt);
        let (code, at_least) = match error {
            LinkError::Goodbye(goodbye) => (goodbye.code.as_str(), Duration::from_secs(goodbye.retry_after_seconds.into())),
            LinkError::Refused { code, .. } => (code.as_str(), Duration::ZERO),
            LinkError::Dial(_) | LinkError::NoWelcome(_) | LinkError::Broken(_) | LinkError::Fenced => ("", Duration::ZERO),
        };
        let asked = at_least + jittered;
        match advice_for(code) {
            Some(advice) => {
                tracing::error!(code, advice, "the control plane refuses this node");
                asked.max(refused_wait + full_jitter(refused_wait / 4, refused_wait / 4, 0))
            }
            None => asked,
        }
    }

    fn note_down(&self, error: &LinkError, wait: Duration) {
        let reason = crate::error_chain::chain(error);
        tracing::warn!(reason, milliseconds = wait.as_millis(), "link is down; waiting before the next attempt");
        self.status.send_modify(|status| {
            if status.connected {
                status.since = Timestamp::now();
            }
            status.connected = false;
            status.last_error = reason;
        });
    }

    /// Waits, and drops messages that would be stale at the next hello, which lists the tasks in hand.
    async fn discard_volatile(&mut self, wait: Duration) {
        let deadline = Instant::now() + wait;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => return,
                message = self.volatile.recv() => if message.is_none() {
                    return tokio::time::sleep_until(deadline).await;
                },
            }
        }
    }
}

/// Tries the stream periodically until it works.
async fn stream_when_it_works(core: &Core, dialer: &Dialer, timings: &LinkTimings, trying: &AtomicBool) -> (Conversation, Round) {
    loop {
        tokio::time::sleep(timings.stream_retry).await;
        let (hello, round) = core.hello();
        trying.store(true, Ordering::Relaxed);
        let opened = stream::open(dialer, &core.resume, hello, timings.welcome_within).await;
        trying.store(false, Ordering::Relaxed);
        match opened {
            Ok(conversation) => return (conversation, round),
            Err(error) => tracing::debug!(error = crate::error_chain::chain(&error), "streams still fail"),
        }
    }
}

/// Returns whether the control plane was reachable and only the stream failed.
fn blames_the_stream(error: &LinkError) -> bool {
    match error {
        LinkError::NoWelcome(_) | LinkError::Broken(_) => true,
        LinkError::Dial(error) => error.refuses_http2(),
        LinkError::Refused { .. } | LinkError::Goodbye(_) | LinkError::Fenced => false,
    }
}

/// Returns what an operator must do about a refusal of the node itself, or `None` for temporary refusals.
fn advice_for(code: &str) -> Option<&'static str> {
    match code {
        "certificate_revoked" | "certificate_key_mismatch" => {
            Some("its certificate no longer counts; if that is a mistake, enroll again with --replace")
        }
        "node_retired" => Some("the node was retired; enroll again with --replace to bring it back"),
        "node_locked" => Some(
            "two copies of this identity are in use; find the other one, then enroll again with --replace and a token for this node",
        ),
        "epoch_retired" => Some("this machine was enrolled again elsewhere; stop this agent or enroll again with --replace"),
        "protocol_unsupported" => {
            Some("agent and server share no version of the link protocol; upgrade the one that the message names")
        }
        "cluster_mismatch" => Some("the address belongs to another control plane; check `server` in the configuration"),
        _ => None,
    }
}

/// Returns a uniform delay between zero and `base · 2^attempt`, at most `cap`.
fn full_jitter(base: Duration, cap: Duration, attempt: u32) -> Duration {
    let ceiling = base.saturating_mul(2_u32.saturating_pow(attempt.min(20))).min(cap);
    let micros = u64::try_from(ceiling.as_micros()).unwrap_or(u64::MAX);
    let mut random = [0_u8; 8];
    // Without randomness, the full delay is used.
    if !gpuaas_runtime::random(&mut random) || micros == 0 {
        return ceiling;
    }
    Duration::from_micros(u64::from_le_bytes(random) % micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_are_spread() {
        let (base, cap) = (Duration::from_millis(250), Duration::from_secs(30));
        for attempt in 0..40 {
            let ceiling = base.saturating_mul(2_u32.saturating_pow(attempt.min(20))).min(cap);
            let waits: Vec<_> = (0..64).map(|_| full_jitter(base, cap, attempt)).collect();
            assert!(waits.iter().all(|wait| *wait < ceiling));
            assert!(waits.iter().any(|wait| *wait < ceiling / 2) && waits.iter().any(|wait| *wait >= ceiling / 2));
        }
    }

    #[test]
    fn refusals_of_the_node_itself_have_advice_and_passing_ones_have_none() {
        for code in ["certificate_revoked", "node_retired", "node_locked", "epoch_retired", "protocol_unsupported"] {
            assert!(advice_for(code).is_some(), "{code}");
        }
        for code in ["server_shutdown", "session_replaced", ""] {
            assert!(advice_for(code).is_none(), "{code}");
        }
    }
}
