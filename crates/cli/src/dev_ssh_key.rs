//! The SSH key of `gpuaas dev`, for users who have none: an allocation needs a key that can sign in.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::slice::SshPublicKey;
use gpuaas_host::private_file;

use crate::error::CliError;

const KIND: &[u8] = b"ssh-ed25519";
const COMMENT: &str = "gpuaas-dev";
/// Line length at which OpenSSH wraps base64.
const LINE: usize = 70;

/// Returns the path of the private key, which is in the data folder of the cluster.
pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("ssh").join("id_ed25519")
}

/// Returns the public key. The key pair is generated on the first start.
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

/// Encodes a private key like `ssh-keygen -t ed25519` without a passphrase does. OpenSSH documents the format in PROTOCOL.key.
fn openssh(key: &SigningKey, seed: &[u8; 32]) -> String {
    let public = public_blob(key);
    // Two equal check integers. After decryption they show that the passphrase was right; there is no encryption here.
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

/// Appends a byte string, preceded by its length.
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
        // The private section is padded to whole blocks, and contains the public key that was returned.
        let body: String = private.lines().filter(|line| !line.starts_with('-')).collect();
        let bytes = STANDARD.decode(body).expect("base64");
        assert!(bytes.starts_with(b"openssh-key-v1\0"));
        let public = STANDARD.decode(first.as_str().split_whitespace().nth(1).expect("a key")).expect("base64");
        assert_eq!(bytes.windows(public.len()).filter(|part| *part == public.as_slice()).count(), 2, "outside and inside");
    }
}
