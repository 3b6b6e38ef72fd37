//! Metrics from guests: the only interface of the host that a tenant can reach.
//!
//! It has one path, one method, a token per guest, a small body, few connections and short time limits. The metrics of a guest
//! count for that guest only, and are only displayed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gpuaas_contract::Digest;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::slice_vm_provision::TelemetrySource;
use gpuaas_contract::telemetry::{GuestMetrics, GuestReport};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::Host;
use gpuaas_host::guests::{DomainState, InstanceFile};
use gpuaas_runtime::places::{PlaceHandle, PlaceLimits, Places, Stage};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::Guests;

/// The path for reports.
const PATH: &str = "/internal/v1/guest-telemetry";
/// Size limit of one report.
const MAX_BODY: usize = 16 * 1024;
/// Maximum number of connections of all guests together, and of one address: a guest needs one for a moment.
const PLACES: PlaceLimits = PlaceLimits { total: 64, per_origin: 4 };
/// Maximum number of concurrent reports of one guest, from any addresses.
const READ_AT_ONCE: usize = 2;
/// Pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Time limits for a guest.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// From the connection to the end of the request's head.
    head: Duration,
    /// From the connection to its end.
    whole: Duration,
}
const PATIENCE: Patience = Patience { head: Duration::from_secs(3), whole: Duration::from_secs(10) };
/// How long a report is valid.
const FRESH: Duration = Duration::from_secs(60);
/// Shortest time between two reports of a guest.
const NOT_BEFORE: Duration = Duration::from_secs(1);
/// Pause between two attempts to listen: the bridge may not be up yet.
const LISTEN_AGAIN: Duration = Duration::from_secs(10);

/// The tokens, and the latest reports.
#[derive(Debug, Default)]
pub(super) struct Registry {
    tokens: HashMap<Digest, AllocationId>,
    /// The number of a guest's reports that are being read.
    reading: HashMap<AllocationId, usize>,
    reports: HashMap<AllocationId, (Instant, Timestamp, GuestReport)>,
}

/// Generates a token that cannot be guessed.
pub(crate) fn new_token() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Guests {
    /// Registers the token of a guest.
    pub(crate) fn register(&self, allocation_id: AllocationId, token: &str) {
        let mut registry = self.registry();
        registry.tokens.retain(|_, known| *known != allocation_id);
        registry.tokens.insert(Digest::of(token.trim().as_bytes()), allocation_id);
    }

    /// Removes a guest and its reports.
    pub(crate) fn forget(&self, allocation_id: AllocationId) {
        let mut registry = self.registry();
        registry.tokens.retain(|_, known| *known != allocation_id);
        registry.reports.remove(&allocation_id);
    }

    /// Returns whether the guest has reported recently.
    pub(crate) fn has_reported(&self, allocation_id: AllocationId) -> bool {
        self.registry().reports.get(&allocation_id).is_some_and(|(at, ..)| at.elapsed() < FRESH)
    }

    /// Registers the tokens of the existing guests, after a start of the agent.
    pub(crate) async fn register_all(&self, host: &Host) {
        let Ok(instances) = host.instances().await else { return };
        for allocation_id in instances {
            if let Ok(Some(token)) = host.instance_read(allocation_id, InstanceFile::TelemetryToken).await {
                self.register(allocation_id, &String::from_utf8_lossy(&token));
            }
        }
    }

    /// Returns the metrics of every guest, from the best available source.
    pub(crate) async fn metrics(&self, host: &Host) -> Vec<GuestMetrics> {
        // Without guests there may be no hypervisor.
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

    /// Begins to read a report: only of a known guest, and only a few of one guest at once.
    fn begin(&self, token: &str) -> Result<Reading, StatusCode> {
        let mut registry = self.registry();
        let known = registry.tokens.get(&Digest::of(token.as_bytes())).copied();
        let allocation_id = known.ok_or(StatusCode::UNAUTHORIZED)?;
        if registry.reports.get(&allocation_id).is_some_and(|(at, ..)| at.elapsed() < NOT_BEFORE) {
            return Err(StatusCode::TOO_MANY_REQUESTS);
        }
        let reading = registry.reading.entry(allocation_id).or_default();
        if *reading >= READ_AT_ONCE {
            return Err(StatusCode::TOO_MANY_REQUESTS);
        }
        *reading += 1;
        drop(registry);
        Ok(Reading { guests: self.clone(), allocation_id })
    }

    /// Serves guests until `stop`.
    pub(crate) async fn serve(self, stop: CancellationToken) {
        let Some(address) = self.endpoint() else { return };
        let places = Places::new(PLACES);
        let mut told = false;
        while !stop.is_cancelled() {
            match listen(address).await {
                Ok(listener) => {
                    tracing::info!(%address, "listening for guests' metrics");
                    told = false;
                    self.accept(listener, &places, PATIENCE, &stop).await;
                }
                Err(error) if !told => {
                    tracing::warn!(%address, %error, "cannot listen for guests' metrics; retrying until the address exists");
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

    async fn accept(&self, listener: TcpListener, places: &Places, patience: Patience, stop: &CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = async {
                    places.settled().await;
                    listener.accept().await
                } => accepted,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                // Out of descriptors, or the guest disconnected early. The listener is still valid.
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection of a guest failed");
                    places.shed();
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            // A guest that floods displaces its own connections; the one with the least progress is closed first.
            let Ok(place) = places.admit(Some(from.ip().into())) else { continue };
            let guests = self.clone();
            tokio::spawn(async move {
                let handle = place.handle();
                tokio::select! {
                    biased;
                    () = handle.told_to_leave() => {}
                    _ = tokio::time::timeout(patience.whole, guests.converse(stream, &handle, patience)) => {}
                }
                drop(place);
            });
        }
    }

    async fn converse(self, stream: TcpStream, place: &PlaceHandle, patience: Patience) {
        let place = place.clone();
        let service = hyper::service::service_fn(move |request| {
            let (guests, place) = (self.clone(), place.clone());
            async move { Ok::<_, Infallible>(guests.answer(request, &place).await) }
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(patience.head).max_buf_size(16 * 1024).keep_alive(false);
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>, place: &PlaceHandle) -> Response<Empty<Bytes>> {
        let mut response = Response::new(Empty::new());
        *response.status_mut() = self.status_of(request, place).await.unwrap_or_else(|status| status);
        response
    }

    async fn status_of(&self, request: Request<Incoming>, place: &PlaceHandle) -> Result<StatusCode, StatusCode> {
        place.reached(Stage::Serving);
        // With two of these, a proxy and this server could read different ones.
        for name in [http::header::HOST, http::header::AUTHORIZATION] {
            if request.headers().get_all(name).iter().nth(1).is_some() {
                return Err(StatusCode::BAD_REQUEST);
            }
        }
        if request.uri().path() != PATH {
            return Err(StatusCode::NOT_FOUND);
        }
        if request.method() != Method::POST {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let token = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
        // Before the body: the body of a stranger is not read at all.
        let reading = self.begin(token)?;
        place.opened();
        place.reached(Stage::Known);
        match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => Ok(reading.take(&body.to_bytes())),
            Err(_) => Err(StatusCode::PAYLOAD_TOO_LARGE),
        }
    }
}

/// A report that is being read.
struct Reading {
    guests: Guests,
    allocation_id: AllocationId,
}

impl Reading {
    /// Stores the report and returns the status.
    fn take(self, body: &[u8]) -> StatusCode {
        let mut registry = self.guests.registry();
        // The guest may be gone by now.
        if !registry.tokens.values().any(|known| *known == self.allocation_id) {
            return StatusCode::UNAUTHORIZED;
        }
        if registry.reports.get(&self.allocation_id).is_some_and(|(at, ..)| at.elapsed() < NOT_BEFORE) {
            return StatusCode::TOO_MANY_REQUESTS;
        }
        let Some(report) = GuestReport::parse(body) else { return StatusCode::BAD_REQUEST };
        registry.reports.insert(self.allocation_id, (Instant::now(), Timestamp::now(), report));
        StatusCode::NO_CONTENT
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut registry = self.guests.registry();
        if let Some(reading) = registry.reading.get_mut(&self.allocation_id) {
            *reading = reading.saturating_sub(1);
            if *reading == 0 {
                registry.reading.remove(&self.allocation_id);
            }
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

    /// Time limits that a test can exceed.
    const SHORT: Patience = Patience { head: Duration::from_millis(200), whole: Duration::from_millis(600) };

    /// Listens on an address of this machine until the token is cancelled.
    async fn serving(patience: Patience) -> (Guests, SocketAddr, Places, CancellationToken) {
        let listener = listen("127.0.0.1:0".parse().expect("address")).await.expect("listens");
        let address = listener.local_addr().expect("address");
        let (guests, stop, places) = (Guests::new(Some(address)), CancellationToken::new(), Places::new(PLACES));
        let (server, stopped, shared) = (guests.clone(), stop.clone(), places.clone());
        tokio::spawn(async move { server.accept(listener, &shared, patience, &stopped).await });
        (guests, address, places, stop)
    }

    /// Waits until the other side ends a connection.
    async fn is_ended(mut stream: TcpStream) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    }

    /// Connects from an address of one guest.
    async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{from}:0").parse().expect("an address")).expect("an address of loopback");
        socket.connect(to).await.expect("connects")
    }

    #[tokio::test]
    async fn a_guest_that_says_nothing_half_a_head_or_half_a_body_is_let_go() {
        let (guests, address, places, stop) = serving(SHORT).await;
        guests.register(AllocationId::generate(), "token");
        let whole = String::from_utf8(post("token", "{\"load_percent\":1}")).expect("text");
        for part in [0, 20, whole.len() - 5] {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            stream.write_all(&whole.as_bytes()[..part]).await.expect("sent");
            is_ended(stream).await;
        }
        while places.taken() > 0 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    }

    #[tokio::test]
    async fn one_guest_cannot_hold_the_places_of_others() {
        // Nothing here ends by itself.
        let long = Patience { head: Duration::from_secs(3600), whole: Duration::from_secs(3600) };
        let (guests, address, places, stop) = serving(long).await;
        guests.register(AllocationId::generate(), "victim");
        let half = String::from_utf8(post("thief", "{}")).expect("text");
        let mut held = Vec::new();
        for number in 0..100 {
            let mut stream = connect_from("127.0.0.2", address).await;
            let _ = stream.write_all(&half.as_bytes()[..number % half.len()]).await;
            held.push(stream);
        }
        assert!(ask(address, &post("victim", "{\"load_percent\":1}")).await.contains("204"));
        assert!(places.taken_by("127.0.0.2".parse::<std::net::IpAddr>().expect("an address").into()) <= PLACES.per_origin);
        // The same with more addresses than there are places.
        for number in 0..100 {
            held.push(connect_from(&format!("127.0.1.{}", number + 1), address).await);
        }
        assert!(places.taken() <= PLACES.total);
        assert!(ask(address, &post("victim", "{}")).await.contains("429"), "it is heard, and has reported just now");
        stop.cancel();
    }

    #[tokio::test]
    async fn a_guest_with_many_addresses_has_few_reports_read_at_once() {
        let long = Patience { head: Duration::from_secs(3600), whole: Duration::from_secs(3600) };
        let (guests, address, _places, stop) = serving(long).await;
        let one = AllocationId::generate();
        guests.register(one, "token");
        let whole = post("token", "{\"load_percent\":1}");
        let mut held = Vec::new();
        for number in 0..READ_AT_ONCE {
            let mut stream = connect_from(&format!("127.0.2.{}", number + 1), address).await;
            stream.write_all(&whole[..whole.len() - 3]).await.expect("sent");
            held.push(stream);
        }
        while guests.registry().reading.get(&one).copied().unwrap_or_default() < READ_AT_ONCE {
            tokio::task::yield_now().await;
        }
        assert!(ask(address, &whole).await.contains("429"));
        drop(held);
        while guests.registry().reading.contains_key(&one) {
            tokio::task::yield_now().await;
        }
        assert!(ask(address, &whole).await.contains("204"));
        stop.cancel();
    }

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
        let (guests, address, _places, stop) = serving(PATIENCE).await;
        let (one, other) = (AllocationId::generate(), AllocationId::generate());
        guests.register(one, "token-one\n");
        guests.register(other, "token-other");

        let good = r#"{"load_percent":150,"memory_used_bytes":5,"gpus":[{"utilization_percent":7}]}"#;
        for (request, status) in [
            (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), "404"),
            (format!("GET {PATH} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes(), "405"),
            (format!("POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").into_bytes(), "401"),
            (post("guessed", good), "401"),
            (b"GET / HTTP/1.1\r\nHost: h\r\nHost: g\r\n\r\n".to_vec(), "400"),
            (
                format!("POST {PATH} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer token-one\r\nAuthorization: Bearer x\r\n\r\n")
                    .into_bytes(),
                "400",
            ),
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
    }
}
