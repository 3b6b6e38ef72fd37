//! One operation of the document.

use gpuaas_contract::id::{
    AllocationId, ApiTokenId, DeliveryId, EnrollmentId, ImageId, JoinTokenId, MaintenanceId, MembershipId, OrgId, ProjectId,
    ServiceAccountId, SlotId, SshKeyId, TaskId, UserId, WebhookId,
};
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::components::ERROR_RESPONSES;
use crate::dto::TaskProgress;
use crate::endpoints::{DocumentType, Endpoint, Method, StreamKind};
use crate::examples::{self, Example};
use crate::routes;

/// The operation of an endpoint. Schemas that it refers to are added to the generator.
pub(super) fn of(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Value {
    let mut operation = json!({
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": format!("Requires the permission `{}`.", endpoint.action),
        "tags": [endpoint.resource],
        "parameters": parameters(endpoint, generator),
        "responses": responses(endpoint, generator),
        "x-gpuaas-action": endpoint.action,
    });
    if let Some(body) = endpoint.body {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema(body, generator) } } });
    }
    if let Some(example) = examples::of(endpoint.name) {
        add_example(&mut operation, endpoint, example);
    }
    operation
}

/// Adds the parts of an example to the parameters, the body and the response.
fn add_example(operation: &mut Value, endpoint: &Endpoint, example: &Example) {
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default();
        let value = match parameter["in"].as_str() {
            Some("path") => example.segment(endpoint, name).map(Value::from),
            Some("query") => example.query(name).map(|text| of_type(&parameter["schema"]["type"], text)),
            Some(_) | None => None,
        };
        if let Some(value) = value {
            parameter["example"] = value;
        }
    }
    if let Some(body) = &example.body {
        operation["requestBody"]["content"]["application/json"]["example"] = body.clone();
    }
    let response = &mut operation["responses"][endpoint.status.to_string()];
    if endpoint.stream == StreamKind::WebSocket {
        response["x-gpuaas-message-example"] = example.response.clone();
        return;
    }
    for content in response["content"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        content["example"] = match endpoint.stream {
            StreamKind::Sse(names) => format!("event: {}\ndata: {}\n\n", names[0], example.response).into(),
            StreamKind::JsonLines => format!("{}\n", example.response).into(),
            StreamKind::Document | StreamKind::Metrics | StreamKind::WebSocket => example.response.clone(),
        };
    }
}

/// Converts the text of a query parameter to JSON of the given type.
fn of_type(kind: &Value, text: &str) -> Value {
    let is_text = kind == "string" || kind.is_null();
    let parsed = serde_json::from_str(text).ok().filter(|_| !is_text);
    parsed.unwrap_or_else(|| text.into())
}

fn schema(of: DocumentType, generator: &mut SchemaGenerator) -> Value {
    (of.schema)(generator).into()
}

fn parameters(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut parameters: Vec<Value> = endpoint.segments().map(|name| path_parameter(endpoint, name)).collect();
    if let Some(query) = endpoint.query {
        // Sorted by name, whatever order the JSON library keeps.
        let mut fields: Vec<Value> = query_parameters(&schema(query, generator)).collect();
        fields.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
        parameters.extend(fields);
    }
    let mut shared = vec!["CorrelationId"];
    if endpoint.method == Method::Post {
        shared.push("IdempotencyKey");
    }
    if endpoint.versioned {
        shared.push(if endpoint.method == Method::Get { "IfNoneMatch" } else { "IfMatch" });
    }
    if endpoint.stream == StreamKind::Sse(&[routes::EVENT_CLOUD_EVENT]) {
        shared.push("LastEventId");
    }
    parameters.extend(shared.into_iter().map(|name| json!({ "$ref": format!("#/components/parameters/{name}") })));
    parameters
}

fn path_parameter(endpoint: &Endpoint, name: &str) -> Value {
    let (pattern, description) = segment(endpoint.path, name);
    json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": { "type": "string", "pattern": pattern },
    })
}

/// The pattern and the description of a variable segment.
fn segment(path: &str, name: &str) -> (String, &'static str) {
    let id = |prefix: &str, description| (format!("^{prefix}[0-9a-f]{{32}}$"), description);
    match name {
        "organization" => id(OrgId::PREFIX, "The organization's id."),
        "project" => id(ProjectId::PREFIX, "The project's id."),
        "allocation" => id(AllocationId::PREFIX, "The allocation's id."),
        "slice" => id(AllocationId::PREFIX, "The slice's id, which is also the id of its allocation."),
        "member" => id(MembershipId::PREFIX, "The membership's id."),
        "service_account" => id(ServiceAccountId::PREFIX, "The service account's id."),
        "ssh_key" => id(SshKeyId::PREFIX, "The SSH key's id."),
        "image" => id(ImageId::PREFIX, "The image's id."),
        "webhook" => id(WebhookId::PREFIX, "The webhook's id."),
        "delivery" => id(DeliveryId::PREFIX, "The delivery's id."),
        "maintenance" => id(MaintenanceId::PREFIX, "The window's id."),
        "user" => id(UserId::PREFIX, "The user's id."),
        "slot" => id(SlotId::PREFIX, "The slot's id."),
        "task" => id(TaskId::PREFIX, "The task's id."),
        "enrollment" => id(EnrollmentId::PREFIX, "The request's id."),
        "key" if path != routes::SIGNING_KEY_REVOKE => id(ApiTokenId::PREFIX, "The key's id."),
        "token" if path == routes::JOIN_TOKEN => id(JoinTokenId::PREFIX, "The join token's id."),
        "token" => id(ApiTokenId::PREFIX, "The token's id."),
        "node" => ("^[^/]{1,255}$".to_owned(), "The node's id, or its name if that is unique."),
        "sku" => ("^[a-z0-9_-]{1,80}$".to_owned(), "The product's id or name."),
        _ => ("^[^/]{1,255}$".to_owned(), "Its name."),
    }
}

fn query_parameters(query: &Value) -> impl Iterator<Item = Value> {
    let required: Vec<&str> = query["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let fields = query["properties"].as_object().into_iter().flatten();
    fields.map(move |(name, field)| {
        let mut schema = field.clone();
        let mut description = Value::Null;
        if let Some(schema) = schema.as_object_mut() {
            description = schema.remove("description").unwrap_or_default();
            schema.remove("default");
            if let Some(kind) = schema.get_mut("type") {
                *kind = without_null(kind);
            }
        }
        json!({ "name": name, "in": "query", "required": required.contains(&name.as_str()), "description": description, "schema": schema })
    })
}

/// Removes `null` from the types of a parameter: a query parameter can be absent, but not null.
fn without_null(kind: &Value) -> Value {
    let kinds: Vec<&Value> = kind.as_array().into_iter().flatten().filter(|kind| *kind != "null").collect();
    match kinds.as_slice() {
        [] => kind.clone(),
        [one] => (*one).clone(),
        several => json!(several),
    }
}

fn responses(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    responses.insert(endpoint.status.to_string(), success(endpoint, generator));
    if let Some(not_created) = endpoint.not_created {
        let description = "Nothing was created: it was created before with the same key, or the request was a dry run.";
        let content = json!({ "application/json": { "schema": schema(not_created, generator) } });
        responses
            .insert("200".to_owned(), json!({ "description": description, "headers": headers(endpoint), "content": content }));
    }
    if endpoint.versioned && endpoint.method == Method::Get {
        let description = "The caller already has this version.";
        responses.insert("304".to_owned(), json!({ "description": description, "headers": headers(endpoint) }));
    }
    let looks_for = endpoint.query.is_some_and(|query| looks_for_something(&schema(query, generator)));
    for error in ERROR_RESPONSES.iter().filter(|error| may_answer(endpoint, looks_for, error.status)) {
        responses.insert(error.status.to_string(), json!({ "$ref": format!("#/components/responses/{}", error.name) }));
    }
    Value::Object(responses)
}

/// Whether a query refers to a resource that must exist: listing the resources of an unknown node is an error, not an empty list.
fn looks_for_something(query: &Value) -> bool {
    ["node", "organization", "project"].iter().any(|name| query["properties"].get(name).is_some())
}

fn may_answer(endpoint: &Endpoint, looks_for_something: bool, status: u16) -> bool {
    let changes = endpoint.method != Method::Get;
    match status {
        404 => endpoint.segments().next().is_some() || endpoint.body.is_some() || looks_for_something,
        409 => changes,
        412 => changes && endpoint.versioned,
        408 | 413 | 415 => endpoint.body.is_some(),
        // A `POST` without a body may still have an invalid idempotency key.
        422 => endpoint.body.is_some() || endpoint.method == Method::Post,
        _ => true,
    }
}

fn success(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Value {
    let document = endpoint.answer.map(|answer| schema(answer, generator));
    let (description, content) = match endpoint.stream {
        StreamKind::Document => {
            let description = if endpoint.status == 201 { "Created." } else { "Success." };
            (description, document.map(|schema| json!({ "application/json": { "schema": schema } })))
        }
        StreamKind::JsonLines => {
            ("One document per line.", document.map(|schema| json!({ "application/x-ndjson": { "schema": schema } })))
        }
        StreamKind::Metrics => (
            "The text format of OpenMetrics.",
            Some(json!({ "application/openmetrics-text": { "schema": { "type": "string" } } })),
        ),
        StreamKind::WebSocket => ("The connection becomes a WebSocket; every text message is a document.", None),
        StreamKind::Sse(names) => {
            let mut events = Map::new();
            for name in names {
                let progress = *name == routes::EVENT_PROGRESS;
                let schema = if progress {
                    generator.subschema_for::<TaskProgress>().into()
                } else {
                    document.clone().unwrap_or_default()
                };
                events.insert((*name).to_owned(), schema);
            }
            let content = json!({ "text/event-stream": { "schema": { "type": "string" }, "x-gpuaas-events": events } });
            ("Server-sent events; `x-gpuaas-events` has the document of each event type.", Some(content))
        }
    };
    let mut success = json!({ "description": description, "headers": headers(endpoint) });
    if let Some(content) = content {
        success["content"] = content;
    }
    if endpoint.stream == StreamKind::WebSocket {
        success["x-gpuaas-message"] = endpoint.answer.map(|answer| schema(answer, generator)).unwrap_or_default();
    }
    success
}

fn headers(endpoint: &Endpoint) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
    let mut headers = json!({
        "X-Correlation-Id": reference("CorrelationId"),
        "RateLimit": reference("RateLimit"),
        "RateLimit-Policy": reference("RateLimitPolicy"),
    });
    if endpoint.versioned {
        headers["ETag"] = reference("ETag");
    }
    if endpoint.status == 201 {
        headers["Location"] = reference("Location");
    }
    if endpoint.method == Method::Post {
        headers["Idempotency-Replayed"] = reference("IdempotencyReplayed");
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints;

    fn statuses(method: Method, path: &str) -> Vec<String> {
        let endpoint = endpoints::find(method.as_str(), path).expect("in the table");
        let operation = of(endpoint, &mut SchemaGenerator::default());
        operation["responses"].as_object().expect("answers").keys().cloned().collect()
    }

    #[test]
    fn a_list_of_what_something_has_may_not_find_that_something() {
        let may_not_find = |path| statuses(Method::Get, path).contains(&"404".to_owned());
        assert!(may_not_find(routes::SLOTS) && may_not_find(routes::PROJECTS));
        assert!(!may_not_find(routes::CATALOG) && !may_not_find(routes::NODES));
    }

    #[test]
    fn whatever_takes_an_idempotency_key_may_refuse_it() {
        for endpoint in endpoints::ENDPOINTS.iter().filter(|endpoint| endpoint.method == Method::Post) {
            let statuses = statuses(Method::Post, endpoint.path);
            assert!(["409", "422"].iter().all(|status| statuses.iter().any(|found| found == status)), "{}", endpoint.name);
        }
    }
}
