//! Ed25519 key pairs in OpenSSH's format, without a program. The layout is described in OpenSSH's `PROTOCOL.key`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuaas_contract::key::SigningKey;
use zeroize::{Zeroize as _, Zeroizing};

use crate::HostError;

const KIND: &[u8] = b"ssh-ed25519";
const MAGIC: &[u8] = b"openssh-key-v1\0";
const BEGIN: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\n";
const END: &str = "-----END OPENSSH PRIVATE KEY-----\n";
/// The line length of OpenSSH.
const LINE: usize = 70;
/// Padding of a key without a cipher.
const BLOCK: usize = 8;

/// A key pair.
pub struct KeyPair {
    /// An unencrypted `openssh-key-v1` file.
    pub private_pem: Zeroizing<String>,
    /// `ssh-ed25519 AAAA… comment`, without a newline.
    pub public_line: String,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair").field("public_line", &self.public_line).finish_non_exhaustive()
    }
}

/// Generates a key pair. The comment describes its purpose; line breaks and the like are removed from it.
pub fn generate(comment: &str) -> Result<KeyPair, HostError> {
    let mut random = Zeroizing::new([0_u8; 36]);
    getrandom::fill(random.as_mut_slice()).map_err(|error| HostError::because("host_error", "cannot generate a key", &error))?;
    let (seed, check) = random.split_at(32);
    let (mut fixed, mut number) = (Zeroizing::new([0_u8; 32]), [0_u8; 4]);
    fixed.copy_from_slice(seed);
    number.copy_from_slice(check);
    let key = SigningKey::from_seed(&fixed);
    Ok(encode(&key, number, comment))
}

/// Returns the line of a `known_hosts` file that accepts only this key for this address.
pub fn known_hosts_line(address: std::net::Ipv4Addr, public_line: &str) -> String {
    let mut words = public_line.split_ascii_whitespace();
    let (kind, body) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    format!("{address} {kind} {body}\n")
}

fn encode(key: &SigningKey, check: [u8; 4], comment: &str) -> KeyPair {
    let comment: String = comment.chars().filter(|c| !c.is_control()).take(128).collect();
    let public = key.verifying_key();
    let mut public_blob = Vec::new();
    push(&mut public_blob, KIND);
    push(&mut public_blob, public.as_bytes());

    // OpenSSH's private half is the seed followed by the public half.
    let mut both = Zeroizing::new(Vec::with_capacity(64));
    both.extend_from_slice(key.seed().as_slice());
    both.extend_from_slice(public.as_bytes());

    // Allocated at once, so that growing leaves no copy of the secret behind.
    let mut inner = Zeroizing::new(Vec::with_capacity(1024));
    inner.extend_from_slice(&check);
    inner.extend_from_slice(&check);
    push(&mut inner, KIND);
    push(&mut inner, public.as_bytes());
    push(&mut inner, &both);
    push(&mut inner, comment.as_bytes());
    for pad in 1_u8.. {
        if inner.len() % BLOCK == 0 {
            break;
        }
        inner.push(pad);
    }

    let mut file = Zeroizing::new(Vec::with_capacity(2048));
    file.extend_from_slice(MAGIC);
    push(&mut file, b"none");
    push(&mut file, b"none");
    push(&mut file, b"");
    file.extend_from_slice(&1_u32.to_be_bytes());
    push(&mut file, &public_blob);
    push(&mut file, &inner);

    let mut body = STANDARD.encode(file.as_slice());
    let mut private_pem = Zeroizing::new(String::with_capacity(4096));
    private_pem.push_str(BEGIN);
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(LINE.min(rest.len()));
        private_pem.push_str(line);
        private_pem.push('\n');
        rest = after;
    }
    private_pem.push_str(END);
    body.zeroize();

    let public_line = format!("ssh-ed25519 {} {comment}", STANDARD.encode(&public_blob));
    KeyPair { private_pem, public_line: public_line.trim_end().to_owned() }
}

/// Appends a length and the bytes.
fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::slice::SshPublicKey;

    use super::*;
    use crate::exec::{Exec, first_installed};

    #[test]
    fn a_pair_is_new_each_time_and_its_public_half_is_a_key_that_guests_take() {
        let (one, other) = (generate("gpuaas terminal").expect("made"), generate("gpuaas terminal").expect("made"));
        assert_ne!(one.public_line, other.public_line);
        assert_ne!(*one.private_pem, *other.private_pem);
        assert!(one.public_line.parse::<SshPublicKey>().is_ok(), "{}", one.public_line);
        assert!(one.private_pem.lines().all(|line| line.len() <= LINE), "{}", one.public_line);
        assert!(!format!("{one:?}").contains("PRIVATE"), "a private key is not for logs");
    }

    #[test]
    fn a_comment_cannot_end_the_line() {
        let pair = generate("a\nssh-rsa AAAA evil\r\0").expect("made");
        assert_eq!(pair.public_line.lines().count(), 1);
        assert!(!pair.public_line.contains(['\r', '\0']));
        let empty = generate("").expect("made").public_line;
        assert_eq!(empty.split(' ').count(), 2);
    }

    #[test]
    fn known_hosts_has_the_address_and_the_key_and_nothing_else() {
        let line = known_hosts_line(std::net::Ipv4Addr::new(10, 77, 0, 2), "ssh-ed25519 AAAA a comment");
        assert_eq!(line, "10.77.0.2 ssh-ed25519 AAAA\n");
    }

    #[tokio::test]
    async fn the_real_ssh_keygen_reads_what_is_made() {
        let Some(program) = first_installed(&["/usr/bin/ssh-keygen"]) else {
            return crate::skip::skipped("ssh-keygen is not installed (Debian package openssh-client)");
        };
        let folder = tempfile::tempdir().expect("folder");
        // Comments of many lengths, so that every padding occurs.
        for length in 0..9 {
            let pair = generate(&"c".repeat(length)).expect("made");
            let path = folder.path().join(format!("key{length}"));
            crate::private_file::write(&path, pair.private_pem.as_bytes()).expect("written");
            let printed = Exec::new(&program).arg("-y").arg("-f").arg(&path).run().await.expect("ssh-keygen takes it").stdout;
            assert_eq!(String::from_utf8(printed).expect("text").trim_end(), pair.public_line);
        }
    }
}
