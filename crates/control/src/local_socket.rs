//! The local socket for administrators on the server: the same REST over a Unix socket in the data folder, without a token.
//!
//! It is for recovery, when no one can sign in any more. Only root and the server's own user can open it, and these could read
//! the server's keys anyway.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::listener::{Accept, Peer};

/// The open socket. It is removed when it is closed.
pub(crate) struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The inode of our file: a newer server may have replaced it.
    inode: u64,
}

impl LocalSocket {
    /// Opens the socket at `path`. Returns `None` if another live server has it.
    pub(crate) async fn open(path: &Path) -> io::Result<Option<Self>> {
        if UnixStream::connect(path).await.is_ok() {
            return Ok(None);
        }
        // The existing socket does not answer. The new one gets its name only when no one else can open it.
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

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Accept for LocalSocket {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<Option<(UnixStream, Peer)>> {
        let (stream, _) = self.listener.accept().await?;
        // The file's mode excludes others, and so do the kernel's peer credentials.
        match stream.peer_cred() {
            Ok(peer) if may_enter(peer.uid(), rustix::process::geteuid().as_raw()) => {
                Ok(Some((stream, Peer::Process(peer.pid()))))
            }
            Ok(_) | Err(_) => {
                tracing::warn!("refused a connection to the local socket from a user who is neither root nor the server's own");
                Ok(None)
            }
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

fn may_enter(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
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
