//! Public keys as JSON (RFC 7517), and the check of signatures.
//!
//! A key decides which algorithms it accepts, by its own type, curve and `alg`. The token's header is only compared with that, so
//! no header can turn a public key into an HMAC secret or choose another padding than the issuer intended.

use std::sync::Arc;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Maximum number of keys of a set.
pub(crate) const MAX_KEYS: usize = 64;
/// Maximum size of a key id, in bytes.
pub(crate) const MAX_KID_BYTES: usize = 256;
/// Accepted sizes of RSA keys, in bits. Smaller keys can be broken, larger ones keep the server busy.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// The accepted algorithms, all of them asymmetric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    /// Returns the algorithm with this exact name. `none` and the HMACs are never accepted, in whatever capitals.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Self::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::EdDsa => None,
        }
    }
}

/// One public key as issuers publish it. Fields of private keys are not read.
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Jwk {
    /// Type: `EC`, `OKP` or `RSA`.
    pub kty: String,
    /// Its use; `sig` if given.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub public_use: Option<String>,
    /// The allowed operations; contains `verify` if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_ops: Option<Vec<String>>,
    /// The only algorithm of the key, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Its key id in the headers of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    /// Curve of `EC` and `OKP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crv: Option<String>,
    /// First coordinate of `EC`, or the key of `OKP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    /// Second coordinate of `EC`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// Modulus of `RSA`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    /// Exponent of `RSA`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
}

/// The keys of an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct JwkSet {
    /// The keys.
    pub keys: Vec<Jwk>,
}

/// Why a document is not a usable set of keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadKeySet {
    #[error("it is not a JSON object with `keys`")]
    Malformed(#[source] serde_json::Error),
    #[error("it has {0} keys; at most {MAX_KEYS} are accepted")]
    TooMany(usize),
    #[error("none of its keys is usable: at least one signing key of RSA (2048 bits or more), P-256, P-384 or Ed25519 is needed")]
    NoneUsable,
}

impl JwkSet {
    /// Parses a published set. Keys of unknown kinds are left out, because issuers also publish keys for other purposes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadKeySet> {
        #[derive(serde::Deserialize)]
        struct Document {
            keys: Vec<serde_json::Value>,
        }
        let document: Document = serde_json::from_slice(bytes).map_err(BadKeySet::Malformed)?;
        if document.keys.len() > MAX_KEYS {
            return Err(BadKeySet::TooMany(document.keys.len()));
        }
        let keys = document.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
        Ok(Self { keys })
    }
}

enum Material {
    P256(ParsedPublicKey),
    P384(ParsedPublicKey),
    Ed25519(ParsedPublicKey),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
}

/// A key that can check signatures.
pub(crate) struct PublicKey {
    kid: Option<String>,
    only: Option<Algorithm>,
    material: Material,
}

impl PublicKey {
    /// Returns the usable key in `jwk`, if there is one.
    fn usable(jwk: &Jwk) -> Option<Self> {
        let signs = jwk.public_use.as_deref().is_none_or(|purpose| purpose == "sig");
        let verifies = jwk.key_ops.as_ref().is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        let nameable = jwk.kid.as_ref().is_none_or(|kid| !kid.is_empty() && kid.len() <= MAX_KID_BYTES);
        if !(signs && verifies && nameable) {
            return None;
        }
        let only = match &jwk.alg {
            Some(name) => Some(Algorithm::named(name)?),
            None => None,
        };
        let key = Self { kid: jwk.kid.clone(), only, material: material(jwk)? };
        // A key whose `alg` contradicts its type is never used.
        only.is_none_or(|algorithm| key.material_takes(algorithm)).then_some(key)
    }

    fn material_takes(&self, algorithm: Algorithm) -> bool {
        match &self.material {
            Material::P256(_) => algorithm == Algorithm::Es256,
            Material::P384(_) => algorithm == Algorithm::Es384,
            Material::Ed25519(_) => algorithm == Algorithm::EdDsa,
            Material::Rsa(_) => algorithm.rsa().is_some(),
        }
    }

    fn takes(&self, algorithm: Algorithm) -> bool {
        self.only.is_none_or(|only| only == algorithm) && self.material_takes(algorithm)
    }

    /// Returns whether `signature` is this key's signature of `message`. With an algorithm that the key does not accept, the
    /// result is always false.
    pub(crate) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.takes(algorithm) {
            return false;
        }
        match &self.material {
            Material::P256(key) | Material::P384(key) | Material::Ed25519(key) => key.verify_sig(message, signature).is_ok(),
            Material::Rsa(key) => algorithm.rsa().is_some_and(|parameters| key.verify(parameters, message, signature).is_ok()),
        }
    }
}

fn material(jwk: &Jwk) -> Option<Material> {
    let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
    let point = |coordinate_len: usize| {
        let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
        (x.len() == coordinate_len && y.len() == coordinate_len).then(|| [&[4][..], &x, &y].concat())
    };
    match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("EC", Some("P-256")) => Some(Material::P256(ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point(32)?).ok()?)),
        ("EC", Some("P-384")) => Some(Material::P384(ParsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point(48)?).ok()?)),
        ("OKP", Some("Ed25519")) => {
            let key = bytes(&jwk.x).filter(|key| key.len() == 32)?;
            Some(Material::Ed25519(ParsedPublicKey::new(&ED25519, key).ok()?))
        }
        ("RSA", _) => {
            let (n, e) = (without_leading_zeros(bytes(&jwk.n)?), without_leading_zeros(bytes(&jwk.e)?));
            let bits = n.len() * 8 - usize::try_from(n.first()?.leading_zeros()).ok()?;
            let key = RsaPublicKeyComponents { n, e };
            let sound = RSA_BITS.contains(&bits) && key.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256).is_ok();
            sound.then_some(Material::Rsa(key))
        }
        _ => None,
    }
}

fn without_leading_zeros(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().skip_while(|byte| *byte == 0).collect()
}

/// The usable keys of a set.
pub(crate) struct KeySet {
    keys: Vec<Arc<PublicKey>>,
}

/// Why there is no key for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// No key has this id. A newer set may have one.
    Unknown,
    /// The token names no key, and there are several.
    NameNeeded,
    /// The key with this id does not accept the algorithm.
    Algorithm,
}

impl KeySet {
    /// Returns the usable keys of `set`, at least one.
    pub(crate) fn usable(set: &JwkSet) -> Result<Self, BadKeySet> {
        let mut keys: Vec<Arc<PublicKey>> = vec![];
        for key in set.keys.iter().take(MAX_KEYS).filter_map(PublicKey::usable) {
            // With two keys of the same id, the result would depend on chance; only the first one is kept.
            if key.kid.is_none() || keys.iter().all(|other| other.kid != key.kid) {
                keys.push(Arc::new(key));
            }
        }
        if keys.is_empty() { Err(BadKeySet::NoneUsable) } else { Ok(Self { keys }) }
    }

    /// Returns whether a key has this id.
    pub(crate) fn has(&self, kid: &str) -> bool {
        self.keys.iter().any(|key| key.kid.as_deref() == Some(kid))
    }

    /// Returns the key that checks a token with this header.
    pub(crate) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<PublicKey>, NoKey> {
        let key = match (kid, self.keys.as_slice()) {
            (Some(_), keys) => keys.iter().find(|key| key.kid.as_deref() == kid).ok_or(NoKey::Unknown)?,
            (None, [only]) => only,
            (None, _) => return Err(NoKey::NameNeeded),
        };
        if key.takes(algorithm) { Ok(Arc::clone(key)) } else { Err(NoKey::Algorithm) }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{EcdsaKeyPair, KeyPair as _};

    use super::*;

    fn p256() -> Jwk {
        let pair = EcdsaKeyPair::generate(&aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let point = pair.public_key().as_ref().to_vec();
        Jwk {
            kty: "EC".to_owned(),
            crv: Some("P-256".to_owned()),
            x: Some(URL_SAFE_NO_PAD.encode(&point[1..33])),
            y: Some(URL_SAFE_NO_PAD.encode(&point[33..])),
            ..Jwk::default()
        }
    }

    fn rsa(bits: usize) -> Jwk {
        let mut n = vec![0xff; bits / 8];
        n[0] = 0x80;
        let (n, e) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode([1, 0, 1]));
        Jwk { kty: "RSA".to_owned(), n: Some(n), e: Some(e), ..Jwk::default() }
    }

    #[test]
    fn keys_that_are_not_for_signatures_are_ignored() {
        assert!(PublicKey::usable(&p256()).is_some());
        for unusable in [
            Jwk { public_use: Some("enc".to_owned()), ..p256() },
            Jwk { key_ops: Some(vec!["encrypt".to_owned()]), ..p256() },
            Jwk { alg: Some("ES384".to_owned()), ..p256() },
            Jwk { alg: Some("RS256".to_owned()), ..p256() },
            Jwk { alg: Some("HS256".to_owned()), ..p256() },
            Jwk { alg: Some("none".to_owned()), ..p256() },
            Jwk { crv: Some("P-384".to_owned()), ..p256() },
            Jwk { crv: Some("secp256k1".to_owned()), ..p256() },
            Jwk { kty: "oct".to_owned(), ..p256() },
            Jwk { kid: Some("k".repeat(257)), ..p256() },
            Jwk { x: Some(URL_SAFE_NO_PAD.encode([1; 32])), ..p256() },
            Jwk { x: None, ..p256() },
        ] {
            assert!(PublicKey::usable(&unusable).is_none(), "{unusable:?}");
        }
    }

    #[test]
    fn weak_and_endless_rsa_keys_are_ignored() {
        for (bits, usable) in [(1024, false), (2040, false), (2048, true), (4096, true), (8200, false)] {
            assert_eq!(PublicKey::usable(&rsa(bits)).is_some(), usable, "{bits} bits");
        }
    }

    #[test]
    fn a_key_takes_only_the_algorithms_of_its_kind() {
        let ec = PublicKey::usable(&p256()).expect("a key");
        assert!(ec.takes(Algorithm::Es256));
        assert!(!ec.takes(Algorithm::Es384) && !ec.takes(Algorithm::Rs256) && !ec.takes(Algorithm::EdDsa));
        let any = PublicKey::usable(&rsa(2048)).expect("a key");
        assert!(any.takes(Algorithm::Rs256) && any.takes(Algorithm::Ps512) && !any.takes(Algorithm::Es256));
        let only = PublicKey::usable(&Jwk { alg: Some("RS256".to_owned()), ..rsa(2048) }).expect("a key");
        assert!(only.takes(Algorithm::Rs256) && !only.takes(Algorithm::Ps256));
    }

    #[test]
    fn algorithms_have_exactly_one_name() {
        for bad in ["none", "None", "nOnE", "NONE", "", "HS256", "hs256", "es256", "ES512", "ES256K"] {
            assert_eq!(Algorithm::named(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_first_key_keeps_a_name_and_sets_are_bounded() {
        let named = Jwk { kid: Some("a".to_owned()), ..p256() };
        let set = KeySet::usable(&JwkSet { keys: vec![named.clone(), Jwk { kid: Some("a".to_owned()), ..p256() }] });
        assert_eq!(set.expect("a set").keys.len(), 1);
        let many = serde_json::json!({ "keys": vec![&named; MAX_KEYS + 1] });
        assert!(matches!(JwkSet::parse(many.to_string().as_bytes()), Err(BadKeySet::TooMany(65))));
        let odd = serde_json::json!({ "keys": [{ "kty": 7 }, { "kty": "future" }, named] });
        let set = JwkSet::parse(odd.to_string().as_bytes()).expect("a set");
        assert_eq!(KeySet::usable(&set).expect("usable").keys.len(), 1);
        assert!(matches!(KeySet::usable(&JwkSet::default()), Err(BadKeySet::NoneUsable)));
    }
}
