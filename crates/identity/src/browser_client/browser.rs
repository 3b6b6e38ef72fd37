//! Sign-in with the browser on this machine (RFC 8252).

use std::net::Ipv4Addr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::net::TcpListener;
use zeroize::Zeroizing;

use super::callback::{self, Expected};
use super::{ClientSettings, LOGIN_TIMEOUT, LoginError, Provider, TokenAnswer, Tokens, token_request};
use crate::form;
use crate::pkce::{self, CodeVerifier};
use crate::secrets::{random_text, same};

/// A sign-in that waits for the browser.
pub struct BrowserLogin {
    provider: Provider,
    client: ClientSettings,
    listener: TcpListener,
    redirect_uri: String,
    authorize_url: String,
    state: Zeroizing<String>,
    nonce: Zeroizing<String>,
    verifier: CodeVerifier,
}

impl BrowserLogin {
    /// Starts to listen. The caller then opens [`Self::url`] in a browser.
    pub async fn start(provider: &Provider, client: &ClientSettings) -> Result<Self, LoginError> {
        let endpoint =
            provider.authorization_endpoint.as_ref().ok_or(LoginError::NotOffered { what: "sign-in with a browser" })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(LoginError::Listen)?;
        let port = listener.local_addr().map_err(LoginError::Listen)?.port();
        let redirect_uri = format!("http://127.0.0.1:{port}/callback");
        let (state, nonce, verifier) = (random_text(), random_text(), CodeVerifier::generate());
        let authorize_url = form::with_query(
            endpoint.as_str(),
            [
                ("response_type", "code"),
                ("client_id", client.client_id.as_str()),
                ("redirect_uri", &redirect_uri),
                ("scope", &client.scope),
                ("state", &state),
                ("nonce", &nonce),
                ("code_challenge", verifier.challenge().as_str()),
                ("code_challenge_method", pkce::METHOD),
            ],
        );
        let (provider, client) = (provider.clone(), client.clone());
        Ok(Self { provider, client, listener, redirect_uri, authorize_url, state, nonce, verifier })
    }

    /// Returns the URL to open in the browser.
    pub fn url(&self) -> &str {
        &self.authorize_url
    }

    /// Waits for the browser's answer and redeems its code.
    pub async fn finish(self, http: &reqwest::Client) -> Result<Tokens, LoginError> {
        self.finish_within(http, LOGIN_TIMEOUT).await
    }

    async fn finish_within(self, http: &reqwest::Client, timeout: Duration) -> Result<Tokens, LoginError> {
        let port = self.listener.local_addr().map_err(LoginError::Listen)?.port();
        let expected = Expected { port, state: self.state, issuer: self.provider.issuer.clone() };
        let answer = tokio::time::timeout(timeout, callback::wait(self.listener, expected)).await;
        let code = answer.map_err(|_| LoginError::TimedOut)??;
        let fields = [
            ("grant_type", "authorization_code"),
            ("client_id", self.client.client_id.as_str()),
            ("code", &code),
            ("redirect_uri", &self.redirect_uri),
            ("code_verifier", self.verifier.expose()),
        ];
        let tokens = match token_request(http, &self.provider, &fields).await? {
            TokenAnswer::Tokens(tokens) => tokens,
            TokenAnswer::Refused(refusal) => return Err(refusal.into_error()),
        };
        match &tokens.id_token {
            Some(id_token) if !has_nonce(id_token, &self.nonce) => Err(LoginError::Mismatch { what: "nonce" }),
            Some(_) | None => Ok(tokens),
        }
    }
}

/// Returns whether an ID token answers the request with this nonce. The signature is not checked here: the token came directly
/// from the issuer over an authenticated connection, and the API checks it again.
fn has_nonce(id_token: &str, nonce: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Payload {
        nonce: String,
    }
    let payload = id_token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let payload = payload.and_then(|bytes| serde_json::from_slice::<Payload>(&bytes).ok());
    payload.is_some_and(|payload| same(&payload.nonce, nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nonce_of_the_request_is_taken() {
        let token = |claims: &str| format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
        assert!(has_nonce(&token(r#"{"nonce":"n"}"#), "n"));
        for bad in [token(r#"{"nonce":"m"}"#), token("{}"), "x".to_owned(), String::new()] {
            assert!(!has_nonce(&bad, "n"), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_sign_in_that_nobody_finishes_ends() {
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
        let provider = Provider {
            issuer: "http://127.0.0.1:1".to_owned(),
            authorization_endpoint: reqwest::Url::parse("http://127.0.0.1:1/authorize").ok(),
            token_endpoint: reqwest::Url::parse("http://127.0.0.1:1/token").expect("a URL"),
            device_authorization_endpoint: None,
            revocation_endpoint: None,
        };
        let client = ClientSettings { client_id: "gpuaas-cli".to_owned(), scope: "openid".to_owned() };
        let login = BrowserLogin::start(&provider, &client).await.expect("started");
        assert!(
            login
                .url()
                .starts_with("http://127.0.0.1:1/authorize?response_type=code&client_id=gpuaas-cli&redirect_uri=http%3A%2F%2F")
        );
        let http = reqwest::Client::builder().tls_backend_preconfigured(empty_tls()).build().expect("a client");
        let ended = login.finish_within(&http, Duration::ZERO).await;
        assert!(matches!(ended, Err(LoginError::TimedOut)), "{ended:?}");
    }

    fn empty_tls() -> rustls::ClientConfig {
        rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
    }
}
