//! Keys and certificates: the CA, the task-signing keys, and the identity in a certificate.
//!
//! All secrets are files in one folder (0600), never in the database: an attacker who can write the database can neither sign a
//! task nor issue a certificate.

mod ca;
mod files;
mod keyring;
mod peer;
mod record;
mod serving;
mod watch;

pub use ca::{BuiltInCa, Ca, CaConfig, CaError, Issued, ServerCertificate, StepCa, StepCaConfig};
pub(crate) use ca::{CaRequests, HealthState};
pub(crate) use files::read_private;
pub use files::{KeyFileError, write_private};
pub use keyring::{KeyRing, KeyRingError};
pub use peer::{BadPeer, NodeCertificate, Peer, PeerTls, peer_of};
pub use record::NodeRecord;
pub use serving::{Listener, ListenerCertificate, ListenerCertificates, ServingCertificate};
pub(crate) use watch::spawn_watch;

/// Fills a fixed array with randomness from the kernel.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel's generator does not fail after boot. If it did, continuing would mean predictable secrets.
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("no randomness from the kernel: {error}"));
    bytes
}

/// Generates a secret as text: a prefix and 256 random bits in base64url.
pub fn secret_text(prefix: &str) -> String {
    use base64::Engine as _;
    format!("{prefix}{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random::<32>()))
}
