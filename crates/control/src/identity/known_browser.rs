//! The cookie of a browser with an earlier sign-in. Wrong passwords of strangers never lock out the owner of an account in such a
//! browser. The cookie itself gives no access.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use gpuaas_contract::time::Timestamp;

use super::BuiltIn;
use crate::Control;
use crate::pki::secret_text;

/// How long a browser is remembered after a sign-in.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Longest accepted cookie.
const MAX_BYTES: usize = 256;

/// A browser in which this account has signed in before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownBrowser {
    /// Its random id: attempts in it are counted separately.
    pub(super) id: String,
}

fn name(built_in: &BuiltIn) -> &'static str {
    if built_in.issuer.starts_with("https://") { "__Host-gpuaas-browser" } else { "gpuaas-browser" }
}

fn text(account: &str, id: &str, issued: i64) -> String {
    format!("gpuaas-known-browser-v1\n{account}\n{id}\n{issued}")
}

impl KnownBrowser {
    /// Reads the cookie of a request, if it is one of ours for this account and not too old.
    pub(super) fn read(control: &Control, built_in: &BuiltIn, headers: &HeaderMap, account: &str) -> Option<Self> {
        let name = name(built_in);
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|line| line.split(';'));
        let mut found = cookies.filter_map(|pair| pair.trim().split_once('=')).filter(|(key, _)| *key == name);
        let (_, value) = found.next().filter(|(_, value)| value.len() <= MAX_BYTES)?;
        let mut parts = value.splitn(3, '.');
        let (issued, id, mac) = (parts.next()?.parse::<i64>().ok()?, parts.next()?, parts.next()?);
        let now = Timestamp::now();
        let is_ours = control.keys.intent_matches(&text(account, id, issued), mac);
        (is_ours && issued <= now.0 && now.since(Timestamp(issued)) < LIFE).then(|| Self { id: id.to_owned() })
    }

    /// Returns the cookie for a browser with a successful sign-in.
    pub(super) fn write(control: &Control, built_in: &BuiltIn, account: &str, mut response: Response) -> Response {
        let (id, issued) = (secret_text(""), Timestamp::now().0);
        let mac = control.keys.intent_mac(&text(account, &id, issued));
        let secure = if built_in.issuer.starts_with("https://") { "; Secure" } else { "" };
        let cookie = format!(
            "{}={issued}.{id}.{mac}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
            name(built_in),
            LIFE.as_secs()
        );
        if let Ok(mut value) = HeaderValue::from_str(&cookie) {
            value.set_sensitive(true);
            response.headers_mut().append(header::SET_COOKIE, value);
        }
        response
    }
}
