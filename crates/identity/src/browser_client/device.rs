//! Sign-in with a code that is typed into a browser on another machine (RFC 8628).

use std::time::Duration;

use gpuaas_contract::time::Timestamp;
use zeroize::Zeroizing;

use super::{ClientSettings, LoginError, Provider, TokenAnswer, Tokens, post, refusal, token_request};
use crate::fetch::{self, FetchError};
use crate::oauth::TokenRequest;

/// Pause between polls if the issuer names none (RFC 8628, section 3.2).
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// How much the pause grows at `slow_down` and at connection errors.
const SLOWER_BY: Duration = Duration::from_secs(5);
/// The longest pause.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// The longest wait, whatever the issuer allows.
const MAX_LIFE: Duration = Duration::from_secs(30 * 60);
/// Maximum number of characters of a user code.
const MAX_USER_CODE_CHARS: usize = 64;

/// A sign-in that waits for a person on another device.
pub struct DeviceLogin {
    provider: Provider,
    client: ClientSettings,
    device_code: Zeroizing<String>,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    interval: Duration,
    ends_at: Timestamp,
}

/// The result of one poll.
#[derive(Debug)]
pub enum DeviceStep {
    /// There is no decision yet: poll again after this pause.
    Wait(Duration),
    /// The request is approved.
    Done(Tokens),
}

impl DeviceLogin {
    /// Requests a code. The caller then shows [`Self::verification_uri`] and [`Self::user_code`].
    pub async fn start(
        http: &reqwest::Client,
        provider: &Provider,
        client: &ClientSettings,
        now: Timestamp,
    ) -> Result<Self, LoginError> {
        #[derive(serde::Deserialize)]
        struct Document {
            device_code: String,
            user_code: String,
            verification_uri: String,
            verification_uri_complete: Option<String>,
            expires_in: u64,
            interval: Option<u64>,
        }
        let endpoint = provider.device_authorization_endpoint.as_ref();
        let url = endpoint.ok_or(LoginError::NotOffered { what: "sign-in with a code" })?;
        let answer = post(http, url, &[("client_id", &client.client_id), ("scope", &client.scope)]).await?;
        if !answer.status.is_success() {
            return Err(refusal(&answer, url)?.into_error());
        }
        let document: Document = fetch::parse(&answer.body, url.as_str())?;
        // Both are shown on a terminal, so they must not contain anything misleading.
        let plain = |code: &str| code.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if document.user_code.is_empty() || document.user_code.len() > MAX_USER_CODE_CHARS || !plain(&document.user_code) {
            let reason = "its `user_code` is not a text that can be typed".to_owned();
            return Err(FetchError::Malformed { url: url.to_string(), reason }.into());
        }
        let shown = |address: &str| fetch::endpoint(&provider.issuer, Some(address), "").map(String::from);
        Ok(Self {
            provider: provider.clone(),
            client: client.clone(),
            device_code: Zeroizing::new(document.device_code),
            user_code: document.user_code,
            verification_uri: shown(&document.verification_uri)?,
            verification_uri_complete: document.verification_uri_complete.as_deref().map(shown).transpose()?,
            interval: document.interval.map_or(DEFAULT_INTERVAL, Duration::from_secs).min(MAX_INTERVAL),
            ends_at: now.plus(Duration::from_secs(document.expires_in).min(MAX_LIFE)),
        })
    }

    /// Returns the code to type.
    pub fn user_code(&self) -> &str {
        &self.user_code
    }

    /// Returns the address where the code is typed.
    pub fn verification_uri(&self) -> &str {
        &self.verification_uri
    }

    /// Returns the address with the code in it, to click on.
    pub fn verification_uri_complete(&self) -> Option<&str> {
        self.verification_uri_complete.as_deref()
    }

    /// Returns the pause before the first poll.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Polls until there is a decision or the code expires.
    pub async fn finish(mut self, http: &reqwest::Client) -> Result<Tokens, LoginError> {
        let mut pause = self.interval;
        loop {
            tokio::time::sleep(pause).await;
            match self.poll(http, Timestamp::now()).await? {
                DeviceStep::Wait(longer) => pause = longer,
                DeviceStep::Done(tokens) => return Ok(tokens),
            }
        }
    }

    /// Polls once. A connection error only makes the next pause longer.
    pub async fn poll(&mut self, http: &reqwest::Client, now: Timestamp) -> Result<DeviceStep, LoginError> {
        if now >= self.ends_at {
            return Err(LoginError::CodeExpired);
        }
        let fields = [
            ("grant_type", TokenRequest::DEVICE_CODE_GRANT),
            ("client_id", &self.client.client_id),
            ("device_code", &self.device_code),
        ];
        match token_request(http, &self.provider, &fields).await {
            Ok(TokenAnswer::Tokens(tokens)) => Ok(DeviceStep::Done(tokens)),
            Ok(TokenAnswer::Refused(refusal)) => match refusal.error.as_str() {
                "authorization_pending" => Ok(DeviceStep::Wait(self.interval)),
                "slow_down" => Ok(self.slower()),
                _ => Err(refusal.into_error()),
            },
            Err(LoginError::Issuer(FetchError::Transport { .. })) => Ok(self.slower()),
            Err(LoginError::Issuer(FetchError::Status { status, .. })) if status.is_server_error() || status.as_u16() == 429 => {
                Ok(self.slower())
            }
            Err(error) => Err(error),
        }
    }

    fn slower(&mut self) -> DeviceStep {
        self.interval = (self.interval + SLOWER_BY).min(MAX_INTERVAL);
        DeviceStep::Wait(self.interval)
    }
}
