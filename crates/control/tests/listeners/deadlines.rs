//! A connection has a deadline for its next step.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::*;
use crate::common::node::Host;

/// The preface of HTTP/2 and empty settings: a client that could send a request, and does not.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// What clients send before they fall silent.
const BEGINNINGS: &[(&str, &[u8])] = &[
    ("nothing", b""),
    ("one byte", b"G"),
    ("the beginning of HTTP/2", b"PRI *"),
    ("the preface of HTTP/2", H2_PREFACE),
    ("half a head", b"GET /healthz HTTP/1.1\r\nHost: h\r\nX-"),
    ("half a body", b"POST /oauth/token HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc"),
    ("half a chunk", b"POST /oauth/token HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc"),
    ("a whole request", b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("half a second head", b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\nGET /hea"),
];

async fn every_beginning_ends(stall: Stall) {
    let all = BEGINNINGS.iter().map(|(what, beginning)| {
        let stall = stall.clone();
        async move {
            let mut socket = stall.connect().await;
            socket.write_all(beginning).await.unwrap();
            let reported = until_ended(&mut socket).await;
            (what, reported)
        }
    });
    for (what, reported) in futures::future::join_all(all).await {
        // A complete request was answered before.
        let is_answered = what.contains("request") || what.contains("second");
        assert!(!is_answered || reported.starts_with("HTTP/1.1 "), "{what}: {reported:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_falls_silent_is_let_go_on_plain_rest() {
    let server = server(short(), false).await;
    every_beginning_ends(api(&server)).await;
    let stall = api(&server);
    for reason in ["first_byte_timeout", "head_timeout", "body_timeout", "idle_timeout"] {
        assert!(cut(&stall, &server.admin_token, "api", reason).await > 0, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_falls_silent_is_let_go_on_rest_with_tls() {
    let server = server(short(), true).await;
    every_beginning_ends(api_tls(&server)).await;
    every_beginning_of_tls_ends(server.server().api_address.unwrap()).await;
    let stall = api_tls(&server);
    for reason in ["first_byte_timeout", "handshake_timeout", "head_timeout", "body_timeout", "idle_timeout"] {
        assert!(cut(&stall, &server.admin_token, "api", reason).await > 0, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_falls_silent_is_let_go_on_the_link() {
    let server = server(short(), false).await;
    every_beginning_ends(link(&server)).await;
    every_beginning_of_tls_ends(server.server().link_address.unwrap()).await;
    for reason in ["first_byte_timeout", "handshake_timeout", "head_timeout", "idle_timeout"] {
        assert!(cut(&api(&server), &server.admin_token, "link", reason).await > 0, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_falls_silent_is_let_go_on_the_local_socket() {
    let server = server(short(), false).await;
    every_beginning_ends(local(&server)).await;
    for reason in ["first_byte_timeout", "head_timeout", "body_timeout", "idle_timeout"] {
        assert!(cut(&api(&server), &server.admin_token, "local", reason).await > 0, "{reason}");
    }
}

/// Nothing, and half a TLS record with a handshake in it.
async fn every_beginning_of_tls_ends(to: SocketAddr) {
    for beginning in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut socket = TcpStream::connect(to).await.unwrap();
        socket.write_all(beginning).await.unwrap();
        until_ended(&mut socket).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_body_is_answered_with_a_code() {
    let server = server(short(), false).await;
    let request =
        "POST /oauth/token HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\na";
    let reported = ask(&api(&server), request).await;
    assert!(reported.starts_with("HTTP/1.1 408") && reported.contains("\"body_timeout\""), "{reported}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_http2_without_requests_ends_and_one_with_a_request_does_not() {
    let server = server(short(), false).await;
    let connect = async || {
        let socket = TcpStream::connect(server.server().api_address.unwrap()).await.unwrap();
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap()
    };
    let request = |path: &str| {
        let uri = format!("{}{path}", server.url());
        let builder = http::Request::get(uri).header("authorization", format!("Bearer {}", server.admin_token));
        builder.body(Empty::<Bytes>::new()).unwrap()
    };
    let (mut listening, connection) = connect().await;
    let listens = tokio::spawn(connection);
    let answer = listening.send_request(request("/api/v1/events")).await.unwrap();
    assert_eq!(answer.status(), 200);

    let (mut idle, connection) = connect().await;
    let ended = tokio::spawn(connection);
    let asked = idle.send_request(request("/healthz")).await.unwrap();
    assert_eq!(asked.into_body().collect().await.unwrap().to_bytes(), "ok\n");
    let _ = tokio::time::timeout(PATIENCE, ended).await.expect("the idle connection ends").unwrap();
    assert!(!listens.is_finished(), "the stream goes on, though it is older and as quiet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_of_nodes_outlive_every_deadline() {
    let server = server(short(), false).await;
    let host = Host::enrolled(&server).await;
    let mut stream = host.connect(&[]).await;
    let mut silent = link(&server).connect().await;
    // Twice as long as a client without a certificate may wait.
    for _ in 0..2 {
        until_ended(&mut silent).await;
        silent = link(&server).connect().await;
    }
    let client = server.client();
    let wanted = serde_json::from_value(serde_json::json!({
        "node": host.node_id().to_string(), "task_type": "diag.ping", "params": { "message": "hi" }
    }));
    client.task_create(&wanted.unwrap(), None).await.unwrap();
    stream.offer().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_its_answers_is_let_go() {
    let server = server(short(), false).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.server().api_address.unwrap()).await.unwrap();
    let (mut read, mut write) = stream.split();
    let many = "GET /openapi.json HTTP/1.1\r\nHost: h\r\n\r\n".repeat(500);
    // It ends in the middle of it.
    let _ = tokio::time::timeout(PATIENCE, write.write_all(many.as_bytes())).await.expect("the connection ends");
    let stall = api(&server);
    gpuaas_testkit::eventually_async(PATIENCE, "the connection is cut", || async {
        (cut(&stall, &server.admin_token, "api", "write_timeout").await > 0).then_some(())
    })
    .await;
    until_ended(&mut read).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http2_that_does_not_read_its_answer_is_let_go() {
    let server = server(short(), false).await;
    let socket = TcpStream::connect(server.server().api_address.unwrap()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(1024)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    let ended = tokio::spawn(connection);
    let request = http::Request::get(format!("{}/openapi.json", server.url())).body(Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let _ = tokio::time::timeout(PATIENCE, ended).await.expect("the connection ends").unwrap();
    drop(answer);
}
