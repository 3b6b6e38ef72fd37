//! What guests say about themselves: the only thing on the host that a tenant can talk to.
//!
//! One path, one method, a token per guest, a small body, few connections and little time. What a guest says counts for that guest
//! and for nobody else, and is only ever shown.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gpuaas_contract::Digest;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::slice_vm_provision::TelemetrySource;
use gpuaas_contract::telemetry::{GuestMetrics, GuestReport};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::Host;
use gpuaas_host::guests::{DomainState, InstanceFile};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Guests;

/// Where guests post.
const PATH: &str = "/internal/v1/guest-telemetry";
/// Most bytes of one report.
const MAX_BODY: usize = 16 * 1024;
/// Most connections of all guests together.
const CONNECTIONS: usize = 64;
/// Longest life of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// A report counts this long.
const FRESH: Duration = Duration::from_secs(60);
/// Shortest time between two reports of a guest.
const NOT_BEFORE: Duration = Duration::from_secs(1);
/// Between two tries to listen: the bridge may not be up yet.
const LISTEN_AGAIN: Duration = Duration::from_secs(10);

/// Tokens, and what came with them last.
#[derive(Debug, Default)]
pub(super) struct Registry {
    tokens: HashMap<Digest, AllocationId>,
    reports: HashMap<AllocationId, (Instant, Timestamp, GuestReport)>,
}

/// A token that nobody can guess.
pub(crate) fn new_token() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Guests {
    /// From now on this token is this guest's.
    pub(crate) fn register(&self, allocation_id: AllocationId, token: &str) {
        let mut registry = self.registry();
        registry.tokens.retain(|_, known| *known != allocation_id);
        registry.tokens.insert(Digest::of(token.trim().as_bytes()), allocation_id);
    }

    /// The guest is gone, and so is its word.
    pub(crate) fn forget(&self, allocation_id: AllocationId) {
        let mut registry = self.registry();
        registry.tokens.retain(|_, known| *known != allocation_id);
        registry.reports.remove(&allocation_id);
    }

    /// Whether the guest has reported lately.
    pub(crate) fn has_reported(&self, allocation_id: AllocationId) -> bool {
        self.registry().reports.get(&allocation_id).is_some_and(|(at, ..)| at.elapsed() < FRESH)
    }

    /// Takes the tokens of the guests that are there, after a start of the agent.
    pub(crate) async fn register_all(&self, host: &Host) {
        let Ok(instances) = host.instances().await else { return };
        for allocation_id in instances {
            if let Ok(Some(token)) = host.instance_read(allocation_id, InstanceFile::TelemetryToken).await {
                self.register(allocation_id, &String::from_utf8_lossy(&token));
            }
        }
    }

    /// The metrics of every guest, from the best source there is.
    pub(crate) async fn metrics(&self, host: &Host) -> Vec<GuestMetrics> {
        // Without guests there may be no hypervisor to ask.
        if !self.inner.may_have_guests.load(Ordering::Acquire) || host.leases().await.map_or(true, |leases| leases.is_empty()) {
            return Vec::new();
        }
        let Ok(domains) = host.domains().await else { return Vec::new() };
        domains.into_iter().map(|(allocation_id, state)| self.metrics_of(allocation_id, state)).collect()
    }

    fn metrics_of(&self, allocation_id: AllocationId, state: DomainState) -> GuestMetrics {
        let running = state == DomainState::Running;
        let registry = self.registry();
        match registry.reports.get(&allocation_id).filter(|(at, ..)| running && at.elapsed() < FRESH) {
            Some((_, at, report)) => GuestMetrics {
                allocation_id: Some(allocation_id),
                running,
                source: TelemetrySource::SliceGuest,
                reason: String::new(),
                at: *at,
                report: report.clone(),
            },
            None => {
                let (source, reason) = match (running, self.endpoint()) {
                    (false, _) => (TelemetrySource::Unavailable, "the guest is off"),
                    (true, None) => (TelemetrySource::HostLocalProbe, "this host has no guest_telemetry_listen"),
                    (true, Some(_)) => (TelemetrySource::HostLocalProbe, "the guest has not reported within a minute"),
                };
                GuestMetrics {
                    allocation_id: Some(allocation_id),
                    running,
                    source,
                    reason: reason.to_owned(),
                    at: Timestamp::now(),
                    report: GuestReport::default(),
                }
            }
        }
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.inner.telemetry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a report. The status says what came of it.
    fn take(&self, token: &str, body: &[u8]) -> StatusCode {
        let mut registry = self.registry();
        let Some(allocation_id) = registry.tokens.get(&Digest::of(token.as_bytes())).copied() else {
            return StatusCode::UNAUTHORIZED;
        };
        if registry.reports.get(&allocation_id).is_some_and(|(at, ..)| at.elapsed() < NOT_BEFORE) {
            return StatusCode::TOO_MANY_REQUESTS;
        }
        let Some(report) = GuestReport::parse(body) else { return StatusCode::BAD_REQUEST };
        registry.reports.insert(allocation_id, (Instant::now(), Timestamp::now(), report));
        StatusCode::NO_CONTENT
    }

    /// Listens for guests until `stop`.
    pub(crate) async fn serve(self, stop: CancellationToken) {
        let Some(address) = self.endpoint() else { return };
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut told = false;
        while !stop.is_cancelled() {
            match listen(address).await {
                Ok(listener) => {
                    tracing::info!(%address, "listening for guests' metrics");
                    told = false;
                    self.accept(listener, &places, &stop).await;
                }
                Err(error) if !told => {
                    tracing::warn!(%address, %error, "cannot listen for guests' metrics; trying again until the address is there");
                    told = true;
                }
                Err(_) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LISTEN_AGAIN) => {}
            }
        }
    }

    async fn accept(&self, listener: TcpListener, places: &Arc<Semaphore>, stop: &CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { return };
            // A guest that floods is one of many: whoever comes too much is turned away at once.
            let Ok(place) = Arc::clone(places).try_acquire_owned() else { continue };
            let guests = self.clone();
            tokio::spawn(async move {
                let _place = place;
                let _ = tokio::time::timeout(PATIENCE, guests.converse(stream)).await;
            });
        }
    }

    async fn converse(self, stream: TcpStream) {
        let service = hyper::service::service_fn(move |request| {
            let guests = self.clone();
            async move { Ok::<_, Infallible>(guests.answer(request).await) }
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(16 * 1024).keep_alive(false);
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Empty<Bytes>> {
        let mut response = Response::new(Empty::new());
        *response.status_mut() = self.status_of(request).await;
        response
    }

    async fn status_of(&self, request: Request<Incoming>) -> StatusCode {
        if request.uri().path() != PATH {
            return StatusCode::NOT_FOUND;
        }
        if request.method() != Method::POST {
            return StatusCode::METHOD_NOT_ALLOWED;
        }
        let token = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = token.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned) else {
            return StatusCode::UNAUTHORIZED;
        };
        match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => self.take(&token, &body.to_bytes()),
            Err(_) => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }
}

async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(request).await.expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }

    fn post(token: &str, body: &str) -> Vec<u8> {
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        head.into_bytes()
    }

    #[tokio::test]
    async fn a_guest_speaks_for_itself_with_its_token_and_within_bounds() {
        let listener = listen("127.0.0.1:0".parse().expect("address")).await.expect("listens");
        let address = listener.local_addr().expect("address");
        let (guests, stop) = (Guests::new(Some(address)), CancellationToken::new());
        let (one, other) = (AllocationId::generate(), AllocationId::generate());
        guests.register(one, "token-one\n");
        guests.register(other, "token-other");
        let server = guests.clone();
        let stopped = stop.clone();
        let serving =
            tokio::spawn(async move { server.accept(listener, &Arc::new(Semaphore::new(CONNECTIONS)), &stopped).await });

        let good = r#"{"load_percent":150,"memory_used_bytes":5,"gpus":[{"utilisation_percent":7}]}"#;
        for (request, status) in [
            (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), "404"),
            (format!("GET {PATH} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes(), "405"),
            (format!("POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").into_bytes(), "401"),
            (post("guessed", good), "401"),
            (post("token-one", "not json"), "400"),
            (post("token-one", &format!(r#"{{"gpus":[{}]}}"#, vec!["{}"; 100].join(","))), "400"),
            (post("token-one", &"x".repeat(MAX_BODY + 1)), "413"),
            (post("token-one", good), "204"),
            (post("token-one", good), "429"),
        ] {
            let answer = ask(address, &request).await;
            assert!(answer.contains(status), "{answer} for {:?}", String::from_utf8_lossy(&request[..60.min(request.len())]));
        }
        assert!(guests.has_reported(one) && !guests.has_reported(other));
        let metrics = guests.metrics_of(one, DomainState::Running);
        assert_eq!((metrics.source, metrics.report.load_percent), (TelemetrySource::SliceGuest, 150));
        assert_eq!(guests.metrics_of(other, DomainState::Running).source, TelemetrySource::HostLocalProbe);
        assert_eq!(guests.metrics_of(one, DomainState::Off).source, TelemetrySource::Unavailable);
        guests.forget(one);
        assert!(ask(address, &post("token-one", good)).await.contains("401"));
        stop.cancel();
        serving.await.expect("ends");
    }
}
