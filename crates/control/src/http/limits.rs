//! Rate limits per caller, so that one caller cannot starve the others.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use gpuaas_api::routes::{RATE_LIMIT_HEADER, RATE_LIMIT_POLICY_HEADER};
use gpuaas_backends::limits::{Decision, Rule};

use super::caller::Caller;
use super::problem::problem;
use crate::Control;

/// Limit on reads per caller.
const READS: Rule = Rule { per: Duration::from_secs(60), burst: 3000 };
/// Limit on changes per caller.
const CHANGES: Rule = Rule { per: Duration::from_secs(60), burst: 600 };

/// Counts the request, and refuses it if the caller sent too many. Callers with a platform role have higher limits: they work
/// on everybody's behalf, and with scripts.
pub(super) async fn limit(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    let Some(caller) = request.extensions().get::<Caller>() else { return next.run(request).await };
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let (name, rule) = if reads { ("read", READS) } else { ("change", CHANGES) };
    let rule = Rule { burst: rule.burst.saturating_mul(if caller.principal.is_of_platform() { 100 } else { 1 }), ..rule };
    let decision = control.backends.limits.check(&format!("api:{name}:{}", caller.actor), rule, 1).await;
    let mut response = if decision.allowed {
        next.run(request).await
    } else {
        let seconds = whole_seconds(decision.retry_after.unwrap_or(Duration::from_secs(1)));
        let message = format!("too many requests; wait {seconds} s, and ask for lists instead of single things");
        let mut refused = problem(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message);
        refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        refused
    };
    tell(&mut response, name, rule, &decision);
    response
}

fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)).max(1)
}

/// Adds the rate limit headers of the IETF draft: the limit, how much of it is left, and when it is fully available again.
fn tell(response: &mut Response, name: &str, rule: Rule, decision: &Decision) {
    let policy = format!("\"{name}\";q={};w={}", rule.burst, rule.per.as_secs());
    let left = format!("\"{name}\";r={};t={}", decision.remaining, whole_seconds(decision.reset_after));
    for (header, value) in [(RATE_LIMIT_POLICY_HEADER, policy), (RATE_LIMIT_HEADER, left)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(header, value);
        }
    }
}
