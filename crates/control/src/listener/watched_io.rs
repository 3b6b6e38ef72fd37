//! A socket that reports the first byte and when the peer stops reading.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use gpuaas_runtime::places::Place;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::state::ConnectionState;

/// A client that reads less than this within the write time does not read.
pub const MIN_TAKEN: usize = 16 * 1024;

/// A socket and its place. The place is free when the socket is closed, whoever holds it by then.
pub(super) struct WatchedIo<S> {
    inner: S,
    state: Arc<ConnectionState>,
    has_sent: bool,
    /// What the client has read since it became slow.
    taken: Option<usize>,
    // After the socket: fields are dropped in this order.
    _place: Place,
    _open: super::OpenConnection,
}

impl<S> WatchedIo<S> {
    pub(super) fn new(inner: S, state: Arc<ConnectionState>, place: Place, open: super::OpenConnection) -> Self {
        Self { inner, state, has_sent: false, taken: None, _place: place, _open: open }
    }

    fn wrote(&mut self, result: &Poll<io::Result<usize>>, wanted: usize) {
        let written = match result {
            Poll::Ready(Ok(written)) => *written,
            Poll::Ready(Err(_)) => return,
            Poll::Pending => 0,
        };
        let is_slow = result.is_pending() || written < wanted;
        match &mut self.taken {
            None if !is_slow => {}
            Some(_) if !is_slow => {
                self.taken = None;
                self.state.set_blocked(false);
            }
            Some(taken) if taken.saturating_add(written) < MIN_TAKEN => *taken = taken.saturating_add(written),
            None | Some(_) => {
                self.taken = Some(0);
                self.state.set_blocked(true);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedIo<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(&mut this.inner).poll_read(cx, buf);
        if !this.has_sent && buf.filled().len() > before {
            this.has_sent = true;
            this.state.has_sent();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.wrote(&result, buf.len());
        result
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.wrote(&result, bufs.iter().map(|buf| buf.len()).sum());
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
