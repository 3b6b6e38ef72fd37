//! The door for whoever sits at the server: the same REST over a Unix socket in the data folder, without a token.
//!
//! For recovery, when nobody can sign in any more. Whoever may open it, root and the server's own user, could read its keys anyway.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::http::Local;

/// Most connections at the same time: people, not programs.
const MAX_CONNECTIONS: usize = 32;
/// A kept connection may be without a request for this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long open requests may take to end when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The open door. Removes the socket when it is closed.
pub(crate) struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Which file is ours: a newer server may have put its own in the place of it.
    inode: u64,
}

impl LocalSocket {
    /// Opens the door at `path`. `None` if another server that is alive has it.
    pub(crate) async fn open(path: &Path) -> io::Result<Option<Self>> {
        if UnixStream::connect(path).await.is_ok() {
            return Ok(None);
        }
        // What is there now answers nobody. The new one appears under the name only when nobody else can open it.
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(name);
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
        let inode = std::fs::symlink_metadata(&temporary)?.ino();
        std::fs::rename(&temporary, path)?;
        Ok(Some(Self { listener, path: path.to_owned(), inode }))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Serves `router` until `shutdown`, then lets open requests end.
    pub(crate) async fn serve(self, router: Router, shutdown: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let permit = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                permit = Arc::clone(&permits).acquire_owned() => permit,
            };
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) if is_trusted(&stream) => {
                    let (router, shutdown) = (router.clone(), shutdown.clone());
                    connections.spawn(async move {
                        let _permit = permit;
                        connection(stream, router, shutdown).await;
                    });
                }
                Ok(_) => tracing::warn!("somebody who is neither root nor the server's own user tried the local socket"),
                Err(error) => {
                    // An immediate retry would spin.
                    tracing::warn!(%error, "accept failed on the local socket");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        connections.close();
        if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "local connections still open at the end of the shutdown");
        }
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The file's mode keeps others out; the kernel's word about the other side does as well.
fn is_trusted(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| may_enter(peer.uid(), rustix::process::geteuid().as_raw()))
}

fn may_enter(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

async fn connection(stream: UnixStream, router: Router, shutdown: CancellationToken) {
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Local);
        router.clone().oneshot(request)
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(64 * 1024);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let result = tokio::select! {
        biased;
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a local connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_server_itself_may_enter() {
        assert!(may_enter(0, 1000) && may_enter(1000, 1000));
        assert!(!may_enter(1001, 1000) && !may_enter(1000, 0));
    }
}
