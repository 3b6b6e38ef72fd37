//! The interface for people: one page of HTML, made from the same document as everything else. It needs nothing from elsewhere and no
//! script; searching is the browser's own.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine as _;
use serde_json::Value;
use sha2::Digest as _;

use crate::endpoints::{ENDPOINTS, Endpoint};

/// The only style of the page.
const STYLE: &str = "
:root { color-scheme: light dark; --text: #1c2024; --soft: #60646c; --back: #ffffff; --line: #e0e1e6; --code: #f3f4f6; --link: #0b5fa5; }
@media (prefers-color-scheme: dark) {
  :root { --text: #edeef0; --soft: #a5abb5; --back: #111317; --line: #2e3138; --code: #1c1f25; --link: #7cb8f5; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--text); background: var(--back); font: 16px/1.5 system-ui, sans-serif; }
nav { padding: 1.5rem; border-bottom: 1px solid var(--line); font-size: 0.9rem; }
nav summary { cursor: pointer; font-weight: 600; padding: 0.15rem 0; }
nav ul { margin: 0 0 0.4rem; padding-left: 1rem; list-style: none; }
main { padding: 1.5rem; max-width: 62rem; }
@media (min-width: 64rem) {
  body { display: grid; grid-template-columns: 19rem 1fr; }
  nav { height: 100vh; position: sticky; top: 0; overflow-y: auto; border-bottom: 0; border-right: 1px solid var(--line); }
}
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
h1 { margin: 0 0 0.5rem; } h2 { margin: 3rem 0 0; } h3 { margin: 0; font-size: 1rem; }
article { border-top: 1px solid var(--line); padding: 1.25rem 0; scroll-margin-top: 0.5rem; }
article:target { outline: 2px solid var(--link); outline-offset: 0.5rem; }
code { background: var(--code); padding: 0.1rem 0.3rem; border-radius: 0.25rem; font: 0.875em ui-monospace, monospace; overflow-wrap: anywhere; }
.method { display: inline-block; min-width: 4rem; font-weight: 700; }
.soft { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; font-size: 0.9rem; }
caption { text-align: left; font-weight: 600; padding: 0.25rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.75rem 0.3rem 0; border-top: 1px solid var(--line); }
";

/// The page.
pub fn page() -> &'static str {
    static PAGE: LazyLock<String> = LazyLock::new(|| write_page(&crate::openapi::document()));
    &PAGE
}

/// What a content security policy has to allow for the page, as a source of `style-src`: `sha256-` and the digest, without quotes.
pub fn style_source() -> String {
    format!("sha256-{}", base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(STYLE.as_bytes())))
}

fn write_page(document: &Value) -> String {
    let mut page = String::with_capacity(512 * 1024);
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>gpuaas API</title>");
    let _ = writeln!(page, "<style>{STYLE}</style></head><body>");
    write_contents(&mut page);
    let _ = write!(page, "<main><h1 id=\"top\">gpuaas API</h1><p>{}</p>", words(text(&document["info"]["description"])));
    let _ = writeln!(
        page,
        "<p>The same for programs: <a href=\"{}\"><code>{}</code></a>.</p>",
        crate::routes::OPENAPI,
        crate::routes::OPENAPI
    );
    let mut resource = "";
    for endpoint in ENDPOINTS {
        if endpoint.resource != resource {
            resource = endpoint.resource;
            let _ = writeln!(page, "<h2 id=\"{}\">{}</h2>", anchor(resource), escape(resource));
        }
        let operation = &document["paths"][endpoint.path][endpoint.method.as_str().to_lowercase()];
        write_operation(&mut page, document, endpoint, operation);
    }
    page.push_str("<h2 id=\"documents\">Documents</h2>\n");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        write_schema(&mut page, name, schema);
    }
    page.push_str("</main></body></html>\n");
    page
}

fn write_contents(page: &mut String) {
    page.push_str("<nav aria-label=\"Contents\"><p><a href=\"#top\">gpuaas API</a></p>");
    let mut resource = "";
    for endpoint in ENDPOINTS {
        if endpoint.resource != resource {
            if !resource.is_empty() {
                page.push_str("</ul></details>");
            }
            resource = endpoint.resource;
            let _ = write!(page, "<details open><summary>{}</summary><ul>", escape(resource));
        }
        let _ = write!(page, "<li><a href=\"#{}\">{}</a></li>", endpoint.name, escape(endpoint.summary.trim_end_matches('.')));
    }
    page.push_str("</ul></details><p><a href=\"#documents\">Documents</a></p></nav>\n");
}

fn write_operation(page: &mut String, document: &Value, endpoint: &Endpoint, operation: &Value) {
    let Endpoint { name, method, path, action, summary, .. } = endpoint;
    let _ = write!(page, "<article id=\"{name}\"><h3><a href=\"#{name}\">{}</a></h3>", escape(summary));
    let _ = write!(page, "<p><span class=\"method\">{method}</span> <code>{}</code></p>", escape(path));
    let _ = write!(page, "<p class=\"soft\">Needs <code>{action}</code>.</p>");
    let parameters: Vec<&Value> =
        operation["parameters"].as_array().into_iter().flatten().map(|p| resolve(document, p)).collect();
    if !parameters.is_empty() {
        page.push_str("<div class=\"scroll\"><table><caption>Parameters</caption>");
        for parameter in parameters {
            let required = if parameter["required"] == true { "" } else { ", optional" };
            write_row(
                page,
                text(&parameter["name"]),
                &format!("{} in {}{required}", type_of(&parameter["schema"]), escape(text(&parameter["in"]))),
                text(&parameter["description"]),
            );
        }
        page.push_str("</table></div>");
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        let _ = write!(page, "<p>Body: {}</p>", type_of(body));
    }
    page.push_str("<div class=\"scroll\"><table><caption>Answers</caption>");
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let response = resolve(document, response);
        write_row(page, status, &documents_of(response), text(&response["description"]));
    }
    page.push_str("</table></div></article>\n");
}

/// The documents that an answer carries.
fn documents_of(response: &Value) -> String {
    let mut documents = Vec::new();
    for content in response["content"].as_object().into_iter().flat_map(serde_json::Map::values) {
        match content["x-gpuaas-events"].as_object() {
            Some(events) => {
                let event = |(name, schema): (&String, &Value)| format!("<code>{}</code>: {}", escape(name), type_of(schema));
                documents.extend(events.iter().map(event));
            }
            None => documents.push(type_of(&content["schema"])),
        }
    }
    if !response["x-gpuaas-message"].is_null() {
        documents.push(type_of(&response["x-gpuaas-message"]));
    }
    documents.join(", ")
}

fn write_schema(page: &mut String, name: &str, schema: &Value) {
    let _ = write!(page, "<article id=\"document-{name}\"><h3><a href=\"#document-{name}\">{}</a></h3>", escape(name));
    let _ = write!(page, "<p>{}</p>", words(text(&schema["description"])));
    let fields = schema["properties"].as_object();
    if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
        let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        page.push_str("<div class=\"scroll\"><table>");
        for (field, schema) in fields {
            let optional = if required.contains(&field.as_str()) { "" } else { ", optional" };
            write_row(page, field, &format!("{}{optional}", type_of(schema)), text(&schema["description"]));
        }
        page.push_str("</table></div>");
    } else {
        let _ = write!(page, "<p class=\"soft\">{}</p>", type_of(schema));
    }
    page.push_str("</article>\n");
}

/// A row of a table; the second cell is HTML already.
fn write_row(page: &mut String, name: &str, html: &str, description: &str) {
    let _ = write!(page, "<tr><td><code>{}</code></td><td>{html}</td><td>{}</td></tr>", escape(name), words(description));
}

/// What a value looks like, as HTML.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        return format!("<a href=\"#document-{name}\">{}</a>", escape(name));
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(kinds) = schema[several].as_array() {
            return kinds.iter().map(type_of).collect::<Vec<_>>().join(" or ");
        }
    }
    let value = |value: &Value| format!("<code>{}</code>", escape(value.as_str().unwrap_or(&value.to_string())));
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(value).collect::<Vec<_>>().join(" or ");
    }
    if !schema["const"].is_null() {
        return value(&schema["const"]);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        Value::String(kind) => vec![kind],
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return "any JSON".to_owned(),
    };
    let kind = |kind: &str| match kind {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => format!("map to {}", type_of(&schema["additionalProperties"])),
        plain => escape(plain),
    };
    kinds.into_iter().map(kind).collect::<Vec<_>>().join(" or ")
}

fn resolve<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    let target = value["$ref"].as_str().and_then(|reference| document.pointer(reference.strip_prefix('#')?));
    target.unwrap_or(value)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn anchor(name: &str) -> String {
    format!("about-{}", name.to_lowercase().replace(' ', "-"))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Sentences as HTML: what is between backquotes is code.
fn words(text: &str) -> String {
    let mut html = String::with_capacity(text.len() + 32);
    for (number, part) in escape(text).split('`').enumerate() {
        if number % 2 == 1 {
            let _ = write!(html, "<code>{part}</code>");
        } else {
            html.push_str(&part.replace("\n\n", "<br>"));
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn values<'p>(page: &'p str, attribute: &str) -> BTreeSet<&'p str> {
        let start = format!(" {attribute}=\"");
        page.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn every_operation_has_its_place_and_every_link_leads_somewhere() {
        let page = page();
        let places = values(page, "id");
        for endpoint in ENDPOINTS {
            assert!(places.contains(endpoint.name), "{}", endpoint.name);
        }
        for link in values(page, "href").into_iter().filter(|link| *link != crate::routes::OPENAPI) {
            let target = link.strip_prefix('#').unwrap_or_else(|| panic!("{link} leads out of the page"));
            assert!(places.contains(target), "{link} leads nowhere");
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere_and_no_script() {
        let page = page();
        for banned in ["<script", "<link", "<img", "<iframe", " src=", " style=", "@import", "url("] {
            assert!(!page.contains(banned), "{banned}");
        }
        assert_eq!(page.matches("<style>").count(), 1);
    }

    #[test]
    fn the_policy_allows_exactly_the_style_that_the_page_has() {
        let style = page().split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).expect("a style");
        let digest = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(style.as_bytes()));
        assert_eq!(style_source(), format!("sha256-{digest}"));
    }

    #[test]
    fn words_cannot_become_markup() {
        assert_eq!(words("`<b>` & \"x\""), "<code>&lt;b&gt;</code> &amp; &quot;x&quot;");
    }
}
