//! TCP of the kernel or of a simulation.

#[cfg(not(feature = "simulation"))]
pub use tokio::net::{TcpListener, TcpStream};

#[cfg(feature = "simulation")]
pub use either::{TcpListener, TcpStream};

#[cfg(feature = "simulation")]
mod either {
    use std::io;
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use crate::simulation;

    /// A connection.
    #[derive(Debug)]
    pub enum TcpStream {
        /// A connection of the kernel.
        Kernel(tokio::net::TcpStream),
        /// A connection of a simulation.
        Simulated(turmoil::net::TcpStream),
    }

    impl TcpStream {
        /// Connects to `host:port`.
        pub async fn connect(address: &str) -> io::Result<Self> {
            match simulation::here() {
                None => tokio::net::TcpStream::connect(address).await.map(Self::Kernel),
                Some(_) => turmoil::net::TcpStream::connect(address).await.map(Self::Simulated),
            }
        }

        /// Turns Nagle's algorithm off (`true`), so that small messages are sent at once.
        pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
            match self {
                Self::Kernel(stream) => stream.set_nodelay(nodelay),
                Self::Simulated(_) => Ok(()),
            }
        }
    }

    /// A listener for connections.
    pub enum TcpListener {
        /// A listener of the kernel.
        Kernel(tokio::net::TcpListener),
        /// A listener of a simulation.
        Simulated(turmoil::net::TcpListener),
    }

    impl TcpListener {
        /// Listens on the address.
        pub async fn bind(address: SocketAddr) -> io::Result<Self> {
            match simulation::here() {
                None => tokio::net::TcpListener::bind(address).await.map(Self::Kernel),
                Some(_) => turmoil::net::TcpListener::bind(address).await.map(Self::Simulated),
            }
        }

        /// Accepts the next connection and returns it with its peer address.
        pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
            match self {
                Self::Kernel(listener) => listener.accept().await.map(|(stream, from)| (TcpStream::Kernel(stream), from)),
                Self::Simulated(listener) => listener.accept().await.map(|(stream, from)| (TcpStream::Simulated(stream), from)),
            }
        }

        /// Returns the address it listens on.
        pub fn local_addr(&self) -> io::Result<SocketAddr> {
            match self {
                Self::Kernel(listener) => listener.local_addr(),
                Self::Simulated(listener) => listener.local_addr(),
            }
        }
    }

    macro_rules! inner {
        ($self:expr, $stream:ident => $call:expr) => {
            match $self.get_mut() {
                TcpStream::Kernel(stream) => {
                    let $stream = Pin::new(stream);
                    $call
                }
                TcpStream::Simulated(stream) => {
                    let $stream = Pin::new(stream);
                    $call
                }
            }
        };
    }

    impl AsyncRead for TcpStream {
        fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            inner!(self, stream => stream.poll_read(cx, buf))
        }
    }

    impl AsyncWrite for TcpStream {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            inner!(self, stream => stream.poll_write(cx, buf))
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            inner!(self, stream => stream.poll_flush(cx))
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            inner!(self, stream => stream.poll_shutdown(cx))
        }
    }
}
