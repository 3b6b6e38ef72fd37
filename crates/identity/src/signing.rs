//! The key of the built-in issuer, and the tokens it signs.
//!
//! ES256, because every client library supports it. The caller keeps the private key as a PEM file beside the other keys of the
//! server; it is never in the database. To rotate, sign with a new key and keep publishing the old one until its last token has
//! expired.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::Digest as _;
use zeroize::Zeroizing;

use crate::jwk::{Jwk, JwkSet};

/// Maximum size of a PEM file, in bytes.
const MAX_PEM_BYTES: usize = 16 * 1024;
/// Maximum number of published keys besides the active one.
pub const MAX_PREVIOUS_KEYS: usize = 8;
/// Characters per line of PEM.
const PEM_LINE: usize = 64;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// The key could not be generated.
    #[error("the signing key could not be generated; check that the system has randomness")]
    Generate,
    /// The file is not a private key in PEM.
    #[error("this is not a private key in PEM (`-----BEGIN PRIVATE KEY-----`); restore the file from its backup")]
    Pem,
    /// The key is of another type.
    #[error("this private key is not one of the curve P-256; the built-in issuer signs with ES256 only")]
    Key,
    /// There are too many keys to publish.
    #[error("more than {MAX_PREVIOUS_KEYS} previous keys are published; remove those whose tokens have expired")]
    TooManyKeys,
    /// The signature failed.
    #[error("a token could not be signed; try again")]
    Sign,
}

/// A private key as text, for a file with mode 0600. Wiped from memory when dropped, never printed.
pub struct Pem(Zeroizing<String>);

impl Pem {
    /// Returns the text for the file.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pem(…)")
    }
}

/// Generates a private key.
pub fn generate() -> Result<Pem, SigningError> {
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
        .map_err(|_| SigningError::Generate)?;
    let body = Zeroizing::new(STANDARD.encode(document.as_ref()));
    // Allocated at once: a growing text would leave copies in memory.
    let mut text = Zeroizing::new(String::with_capacity(body.len() * 2 + 128));
    text.push_str("-----BEGIN PRIVATE KEY-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(PEM_LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END PRIVATE KEY-----\n");
    Ok(Pem(text))
}

/// A private key for signing.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    public: Jwk,
    kid: String,
}

impl SigningKey {
    /// Reads the key from a PEM file.
    pub fn from_pem(text: &str) -> Result<Self, SigningError> {
        if text.len() > MAX_PEM_BYTES {
            return Err(SigningError::Pem);
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| SigningError::Pem)?;
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der()).map_err(|_| SigningError::Key)?;
        // An uncompressed point: 4, x, y.
        let Some((x, y)) = pair.public_key().as_ref().get(1..65).map(|point| point.split_at(32)) else {
            return Err(SigningError::Key);
        };
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let kid = thumbprint(&x, &y);
        let public = Jwk {
            kty: "EC".to_owned(),
            public_use: Some("sig".to_owned()),
            alg: Some("ES256".to_owned()),
            kid: Some(kid.clone()),
            crv: Some("P-256".to_owned()),
            x: Some(x),
            y: Some(y),
            ..Jwk::default()
        };
        Ok(Self { pair, public, kid })
    }

    /// Returns its key id: the thumbprint of the public key (RFC 7638), so the same key always has the same id.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Returns its public half.
    pub fn public(&self) -> &Jwk {
        &self.public
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// Hashes the members that RFC 7638 names, in its order and without spaces.
fn thumbprint(x: &str, y: &str) -> String {
    let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(canonical.as_bytes()))
}

/// The claims of an access token (RFC 9068).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AccessTokenClaims {
    /// The built-in issuer.
    pub iss: String,
    /// The user.
    pub sub: String,
    /// The API it is for.
    pub aud: String,
    /// The time of expiry, in seconds since the epoch.
    pub exp: i64,
    /// The time of issue, in seconds since the epoch.
    pub iat: i64,
    /// Its id.
    pub jti: String,
    /// The grant it was issued from; revoking the grant ends the token.
    pub sid: String,
    /// The client that requested it.
    pub client_id: String,
    /// E-mail address.
    pub email: String,
    /// Whether that address was verified.
    pub email_verified: bool,
    /// The display name.
    pub name: String,
    /// The scopes.
    pub scope: String,
}

/// The claims of an ID token: who signed in, for the client that requested it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct IdTokenClaims {
    /// The built-in issuer.
    pub iss: String,
    /// The user.
    pub sub: String,
    /// The client only: an ID token does not give access to the API.
    pub aud: String,
    /// The time of expiry, in seconds since the epoch.
    pub exp: i64,
    /// The time of issue, in seconds since the epoch.
    pub iat: i64,
    /// The `nonce` of the answered request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The grant it was issued from.
    pub sid: String,
    /// E-mail address.
    pub email: String,
    /// Whether that address was verified.
    pub email_verified: bool,
    /// The display name.
    pub name: String,
}

/// The keys of the built-in issuer: the one that signs, and the previous ones.
#[derive(Debug)]
pub struct SigningKeys {
    active: SigningKey,
    previous: Vec<Jwk>,
}

impl SigningKeys {
    /// Creates the set. `active` signs; `previous` are published, so that their signatures stay valid.
    pub fn new(active: SigningKey, previous: impl IntoIterator<Item = SigningKey>) -> Result<Self, SigningError> {
        // Only the public halves are kept, because these keys no longer sign.
        let others = previous.into_iter().filter(|key| key.kid != active.kid);
        let previous: Vec<Jwk> = others.map(|key| key.public).take(MAX_PREVIOUS_KEYS + 1).collect();
        if previous.len() > MAX_PREVIOUS_KEYS { Err(SigningError::TooManyKeys) } else { Ok(Self { active, previous }) }
    }

    /// Returns the key that signs.
    pub fn active(&self) -> &SigningKey {
        &self.active
    }

    /// Returns the published keys, the active one first.
    pub fn jwk_set(&self) -> JwkSet {
        let keys = std::iter::once(&self.active.public).chain(&self.previous);
        JwkSet { keys: keys.cloned().collect() }
    }

    /// Signs an access token.
    pub fn sign(&self, claims: &AccessTokenClaims) -> Result<String, SigningError> {
        self.sign_as("at+jwt", claims)
    }

    /// Signs an ID token.
    pub fn sign_id_token(&self, claims: &IdTokenClaims) -> Result<String, SigningError> {
        self.sign_as("JWT", claims)
    }

    fn sign_as(&self, typ: &str, claims: &impl serde::Serialize) -> Result<String, SigningError> {
        let header = serde_json::json!({ "alg": "ES256", "kid": self.active.kid, "typ": typ });
        let claims = serde_json::to_vec(claims).map_err(|_| SigningError::Sign)?;
        let mut token = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.active.pair.sign(&SystemRandom::new(), token.as_bytes()).map_err(|_| SigningError::Sign)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature.as_ref(), &mut token);
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_pem(generate().expect("a key").expose()).expect("the same key")
    }

    #[test]
    fn a_key_reads_back_from_its_file_with_the_same_name() {
        let pem = generate().expect("a key");
        assert!(pem.expose().starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(pem.expose().ends_with("\n-----END PRIVATE KEY-----\n"));
        assert!(pem.expose().lines().all(|line| line.len() <= PEM_LINE));
        let (one, two) = (SigningKey::from_pem(pem.expose()).expect("a key"), SigningKey::from_pem(pem.expose()).expect("a key"));
        assert_eq!(one.kid(), two.kid());
        assert_ne!(one.kid(), key().kid());
    }

    #[test]
    fn the_name_of_a_key_is_its_thumbprint() {
        // Computed from the same key with another implementation.
        let key = key();
        let jwk: jsonwebtoken::jwk::Jwk =
            serde_json::from_value(serde_json::to_value(key.public()).expect("JSON")).expect("a key that others can read");
        let theirs = jwk.thumbprint(jsonwebtoken::jwk::ThumbprintHash::SHA256).expect("a thumbprint");
        assert_eq!(key.kid(), theirs);
    }

    #[test]
    fn files_that_hold_no_such_key_are_refused() {
        let ed = aws_lc_rs::signature::Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let other = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(ed.as_ref()));
        assert!(matches!(SigningKey::from_pem(&other), Err(SigningError::Key)));
        for bad in ["", "text", &"x".repeat(MAX_PEM_BYTES + 1)] {
            assert!(matches!(SigningKey::from_pem(bad), Err(SigningError::Pem)));
        }
    }

    #[test]
    fn the_active_key_and_those_before_it_are_published_once() {
        let pem = generate().expect("a key");
        let (active, again) =
            (SigningKey::from_pem(pem.expose()).expect("a key"), SigningKey::from_pem(pem.expose()).expect("a key"));
        let (kid, old) = (active.kid().to_owned(), key());
        let old_kid = old.kid().to_owned();
        let keys = SigningKeys::new(active, [again, old]).expect("keys");
        let published: Vec<Option<String>> = keys.jwk_set().keys.into_iter().map(|key| key.kid).collect();
        assert_eq!(published, [Some(kid), Some(old_kid)]);
        let json = serde_json::to_string(&keys.jwk_set()).expect("JSON");
        assert!(!json.contains("\"d\""), "a private key is published: {json}");
        assert!(matches!(SigningKeys::new(key(), (0..9).map(|_| key())), Err(SigningError::TooManyKeys)));
    }

    #[test]
    fn neither_keys_nor_files_are_printed() {
        let pem = generate().expect("a key");
        assert_eq!(format!("{pem:?}"), "Pem(…)");
        let key = SigningKey::from_pem(pem.expose()).expect("a key");
        assert_eq!(format!("{key:?}"), format!("SigningKey {{ kid: {:?}, .. }}", key.kid()));
    }
}
