//! What operations share: headers, parameters, errors and the way to sign in.

use serde_json::{Map, Value, json};

use crate::dto::PROBLEM_CONTENT_TYPE;

/// The conventions in a few words.
pub(super) const DESCRIPTION: &str = "Send `Authorization: Bearer <token>`. Times are RFC 3339 in UTC, durations seconds, and money has a decimal \
amount and a currency. Lists come in pages: give `next` as `after` to get the next one. Errors are problem documents (RFC 9457) with a stable \
`code` and a `detail` that says what to do. A `POST` with an `Idempotency-Key` is done once, however often it is sent. A change with an `If-Match` \
is done only if nobody was faster. Answers may get more fields, and states more names; requests with unknown fields are refused.";

/// An answer that is an error.
pub(super) struct ErrorResponse {
    /// HTTP status.
    pub(super) status: u16,
    /// Name among the components.
    pub(super) name: &'static str,
    description: &'static str,
}

/// Every error that operations name.
pub(super) const ERROR_RESPONSES: [ErrorResponse; 12] = [
    ErrorResponse {
        status: 400,
        name: "BadRequest",
        description: "The request is no document of this interface; `detail` says where it is wrong.",
    },
    ErrorResponse {
        status: 401,
        name: "Unauthorized",
        description: "There is no token, or it does not count any more. Sign in again.",
    },
    ErrorResponse {
        status: 403,
        name: "Forbidden",
        description: "The caller may not do that; `detail` says which role or scope it takes.",
    },
    ErrorResponse { status: 404, name: "NotFound", description: "There is no such thing, or the caller may not see it." },
    ErrorResponse {
        status: 408,
        name: "RequestTimeout",
        description: "The body did not come in time. Send it again, all at once.",
    },
    ErrorResponse {
        status: 409,
        name: "Conflict",
        description: "What there is does not allow it now; `code` says what is in the way.",
    },
    ErrorResponse {
        status: 412,
        name: "PreconditionFailed",
        description: "Somebody has changed it since. Read it again, then change it.",
    },
    ErrorResponse { status: 413, name: "TooLarge", description: "The body is larger than the server takes." },
    ErrorResponse {
        status: 415,
        name: "UnsupportedMediaType",
        description: "The body is said to be something else than JSON. Send `Content-Type: application/json`.",
    },
    ErrorResponse {
        status: 422,
        name: "Unprocessable",
        description: "The body is JSON but asks for something that cannot be; `faults` has what is wrong and where.",
    },
    ErrorResponse {
        status: 429,
        name: "TooManyRequests",
        description: "Too many requests in a short time. Wait for `Retry-After` seconds.",
    },
    ErrorResponse {
        status: 503,
        name: "Unavailable",
        description: "The server cannot answer now. The same request may succeed a little later.",
    },
];

/// Everything under `components`.
pub(super) fn all(schemas: Map<String, Value>) -> Value {
    let responses: Map<String, Value> = ERROR_RESPONSES.iter().map(|error| (error.name.to_owned(), response(error))).collect();
    json!({
        "schemas": schemas,
        "responses": responses,
        "parameters": {
            "IdempotencyKey": {
                "name": "Idempotency-Key", "in": "header", "required": false,
                "description": "The caller's own name for this request, kept for 24 hours. The same key with the same body is done once and \
                    answered alike; with another body it is a conflict.",
                "schema": { "type": "string", "minLength": 1, "maxLength": 128 },
            },
            "IfMatch": {
                "name": "If-Match", "in": "header", "required": false,
                "description": "Only if the document still has this `ETag`; 412 otherwise.",
                "schema": { "type": "string" },
            },
            "IfNoneMatch": {
                "name": "If-None-Match", "in": "header", "required": false,
                "description": "Only if the document has another `ETag` than this; 304 otherwise.",
                "schema": { "type": "string" },
            },
            "CorrelationId": {
                "name": "X-Correlation-Id", "in": "header", "required": false,
                "description": "Follows the request into every log line and event; made by the server unless given.",
                "schema": { "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$" },
            },
            "LastEventId": {
                "name": "Last-Event-ID", "in": "header", "required": false,
                "description": "Goes on after this event. Counts more than `after`.",
                "schema": { "type": "string", "pattern": "^[0-9]{1,19}$" },
            },
        },
        "headers": {
            "Location": {
                "description": "The path of what was created.",
                "schema": { "type": "string" },
            },
            "ETag": {
                "description": "Names this version of the document, for `If-Match`.",
                "schema": { "type": "string" },
            },
            "CorrelationId": {
                "description": "Find the request in the server's log by this.",
                "schema": { "type": "string" },
            },
            "RateLimit": {
                "description": "What is left of the caller's share: `\"name\";r=<requests left>;t=<seconds until more>`.",
                "schema": { "type": "string" },
            },
            "RateLimitPolicy": {
                "description": "The caller's share: `\"name\";q=<requests>;w=<seconds>`.",
                "schema": { "type": "string" },
            },
            "RetryAfter": {
                "description": "How many seconds to wait.",
                "schema": { "type": "integer", "minimum": 0 },
            },
            "IdempotencyReplayed": {
                "description": "`true` if this is the answer to an earlier request with the same `Idempotency-Key`.",
                "schema": { "type": "string", "enum": ["true"] },
            },
        },
        "securitySchemes": {
            "bearer": {
                "type": "http", "scheme": "bearer",
                "description": "An API token, a key of a service account, or the access token of somebody who signed in.",
            },
        },
    })
}

fn response(error: &ErrorResponse) -> Value {
    let mut headers = json!({ "X-Correlation-Id": { "$ref": "#/components/headers/CorrelationId" } });
    if matches!(error.status, 429 | 503) {
        headers["Retry-After"] = json!({ "$ref": "#/components/headers/RetryAfter" });
    }
    if error.status == 429 {
        headers["RateLimit"] = json!({ "$ref": "#/components/headers/RateLimit" });
        headers["RateLimit-Policy"] = json!({ "$ref": "#/components/headers/RateLimitPolicy" });
    }
    json!({
        "description": error.description,
        "headers": headers,
        "content": { PROBLEM_CONTENT_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } },
    })
}
