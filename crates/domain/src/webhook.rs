//! Webhooks: URLs that receive the events of a project, and the deliveries to them.

use std::time::Duration;

use gpuaas_contract::event::{
    DeliveryReplayed, Event, EventKind, WebhookChanged, WebhookCreated, WebhookDisabled, WebhookTest, short_kind,
};
use gpuaas_contract::id::{DeliveryId, EventId, ProjectId, WebhookId};
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::state::DeliveryState;

use crate::decision::{Context, Decision};
use crate::names::checked_text;
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};
use crate::tenancy::Project;

/// Maximum number of webhooks per project.
pub const MAX_WEBHOOKS: u64 = 20;
/// How long a delivery can be inspected and replayed.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long after a rotation deliveries are also signed with the previous secret.
pub const ROTATION: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of event kinds a webhook can select.
pub const MAX_KINDS: usize = 50;
/// Minimum time between two tests of a webhook.
pub const TEST_PAUSE: Duration = Duration::from_secs(10);
/// Number of consecutive failed deliveries after which a webhook is disabled.
pub const MAX_FAILED: u32 = 50;

/// A URL that receives events.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Webhook {
    /// Unique id of the webhook.
    pub id: WebhookId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The project whose events it receives.
    pub project_id: ProjectId,
    /// Where deliveries are sent.
    pub url: String,
    /// Free text for people.
    pub description: String,
    /// Kinds of events it receives, such as `allocation.active`; empty for all.
    pub kinds: Vec<String>,
    /// Selects the secret that signs deliveries. Secrets are derived from a key of the control plane and never stored.
    pub generation: u32,
    /// When the current secret replaced the previous one.
    pub rotated_at: Option<Timestamp>,
    /// Number of consecutive failed deliveries.
    pub failed: u32,
    /// Why it is disabled; `None` while it is enabled.
    pub disabled: Option<String>,
    /// When it was last tested.
    #[serde(default)]
    pub tested_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was deleted; `None` while it exists.
    pub deleted_at: Option<Timestamp>,
}

resource!(Webhook, Webhook);

impl Webhook {
    fn found_by(&self) -> Keys {
        let state = match (&self.deleted_at, &self.disabled) {
            (Some(_), _) => "deleted",
            (None, Some(_)) => "disabled",
            (None, None) => "active",
        };
        Keys { parent: self.project_id.to_string(), state, ..Keys::default() }
    }

    /// The generations of the secrets that sign deliveries now, newest first.
    pub fn signing(&self, now: Timestamp) -> Vec<u32> {
        let overlaps = self.rotated_at.is_some_and(|at| now.since(at) < ROTATION);
        let before = self.generation.checked_sub(1).filter(|before| overlaps && *before > 0);
        [Some(self.generation), before].into_iter().flatten().collect()
    }

    /// Whether it receives an event of this kind, given as a CloudEvents type, about this subject. A test event goes only to the webhook
    /// under test, whatever kinds it selects.
    pub fn wants(&self, kind: &str, subject: &str) -> bool {
        let is_test = kind == EventKind::WebhookTest.as_str();
        let is_wanted = if is_test { subject == self.id.to_string() } else { wants(&self.kinds, kind) };
        self.deleted_at.is_none() && self.disabled.is_none() && is_wanted
    }
}

/// Whether `kinds` include the one with this CloudEvents type. An empty list includes all kinds; `allocation` includes all kinds that start
/// with it.
pub fn wants(kinds: &[String], kind: &str) -> bool {
    let short = short_kind(kind);
    let includes =
        |wanted: &String| short.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    kinds.is_empty() || kinds.iter().any(includes)
}

/// The delivery of one event to one webhook.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Delivery {
    /// Unique id of the delivery.
    pub id: DeliveryId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The webhook that receives it.
    pub webhook_id: WebhookId,
    /// The event that is delivered.
    pub event_id: EventId,
    /// CloudEvents type of the event.
    pub kind: String,
    /// The whole event as JSON.
    pub body: String,
    /// Whether it is pending, delivered or failed.
    pub state: DeliveryState,
    /// Number of attempts.
    pub attempts: u32,
    /// Result of the last attempt.
    pub last: String,
    /// When the next attempt is due; `None` if there is none.
    pub due_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When the webhook accepted it; `None` until then.
    pub delivered_at: Option<Timestamp>,
    /// When it may be deleted.
    pub expires_at: Timestamp,
}

resource!(Delivery, Delivery);

impl Delivery {
    fn found_by(&self) -> Keys {
        Keys {
            parent: self.webhook_id.to_string(),
            // An event that arrives twice is delivered once.
            lookup: Some(format!("{}\n{}", self.webhook_id, self.event_id)),
            state: self.state.as_str(),
            due_at: self.due_at,
            expires_at: Some(self.expires_at),
            ..Keys::default()
        }
    }
}

/// How far a reader has processed the outbox. Written in the commit of what the reader produced from the events, so that nothing is
/// produced twice or missed, even with several readers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cursor {
    /// `cursor:` and the reader's name.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Position of the last event that was processed.
    pub position: i64,
}

resource!(Cursor, Cursor);

impl Cursor {
    fn found_by(&self) -> Keys {
        Keys { state: "active", ..Keys::default() }
    }
}

/// Creates a webhook. `present` is how many the project has.
pub fn create(webhook: Webhook, project: &Project, present: u64, context: &Context) -> Result<(Webhook, Decision), Refusal> {
    project.check_live()?;
    if present >= MAX_WEBHOOKS {
        return Err(Refusal::conflict(
            "too_many_webhooks",
            format!("a project has at most {MAX_WEBHOOKS} webhooks; delete some first"),
        ));
    }
    check(&webhook)?;
    let event = Event::WebhookCreated(WebhookCreated {
        webhook_id: webhook.id,
        project_id: project.id,
        url: webhook.url.clone(),
        kinds: webhook.kinds.clone(),
    });
    let decision = Decision::default().insert(&webhook).record(context, webhook.id, event);
    Ok((webhook, decision))
}

/// Changes a webhook as its owner wants. Idempotent.
pub fn change(before: &Webhook, after: Webhook, context: &Context) -> Result<(Webhook, Decision), Refusal> {
    check(&after)?;
    if after == *before {
        return Ok((after, Decision::default()));
    }
    let event = Event::WebhookChanged(WebhookChanged {
        webhook_id: after.id,
        project_id: after.project_id,
        url: after.url.clone(),
        kinds: after.kinds.clone(),
        disabled: after.disabled.clone(),
        deleted: after.deleted_at.is_some(),
        secret_rotated: after.generation != before.generation,
    });
    let decision = Decision::default().update(&after).record(context, after.id, event);
    Ok((after, decision))
}

fn check(webhook: &Webhook) -> Result<(), Refusal> {
    checked_text(&webhook.description, "the description")?;
    let kind = |kind: &String| {
        (1..=100).contains(&kind.len()) && kind.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'.' | b'_'))
    };
    if webhook.kinds.len() > MAX_KINDS || !webhook.kinds.iter().all(kind) {
        let message =
            format!("at most {MAX_KINDS} kinds of events, each like `allocation.active` or `allocation` for all of its kind");
        return Err(Refusal::invalid("kinds_invalid", message));
    }
    let plain = webhook.url.len() <= 2000 && webhook.url.bytes().all(|byte| byte.is_ascii_graphic());
    if !plain || !(webhook.url.starts_with("https://") || webhook.url.starts_with("http://")) {
        return Err(Refusal::invalid("url_invalid", "the URL must start with https:// and have at most 2000 plain characters"));
    }
    Ok(())
}

/// Disables a webhook because its deliveries keep failing.
pub fn turn_off(webhook: &Webhook, failed: u32, reason: String, context: &Context) -> Decision {
    let event = Event::WebhookDisabled(WebhookDisabled {
        webhook_id: webhook.id,
        project_id: webhook.project_id,
        url: webhook.url.clone(),
        failed,
        reason: reason.clone(),
    });
    let off = Webhook { failed, disabled: Some(reason), ..webhook.clone() };
    Decision::default().update(&off).record(context, webhook.id, event)
}

/// Sends a test event to a webhook. Returns the id of the event.
pub fn test(webhook: &Webhook, context: &Context) -> Result<(EventId, Decision), Refusal> {
    if webhook.disabled.is_some() {
        return Err(Refusal::conflict("webhook_off", "the webhook is off, so nothing is sent to it; turn it on first"));
    }
    if webhook.tested_at.is_some_and(|last| context.now.since(last) < TEST_PAUSE) {
        let message =
            format!("the webhook was tested within the last {} seconds; wait, then test it again", TEST_PAUSE.as_secs());
        return Err(Refusal::conflict("tested_just_now", message));
    }
    let event =
        Event::WebhookTest(WebhookTest { webhook_id: webhook.id, project_id: webhook.project_id, url: webhook.url.clone() });
    let tested = Webhook { tested_at: Some(context.now), ..webhook.clone() };
    let decision = Decision::default().update(&tested).record(context, webhook.id, event);
    let event = decision.events.last().map_or_else(EventId::generate, |event| event.id);
    Ok((event, decision))
}

/// Schedules another attempt, whatever the state of the delivery.
pub fn replay(delivery: &Delivery, of: ProjectId, context: &Context) -> (Delivery, Decision) {
    let next = Delivery {
        state: DeliveryState::Pending,
        attempts: 0,
        due_at: Some(context.now),
        expires_at: context.now.plus(KEPT),
        ..delivery.clone()
    };
    let event = Event::DeliveryReplayed(DeliveryReplayed {
        delivery_id: next.id,
        project_id: of,
        webhook_id: next.webhook_id,
        event_id: next.event_id,
    });
    let decision = Decision::default().update(&next).record(context, next.id, event);
    (next, decision)
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::CorrelationId;

    use super::*;
    use crate::Actor;

    fn webhook(kinds: &[&str]) -> Webhook {
        Webhook {
            id: WebhookId::generate(),
            version: 1,
            project_id: ProjectId::generate(),
            url: "https://hooks.example.com/".to_owned(),
            description: String::new(),
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            generation: 1,
            rotated_at: None,
            failed: 0,
            disabled: None,
            tested_at: None,
            created_at: Timestamp(1),
            deleted_at: None,
        }
    }

    #[test]
    fn a_test_goes_to_the_webhook_that_it_names_and_to_no_other() {
        let (one, other) = (webhook(&["allocation"]), webhook(&[]));
        let subject = one.id.to_string();
        assert!(one.wants(EventKind::WebhookTest.as_str(), &subject), "whichever kinds it takes");
        assert!(!other.wants(EventKind::WebhookTest.as_str(), &subject), "even if it takes all kinds");
        let off = Webhook { disabled: Some("off".to_owned()), ..one };
        assert!(!off.wants(EventKind::WebhookTest.as_str(), &subject));
    }

    #[test]
    fn a_webhook_is_tested_once_in_a_while_and_only_while_it_is_on() {
        let now = Timestamp(1_700_000_000_000_000);
        let at = |now| Context { now, actor: Actor::System, correlation_id: CorrelationId::generate() };
        let tested = |tested_at, disabled: Option<&str>| {
            let webhook = Webhook { tested_at, disabled: disabled.map(str::to_owned), ..webhook(&[]) };
            test(&webhook, &at(now)).map(|(event, decision)| (decision.events[0].id == event, decision.audit[0].action))
        };
        let refused = |result: Result<(bool, &'static str), Refusal>| result.map_err(|refusal| refusal.code);
        assert_eq!(refused(tested(None, None)), Ok((true, "webhook.test")));
        assert_eq!(refused(tested(Some(now.minus(TEST_PAUSE)), None)), Ok((true, "webhook.test")));
        assert_eq!(refused(tested(Some(now.minus(Duration::from_secs(1))), None)), Err("tested_just_now"));
        assert_eq!(refused(tested(None, Some("off"))), Err("webhook_off"));
    }

    #[test]
    fn a_kind_stands_for_itself_and_for_all_below_it() {
        let wanted = |kinds: &[&str]| {
            wants(&kinds.iter().map(|kind| (*kind).to_owned()).collect::<Vec<_>>(), "gpuaas.allocation.active.v1")
        };
        assert!(wanted(&[]) && wanted(&["allocation"]) && wanted(&["node", "allocation.active"]));
        assert!(!wanted(&["node"]) && !wanted(&["alloc"]) && !wanted(&["allocation.active.now"]) && !wanted(&["allocation.act"]));
    }

    #[test]
    fn kinds_are_short_for_people() {
        assert_eq!(short_kind("gpuaas.allocation.active.v1"), "allocation.active");
        assert_eq!(short_kind("gpuaas.allocation.vast"), "allocation.vast");
        assert_eq!(short_kind("other.v12"), "other");
    }
}
