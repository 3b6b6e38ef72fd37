//! The AsyncAPI 3.0 document of every kind of event that gpuaas publishes. It is generated from the declarations in
//! `gpuaas_contract::event`.

use gpuaas_contract::event::EventKind;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::dto::CloudEvent;
use crate::openapi::{sorted, speak_plainly};
use crate::routes;

/// The location of schemas in the document, as a JSON pointer.
const SCHEMAS: &str = "/components/schemas";

/// The whole document. Deterministic: the keys of every object are sorted.
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
        })
        .into_generator();
    generator.subschema_for::<CloudEvent>();
    let (mut messages, mut listed) = (Map::new(), Map::new());
    for kind in EventKind::ALL {
        let name = kind.as_str();
        let properties = json!({ "type": { "const": name }, "data": kind.data_schema(&mut generator) });
        let payload = json!({ "allOf": [{ "$ref": "#/components/schemas/CloudEvent" }, { "properties": properties }] });
        let message = json!({
            "name": name, "title": name, "summary": kind.summary(), "description": audience(kind),
            "contentType": "application/cloudevents+json", "payload": payload,
            "tags": [{ "name": name.split('.').nth(1) }], "x-audit-actions": kind.actions(),
        });
        messages.insert(name.to_owned(), message);
        listed.insert(name.to_owned(), json!({ "$ref": format!("#/components/messages/{name}") }));
    }
    let schemas = generator.take_definitions(true);
    let channel =
        |address: &str, description: &str| json!({ "address": address, "description": description, "messages": listed });
    let mut document = json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events of gpuaas",
            "version": "v1",
            "description": "What happens, as CloudEvents 1.0. Every event comes at least once; the same event always has the same `id`. Events \
                            with one `subject` come in their order. Consumers ignore kinds and fields that they do not know.",
            "license": { "name": "Apache-2.0" },
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": {
            "stream": channel(
                "gpuaas.{kind}.{subject}",
                "A stream of NATS JetStream, where there is one. The address is the event's type, with the configured prefix in place of \
                 `gpuaas`, and its subject as the last token. `Nats-Msg-Id` is the event's id.",
            ),
            "platformEvents": channel(routes::EVENTS, "Server-sent events of the whole platform, for operators."),
            "projectEvents": channel(routes::PROJECT_EVENTS, "Server-sent events of one project."),
            "projectSocket": channel(
                routes::PROJECT_EVENTS_WS,
                "A WebSocket with the events of one project. `sequence` is the event's position.",
            ),
            "webhook": channel("{url}", "Webhooks of projects, signed as the Standard Webhooks specification has it."),
        },
        "operations": operations(&["stream", "platformEvents", "projectEvents", "projectSocket", "webhook"]),
        "components": { "messages": messages, "schemas": schemas },
    });
    document["channels"]["stream"]["parameters"] = json!({
        "kind": { "description": "The event's type without `gpuaas.`, its dots kept." },
        "subject": { "description": "What it happened to; characters other than letters, digits, `-` and `_` are `_`." },
    });
    for channel in ["projectEvents", "projectSocket"] {
        document["channels"][channel]["parameters"] = json!({ "project": { "description": "The project's id." } });
    }
    document["channels"]["webhook"]["parameters"] = json!({ "url": { "description": "What the webhook's owner has chosen." } });
    speak_plainly(&mut document);
    sorted(document)
}

/// Describes who sees which fields. Tenants receive the events of their projects, which are those with a `project_id`.
fn audience(kind: EventKind) -> String {
    let fields = kind.tenant_fields();
    if !fields.contains(&"project_id") {
        return "For operators.".to_owned();
    }
    let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
    format!("Tenants see these fields of `data`: {}. Operators see all of them.", fields.join(", "))
}

fn operations(channels: &[&str]) -> Value {
    let send = |channel: &&str| {
        (format!("{channel}Send"), json!({ "action": "send", "channel": { "$ref": format!("#/channels/{channel}") } }))
    };
    Value::Object(channels.iter().map(send).collect())
}
