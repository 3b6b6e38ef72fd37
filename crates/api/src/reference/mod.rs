//! The API reference for people: one HTML page, generated from the OpenAPI document. It loads nothing from elsewhere, and without
//! JavaScript everything except the search field works.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine as _;
use serde_json::Value;
use sha2::Digest as _;

use crate::endpoints::{ENDPOINTS, Endpoint, StreamKind};
use crate::examples;

/// The only style of the page.
const STYLE: &str = include_str!("style.css");
/// The only script of the page: the search field.
const SCRIPT: &str = include_str!("search.js");

/// The HTML of the page.
pub fn page() -> &'static str {
    static PAGE: LazyLock<String> = LazyLock::new(|| write_page(&crate::openapi::document()));
    &PAGE
}

/// The content security policy of the page. It allows only the page's own style and script, identified by their digests.
pub fn content_security_policy() -> String {
    format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source(STYLE),
        source(SCRIPT)
    )
}

fn source(text: &str) -> String {
    format!("sha256-{}", base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(text.as_bytes())))
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
        "<p>For programs: <a href=\"{}\"><code>{}</code></a>.</p>",
        crate::routes::OPENAPI,
        crate::routes::OPENAPI
    );
    page.push_str("<p id=\"nothing-found\" hidden>Nothing contains all these words.</p>");
    let mut resource = "";
    for endpoint in ENDPOINTS {
        if endpoint.resource != resource {
            if !resource.is_empty() {
                page.push_str("</section>\n");
            }
            resource = endpoint.resource;
            let _ = writeln!(page, "<section><h2 id=\"{}\">{}</h2>", anchor(resource), escape(resource));
        }
        let operation = &document["paths"][endpoint.path][endpoint.method.as_str().to_lowercase()];
        write_operation(&mut page, document, endpoint, operation);
    }
    page.push_str("</section>\n<section><h2 id=\"documents\">Documents</h2>\n");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        write_schema(&mut page, name, schema);
    }
    let _ = writeln!(page, "</section></main><script>{SCRIPT}</script></body></html>");
    page
}

fn write_contents(page: &mut String) {
    page.push_str("<nav aria-label=\"Contents\"><p><a href=\"#top\">gpuaas API</a></p>");
    page.push_str("<input id=\"search\" type=\"search\" placeholder=\"Search (press /)\" aria-label=\"Search\" hidden>");
    let mut resource = "";
    for endpoint in ENDPOINTS {
        if endpoint.resource != resource {
            if !resource.is_empty() {
                page.push_str("</ul></details>");
            }
            resource = endpoint.resource;
            let _ = write!(page, "<details open><summary>{}</summary><ul>", escape(resource));
        }
        let Endpoint { name, method, path, summary, .. } = endpoint;
        let path = path.strip_prefix("/api/v1").unwrap_or(path);
        let _ = write!(
            page,
            "<li><a href=\"#{name}\"><span class=\"method {method}\">{method}</span><code>{}</code><small>{}</small></a></li>",
            escape(path),
            escape(summary.trim_end_matches('.'))
        );
    }
    page.push_str("</ul></details><p><a href=\"#documents\">Documents</a></p></nav>\n");
}

fn write_operation(page: &mut String, document: &Value, endpoint: &Endpoint, operation: &Value) {
    let Endpoint { name, method, path, action, summary, .. } = endpoint;
    let _ = write!(page, "<article id=\"{name}\"><h3><a href=\"#{name}\">{}</a></h3>", escape(summary));
    let _ = write!(page, "<p><span class=\"method {method}\">{method}</span> <code>{}</code></p>", escape(path));
    let _ = write!(page, "<p class=\"soft\">Requires the permission <code>{action}</code>.</p>");
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
    page.push_str("<div class=\"scroll\"><table><caption>Responses</caption>");
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let response = resolve(document, response);
        write_row(page, status, &documents_of(response), text(&response["description"]));
    }
    page.push_str("</table></div>");
    write_example(page, endpoint);
    page.push_str("</article>\n");
}

/// Writes an example request and response, collapsed by default.
fn write_example(page: &mut String, endpoint: &Endpoint) {
    let Some(example) = examples::of(endpoint.name) else { return };
    let pretty =
        |value: &Value| value.as_str().map_or_else(|| serde_json::to_string_pretty(value).unwrap_or_default(), str::to_owned);
    let body = example.body.as_ref().map(|body| format!("\n{}", pretty(body))).unwrap_or_default();
    let request = format!("{} {}{body}", endpoint.method, example.path);
    let response = match endpoint.stream {
        StreamKind::Sse(names) => format!("event: {}\ndata: {}", names[0], example.response),
        StreamKind::Document | StreamKind::WebSocket | StreamKind::JsonLines | StreamKind::Metrics => pretty(&example.response),
    };
    let _ = write!(
        page,
        "<details><summary>Example</summary><pre>{}</pre><p class=\"soft\">Response {}</p><pre>{}</pre></details>",
        escape(&request),
        endpoint.status,
        escape(&response)
    );
}

/// The documents that a response carries.
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

/// Writes a row of a table. The second cell is already HTML.
fn write_row(page: &mut String, name: &str, html: &str, description: &str) {
    let _ = write!(page, "<tr><td><code>{}</code></td><td>{html}</td><td>{}</td></tr>", escape(name), words(description));
}

/// The type of a value, as HTML.
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

/// Converts a text to HTML. Text between backquotes becomes code.
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
    fn the_page_needs_nothing_from_elsewhere() {
        let page = page();
        for banned in ["<link", "<img", "<iframe", " src=", " style=", " onclick=", "@import", "url(", "fetch(", "import("] {
            assert!(!page.contains(banned), "{banned}");
        }
        assert_eq!((page.matches("<style").count(), page.matches("<script").count()), (1, 1));
    }

    #[test]
    fn the_policy_allows_exactly_the_style_and_the_script_that_the_page_has() {
        for (directive, element) in [("style-src", "style"), ("script-src", "script")] {
            let text = page().split(&format!("<{element}>")).nth(1).and_then(|rest| rest.split(&format!("</{element}>")).next());
            let digest = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(text.expect("inline").as_bytes()));
            assert!(content_security_policy().contains(&format!("{directive} 'sha256-{digest}';")), "{directive}");
        }
        assert!(content_security_policy().starts_with("default-src 'none';"));
    }

    #[test]
    fn words_cannot_become_markup() {
        assert_eq!(words("`<b>` & \"x\""), "<code>&lt;b&gt;</code> &amp; &quot;x&quot;");
    }
}
