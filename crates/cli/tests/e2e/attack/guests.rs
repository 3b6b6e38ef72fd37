//! Attacks by a guest on its host. The metrics listener is the only part of the agent that guests can reach.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::http::{self, Request};
use super::sockets::sources;
use super::strangers::{patience, time};
use super::target::Target;
use super::tenant::Tenant;
use super::withstand;

const PATH: &str = "/internal/v1/guest-telemetry";
/// Address of the other guest.
const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The host accepts one report per second from a guest.
const BETWEEN_REPORTS: Duration = Duration::from_millis(1100);

/// Returns the token that the agent gave to a guest, as the guest finds it in its seed image.
fn token(folder: &Path, allocation: &str) -> String {
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("telemetry-token") && path.to_string_lossy().contains(allocation) {
                return std::fs::read_to_string(path).unwrap().trim().to_owned();
            }
        }
    }
    panic!("{allocation} has no token under {}", folder.display());
}

/// Opens connections without end, sends a part of a report with its own token on each, and waits until it is disconnected.
async fn flood(from: Ipv4Addr, to: SocketAddr, report: String, cut_at: usize, opened: Arc<AtomicUsize>) {
    loop {
        if let Ok(mut stream) = http::connect(from, to).await {
            opened.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(&report.as_bytes()[..cut_at]).await;
            let mut answer = [0; 256];
            while matches!(stream.read(&mut answer).await, Ok(read) if read > 0) {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_guest_that_floods_its_host_does_not_silence_another() {
    let mut target = Target::start();
    let tenant = Tenant::new(&target);
    let owner = tenant.key(&target, "owner", "owner");
    let [thief, victim] = ["thief", "victim"].map(|name| tenant.lease(&target, &owner, name));
    let [thief, victim] = [thief, victim].map(|allocation| token(&tenant.host.folder, &allocation));
    withstand("guest-reports", &mut target, |_| {
        let to: SocketAddr = tenant.telemetry.parse().unwrap();
        let body = r#"{"load_percent":1}"#;
        let report = format!(
            "POST {PATH} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {thief}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let opened = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (reports, slowest) = runtime.block_on(async {
            // Most connections come from the guest's own address. The others are forged: a network may be badly protected.
            let addresses = std::iter::repeat_n(sources(1)[0], 100).chain(sources(60));
            for (number, from) in addresses.enumerate() {
                // Nothing, half of the request, or all of it but three bytes.
                let cut_at = [0, report.len() / 2, report.len() - 3][number % 3];
                tokio::spawn(flood(from, to, report.clone(), cut_at, Arc::clone(&opened)));
            }
            let (started, mut reports, mut slowest) = (Instant::now(), 0, Duration::ZERO);
            while started.elapsed() < time() {
                tokio::time::sleep(BETWEEN_REPORTS).await;
                let asked = Instant::now();
                let answer = http::send(VICTIM, to, &Request::json(PATH, &victim, body)).await;
                let answer = answer.unwrap_or_else(|error| panic!("the other guest is not heard: {error}"));
                assert_eq!(answer.status, 204, "{answer:?}");
                reports += 1;
                slowest = slowest.max(asked.elapsed());
            }
            (reports, slowest)
        });
        runtime.shutdown_background();
        assert!(slowest <= patience(), "the other guest waited {slowest:?}");
        let opened = opened.load(Ordering::Relaxed);
        assert!(opened > 64, "the attack did not happen");
        format!("{opened} connections of one guest, {reports} reports of another taken, slowest {} ms", slowest.as_millis())
    });
}
