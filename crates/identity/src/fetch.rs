//! JSON over HTTP from places with limited trust: with a size limit, typed errors, and never in clear text over a network.

use std::net::IpAddr;

use reqwest::{RequestBuilder, StatusCode, Url};
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

/// Maximum size of one answer, in bytes.
pub(crate) const MAX_RESPONSE_BYTES: usize = 256 * 1024;

/// Why an issuer gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The address cannot be used.
    #[error("the address `{url}` cannot be used: {reason}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There was no answer, or it was cut off.
    #[error("{url} did not answer; check the network, the address and its certificate")]
    Transport {
        /// The address.
        url: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The status is not a success.
    #[error("{url} answered with {status}")]
    Status {
        /// The address.
        url: String,
        /// The status.
        status: StatusCode,
    },
    /// The answer is larger than the limit.
    #[error("{url} answered with more than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge {
        /// The address.
        url: String,
    },
    /// The answer is not the expected document.
    #[error("{url} answered with an unexpected document: {reason}")]
    Malformed {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The document names another issuer than the requested one.
    #[error("{url} names the issuer `{found}`; configure exactly that text, or correct the issuer")]
    OtherIssuer {
        /// The address.
        url: String,
        /// The issuer in the document.
        found: String,
    },
    /// The fetch ended without a result.
    #[error("the request was cut off; try again")]
    Interrupted,
}

/// The metadata of an issuer (OpenID Connect Discovery).
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Discovery {
    pub(crate) issuer: String,
    pub(crate) jwks_uri: Option<String>,
    pub(crate) authorization_endpoint: Option<String>,
    pub(crate) token_endpoint: Option<String>,
    pub(crate) device_authorization_endpoint: Option<String>,
    pub(crate) revocation_endpoint: Option<String>,
}

/// Fetches the metadata of an issuer. It must name exactly the requested issuer.
pub(crate) async fn discover(http: &reqwest::Client, issuer: &str) -> Result<Discovery, FetchError> {
    issuer_url(issuer)?;
    let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let document: Discovery = json(http.get(&url), &url).await?;
    if document.issuer == issuer {
        Ok(document)
    } else {
        let found = document.issuer.chars().filter(|c| !c.is_control()).take(200).collect();
        Err(FetchError::OtherIssuer { url, found })
    }
}

/// Parses the address of an issuer: `https`, or `http` on this machine; without query and fragment.
pub(crate) fn issuer_url(issuer: &str) -> Result<Url, FetchError> {
    let bad = |reason| FetchError::Address { url: issuer.to_owned(), reason };
    let url = safe_url(issuer, true)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("an issuer has no query and no fragment"));
    }
    Ok(url)
}

/// Parses an address from an issuer's document. Plain HTTP on this machine is accepted only from an issuer that is on this
/// machine itself: others must not direct us to local services.
pub(crate) fn endpoint(issuer: &str, named: Option<&str>, what: &'static str) -> Result<Url, FetchError> {
    let Some(named) = named else {
        return Err(FetchError::Address { url: issuer.to_owned(), reason: what });
    };
    let local = issuer_url(issuer)?.scheme() == "http";
    safe_url(named, local)
}

fn safe_url(text: &str, loopback: bool) -> Result<Url, FetchError> {
    let bad = |reason| FetchError::Address { url: text.chars().take(200).collect(), reason };
    let url = Url::parse(text).map_err(|_| bad("it is not a URL"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it contains a user name or a password"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if loopback && is_loopback(&url) => Ok(url),
        _ => Err(bad("it must start with https:// (http:// is for loopback addresses only)")),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An answer, read up to the size limit.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// May contain tokens.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// Sends a request and reads its answer, whatever its status.
pub(crate) async fn answer(request: RequestBuilder, url: &str) -> Result<Answer, FetchError> {
    // The error names our own form of the address, without the parts that may be secret.
    let broken = |source: reqwest::Error| FetchError::Transport { url: url.to_owned(), source: source.without_url() };
    let request = request.header(reqwest::header::ACCEPT, "application/json");
    let mut response = request.send().await.map_err(broken)?;
    let mut body = Zeroizing::new(Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(FetchError::TooLarge { url: url.to_owned() });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status: response.status(), body })
}

/// Sends a request and returns the body of a successful answer.
pub(crate) async fn success(request: RequestBuilder, url: &str) -> Result<Zeroizing<Vec<u8>>, FetchError> {
    let answer = answer(request, url).await?;
    if answer.status.is_success() {
        Ok(answer.body)
    } else {
        Err(FetchError::Status { url: url.to_owned(), status: answer.status })
    }
}

/// Sends a request and returns the document of a successful answer.
pub(crate) async fn json<T: DeserializeOwned>(request: RequestBuilder, url: &str) -> Result<T, FetchError> {
    let body = success(request, url).await?;
    parse(&body, url)
}

/// Parses a document.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], url: &str) -> Result<T, FetchError> {
    // Names the position and kind of the mistake, never the text around it: the document may contain tokens.
    let reason = |error: serde_json::Error| format!("the JSON is wrong at line {}, column {}", error.line(), error.column());
    serde_json::from_slice(body).map_err(|error| FetchError::Malformed { url: url.to_owned(), reason: reason(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_are_https_or_on_this_machine() {
        for good in
            ["https://a.example", "https://a.example/realms/x", "http://127.0.0.1:8080", "http://[::1]:80/x", "http://localhost"]
        {
            assert!(issuer_url(good).is_ok(), "{good}");
        }
        for bad in [
            "http://a.example",
            "http://127.0.0.1.a.example",
            "ftp://a.example",
            "a.example",
            "",
            "https://user@a.example",
            "https://:secret@a.example",
            "https://a.example/?x=1",
            "https://a.example/#x",
        ] {
            assert!(issuer_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_issuer_elsewhere_cannot_point_at_this_machine() {
        assert!(endpoint("https://a.example", Some("https://keys.example/jwks"), "x").is_ok());
        assert!(endpoint("https://a.example", Some("http://127.0.0.1/jwks"), "x").is_err());
        assert!(endpoint("http://127.0.0.1:1", Some("http://127.0.0.1:1/jwks"), "x").is_ok());
        assert!(endpoint("http://127.0.0.1:1", Some("http://10.0.0.1/jwks"), "x").is_err());
        assert!(endpoint("https://a.example", None, "x").is_err());
    }
}
