//! The SSH key of `gpuaas dev`, for machines whose user has none: somebody must be able to sign in to what is leased.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::slice::SshPublicKey;
use gpuaas_host::private_file;

use crate::error::CliError;

const KIND: &[u8] = b"ssh-ed25519";
const COMMENT: &str = "gpuaas-dev";
/// OpenSSH breaks its base64 here.
const LINE: usize = 70;

/// Where the key is, beside everything else of this cluster.
pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("ssh").join("id_ed25519")
}

/// The public half, which is made with the private one on the first start.
pub(crate) fn ensure(data_dir: &Path) -> Result<SshPublicKey, CliError> {
    let private = path(data_dir);
    let public = private.with_extension("pub");
    let failed = |error: &dyn std::fmt::Display| CliError::internal(format!("{}: {error}", public.display()));
    if !public.is_file() {
        if let Some(folder) = private.parent() {
            private_file::make_folder(folder).map_err(|error| failed(&error))?;
        }
        let mut seed = [0; 32];
        if !gpuaas_runtime::random(&mut seed) {
            return Err(CliError::internal("the system gives no random numbers"));
        }
        let key = SigningKey::from_seed(&seed);
        private_file::write(&private, openssh(&key, &seed).as_bytes()).map_err(|error| failed(&error))?;
        let line = format!("ssh-ed25519 {} {COMMENT}\n", STANDARD.encode(public_blob(&key)));
        private_file::write_with_mode(&public, line.as_bytes(), 0o644).map_err(|error| failed(&error))?;
    }
    let text = std::fs::read_to_string(&public).map_err(|error| failed(&error))?;
    text.trim().parse().map_err(|error: gpuaas_contract::slice::BadName| failed(&error))
}

/// The format of `ssh-keygen -t ed25519` without a passphrase: PROTOCOL.key of OpenSSH.
fn openssh(key: &SigningKey, seed: &[u8; 32]) -> String {
    let public = public_blob(key);
    // The same number twice says that a passphrase was right; there is none.
    let mut secret = [[7; 4], [7; 4]].concat();
    text(&mut secret, KIND);
    text(&mut secret, key.verifying_key().as_bytes());
    text(&mut secret, &[&seed[..], key.verifying_key().as_bytes()].concat());
    text(&mut secret, COMMENT.as_bytes());
    for pad in 1..=8_u8 {
        if secret.len().is_multiple_of(8) {
            break;
        }
        secret.push(pad);
    }
    let mut file = b"openssh-key-v1\0".to_vec();
    for part in [&b"none"[..], b"none", b""] {
        text(&mut file, part);
    }
    file.extend(1_u32.to_be_bytes());
    text(&mut file, &public);
    text(&mut file, &secret);
    let encoded = STANDARD.encode(file);
    let lines: Vec<&str> =
        (0..encoded.len()).step_by(LINE).map(|at| &encoded[at..encoded.len().min(at.saturating_add(LINE))]).collect();
    format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n", lines.join("\n"))
}

fn public_blob(key: &SigningKey) -> Vec<u8> {
    let mut blob = Vec::new();
    text(&mut blob, KIND);
    text(&mut blob, key.verifying_key().as_bytes());
    blob
}

/// A text with its length before it.
fn text(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_and_openssh_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = ensure(folder.path()).expect("makes one");
        let private = std::fs::read_to_string(path(folder.path())).expect("reads");
        assert_eq!(ensure(folder.path()).expect("finds it").as_str(), first.as_str());
        assert_eq!(std::fs::read_to_string(path(folder.path())).expect("reads"), private);
        // The inner part is padded to whole blocks, and its public key is the one that was given out.
        let body: String = private.lines().filter(|line| !line.starts_with('-')).collect();
        let bytes = STANDARD.decode(body).expect("base64");
        assert!(bytes.starts_with(b"openssh-key-v1\0"));
        let public = STANDARD.decode(first.as_str().split_whitespace().nth(1).expect("a key")).expect("base64");
        assert_eq!(bytes.windows(public.len()).filter(|part| *part == public.as_slice()).count(), 2, "outside and inside");
    }
}
