//! The secrets that sign webhooks.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The prefix of every secret.
const PREFIX: &str = "whsec_";
/// The number of bytes that the specification allows.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The number of bytes of a new secret.
const NEW_BYTES: usize = 32;

/// The text is not a webhook secret. The error does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a webhook secret: expected `whsec_` and the base64 of 24 to 64 bytes")]
pub struct BadSecret;

/// One secret. It is never printed, and wiped when it is dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Creates a secret. Returns `None` if the kernel has no randomness.
    pub fn generate() -> Option<Self> {
        let mut bytes = Zeroizing::new(vec![0; NEW_BYTES]);
        getrandom::fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Returns the text for the owner of the webhook.
    pub fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{PREFIX}{}", STANDARD.encode(self.bytes())))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = BadSecret;

    fn from_str(text: &str) -> Result<Self, BadSecret> {
        let encoded = text.strip_prefix(PREFIX).ok_or(BadSecret)?;
        if encoded.len() > BYTES.end().div_ceil(3) * 4 {
            return Err(BadSecret);
        }
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| BadSecret)?);
        if BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(BadSecret) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whsec_…")
    }
}

/// The secrets of one webhook: the current one, and during a rotation the previous one.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// The current secret.
    pub current: Secret,
    /// The previous secret, as long as receivers may still use it.
    pub previous: Option<Secret>,
}

impl Secrets {
    pub(super) fn valid(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.current).chain(&self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_secret_reads_back_and_differs_from_the_next() {
        let (one, two) = (Secret::generate().expect("randomness"), Secret::generate().expect("randomness"));
        let read: Secret = one.expose().parse().expect("its own text");
        assert_eq!(read.bytes(), one.bytes());
        assert_ne!(one.bytes(), two.bytes());
    }

    #[test]
    fn only_24_to_64_bytes_are_a_secret() {
        let text = |bytes: usize| format!("{PREFIX}{}", STANDARD.encode(vec![7; bytes]));
        for bytes in [24, 25, 64] {
            assert!(text(bytes).parse::<Secret>().is_ok(), "{bytes}");
        }
        for bytes in [0, 1, 23, 65, 66, 67, 4096] {
            assert_eq!(text(bytes).parse::<Secret>().err(), Some(BadSecret), "{bytes}");
        }
        for bad in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-w",
        ] {
            assert_eq!(bad.parse::<Secret>().err(), Some(BadSecret), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::generate().expect("randomness");
        assert_eq!(format!("{secret:?}"), "whsec_…");
    }
}
