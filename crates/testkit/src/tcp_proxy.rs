//! A TCP proxy between a client under test and a real server, whose connections can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Forwards bytes in both directions. Closed on drop.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    wire: Arc<Wire>,
}

#[derive(Debug)]
struct Wire {
    server: SocketAddr,
    closed: AtomicBool,
    /// Whether bytes from the server are dropped.
    answers_are_lost: AtomicBool,
    lost_bytes: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
}

impl TcpProxy {
    /// Listens on a free port of 127.0.0.1 and connects every client to `server_port` on 127.0.0.1.
    pub fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port can be listened on");
        let address = listener.local_addr().expect("a listener has an address");
        let wire = Arc::new(Wire {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, server_port)),
            closed: AtomicBool::new(false),
            answers_are_lost: AtomicBool::new(false),
            lost_bytes: AtomicU64::new(0),
            streams: Mutex::default(),
        });
        let accepting = wire.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, wire }
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, forwards what clients send and drops what the server sends.
    pub fn lose_answers(&self) {
        self.wire.answers_are_lost.store(true, Ordering::SeqCst);
    }

    /// Returns how many bytes from the server were dropped.
    pub fn lost_bytes(&self) -> u64 {
        self.wire.lost_bytes.load(Ordering::SeqCst)
    }

    /// Cuts all connections. New connections work without loss.
    pub fn reset(&self) {
        self.wire.answers_are_lost.store(false, Ordering::SeqCst);
        self.wire.cut();
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.wire.closed.store(true, Ordering::SeqCst);
        self.wire.cut();
        // Wakes the accepting thread, so that it notices the shutdown.
        let _ = TcpStream::connect(self.address);
    }
}

impl Wire {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            // If the server cannot be reached, the client's connection closes immediately.
            if let (Ok(client), Ok(server)) = (client, TcpStream::connect(self.server)) {
                self.carry(&client, &server);
            }
        }
    }

    fn carry(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let copy = |stream: &TcpStream| stream.try_clone().expect("a socket can be cloned");
        for stream in [client, server] {
            stream.set_nodelay(true).expect("a socket takes options");
        }
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).extend([copy(client), copy(server)]);
        let (from, to) = (copy(client), copy(server));
        std::thread::spawn(move || pump(from, to, |_| true));
        let (from, to, wire) = (copy(server), copy(client), self.clone());
        std::thread::spawn(move || {
            pump(from, to, |bytes| {
                let arrives = !wire.answers_are_lost.load(Ordering::SeqCst);
                if !arrives {
                    wire.lost_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
                }
                arrives
            });
        });
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Copies until either side ends, then closes both.
fn pump(mut from: TcpStream, mut to: TcpStream, arrives: impl Fn(usize) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 => {
                if arrives(count) && to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Ok(_) | Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
