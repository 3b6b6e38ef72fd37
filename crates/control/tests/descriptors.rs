//! A process without free descriptors. A separate program, because it takes them from every test beside it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;

use common::{PATIENCE, TestServer};
use gpuaas_control::link::chain;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_outlives_a_time_without_descriptors() {
    let server = TestServer::sqlite().await;
    let (api, link) = (server.server().api_address.unwrap(), server.server().link_address.unwrap());
    let limit = getrlimit(Resource::Nofile);
    let open = u64::try_from(std::fs::read_dir("/proc/self/fd").unwrap().count()).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 20), maximum: limit.maximum }).unwrap();
    let sockets = [api, link].map(|to| (TcpSocket::new_v4().unwrap(), to));
    let mut all = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => all.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()), "{}", chain(&error));
    let mut streams = Vec::new();
    for (socket, to) in sockets {
        streams.push(socket.connect(to).await.unwrap());
    }
    // The listeners fail for a while: the connections are in the backlog, and cannot be accepted.
    let mut byte = [0];
    for stream in &mut streams {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
        assert!(tokio::time::timeout(std::time::Duration::from_millis(200), stream.read(&mut byte)).await.is_err());
    }
    drop(all);
    let mut reported = Vec::new();
    tokio::time::timeout(PATIENCE, streams[0].read_to_end(&mut reported)).await.expect("an answer in time").unwrap();
    assert!(reported.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&reported));
    // The link answers with TLS, or closes the connection: in both cases it has accepted.
    let _ = tokio::time::timeout(PATIENCE, streams[1].read(&mut byte)).await.expect("an answer in time");
    let metrics = server.metrics().await;
    for listener in ["api", "link"] {
        let line = format!("gpuaas_connections_cut_total{{listener=\"{listener}\",reason=\"descriptors\"}}");
        assert!(metrics.contains(&line), "{metrics}");
    }
}
