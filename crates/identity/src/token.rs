//! Parses a signed token (RFC 7515, RFC 7519). Its content must not be trusted before the signature is checked.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gpuaas_contract::time::Timestamp;
use serde::Deserialize as _;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::jwk::{Algorithm, MAX_KID_BYTES};
use crate::verifier::{Claims, TokenError};

/// Maximum size of a token, in bytes.
pub(crate) const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The largest accepted difference between clocks.
const LEEWAY: Duration = Duration::from_secs(60);
/// Longest lifetime of a token. A longer one is a mistake, and the token could not be revoked.
const MAX_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum size of a subject, in bytes (OpenID Connect Core, section 2).
const MAX_SUBJECT_BYTES: usize = 255;
/// Maximum size of an e-mail address, in bytes. Longer ones are left out.
const MAX_EMAIL_BYTES: usize = 320;
/// Maximum size of a name or session, in bytes. Longer ones are left out.
const MAX_TEXT_BYTES: usize = 256;
/// The latest accepted time: the end of the year 9999.
const MAX_SECONDS: u64 = 253_402_300_799;

#[derive(serde::Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    /// Whether the field is present. No extension is supported, so any value is refused.
    #[serde(default, deserialize_with = "is_there")]
    crit: bool,
}

fn is_there<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

#[derive(serde::Deserialize)]
struct Payload {
    iss: String,
    sub: String,
    aud: Audience,
    exp: serde_json::Number,
    iat: serde_json::Number,
    nbf: Option<serde_json::Number>,
    // These claims are not needed for the decision, so a value of an unexpected type must not make a valid token fail.
    email: Option<serde_json::Value>,
    email_verified: Option<serde_json::Value>,
    name: Option<serde_json::Value>,
    sid: Option<serde_json::Value>,
    jti: Option<serde_json::Value>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn contains(&self, wanted: &str) -> bool {
        match self {
            Self::One(audience) => audience == wanted,
            Self::Many(audiences) => audiences.iter().any(|audience| audience == wanted),
        }
    }
}

/// A token whose parts could be parsed.
pub(crate) struct Unverified<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) kid: Option<String>,
    /// The signed bytes.
    pub(crate) signed: &'a [u8],
    pub(crate) signature: Vec<u8>,
    payload: Payload,
}

impl<'a> Unverified<'a> {
    /// Parses a token. The header comes first: an invalid one ends the parsing.
    pub(crate) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed { part: "the token" })?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Malformed { part: "the token" })?;
        if payload.contains('.') {
            return Err(TokenError::Malformed { part: "the token" });
        }
        let header: Header = part(header, "the header")?;
        let algorithm = Algorithm::named(&header.alg).ok_or(TokenError::Algorithm)?;
        if header.crit {
            return Err(TokenError::Critical);
        }
        if header.typ.is_some_and(|typ| !is_token_type(&typ)) {
            return Err(TokenError::Type);
        }
        if header.kid.as_ref().is_some_and(|kid| kid.len() > MAX_KID_BYTES) {
            return Err(TokenError::Malformed { part: "`kid` in the header" });
        }
        let payload = part(payload, "the claims")?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed { part: "the signature" })?;
        Ok(Self { algorithm, kid: header.kid, signed: signed.as_bytes(), signature, payload })
    }

    /// Returns the issuer that the token names.
    pub(crate) fn issuer(&self) -> &str {
        &self.payload.iss
    }

    /// Returns the claims if they are for `audience` and valid at `now`. The caller must also check the signature.
    pub(crate) fn claims(&self, audience: &str, now: Timestamp) -> Result<Claims, TokenError> {
        let payload = &self.payload;
        if !payload.aud.contains(audience) {
            return Err(TokenError::Audience { wanted: audience.to_owned() });
        }
        if payload.sub.is_empty() || payload.sub.len() > MAX_SUBJECT_BYTES || payload.sub.chars().any(char::is_control) {
            return Err(TokenError::Malformed { part: "`sub` in the claims" });
        }
        let expires_at = moment(&payload.exp).ok_or(TokenError::Malformed { part: "`exp` in the claims" })?;
        let issued_at = moment(&payload.iat).ok_or(TokenError::Malformed { part: "`iat` in the claims" })?;
        let not_before = match &payload.nbf {
            Some(nbf) => moment(nbf).ok_or(TokenError::Malformed { part: "`nbf` in the claims" })?,
            None => issued_at,
        };
        if now >= expires_at.plus(LEEWAY) {
            return Err(TokenError::Expired { at: expires_at });
        }
        let valid_from = issued_at.max(not_before);
        if now.plus(LEEWAY) < valid_from {
            return Err(TokenError::NotYetValid { from: valid_from });
        }
        if expires_at.since(issued_at) > MAX_LIFE {
            return Err(TokenError::LivesTooLong);
        }
        let email = text(payload.email.as_ref(), MAX_EMAIL_BYTES);
        Ok(Claims {
            issuer: payload.iss.clone(),
            subject: payload.sub.clone(),
            email_verified: email.is_some() && is_true(payload.email_verified.as_ref()),
            email,
            name: text(payload.name.as_ref(), MAX_TEXT_BYTES),
            expires_at,
            issued_at,
            session: text(payload.sid.as_ref(), MAX_TEXT_BYTES).or_else(|| text(payload.jti.as_ref(), MAX_TEXT_BYTES)),
        })
    }
}

fn part<T: DeserializeOwned>(encoded: &str, part: &'static str) -> Result<T, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| TokenError::Malformed { part })?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed { part })
}

/// Checks the media type. Case is ignored, and `application/` may be left out (RFC 7515, section 4.1.9).
fn is_token_type(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    matches!(typ.strip_prefix("application/").unwrap_or(&typ), "jwt" | "at+jwt")
}

/// Converts seconds since the epoch, which may have a fraction.
fn moment(number: &serde_json::Number) -> Option<Timestamp> {
    let seconds = match number.as_u64() {
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::try_from_secs_f64(number.as_f64()?).ok()?,
    };
    (seconds.as_secs() <= MAX_SECONDS).then(|| Timestamp(0).plus(seconds))
}

/// Returns a text for display, or nothing if it is too long or contains a line break.
fn text(value: Option<&serde_json::Value>, max_bytes: usize) -> Option<String> {
    let text = value?.as_str()?;
    let plain = !text.is_empty() && text.len() <= max_bytes && !text.chars().any(char::is_control);
    plain.then(|| text.to_owned())
}

/// Reads a boolean, which some issuers write as text.
fn is_true(value: Option<&serde_json::Value>) -> bool {
    value.is_some_and(|value| value.as_bool() == Some(true) || value.as_str() == Some("true"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
    const NOW_SECONDS: i64 = 1_800_000_000;

    fn assemble(header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.{}", encode(header), encode(claims), URL_SAFE_NO_PAD.encode("signature"))
    }

    fn good() -> Value {
        json!({ "iss": "i", "sub": "s", "aud": "a", "iat": NOW_SECONDS - 10, "exp": NOW_SECONDS + 600 })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = good();
        claims[name] = value;
        claims
    }

    fn code_of_header(header: Value) -> &'static str {
        Unverified::parse(&assemble(&header, &good())).err().map_or("fine", |error| error.code())
    }

    fn code_of_claims(claims: Value) -> &'static str {
        let token = assemble(&json!({ "alg": "ES256" }), &claims);
        let read = Unverified::parse(&token).and_then(|token| token.claims("a", NOW));
        read.err().map_or("fine", |error| error.code())
    }

    #[test]
    fn a_header_that_may_not_be_ends_it() {
        for (header, code) in [
            (json!({ "alg": "ES256" }), "fine"),
            (json!({ "alg": "ES256", "typ": "JWT" }), "fine"),
            (json!({ "alg": "ES256", "typ": "application/at+JWT" }), "fine"),
            (json!({ "alg": "ES256", "typ": "logout+jwt" }), "token_type"),
            (json!({ "alg": "none" }), "token_algorithm"),
            (json!({ "alg": "nOnE" }), "token_algorithm"),
            (json!({ "alg": "HS256" }), "token_algorithm"),
            (json!({ "alg": "ES256", "crit": ["exp"] }), "token_critical_header"),
            (json!({ "alg": "ES256", "crit": [] }), "token_critical_header"),
            (json!({ "alg": "ES256", "crit": null }), "token_critical_header"),
            (json!({ "alg": ["ES256"] }), "token_malformed"),
            (json!({ "alg": "ES256", "kid": "k".repeat(257) }), "token_malformed"),
            (json!({ "typ": "JWT" }), "token_malformed"),
        ] {
            assert_eq!(code_of_header(header.clone()), code, "{header}");
        }
    }

    #[test]
    fn time_is_checked_with_a_minute_of_leeway() {
        for (claims, code) in [
            (good(), "fine"),
            (with("exp", json!(NOW_SECONDS - 59)), "fine"),
            (with("exp", json!(NOW_SECONDS - 60)), "token_expired"),
            (with("iat", json!(NOW_SECONDS + 60)), "fine"),
            (with("iat", json!(NOW_SECONDS + 61)), "token_not_yet_valid"),
            (with("nbf", json!(NOW_SECONDS + 60)), "fine"),
            (with("nbf", json!(NOW_SECONDS + 61)), "token_not_yet_valid"),
            (with("exp", json!(NOW_SECONDS - 10 + 86_400)), "fine"),
            (with("exp", json!(NOW_SECONDS - 10 + 86_401)), "token_lives_too_long"),
            (with("exp", json!(NOW_SECONDS as f64 + 0.5)), "fine"),
            (with("exp", Value::Null), "token_malformed"),
            (with("exp", json!("soon")), "token_malformed"),
            (with("exp", json!(-1)), "token_malformed"),
            (with("exp", json!(1e300)), "token_malformed"),
            (with("exp", json!(u64::MAX)), "token_malformed"),
            (with("iat", Value::Null), "token_malformed"),
        ] {
            assert_eq!(code_of_claims(claims.clone()), code, "{claims}");
        }
    }

    #[test]
    fn the_audience_must_contain_ours_and_a_subject_is_needed() {
        for (claims, code) in [
            (with("aud", json!(["x", "a"])), "fine"),
            (with("aud", json!(["x"])), "token_audience"),
            (with("aud", json!([])), "token_audience"),
            (with("aud", json!("A")), "token_audience"),
            (with("aud", json!(7)), "token_malformed"),
            (with("sub", json!("")), "token_malformed"),
            (with("sub", json!("a\nb")), "token_malformed"),
            (with("sub", json!("s".repeat(256))), "token_malformed"),
            (with("iss", json!(["i"])), "token_malformed"),
        ] {
            assert_eq!(code_of_claims(claims.clone()), code, "{claims}");
        }
    }

    #[test]
    fn a_claim_that_stands_there_twice_ends_it() {
        let claims = good().to_string().replace("\"sub\":\"s\"", "\"sub\":\"s\",\"sub\":\"admin\"");
        let header = URL_SAFE_NO_PAD.encode(json!({ "alg": "ES256" }).to_string());
        let token = format!("{header}.{}.AAAA", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(Unverified::parse(&token).err().map(|error| error.code()), Some("token_malformed"));
    }

    #[test]
    fn what_describes_a_person_is_taken_only_where_it_is_plain() {
        let read = |claims: Value| {
            let token = assemble(&json!({ "alg": "ES256" }), &claims);
            Unverified::parse(&token).and_then(|token| token.claims("a", NOW)).expect("good claims")
        };
        let mut claims = good();
        for (name, value) in
            [("email", json!("a@b.c")), ("email_verified", json!("true")), ("name", json!("A\nB")), ("jti", json!("j"))]
        {
            claims[name] = value;
        }
        let person = read(claims.clone());
        assert_eq!((person.email.as_deref(), person.email_verified), (Some("a@b.c"), true));
        assert_eq!((person.name, person.session.as_deref()), (None, Some("j")));
        claims["email_verified"] = json!(1);
        assert!(!read(claims.clone()).email_verified);
        // Without an address there is nothing to verify.
        claims["email_verified"] = json!(true);
        claims["email"] = json!("x".repeat(321));
        assert!(!read(claims).email_verified);
    }

    #[test]
    fn broken_tokens_are_refused() {
        let token = assemble(&json!({ "alg": "ES256" }), &good());
        for bad in [
            "",
            ".",
            "..",
            "a.b",
            &token.replacen('.', "..", 1),
            &format!("{token}="),
            &format!("{token}.x"),
            &format!(" {token}"),
        ] {
            assert_eq!(Unverified::parse(bad).err().map(|error| error.code()), Some("token_malformed"), "{bad}");
        }
        assert!(matches!(Unverified::parse(&"a".repeat(MAX_TOKEN_BYTES + 1)), Err(TokenError::TooLong)));
    }
}
