//! The one request that the browser sends to us: `GET /callback` with the right state.
//!
//! Any other request to the port — a favicon, a page that guesses ports, a connection without data — is answered or closed and
//! changes nothing. Only a request with the state can end the wait, with a code or with a refusal.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use zeroize::Zeroizing;

use super::{LoginError, Refusal};
use crate::form::Form;
use crate::pages::{self, Page};
use crate::secrets::same;

/// Maximum size of a request up to the end of its headers, in bytes.
const MAX_HEAD_BYTES: u64 = 16 * 1024;
/// Capacity of the request buffer, allocated once.
const HEAD_ROOM: usize = 16 * 1024;
/// How long one connection may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections at a time. Browsers open some that they do not use.
const MAX_CONNECTIONS: usize = 16;

/// Pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The parameters of the right request.
pub(super) struct Expected {
    pub(super) port: u16,
    pub(super) state: Zeroizing<String>,
    pub(super) issuer: String,
}

type Outcome = Result<Zeroizing<String>, LoginError>;

/// Waits for the code. The caller sets the time limit.
pub(super) async fn wait(listener: TcpListener, expected: Expected) -> Outcome {
    let expected = std::sync::Arc::new(expected);
    let mut connections: JoinSet<Option<Outcome>> = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // If nothing can be accepted, the caller's time limit ends the wait.
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                oldest_first.retain(|connection| !connection.is_finished());
                // Connections without data must not keep the browser out.
                if oldest_first.len() >= MAX_CONNECTIONS && let Some(oldest) = oldest_first.pop_front() {
                    oldest.abort();
                }
                let expected = std::sync::Arc::clone(&expected);
                oldest_first.push_back(connections.spawn(async move {
                    tokio::time::timeout(CONNECTION_TIMEOUT, serve(stream, &expected)).await.unwrap_or_default()
                }));
            }
            Some(ended) = connections.join_next() => {
                if let Ok(Some(outcome)) = ended {
                    return outcome;
                }
            }
        }
    }
}

/// Serves one connection. Returns `None` if it was not the expected request.
async fn serve(mut stream: TcpStream, expected: &Expected) -> Option<Outcome> {
    let head = read_head(&mut stream).await?;
    let (status, page, outcome) = answer(&head, expected);
    let mut response = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n", page.html.len());
    let policy = ("content-security-policy", page.content_security_policy.as_str());
    for (name, value) in pages::HEADERS.into_iter().chain([policy]) {
        response.push_str(&format!("{name}: {value}\r\n"));
    }
    response.push_str("\r\n");
    response.push_str(&page.html);
    // The sign-in is valid even if the browser is gone.
    if stream.write_all(response.as_bytes()).await.is_ok() {
        let _ = stream.shutdown().await;
    }
    outcome
}

/// Reads everything up to the empty line, within the limit.
async fn read_head(stream: &mut TcpStream) -> Option<Zeroizing<String>> {
    // Allocated at once: a growing buffer would leave copies of the code in memory.
    let mut head = Zeroizing::new(Vec::with_capacity(HEAD_ROOM));
    let mut stream = stream.take(MAX_HEAD_BYTES);
    while !head.ends_with(b"\r\n\r\n") {
        // The connection has ended, or the limit is reached.
        if stream.read_buf(&mut *head).await.ok()? == 0 {
            return None;
        }
    }
    std::str::from_utf8(&head).ok().map(|text| Zeroizing::new(text.to_owned()))
}

/// Decides about one request.
fn answer(head: &str, expected: &Expected) -> (&'static str, Page, Option<Outcome>) {
    let ignored = |status, text: &str| (status, pages::error("Nothing to see here", text, "not_found"), None);
    let mut lines = head.split("\r\n");
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (request.next().unwrap_or_default(), request.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    // A page elsewhere can point its own name at this machine (DNS rebinding), but cannot choose this header.
    let hosts: Vec<&str> = lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        .map(|(_, value)| value.trim())
        .collect();
    if hosts != [format!("127.0.0.1:{}", expected.port)] {
        return ignored("421 Misdirected Request", "This address is only for the browser's answer to `gpuaas login`.");
    }
    if path != "/callback" {
        return ignored("404 Not Found", "This address is only for the browser's answer to `gpuaas login`.");
    }
    if method != "GET" {
        return ignored("405 Method Not Allowed", "Only GET is answered here.");
    }
    let form = Form::parse(query).unwrap_or_default();
    if !form.get("state").is_some_and(|state| same(state, &expected.state)) {
        return ignored("400 Bad Request", "This answer belongs to another sign-in. Go back to the terminal and start again.");
    }
    if form.get("iss").is_some_and(|issuer| issuer != expected.issuer) {
        let page =
            pages::error("Not signed in", "The answer comes from another issuer. Start again in the terminal.", "login_mismatch");
        return ("400 Bad Request", page, Some(Err(LoginError::Mismatch { what: "issuer" })));
    }
    match (form.get("error"), form.get("code")) {
        (None, Some(code)) => {
            let page = pages::done("Signed in", "You can close this window and go back to the terminal.");
            ("200 OK", page, Some(Ok(Zeroizing::new(code.to_owned()))))
        }
        (Some(error), _) => {
            let description = form.get("error_description").unwrap_or_default().to_owned();
            let failure = Refusal { error: error.to_owned(), error_description: description }.into_error();
            let page = pages::error("Not signed in", "Go back to the terminal; it shows what to do.", failure.code());
            ("200 OK", page, Some(Err(failure)))
        }
        (None, None) => {
            let page = pages::error("Not signed in", "The answer has no code. Start again in the terminal.", "login_mismatch");
            ("400 Bad Request", page, Some(Err(LoginError::Mismatch { what: "no code" })))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected { port: 4711, state: Zeroizing::new("right".to_owned()), issuer: "https://cloud.example".to_owned() }
    }

    fn ask(request_line: &str) -> (&'static str, Option<Outcome>) {
        let (status, _, outcome) = answer(&format!("{request_line}\r\nHost: 127.0.0.1:4711\r\n\r\n"), &expected());
        (status, outcome)
    }

    #[test]
    fn only_the_callback_with_the_right_state_ends_the_wait() {
        for (line, status) in [
            ("GET /favicon.ico HTTP/1.1", "404 Not Found"),
            ("GET / HTTP/1.1", "404 Not Found"),
            ("GET /callback/?state=right&code=c HTTP/1.1", "404 Not Found"),
            ("GET //callback?state=right&code=c HTTP/1.1", "404 Not Found"),
            ("POST /callback?state=right&code=c HTTP/1.1", "405 Method Not Allowed"),
            ("GET /callback HTTP/1.1", "400 Bad Request"),
            ("GET /callback?code=c HTTP/1.1", "400 Bad Request"),
            ("GET /callback?state=wrong&code=c HTTP/1.1", "400 Bad Request"),
            ("GET /callback?state=wrong&error=access_denied HTTP/1.1", "400 Bad Request"),
            ("GET /callback?state=right&state=right&code=c HTTP/1.1", "400 Bad Request"),
            ("GET /callback?state=%zz HTTP/1.1", "400 Bad Request"),
            ("", "404 Not Found"),
        ] {
            let (told, outcome) = ask(line);
            assert_eq!(told, status, "{line}");
            assert!(outcome.is_none(), "{line}");
        }
        let (status, outcome) = ask("GET /callback?code=c&state=right&iss=https%3A%2F%2Fcloud.example HTTP/1.1");
        assert_eq!(status, "200 OK");
        assert_eq!(outcome.expect("an outcome").expect("a code").as_str(), "c");
    }

    #[tokio::test]
    async fn connections_that_say_nothing_do_not_keep_the_browser_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let waiting = tokio::spawn(wait(listener, Expected { port: address.port(), ..expected() }));
        let mut silent = Vec::new();
        for _ in 0..4 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.expect("connects"));
        }
        let mut browser = TcpStream::connect(address).await.expect("connects");
        let request = format!("GET /callback?code=c&state=right HTTP/1.1\r\nHost: {address}\r\n\r\n");
        browser.write_all(request.as_bytes()).await.expect("sent");
        let code = waiting.await.expect("ends").expect("a code");
        assert_eq!(code.as_str(), "c");
        drop(silent);
    }

    #[test]
    fn other_names_for_this_machine_are_not_answered() {
        for host in [
            "",
            "Host: evil.example:4711\r\n",
            "Host: localhost:4711\r\n",
            "Host: 127.0.0.1\r\n",
            "Host: 127.0.0.1:4711\r\nHost: x\r\n",
        ] {
            let (status, _, outcome) = answer(&format!("GET /callback?state=right&code=c HTTP/1.1\r\n{host}\r\n"), &expected());
            assert_eq!(status, "421 Misdirected Request", "{host}");
            assert!(outcome.is_none(), "{host}");
        }
    }

    #[test]
    fn refusals_and_mixed_up_issuers_end_it_with_an_error() {
        for (query, code) in [
            ("state=right&error=access_denied", "login_denied"),
            ("state=right&error=server_error&error_description=a%0Ab", "login_refused"),
            ("state=right&error=access_denied&code=c", "login_denied"),
            ("state=right&code=c&iss=https%3A%2F%2Fevil.example", "login_mismatch"),
            ("state=right", "login_mismatch"),
        ] {
            let (_, outcome) = ask(&format!("GET /callback?{query} HTTP/1.1"));
            assert_eq!(outcome.expect("an outcome").expect_err("an error").code(), code, "{query}");
        }
    }
}
