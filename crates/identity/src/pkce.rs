//! Proof Key for Code Exchange (RFC 7636), with S256 only: `plain` does not protect against an attacker who sees the first
//! request.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::Digest as _;
use zeroize::Zeroizing;

use crate::secrets::{random_text, same};

/// The only accepted method.
pub const METHOD: &str = "S256";
/// Fewest characters of a verifier.
const MIN_VERIFIER_LEN: usize = 43;
/// Maximum number of characters of a verifier.
const MAX_VERIFIER_LEN: usize = 128;
/// Characters of a challenge: SHA-256 in base64url.
const CHALLENGE_LEN: usize = 43;

/// Why a verifier or a challenge is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPkce {
    /// The verifier has a wrong length or a forbidden character.
    #[error("`code_verifier` must be 43 to 128 letters, digits, `-`, `.`, `_` or `~`")]
    Verifier,
    /// The challenge is not SHA-256 in base64url.
    #[error("`code_challenge` must be the SHA-256 of the verifier in base64url without padding, which is 43 characters")]
    Challenge,
    /// Another method than S256, or none, which means `plain`.
    #[error("`code_challenge_method` must be `S256`; `plain` is not accepted")]
    Method,
}

/// The secret that the client keeps until it redeems the code.
#[derive(Clone)]
pub struct CodeVerifier(Zeroizing<String>);

impl CodeVerifier {
    /// Creates a verifier with 256 random bits.
    pub fn generate() -> Self {
        Self(random_text())
    }

    /// Parses the verifier that a client presents.
    pub fn parse(text: &str) -> Result<Self, BadPkce> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
        if (MIN_VERIFIER_LEN..=MAX_VERIFIER_LEN).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(Zeroizing::new(text.to_owned())))
        } else {
            Err(BadPkce::Verifier)
        }
    }

    /// Returns the text, for the request that redeems the code.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the challenge for the first request.
    pub fn challenge(&self) -> CodeChallenge {
        CodeChallenge(URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(self.0.as_bytes())))
    }
}

impl fmt::Debug for CodeVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CodeVerifier(…)")
    }
}

/// SHA-256 of a verifier, in base64url.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CodeChallenge(String);

impl CodeChallenge {
    /// Parses the challenge of a request, with its method.
    pub fn parse(text: &str, method: &str) -> Result<Self, BadPkce> {
        if method != METHOD {
            return Err(BadPkce::Method);
        }
        Self::try_from(text.to_owned())
    }

    /// Returns the text of the request.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the challenge of `verifier`.
    pub fn is_met_by(&self, verifier: &CodeVerifier) -> bool {
        same(&self.0, &verifier.challenge().0)
    }
}

impl TryFrom<String> for CodeChallenge {
    type Error = BadPkce;

    fn try_from(text: String) -> Result<Self, BadPkce> {
        let digest = URL_SAFE_NO_PAD.decode(&text).ok().filter(|bytes| bytes.len() == 32);
        if text.len() == CHALLENGE_LEN && digest.is_some() { Ok(Self(text)) } else { Err(BadPkce::Challenge) }
    }
}

impl From<CodeChallenge> for String {
    fn from(challenge: CodeChallenge) -> String {
        challenge.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_comes_out_right() {
        let verifier = CodeVerifier::parse("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").expect("a verifier");
        let challenge = CodeChallenge::parse("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM", "S256").expect("a challenge");
        assert_eq!(verifier.challenge(), challenge);
        assert!(challenge.is_met_by(&verifier));
    }

    #[test]
    fn only_its_own_verifier_meets_a_challenge() {
        let (one, two) = (CodeVerifier::generate(), CodeVerifier::generate());
        assert!(one.challenge().is_met_by(&one));
        assert!(!one.challenge().is_met_by(&two));
    }

    #[test]
    fn verifiers_outside_of_length_and_alphabet_are_refused() {
        assert!(CodeVerifier::parse(&"a".repeat(43)).is_ok());
        assert!(CodeVerifier::parse(&"~".repeat(128)).is_ok());
        for bad in ["a".repeat(42), "a".repeat(129), format!("{}+", "a".repeat(43)), format!("{}ä", "a".repeat(43))] {
            assert_eq!(CodeVerifier::parse(&bad).err(), Some(BadPkce::Verifier), "{bad}");
        }
    }

    #[test]
    fn plain_challenges_and_odd_methods_are_refused() {
        let challenge = CodeVerifier::generate().challenge();
        for method in ["plain", "", "s256", "S512"] {
            assert_eq!(CodeChallenge::parse(challenge.as_str(), method).err(), Some(BadPkce::Method), "{method:?}");
        }
        for bad in ["", "short", &"a".repeat(44), &"=".repeat(43)] {
            assert_eq!(CodeChallenge::parse(bad, "S256").err(), Some(BadPkce::Challenge), "{bad:?}");
        }
    }
}
