//! Requests of clients: parsed into types, and refused unless they are exactly right.

use reqwest::Url;

use super::client::{ClientId, Clients, MAX_REDIRECT_BYTES};
use super::error::{OauthError, OauthFailure};
use super::scope::Scopes;
use crate::form::{Form, with_query};
use crate::pkce::{CodeChallenge, CodeVerifier};
use crate::secrets::{Secret, SecretKind};

/// Maximum size of `state` and `nonce`, in bytes.
const MAX_OPAQUE_BYTES: usize = 512;

fn invalid(description: impl Into<String>) -> OauthFailure {
    OauthFailure::new(OauthError::InvalidRequest, description)
}

/// A checked authorization request. Answers may be sent to its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRequest {
    /// The client.
    pub client: ClientId,
    /// The address for the answer: one of the client's own.
    pub redirect_uri: String,
    /// Returned unchanged, so that the client recognizes its own answer.
    pub state: String,
    /// Copied into the ID token.
    pub nonce: Option<String>,
    /// Binds the code to the requesting client.
    pub challenge: CodeChallenge,
    /// The requested scopes.
    pub scope: Scopes,
}

/// Why an authorization request is refused, and where the refusal is shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorizationRefusal {
    /// Shown to the user. The address is not one of the client's, so nothing may be sent there.
    #[error("{0}")]
    Shown(OauthFailure),
    /// Sent to the client, at this location.
    #[error("{failure}")]
    Redirected {
        /// The error.
        failure: OauthFailure,
        /// The complete address, with error and state.
        location: String,
    },
}

impl AuthorizationRequest {
    /// Parses the query of an authorization request (without `?`), or the hidden fields of its form.
    pub fn parse(query: &str, clients: &Clients, issuer: &str) -> Result<Self, AuthorizationRefusal> {
        let shown = AuthorizationRefusal::Shown;
        let form = Form::parse(query).map_err(|error| shown(invalid(error.to_string())))?;
        let client = form.get("client_id").ok_or_else(|| shown(invalid("`client_id` is missing")))?;
        let client: ClientId = client.parse().map_err(shown)?;
        let redirect_uri = form.get("redirect_uri").ok_or_else(|| shown(invalid("`redirect_uri` is missing")))?;
        if redirect_uri.len() > MAX_REDIRECT_BYTES || !clients.allows_redirect(client, redirect_uri) {
            let description = format!("`redirect_uri` is not one of the addresses of {}", client.title());
            return Err(shown(invalid(description)));
        }
        // From here on the address is known to be the client's, so refusals go there. An invalid state is left out.
        let state = form.get("state").filter(|state| is_opaque(state));
        Self::checked(&form, client, redirect_uri, state).map_err(|failure| {
            let location = error_location(redirect_uri, &failure, state, issuer);
            AuthorizationRefusal::Redirected { failure, location }
        })
    }

    fn checked(form: &Form, client: ClientId, redirect_uri: &str, state: Option<&str>) -> Result<Self, OauthFailure> {
        match form.get("response_type") {
            Some("code") => {}
            Some(_) => return Err(OauthFailure::new(OauthError::UnsupportedResponseType, "`response_type` must be `code`")),
            None => return Err(invalid("`response_type` is missing; it must be `code`")),
        }
        if form.get("response_mode").is_some_and(|mode| mode != "query") {
            return Err(invalid("`response_mode` must be `query`"));
        }
        if form.get("request").or(form.get("request_uri")).is_some() {
            // Ignoring them would answer another request than the one that was sent.
            return Err(invalid("request objects (`request`, `request_uri`) are not supported; send plain parameters"));
        }
        let state = state.ok_or_else(|| invalid("`state` must be 1 to 512 visible ASCII characters"))?;
        let nonce = form.get("nonce");
        if nonce.is_some_and(|nonce| !is_opaque(nonce)) {
            return Err(invalid("`nonce` must be 1 to 512 visible ASCII characters"));
        }
        let challenge = form.get("code_challenge").ok_or_else(|| invalid("`code_challenge` is missing; PKCE is required"))?;
        let method = form.get("code_challenge_method").unwrap_or_default();
        let challenge = CodeChallenge::parse(challenge, method).map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            client,
            redirect_uri: redirect_uri.to_owned(),
            state: state.to_owned(),
            nonce: nonce.map(str::to_owned),
            challenge,
            scope: Scopes::parse(form.get("scope"))?,
        })
    }

    /// Returns the parameters for hidden fields of a form; [`Self::parse`] reads them again.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("response_type", "code".to_owned()),
            ("client_id", self.client.as_str().to_owned()),
            ("redirect_uri", self.redirect_uri.clone()),
            ("state", self.state.clone()),
            ("code_challenge", self.challenge.as_str().to_owned()),
            ("code_challenge_method", crate::pkce::METHOD.to_owned()),
            ("scope", self.scope.to_string()),
        ];
        fields.extend(self.nonce.clone().map(|nonce| ("nonce", nonce)));
        fields
    }

    /// Returns the address that sends the browser back with a code. It names the issuer, so that a client with several issuers is
    /// not confused (RFC 9207).
    pub fn granted(&self, code: &Secret, issuer: &str) -> String {
        with_query(&self.redirect_uri, [("code", code.expose()), ("state", &self.state), ("iss", issuer)])
    }

    /// Returns the address that sends the browser back with a refusal.
    pub fn refused(&self, failure: &OauthFailure, issuer: &str) -> String {
        error_location(&self.redirect_uri, failure, Some(&self.state), issuer)
    }

    /// Returns the source that the page's `form-action` policy needs for this request: browsers also apply the policy to the
    /// redirect that answers a form. An IPv6 address cannot be written there, so only its scheme is.
    pub fn form_action_source(&self) -> String {
        match Url::parse(&self.redirect_uri) {
            Ok(url) if url.host_str().is_some_and(|host| host.starts_with('[')) => format!("{}:", url.scheme()),
            Ok(url) => url.origin().ascii_serialization(),
            // Unreachable, because the address was checked. Allow nothing more then.
            Err(_) => "'self'".to_owned(),
        }
    }
}

fn error_location(redirect_uri: &str, failure: &OauthFailure, state: Option<&str>, issuer: &str) -> String {
    let error = [("error", failure.error.as_str()), ("error_description", failure.description.as_str()), ("iss", issuer)];
    with_query(redirect_uri, error.into_iter().chain(state.map(|state| ("state", state))))
}

fn is_opaque(text: &str) -> bool {
    (1..=MAX_OPAQUE_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// A checked device authorization request (RFC 8628).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAuthorizationRequest {
    /// The client.
    pub client: ClientId,
    /// The requested scopes.
    pub scope: Scopes,
}

impl DeviceAuthorizationRequest {
    /// Parses the form of a request. Only the command line may use it: a browser can be redirected.
    pub fn parse(body: &str) -> Result<Self, OauthFailure> {
        let form = Form::parse(body).map_err(|error| invalid(error.to_string()))?;
        match public_client(&form)? {
            ClientId::Cli => Ok(Self { client: ClientId::Cli, scope: Scopes::parse(form.get("scope"))? }),
            ClientId::Console => Err(OauthFailure::new(
                OauthError::UnauthorizedClient,
                "the console signs people in with redirects, not with codes",
            )),
        }
    }
}

/// A checked token request.
#[derive(Clone, Debug)]
pub enum TokenRequest {
    /// Redeems the code from the browser.
    AuthorizationCode {
        /// The client.
        client: ClientId,
        /// The code.
        code: Secret,
        /// The redirect address of the authorization request.
        redirect_uri: String,
        /// Proves that the same client sent the authorization request.
        verifier: CodeVerifier,
    },
    /// Requests a new access token and a new refresh token.
    RefreshToken {
        /// The client.
        client: ClientId,
        /// The refresh token.
        token: Secret,
        /// A smaller set of scopes, if given.
        scope: Option<Scopes>,
    },
    /// Asks whether the user has decided.
    DeviceCode {
        /// The client.
        client: ClientId,
        /// The device code.
        code: Secret,
    },
}

impl TokenRequest {
    /// The grant type of [`TokenRequest::DeviceCode`] on the wire.
    pub const DEVICE_CODE_GRANT: &'static str = "urn:ietf:params:oauth:grant-type:device_code";

    /// Parses the form of a request.
    pub fn parse(body: &str) -> Result<Self, OauthFailure> {
        let form = Form::parse(body).map_err(|error| invalid(error.to_string()))?;
        let needed = |name: &str| form.get(name).ok_or_else(|| invalid(format!("`{name}` is missing")));
        // A secret in the wrong format is treated like an unknown one.
        let secret = |name: &str, kind| {
            let wrong = |_| OauthFailure::new(OauthError::InvalidGrant, format!("`{name}` is not valid; sign in again"));
            Secret::parse(kind, needed(name)?).map_err(wrong)
        };
        let grant_type = needed("grant_type")?;
        let client = public_client(&form)?;
        match grant_type {
            "authorization_code" => Ok(Self::AuthorizationCode {
                client,
                code: secret("code", SecretKind::AuthorizationCode)?,
                redirect_uri: needed("redirect_uri")?.to_owned(),
                verifier: CodeVerifier::parse(needed("code_verifier")?).map_err(|error| invalid(error.to_string()))?,
            }),
            "refresh_token" => Ok(Self::RefreshToken {
                client,
                token: secret("refresh_token", SecretKind::RefreshToken)?,
                scope: form.get("scope").map(|scope| Scopes::parse(Some(scope))).transpose()?,
            }),
            Self::DEVICE_CODE_GRANT => Ok(Self::DeviceCode { client, code: secret("device_code", SecretKind::DeviceCode)? }),
            _ => Err(OauthFailure::new(
                OauthError::UnsupportedGrantType,
                "`grant_type` must be `authorization_code`, `refresh_token` or the one for device codes",
            )),
        }
    }
}

fn public_client(form: &Form) -> Result<ClientId, OauthFailure> {
    if form.get("client_secret").or(form.get("client_assertion")).is_some() {
        return Err(OauthFailure::new(OauthError::InvalidClient, "the clients are public: send no `client_secret`"));
    }
    form.get("client_id").ok_or_else(|| OauthFailure::new(OauthError::InvalidClient, "`client_id` is missing"))?.parse()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::encode;

    const ISSUER: &str = "https://cloud.example";
    const CALLBACK: &str = "http://127.0.0.1:4711/callback";
    const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

    fn good() -> Vec<(&'static str, &'static str)> {
        vec![
            ("response_type", "code"),
            ("client_id", "gpuaas-cli"),
            ("redirect_uri", CALLBACK),
            ("state", "a-state"),
            ("nonce", "a-nonce"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
            ("scope", "openid email"),
        ]
    }

    fn with(name: &'static str, value: &'static str) -> String {
        encode(good().into_iter().filter(|(other, _)| *other != name).chain([(name, value)]))
    }

    fn parse(query: &str) -> Result<AuthorizationRequest, AuthorizationRefusal> {
        AuthorizationRequest::parse(query, &Clients::default(), ISSUER)
    }

    #[test]
    fn a_request_reads_back_from_its_hidden_fields() {
        let request = parse(&encode(good())).expect("a request");
        let fields = request.fields();
        let again = parse(&encode(fields.iter().map(|(name, value)| (*name, value.as_str())))).expect("the same request");
        assert_eq!(again, request);
    }

    #[test]
    fn nothing_is_sent_to_an_address_that_is_not_the_clients() {
        for query in [
            with("redirect_uri", "https://evil.example/callback"),
            with("redirect_uri", ""),
            with("client_id", "evil"),
            with("client_id", ""),
            with("client_id", "gpuaas-console"),
            format!("{}&client_id=gpuaas-cli", encode(good())),
            format!("{}&redirect_uri=https%3A%2F%2Fevil.example", encode(good())),
            "%".to_owned(),
        ] {
            assert!(matches!(parse(&query), Err(AuthorizationRefusal::Shown(_))), "{query}");
        }
    }

    #[test]
    fn other_mistakes_are_told_to_the_client() {
        for (query, error) in [
            (with("response_type", "token"), OauthError::UnsupportedResponseType),
            (with("response_type", ""), OauthError::InvalidRequest),
            (with("response_mode", "fragment"), OauthError::InvalidRequest),
            (with("request_uri", "https://evil.example"), OauthError::InvalidRequest),
            (with("state", ""), OauthError::InvalidRequest),
            (with("state", "a\nb"), OauthError::InvalidRequest),
            (with("nonce", "a b"), OauthError::InvalidRequest),
            (with("code_challenge", ""), OauthError::InvalidRequest),
            (with("code_challenge", "short"), OauthError::InvalidRequest),
            (with("code_challenge_method", "plain"), OauthError::InvalidRequest),
            (with("code_challenge_method", ""), OauthError::InvalidRequest),
            (with("scope", "root"), OauthError::InvalidScope),
        ] {
            let Err(AuthorizationRefusal::Redirected { failure, location }) = parse(&query) else { panic!("{query}") };
            assert_eq!(failure.error, error, "{query}");
            assert!(location.starts_with(&format!("{CALLBACK}?error={error}&")), "{location}");
            assert!(!location.contains(['\n', ' ']), "{location}");
        }
    }

    #[test]
    fn answers_carry_state_and_issuer() {
        let request = parse(&encode(good())).expect("a request");
        let code = Secret::generate(SecretKind::AuthorizationCode);
        let granted = request.granted(&code, ISSUER);
        assert_eq!(granted, format!("{CALLBACK}?code={}&state=a-state&iss=https%3A%2F%2Fcloud.example", code.expose()));
        let refused = request.refused(&OauthFailure::new(OauthError::AccessDenied, "No."), ISSUER);
        assert!(
            refused.starts_with(&format!("{CALLBACK}?error=access_denied&")) && refused.ends_with("&state=a-state"),
            "{refused}"
        );
    }

    #[test]
    fn the_redirect_is_allowed_by_the_policy_of_the_page() {
        let mut request = parse(&encode(good())).expect("a request");
        assert_eq!(request.form_action_source(), "http://127.0.0.1:4711");
        request.redirect_uri = "http://[::1]:4711/callback".to_owned();
        assert_eq!(request.form_action_source(), "http:");
        request.redirect_uri = "https://console.example/a;b".to_owned();
        assert_eq!(request.form_action_source(), "https://console.example");
    }

    #[test]
    fn token_requests_are_typed() {
        let code = Secret::generate(SecretKind::AuthorizationCode);
        let (refresh, device) = (Secret::generate(SecretKind::RefreshToken), Secret::generate(SecretKind::DeviceCode));
        let verifier = CodeVerifier::generate();
        let body = |grant_type, name, secret: &Secret| {
            encode([
                ("grant_type", grant_type),
                ("client_id", "gpuaas-cli"),
                (name, secret.expose()),
                ("redirect_uri", CALLBACK),
                ("code_verifier", verifier.expose()),
            ])
        };
        let request = TokenRequest::parse(&body("authorization_code", "code", &code));
        assert!(matches!(request, Ok(TokenRequest::AuthorizationCode { code: read, .. }) if read.is(code.expose())));
        let request = TokenRequest::parse(&body("refresh_token", "refresh_token", &refresh));
        assert!(matches!(request, Ok(TokenRequest::RefreshToken { token, scope: None, .. }) if token.is(refresh.expose())));
        let request = TokenRequest::parse(&body(TokenRequest::DEVICE_CODE_GRANT, "device_code", &device));
        assert!(matches!(request, Ok(TokenRequest::DeviceCode { code, .. }) if code.is(device.expose())));

        for (body, error) in [
            (body("password", "code", &code), OauthError::UnsupportedGrantType),
            (body("authorization_code", "code", &refresh), OauthError::InvalidGrant),
            (body("authorization_code", "other", &code), OauthError::InvalidRequest),
            (format!("{}&client_secret=x", body("refresh_token", "refresh_token", &refresh)), OauthError::InvalidClient),
            ("grant_type=refresh_token".to_owned(), OauthError::InvalidClient),
            ("client_id=gpuaas-cli".to_owned(), OauthError::InvalidRequest),
            ("grant_type=a&grant_type=b".to_owned(), OauthError::InvalidRequest),
        ] {
            assert_eq!(TokenRequest::parse(&body).map_err(|failure| failure.error).err(), Some(error), "{body}");
        }
    }

    #[test]
    fn only_the_command_line_asks_for_device_codes() {
        let request = DeviceAuthorizationRequest::parse("client_id=gpuaas-cli&scope=openid%20email").expect("a request");
        assert_eq!(request.scope.to_string(), "openid email");
        let refused = DeviceAuthorizationRequest::parse("client_id=gpuaas-console").map_err(|failure| failure.error);
        assert_eq!(refused, Err(OauthError::UnauthorizedClient));
    }
}
