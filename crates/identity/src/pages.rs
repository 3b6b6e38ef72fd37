//! The HTML pages of the sign-in. Pure functions from texts to HTML.
//!
//! The pages have no scripts, no external content, and one style that the policy names by its hash. All data from outside goes
//! through [`escape`]. The caller sends [`HEADERS`] and the page's own policy with every page.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::Digest as _;

/// Headers of every page, besides its policy.
pub const HEADERS: [(&str, &str); 5] = [
    ("content-type", "text/html; charset=utf-8"),
    // The page contains a CSRF token, and its address may contain a code.
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Name of the field with the CSRF token. Its value is compared with the one in a cookie.
pub const CSRF_FIELD: &str = "csrf";
/// Name of the field with the user's decision on the page of [`device_confirm`]: `approve` or `deny`.
pub const DECISION_FIELD: &str = "decision";

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#16181d;--soft:#5b6270;--paper:#f5f6f8;--card:#fff;--line:#c9ced8;--act:#1a56db;--on-act:#fff;--bad:#b42318}\
@media(prefers-color-scheme:dark){:root{--ink:#eceef2;--soft:#a3abba;--paper:#101216;--card:#1a1d23;--line:#3d4452;--act:#7aa2ff;--on-act:#0b1020;--bad:#ff9b8f}}\
*{box-sizing:border-box}\
body{margin:0;min-height:100vh;display:flex;align-items:center;justify-content:center;padding:1rem;background:var(--paper);color:var(--ink);font:1rem/1.5 system-ui,sans-serif}\
main{width:100%;max-width:25rem;padding:2rem 1.5rem;background:var(--card);border:1px solid var(--line);border-radius:.75rem}\
h1{margin:0 0 .5rem;font-size:1.375rem;line-height:1.25}\
p{margin:.5rem 0 1rem;overflow-wrap:anywhere}\
label{display:block;margin:1rem 0 .25rem;font-weight:600}\
input{width:100%;padding:.75rem;font:inherit;color:inherit;background:var(--paper);border:1px solid var(--line);border-radius:.5rem}\
button{width:100%;margin-top:1rem;padding:.75rem;font:inherit;font-weight:600;color:var(--on-act);background:var(--act);border:1px solid var(--act);border-radius:.5rem;cursor:pointer}\
button.second{color:var(--ink);background:transparent;border-color:var(--line)}\
:focus-visible{outline:3px solid var(--act);outline-offset:2px}\
.code{font:600 1.75rem/1.2 ui-monospace,monospace;letter-spacing:.1em;text-align:center}\
.soft{color:var(--soft)}\
.problem{color:var(--bad);font-weight:600}";

/// The style's hash, as the policy names it.
static STYLE_SOURCE: LazyLock<String> =
    LazyLock::new(|| format!("'sha256-{}'", STANDARD.encode(sha2::Sha256::digest(STYLE.as_bytes()))));

/// A page, and the policy to send with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The document.
    pub html: String,
    /// Value of the `Content-Security-Policy` header.
    pub content_security_policy: String,
}

/// The data of the sign-in page.
#[derive(Clone, Debug)]
pub struct SignIn<'a> {
    /// Target of the form: a path of this server.
    pub action: &'a str,
    /// The client's name for users.
    pub client_title: &'a str,
    /// The request that is answered after signing in, as hidden fields.
    pub fields: &'a [(&'static str, String)],
    /// The CSRF token.
    pub csrf: &'a str,
    /// The e-mail address of the previous attempt.
    pub email: &'a str,
    /// Why the user has to try again.
    pub problem: Option<&'a str>,
    /// Where the answer to the form may redirect, besides this server; see `AuthorizationRequest::form_action_source`.
    pub form_action_source: Option<&'a str>,
}

/// Returns the page for e-mail address and password.
pub fn sign_in(page: &SignIn<'_>) -> Page {
    let mut body = format!("<h1>Sign in</h1>\n<p class=\"soft\">to continue to {}</p>\n", escape(page.client_title));
    push_problem(&mut body, page.problem);
    push_form(&mut body, page.action, page.csrf, page.fields);
    let _ = write!(
        body,
        "<label for=\"email\">E-mail address</label>\n\
         <input id=\"email\" name=\"email\" type=\"email\" autocomplete=\"username\" autocapitalize=\"none\" spellcheck=\"false\" \
         maxlength=\"320\" required value=\"{}\"{}{}>\n\
         <label for=\"password\">Password</label>\n\
         <input id=\"password\" name=\"password\" type=\"password\" autocomplete=\"current-password\" maxlength=\"1024\" required{}>\n\
         <button type=\"submit\">Sign in</button>\n</form>\n",
        escape(page.email),
        focus(page.email.is_empty()),
        described(page.problem),
        focus(!page.email.is_empty()),
    );
    document("Sign in", &body, &form_sources(page.form_action_source))
}

/// The data of the page for typing a device's code.
#[derive(Clone, Debug)]
pub struct DeviceEntry<'a> {
    /// Target of the form: a path of this server.
    pub action: &'a str,
    /// The CSRF token.
    pub csrf: &'a str,
    /// The code from the address, or from the previous attempt.
    pub user_code: &'a str,
    /// Why the user has to try again.
    pub problem: Option<&'a str>,
}

/// Returns the page with a field for the code that a terminal shows.
pub fn device_entry(page: &DeviceEntry<'_>) -> Page {
    let mut body = "<h1>Connect a device</h1>\n<p class=\"soft\">Type the code that your terminal shows.</p>\n".to_owned();
    push_problem(&mut body, page.problem);
    push_form(&mut body, page.action, page.csrf, &[]);
    let _ = write!(
        body,
        "<label for=\"user_code\">Code</label>\n\
         <input id=\"user_code\" name=\"user_code\" class=\"code\" autocomplete=\"off\" autocapitalize=\"characters\" \
         spellcheck=\"false\" maxlength=\"64\" placeholder=\"XXXX-XXXX\" required autofocus value=\"{}\"{}>\n\
         <button type=\"submit\">Continue</button>\n</form>\n",
        escape(page.user_code),
        described(page.problem),
    );
    document("Connect a device", &body, &form_sources(None))
}

/// The data of the page that asks for a decision about a device.
#[derive(Clone, Debug)]
pub struct DeviceConfirm<'a> {
    /// Target of the form: a path of this server.
    pub action: &'a str,
    /// The CSRF token.
    pub csrf: &'a str,
    /// The code to compare.
    pub user_code: &'a str,
    /// The client's name for users.
    pub client_title: &'a str,
    /// The user who is signed in to this browser.
    pub email: &'a str,
}

/// Returns the page that asks for a decision about a device. It states the risk, because an attacker who sends a code by mail
/// wants exactly this click.
pub fn device_confirm(page: &DeviceConfirm<'_>) -> Page {
    let mut body = format!(
        "<h1>Connect this device?</h1>\n<p>{} asks to act as <strong>{}</strong>.</p>\n<p class=\"code\">{}</p>\n\
         <p>Approve only if your own terminal shows this code right now. Nobody has a reason to send you one.</p>\n",
        escape(&capitalized(page.client_title)),
        escape(page.email),
        escape(page.user_code),
    );
    push_form(&mut body, page.action, page.csrf, &[("user_code", page.user_code.to_owned())]);
    let _ = write!(
        body,
        "<button type=\"submit\" name=\"{DECISION_FIELD}\" value=\"approve\">Approve</button>\n\
         <button type=\"submit\" name=\"{DECISION_FIELD}\" value=\"deny\" class=\"second\">Deny</button>\n</form>\n",
    );
    document("Connect this device?", &body, &form_sources(None))
}

/// Returns a page that confirms a success.
pub fn done(title: &str, text: &str) -> Page {
    let body = format!("<h1>{}</h1>\n<p>{}</p>\n", escape(title), escape(text));
    document(title, &body, "'none'")
}

/// Returns a page that shows an error, what to do, and the code of the error.
pub fn error(title: &str, text: &str, code: &str) -> Page {
    let (title_html, text, code) = (escape(title), escape(text), escape(code));
    let body = format!("<h1>{title_html}</h1>\n<p role=\"alert\">{text}</p>\n<p class=\"soft\">Error: {code}</p>\n");
    document(title, &body, "'none'")
}

/// Escapes a text for use between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Bidirectional overrides make a text look like another one.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => safe.push('\u{fffd}'),
            c if c.is_control() && !matches!(c, '\n' | '\t') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

fn document(title: &str, body: &str, form_sources: &str) -> Page {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"robots\" content=\"noindex\">\n\
         <title>{} · gpuaas</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title)
    );
    let style = STYLE_SOURCE.as_str();
    let content_security_policy =
        format!("default-src 'none'; style-src {style}; form-action {form_sources}; frame-ancestors 'none'; base-uri 'none'");
    Page { html, content_security_policy }
}

/// Returns this server, and the target of a redirect that answers the form: browsers apply `form-action` to it too.
fn form_sources(extra: Option<&str>) -> String {
    // A source ends at a space, a semicolon or a comma. Sources with any other characters than those of an origin are left out.
    let is_source = |source: &&str| {
        !source.is_empty() && source.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'/' | b'.' | b'-'))
    };
    extra.filter(is_source).map_or_else(|| "'self'".to_owned(), |source| format!("'self' {source}"))
}

fn push_form(body: &mut String, action: &str, csrf: &str, fields: &[(&'static str, String)]) {
    let _ = writeln!(body, "<form method=\"post\" action=\"{}\">", escape(action));
    for (name, value) in fields.iter().map(|(name, value)| (*name, value.as_str())).chain([(CSRF_FIELD, csrf)]) {
        let _ = writeln!(body, "<input type=\"hidden\" name=\"{}\" value=\"{}\">", escape(name), escape(value));
    }
}

fn push_problem(body: &mut String, problem: Option<&str>) {
    if let Some(problem) = problem {
        let _ = writeln!(body, "<p id=\"problem\" class=\"problem\" role=\"alert\">{}</p>", escape(problem));
    }
}

fn described(problem: Option<&str>) -> &'static str {
    if problem.is_some() { " aria-describedby=\"problem\" aria-invalid=\"true\"" } else { "" }
}

fn focus(here: bool) -> &'static str {
    if here { " autofocus" } else { "" }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: [&str; 6] = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</style><script>alert(1)</script>",
        "&lt;b&gt;",
        "a\u{202e}b\u{0}c",
    ];

    fn pages(text: &str) -> Vec<Page> {
        let fields = [("state", text.to_owned())];
        let sign = SignIn {
            action: text,
            client_title: text,
            fields: &fields,
            csrf: text,
            email: text,
            problem: Some(text),
            form_action_source: Some(text),
        };
        vec![
            sign_in(&sign),
            device_entry(&DeviceEntry { action: text, csrf: text, user_code: text, problem: Some(text) }),
            device_confirm(&DeviceConfirm { action: text, csrf: text, user_code: text, client_title: text, email: text }),
            done(text, text),
            error(text, text, text),
        ]
    }

    /// Returns the names of all tags of a document.
    fn tags(html: &str) -> Vec<&str> {
        html.split('<').skip(1).map(|rest| rest.split([' ', '>']).next().unwrap_or_default()).collect()
    }

    #[test]
    fn hostile_texts_change_neither_tags_nor_attributes() {
        let harmless = pages("x");
        for text in HOSTILE {
            for (page, plain) in pages(text).iter().zip(&harmless) {
                assert_eq!(tags(&page.html), tags(&plain.html), "{text}");
                assert_eq!(page.html.matches('"').count(), plain.html.matches('"').count(), "{text}");
                assert_eq!(page.html.matches('\'').count(), plain.html.matches('\'').count(), "{text}");
                assert!(page.html.contains(&escape(text)), "{text}");
                assert!(!page.html.contains("<script") && !page.html.contains(['\u{202e}', '\u{0}']), "{text}");
            }
        }
    }

    #[test]
    fn every_character_with_a_meaning_is_escaped() {
        assert_eq!(escape("<a href=\"x\" b='y'>&amp;"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
        assert_eq!(escape("Zoë 北京"), "Zoë 北京");
    }

    #[test]
    fn the_policy_allows_the_style_of_the_page_and_nothing_else() {
        for page in pages("x") {
            let style = page.html.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).expect("a style");
            let hash = STANDARD.encode(sha2::Sha256::digest(style.as_bytes()));
            let policy = &page.content_security_policy;
            assert!(policy.starts_with(&format!("default-src 'none'; style-src 'sha256-{hash}'; form-action ")), "{policy}");
            assert!(policy.ends_with("; frame-ancestors 'none'; base-uri 'none'"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
            // A style in an attribute would need another permission.
            assert!(!page.html.contains("style=") && !page.html.contains("<script") && !page.html.contains("src="));
        }
    }

    #[test]
    fn forms_may_lead_to_the_clients_origin_and_no_text_can_widen_the_policy() {
        assert_eq!(form_sources(Some("http://127.0.0.1:4711")), "'self' http://127.0.0.1:4711");
        assert_eq!(form_sources(Some("http:")), "'self' http:");
        for bad in ["https://a; script-src *", "https://a b", "https://a,b", "*", "'unsafe-inline'", ""] {
            assert_eq!(form_sources(Some(bad)), "'self'", "{bad}");
        }
    }

    #[test]
    fn forms_carry_the_request_and_the_token_against_forgery() {
        let fields = [("client_id", "gpuaas-cli".to_owned()), ("state", "s".to_owned())];
        let page = sign_in(&SignIn {
            action: "/oauth/sign-in",
            client_title: "the gpuaas command line",
            fields: &fields,
            csrf: "gpx_token",
            email: "",
            problem: None,
            form_action_source: None,
        });
        for field in [
            "<form method=\"post\" action=\"/oauth/sign-in\">",
            "<input type=\"hidden\" name=\"client_id\" value=\"gpuaas-cli\">",
            "<input type=\"hidden\" name=\"state\" value=\"s\">",
            "<input type=\"hidden\" name=\"csrf\" value=\"gpx_token\">",
        ] {
            assert!(page.html.contains(field), "{field}\n{}", page.html);
        }
    }

    #[test]
    fn every_field_that_people_fill_has_a_label() {
        for page in pages("x") {
            for input in page.html.split("<input ").skip(1).filter(|input| !input.starts_with("type=\"hidden\"")) {
                let id = input.split("id=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id");
                assert!(page.html.contains(&format!("<label for=\"{id}\">")), "{id}");
            }
        }
    }
}
