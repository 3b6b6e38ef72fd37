//! Webhooks according to the Standard Webhooks specification: signatures, rotation and retry times. Pure.

mod secret;
mod target;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

pub use gpuaas_contract::address::RefusedAddress;
pub use secret::{BadSecret, Secret, Secrets};
pub use target::{MAX_URL_BYTES, Target, TargetError, check_target};

/// The largest accepted difference between the timestamp of a delivery and the clock in [`verify`].
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Maximum number of signatures of one header that [`verify`] checks.
const MAX_SIGNATURES: usize = 16;

/// Delays between two attempts.
const RETRIES: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 3600),
    Duration::from_secs(5 * 3600),
    Duration::from_secs(10 * 3600),
    Duration::from_secs(14 * 3600),
    Duration::from_secs(20 * 3600),
    Duration::from_secs(24 * 3600),
];

/// The three headers of a delivery, with their names on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// `webhook-id`: the same for every attempt, so that the receiver can detect repeats.
    pub id: String,
    /// `webhook-timestamp`: when this attempt was signed, in seconds since the Unix epoch.
    pub timestamp: String,
    /// `webhook-signature`: one signature per secret, separated by spaces.
    pub signature: String,
}

impl Headers {
    /// Returns names and values for a request.
    pub fn pairs(&self) -> [(&'static str, &str); 3] {
        [("webhook-id", &self.id), ("webhook-timestamp", &self.timestamp), ("webhook-signature", &self.signature)]
    }
}

/// Signs one attempt of a delivery with every secret that is currently valid. `timestamp` is in seconds since the Unix epoch.
pub fn sign(secrets: &Secrets, id: &str, timestamp: i64, body: &[u8]) -> Headers {
    let timestamp = timestamp.to_string();
    let signatures: Vec<String> = secrets
        .valid()
        .map(|secret| format!("v1,{}", STANDARD.encode(mac(secret, id, &timestamp, body).finalize().into_bytes())))
        .collect();
    Headers { id: id.to_owned(), timestamp, signature: signatures.join(" ") }
}

/// Why a delivery must be rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The timestamp is not a number.
    #[error("webhook-timestamp is not a number of seconds")]
    Timestamp,
    /// The timestamp differs too much from the receiver's clock: a replay, or a wrong clock.
    #[error("webhook-timestamp differs from this clock by more than five minutes; check the clock")]
    TooFarAway,
    /// No signature matches.
    #[error("no signature in webhook-signature matches this secret and body; compare the secret with the webhook's")]
    NoMatch,
}

/// Verifies a delivery as a receiver does. It is here for tests and as documentation: the control plane only signs.
///
/// `now` is in seconds since the Unix epoch. `body` must be the received bytes, not a document that was parsed and serialized
/// again.
pub fn verify(secret: &Secret, headers: &Headers, body: &[u8], now: i64) -> Result<(), VerifyError> {
    let signed_at: i64 = headers.timestamp.parse().map_err(|_| VerifyError::Timestamp)?;
    if now.abs_diff(signed_at) > TOLERANCE.as_secs() {
        return Err(VerifyError::TooFarAway);
    }
    let fits = |signature: &str| {
        let bytes = signature.strip_prefix("v1,").and_then(|text| STANDARD.decode(text).ok());
        // The comparison takes constant time.
        bytes.is_some_and(|bytes| mac(secret, &headers.id, &headers.timestamp, body).verify_slice(&bytes).is_ok())
    };
    let found = headers.signature.split(' ').take(MAX_SIGNATURES).any(fits);
    if found { Ok(()) } else { Err(VerifyError::NoMatch) }
}

/// Returns the delay after this many failed attempts, or `None` after the last one.
///
/// `jitter`, from 0 to 1, changes the delay by up to a tenth in both directions, so that deliveries that failed together are not
/// retried together. The caller provides the randomness.
pub fn retry_after(failed_attempts: usize, jitter: f64) -> Option<Duration> {
    let delay = RETRIES.get(failed_attempts.checked_sub(1)?)?;
    let jitter = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.5 };
    Some(delay.mul_f64(0.9 + 0.2 * jitter))
}

fn mac(secret: &Secret, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    // A secret is never longer than a block, and padding a shorter key with zeros does not change the result.
    let mut key = Zeroizing::new([0; 64]);
    key.iter_mut().zip(secret.bytes()).for_each(|(to, from)| *to = *from);
    let mut mac = Hmac::<Sha256>::new((&*key).into());
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn secret(text: &str) -> Secret {
        text.parse().expect("a secret")
    }

    fn secrets(current: &str, previous: Option<&str>) -> Secrets {
        Secrets { current: secret(current), previous: previous.map(secret) }
    }

    /// 24 bytes each.
    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

    #[test]
    fn a_signature_is_the_one_that_the_specification_gives_as_an_example() {
        let headers = sign(&secrets(OLD, None), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(headers.signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(headers.pairs()[0], ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"));
        assert_eq!(headers.pairs()[1], ("webhook-timestamp", "1614265330"));
    }

    #[test]
    fn while_a_secret_is_rotated_receivers_with_either_one_believe_a_delivery() {
        let headers = sign(&secrets(NEW, Some(OLD)), "dlv_1", NOW, b"body");
        assert_eq!(headers.signature.split(' ').count(), 2);
        assert_eq!(verify(&secret(NEW), &headers, b"body", NOW), Ok(()));
        assert_eq!(verify(&secret(OLD), &headers, b"body", NOW), Ok(()));
        let after = sign(&secrets(NEW, None), "dlv_1", NOW, b"body");
        assert_eq!(verify(&secret(OLD), &after, b"body", NOW), Err(VerifyError::NoMatch));
    }

    #[test]
    fn whatever_is_changed_about_a_delivery_it_is_not_believed() {
        let good = sign(&secrets(NEW, None), "dlv_1", NOW, b"body");
        let refused = |headers: &Headers, body: &[u8]| verify(&secret(NEW), headers, body, NOW);
        assert_eq!(refused(&good, b"Body"), Err(VerifyError::NoMatch));
        assert_eq!(refused(&Headers { id: "dlv_2".to_owned(), ..good.clone() }, b"body"), Err(VerifyError::NoMatch));
        let other = Headers { timestamp: (NOW + 1).to_string(), ..good.clone() };
        assert_eq!(refused(&other, b"body"), Err(VerifyError::NoMatch));
        for signature in ["", "v1,", "v1,!", "v1", "v2,AAAA", &good.signature[3..], &good.signature[..good.signature.len() - 4]] {
            assert_eq!(refused(&Headers { signature: signature.to_owned(), ..good.clone() }, b"body"), Err(VerifyError::NoMatch));
        }
    }

    #[test]
    fn a_delivery_from_another_time_is_not_believed() {
        let good = sign(&secrets(NEW, None), "dlv_1", NOW, b"body");
        for now in [NOW - 300, NOW + 300] {
            assert_eq!(verify(&secret(NEW), &good, b"body", now), Ok(()));
        }
        for now in [NOW - 301, NOW + 301, i64::MIN, i64::MAX] {
            assert_eq!(verify(&secret(NEW), &good, b"body", now), Err(VerifyError::TooFarAway));
        }
        let bad = Headers { timestamp: "yesterday".to_owned(), ..good };
        assert_eq!(verify(&secret(NEW), &bad, b"body", NOW), Err(VerifyError::Timestamp));
    }

    #[test]
    fn attempts_come_further_and_further_apart_and_then_end() {
        assert_eq!(retry_after(0, 0.5), None, "nothing has failed yet");
        let delays: Vec<Duration> = (1..).map_while(|failed| retry_after(failed, 0.5)).collect();
        assert_eq!(delays.len(), 9);
        assert!(delays.is_sorted());
        assert_eq!(delays[0], Duration::from_secs(5));
        assert_eq!(delays[8], Duration::from_secs(24 * 3600));
        assert_eq!(retry_after(10, 0.5), None);
    }

    #[test]
    fn jitter_moves_an_attempt_by_a_tenth_at_most_whatever_it_is() {
        for jitter in [f64::NEG_INFINITY, -1.0, 0.0, 0.25, 1.0, 7.0, f64::INFINITY, f64::NAN] {
            let delay = retry_after(2, jitter).expect("the second of ten");
            assert!((Duration::from_secs(270)..=Duration::from_secs(330)).contains(&delay), "{jitter}: {delay:?}");
        }
        assert!(retry_after(2, 0.0) < retry_after(2, 1.0));
    }
}
