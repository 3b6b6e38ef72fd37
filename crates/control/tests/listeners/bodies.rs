//! What clients may make the server hold in memory.

use bytes::Bytes;
use futures::StreamExt as _;
use gpuaas_contract::link::route;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

const FORM: &str = "Content-Type: application/x-www-form-urlencoded";

/// Returns a complete sign-in request of an unknown caller.
fn sign_in() -> String {
    format!("POST /oauth/token HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{FORM}\r\nContent-Length: 12\r\n\r\ngrant_type=x")
}

/// Sends a head, a part of a body and nothing more.
async fn half_body(stall: &Stall, head: &str, sent: usize) -> Box<dyn Socket> {
    let mut socket = stall.connect().await;
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{}", sent + 1, "a".repeat(sent));
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_of_a_stranger_is_small() {
    let server = server(long(), false).await;
    let body = "a".repeat(17 * 1024);
    for path in ["/oauth/token", "/oauth/device_authorization", "/oauth/revoke", "/oauth/authorize", "/device"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{FORM}\r\nContent-Length: {}", body.len());
        let reported = ask(&api(&server), &format!("{head}\r\n\r\n{body}")).await;
        assert!(reported.starts_with("HTTP/1.1 413") && reported.contains("\"body_too_large\""), "{path}: {reported}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_refused_before_the_body_is_read() {
    let server = server(long(), false).await;
    let head = "POST /api/v1/tasks HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n";
    let mut socket = api(&server).connect().await;
    socket.write_all(head.as_bytes()).await.unwrap();
    assert!(super::head(&mut socket).await.starts_with("HTTP/1.1 401"));

    let node = "node_01890000000070008000000000000000";
    for path in [route::HELLO, route::METRICS, route::TASK_LOGS, route::TASK_RESULT] {
        let path = path.replace("{node}", node).replace("{task}", "x");
        let mut socket = link(&server).connect().await;
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let reported = super::head(&mut socket).await;
        assert!(reported.starts_with("HTTP/1.1 401"), "{path}: {reported}");
    }
}

/// The unfinished forms of many strangers, in both versions of HTTP, take a fixed amount; one more stranger gets some of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_of_strangers_hold_little_and_keep_nobody_out() {
    let mut limits = long();
    limits.api.stranger_bytes = 64 * 1024;
    let server = server(limits, false).await;
    let stall = api(&server);
    let head = format!("POST /oauth/token HTTP/1.1\r\nHost: h\r\n{FORM}");
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(half_body(&stall, &head, 15 * 1024).await);
    }
    let mut connections = Vec::new();
    for _ in 0..4 {
        let socket = TcpStream::connect(server.server().api_address.unwrap()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
        connections.push(tokio::spawn(connection));
        for _ in 0..64 {
            let part = futures::stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'a'; 15 * 1024])))]);
            let body = StreamBody::new(Box::pin(part.chain(futures::stream::pending())));
            let request = http::Request::post(format!("{}/oauth/token", server.url()));
            let request = request.header("content-type", "application/x-www-form-urlencoded").body(body).unwrap();
            let _ = sender.ready().await;
            tokio::spawn(sender.send_request(request));
        }
        // The connection lives as long as requests are possible.
        held.push(stall.connect().await);
        connections.push(tokio::spawn(async move {
            let _sender = sender;
            std::future::pending().await
        }));
    }
    let reported = ask(&stall, &sign_in()).await;
    assert!(reported.contains("\"error\":\"invalid_client\""), "{reported}");
    assert!(cut(&stall, &server.admin_token, "api", "shed").await > 0, "older requests made room");
    for connection in connections {
        connection.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_of_callers_are_counted_and_given_back() {
    let mut limits = long();
    limits.api.caller_bytes = 64 * 1024;
    limits.api.room = Duration::from_millis(50);
    let server = server(limits, false).await;
    let stall = api(&server);
    let token = &server.admin_token;
    let head = format!("POST /api/v1/tasks HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}");
    let whole = |bytes: usize| format!("{head}\r\nContent-Length: {bytes}\r\n\r\n{}", "a".repeat(bytes));
    assert!(ask(&stall, &whole(2000)).await.contains("\"json_invalid\""));
    let held = half_body(&stall, &head, 64 * 1024).await;
    let reported = gpuaas_testkit::eventually_async(PATIENCE, "there is no room", || async {
        let reported = ask(&stall, &whole(2000)).await;
        reported.contains("\"server_busy\"").then_some(reported)
    })
    .await;
    assert!(reported.starts_with("HTTP/1.1 503") && reported.contains("retry-after: 1"), "{reported}");
    // Strangers have their own amount, and so has the local socket.
    assert!(ask(&stall, &sign_in()).await.contains("\"invalid_client\""));
    assert!(ask(&local(&server), &whole(2000)).await.contains("\"json_invalid\""));
    drop(held);
    gpuaas_testkit::eventually_async(PATIENCE, "there is room again", || async {
        ask(&stall, &whole(2000)).await.contains("\"json_invalid\"").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_decides_something_is_taken_once_on_every_listener() {
    let server = server(long(), false).await;
    for stall in [api(&server), local(&server), link(&server)] {
        for twice in ["Host: h\r\nHost: g", "Host: h\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b"] {
            let reported = ask(&stall, &format!("GET /healthz HTTP/1.1\r\nConnection: close\r\n{twice}\r\n\r\n")).await;
            assert!(reported.starts_with("HTTP/1.1 400") && reported.contains("\"header_repeated\""), "{reported}");
        }
    }
}
