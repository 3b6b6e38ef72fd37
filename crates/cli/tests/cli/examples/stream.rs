//! Reads the first document of a stream.

use gpuaas_testkit::PATIENCE;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

/// Returns the document of the first complete server-sent event with this name, if it has arrived.
pub(super) fn first_event(text: &str, name: &str) -> Option<Value> {
    let mut events = text.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n"));
    let event = events.find(|event| event.lines().any(|line| line.strip_prefix("event:").map(str::trim) == Some(name)))?;
    let data: String = event.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    Some(serde_json::from_str(&data).expect("JSON"))
}

/// Returns the document of the first text message of a WebSocket.
pub(super) async fn first_message(url: &str, path: &str, token: &str) -> Value {
    let address = url.strip_prefix("http://").expect("plain HTTP");
    let read = async {
        let mut socket = BufReader::new(tokio::net::TcpStream::connect(address).await.expect("connects"));
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).await.expect("written");
        let mut line = String::new();
        socket.read_line(&mut line).await.expect("a status line");
        assert!(line.starts_with("HTTP/1.1 101"), "{line}");
        while line != "\r\n" {
            line.clear();
            socket.read_line(&mut line).await.expect("a header");
        }
        loop {
            let (opcode, payload) = frame(&mut socket).await;
            if opcode == 1 {
                return serde_json::from_slice(&payload).expect("JSON");
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("a message in time")
}

/// Reads one frame as servers send it: unfragmented and unmasked.
async fn frame(socket: &mut BufReader<tokio::net::TcpStream>) -> (u8, Vec<u8>) {
    let head = socket.read_u16().await.expect("a frame");
    let (opcode, length) = ((head >> 8) & 0x0f, u64::from(head & 0x7f));
    let length = match length {
        126 => u64::from(socket.read_u16().await.expect("a length")),
        127 => socket.read_u64().await.expect("a length"),
        short => short,
    };
    let mut payload = vec![0; usize::try_from(length).expect("a length")];
    socket.read_exact(&mut payload).await.expect("a payload");
    (u8::try_from(opcode).expect("four bits"), payload)
}
