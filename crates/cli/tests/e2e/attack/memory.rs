//! Attacks that make the server hold memory: unfinished request bodies over HTTP/2, and WebSocket frames that never end.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::target::Target;
use super::{http, is_long, withstand};

const FROM: Ipv4Addr = Ipv4Addr::new(127, 66, 1, 1);

/// Opens one connection with as many requests as the server accepts, each with a body that stops before its end.
async fn unfinished_bodies(api: SocketAddr, path: &'static str, streams: usize, bytes: usize) {
    let Ok(stream) = http::connect(FROM, api).await else { return };
    let Ok((sender, connection)) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await else {
        return;
    };
    tokio::spawn(connection);
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let chunk = Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'a'; bytes])));
        let body = StreamBody::new(futures::stream::once(async { chunk }).chain(futures::stream::pending()));
        let request = hyper::Request::post(format!("http://{api}{path}"))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("content-length", (bytes + 1).to_string())
            .body(Box::pin(body))
            .expect("a request");
        let mut sender = sender.clone();
        requests.spawn(async move { sender.send_request(request).await.map(|answer| answer.status()) });
    }
    while requests.join_next().await.is_some() {}
    // Requests that the server has refused are not repeated. The connection stays open.
    std::future::pending::<()>().await;
}

#[test]
fn unfinished_bodies_over_http2_do_not_fill_the_memory() {
    let mut target = Target::start();
    let (connections, time) = if is_long() { (60, Duration::from_secs(20)) } else { (20, Duration::from_secs(4)) };
    withstand("http2-bodies", &mut target, |target| {
        let api = target.api();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for _ in 0..connections {
                tokio::spawn(unfinished_bodies(api, "/oauth/token", 128, 256 * 1024 - 1));
            }
            tokio::time::sleep(time).await;
        });
        runtime.shutdown_background();
        format!("{connections} connections with 128 bodies of 256 KiB each, for {} s", time.as_secs())
    });
}

/// Opens a project's event stream and starts a frame that never ends. Returns true if the server accepted the upgrade.
async fn endless_frame(api: SocketAddr, path: &str, token: &str, size: usize) -> bool {
    let Ok(mut stream) = http::connect(FROM, api).await else { return false };
    let upgrade = format!(
        "GET {path} HTTP/1.1\r\nhost: gpuaas.test\r\nauthorization: Bearer {token}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let _ = stream.write_all(upgrade.as_bytes()).await;
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).await.unwrap_or(0);
    let upgraded = answer[..read].starts_with(b"HTTP/1.1 101");
    // A masked text frame with a 64-bit length.
    let mut head = vec![0x81, 0x80 | 127];
    head.extend_from_slice(&(size as u64).to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    let _ = stream.write_all(&head).await;
    let chunk = vec![b'a'; 64 * 1024];
    for _ in 0..(size / chunk.len()).saturating_sub(1) {
        if stream.write_all(&chunk).await.is_err() {
            return upgraded;
        }
    }
    while matches!(stream.read(&mut answer).await, Ok(read) if read > 0) {}
    upgraded
}

#[test]
fn frames_over_websocket_that_never_end_do_not_fill_the_memory() {
    let mut target = Target::start();
    target.cluster.json(&["org", "create", "acme"]);
    let project = target.cluster.json(&["project", "create", "acme/training"])["id"].as_str().unwrap().to_owned();
    let (connections, time) = if is_long() { (60, Duration::from_secs(20)) } else { (40, Duration::from_secs(4)) };
    withstand("websocket-frames", &mut target, |target| {
        let (api, token) = (target.api(), target.token.clone());
        let path = format!("/api/v1/projects/{project}/events/ws");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let upgraded = runtime.block_on(async {
            let mut attackers = tokio::task::JoinSet::new();
            for _ in 0..connections {
                let (path, token) = (path.clone(), token.clone());
                attackers.spawn(async move { endless_frame(api, &path, &token, 16 * 1024 * 1024).await });
            }
            let mut upgraded = 0;
            let _ = tokio::time::timeout(time, async {
                while let Some(ended) = attackers.join_next().await {
                    upgraded += usize::from(ended.unwrap_or(false));
                }
            })
            .await;
            upgraded
        });
        runtime.shutdown_background();
        format!("{connections} frames of 16 MiB begun, {upgraded} of them on streams that the server had opened and cut")
    });
}
