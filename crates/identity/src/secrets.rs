//! Secrets that are issued as text and stored only as digests.
//!
//! A secret is 256 random bits after a prefix that names its kind, so that one found in a log or a repository can be identified
//! and revoked. Such a secret cannot be guessed, so it is stored as a plain SHA-256 digest. Passwords need more (`password.rs`).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gpuaas_contract::Digest;
use zeroize::Zeroizing;

/// Characters of 256 bits in base64url.
const BODY_LEN: usize = 43;

/// The kind of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecretKind {
    /// An authorization code.
    AuthorizationCode,
    /// A device code.
    DeviceCode,
    /// A refresh token.
    RefreshToken,
    /// A token that binds a form to the browser that requested it.
    CsrfToken,
    /// The cookie of a browser that is signed in to the built-in issuer.
    BrowserSession,
}

impl SecretKind {
    /// Returns the prefix of such a secret.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::AuthorizationCode => "gpc_",
            Self::DeviceCode => "gpd_",
            Self::RefreshToken => "gpr_",
            Self::CsrfToken => "gpx_",
            Self::BrowserSession => "gps_",
        }
    }
}

/// The text is not a secret of the expected kind. The error does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a secret of this kind: expected `{}` and 43 characters of base64url; copy the whole value", kind.prefix())]
pub struct BadSecret {
    /// The expected kind.
    pub kind: SecretKind,
}

/// A secret in clear text: generated here or presented by a caller. Wiped from memory when dropped, never printed.
#[derive(Clone)]
pub struct Secret {
    kind: SecretKind,
    text: Zeroizing<String>,
}

impl Secret {
    /// Generates a secret.
    pub fn generate(kind: SecretKind) -> Self {
        let random = Zeroizing::new(random::<32>());
        let mut text = Zeroizing::new(String::with_capacity(kind.prefix().len() + BODY_LEN));
        text.push_str(kind.prefix());
        URL_SAFE_NO_PAD.encode_string(random.as_slice(), &mut text);
        Self { kind, text }
    }

    /// Parses a presented secret. Only the format is checked; the store knows whether it exists.
    pub fn parse(kind: SecretKind, text: &str) -> Result<Self, BadSecret> {
        let body = text.strip_prefix(kind.prefix()).ok_or(BadSecret { kind })?;
        let alphabet = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if body.len() != BODY_LEN || !body.bytes().all(alphabet) {
            return Err(BadSecret { kind });
        }
        Ok(Self { kind, text: Zeroizing::new(text.to_owned()) })
    }

    /// Returns its kind.
    pub fn kind(&self) -> SecretKind {
        self.kind
    }

    /// Returns the text, to send it once.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Returns the digest, which is stored and looked up.
    pub fn digest(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }

    /// Returns whether `presented` is this secret, in a time that does not depend on how much of it matches.
    pub fn is(&self, presented: &str) -> bool {
        same(&self.text, presented)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.kind.prefix())
    }
}

/// Returns whether two texts are equal, in a time that depends only on their lengths.
pub fn same(a: &str, b: &str) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a.as_bytes(), b.as_bytes()).is_ok()
}

/// Fills a fixed array with randomness from the kernel.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel's generator does not fail after boot. If it did, continuing would mean predictable secrets.
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("no randomness from the kernel: {error}"));
    bytes
}

/// Returns 256 random bits in base64url, for values without a prefix: `state`, `nonce`, a PKCE verifier.
pub(crate) fn random_text() -> Zeroizing<String> {
    let bytes = Zeroizing::new(random::<32>());
    Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [SecretKind; 5] = [
        SecretKind::AuthorizationCode,
        SecretKind::DeviceCode,
        SecretKind::RefreshToken,
        SecretKind::CsrfToken,
        SecretKind::BrowserSession,
    ];

    #[test]
    fn a_secret_reads_back_as_its_own_kind_only() {
        for kind in KINDS {
            let secret = Secret::generate(kind);
            for other in KINDS {
                let read = Secret::parse(other, secret.expose());
                assert_eq!(read.is_ok(), kind == other, "{kind:?} read as {other:?}");
            }
            assert_eq!(Secret::parse(kind, secret.expose()).expect("its own kind").digest(), secret.digest());
        }
    }

    #[test]
    fn two_secrets_differ_and_only_the_same_text_is_the_same() {
        let (one, two) = (Secret::generate(SecretKind::CsrfToken), Secret::generate(SecretKind::CsrfToken));
        assert!(one.is(one.expose()));
        assert!(!one.is(two.expose()));
        assert!(!one.is(""));
        assert_ne!(one.digest(), two.digest());
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::generate(SecretKind::RefreshToken);
        assert_eq!(format!("{secret:?}"), "gpr_…");
    }

    #[test]
    fn texts_of_another_length_or_alphabet_are_refused() {
        let good = Secret::generate(SecretKind::DeviceCode);
        let good = good.expose();
        for bad in ["", "gpd_", &good[..good.len() - 1], &format!("{good}A"), &good.replace("gpd_", "gpd_ "), &format!(" {good}")]
        {
            assert!(Secret::parse(SecretKind::DeviceCode, bad).is_err(), "{bad:?}");
        }
    }
}
