//! Webhooks: addresses that are told what happens in a project, and the events on their way to them.

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

/// Most webhooks of one project.
pub const MAX_WEBHOOKS: u64 = 20;
/// How long a delivery can be looked at and replayed.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long deliveries are signed with the secret before the last one, too.
pub const ROTATION: Duration = Duration::from_secs(24 * 3600);
/// Most kinds that somebody can choose.
pub const MAX_KINDS: usize = 50;
/// Least time between two tests of one webhook.
pub const TEST_PAUSE: Duration = Duration::from_secs(10);
/// Failed deliveries in a row after which a webhook is turned off.
pub const MAX_FAILED: u32 = 50;

/// An address that is told.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Whose events it is told.
    pub project_id: ProjectId,
    /// Where it is.
    pub url: String,
    /// In words.
    pub description: String,
    /// Kinds of events it is told, such as `allocation.active`; empty for all.
    pub kinds: Vec<String>,
    /// Which of its secrets signs its deliveries. They are derived from a key of the control plane; none is ever stored.
    pub generation: u32,
    /// When the last secret took the place of the one before.
    pub rotated_at: Option<Timestamp>,
    /// Deliveries that failed in a row.
    pub failed: u32,
    /// Why it is off; none while it is on.
    pub disabled: Option<String>,
    /// When it was tested last.
    #[serde(default)]
    pub tested_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Set when it is over.
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

    /// The generations of the secrets that sign now, the newest first.
    pub fn signing(&self, now: Timestamp) -> Vec<u32> {
        let overlaps = self.rotated_at.is_some_and(|at| now.since(at) < ROTATION);
        let before = self.generation.checked_sub(1).filter(|before| overlaps && *before > 0);
        [Some(self.generation), before].into_iter().flatten().collect()
    }

    /// Whether it is sent an event of this kind, given by its CloudEvents type, about this subject. A test goes to the webhook that it
    /// is about, whichever kinds that webhook takes, and to no other.
    pub fn wants(&self, kind: &str, subject: &str) -> bool {
        let is_test = kind == EventKind::WebhookTest.as_str();
        let is_wanted = if is_test { subject == self.id.to_string() } else { wants(&self.kinds, kind) };
        self.deleted_at.is_none() && self.disabled.is_none() && is_wanted
    }
}

/// Whether these kinds include the one with this CloudEvents type. None stands for all; `allocation` for all that start with it.
pub fn wants(kinds: &[String], kind: &str) -> bool {
    let short = short_kind(kind);
    let includes =
        |wanted: &String| short.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    kinds.is_empty() || kinds.iter().any(includes)
}

/// One event on its way to one webhook.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Where it goes.
    pub webhook_id: WebhookId,
    /// The event.
    pub event_id: EventId,
    /// Its CloudEvents type.
    pub kind: String,
    /// The whole event, JSON.
    pub body: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// How often it was tried.
    pub attempts: u32,
    /// What came of the last try.
    pub last: String,
    /// When it is tried next.
    pub due_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When the address took it.
    pub delivered_at: Option<Timestamp>,
    /// From when on it may be forgotten.
    pub expires_at: Timestamp,
}

resource!(Delivery, Delivery);

impl Delivery {
    fn found_by(&self) -> Keys {
        Keys {
            parent: self.webhook_id.to_string(),
            // An event that arrives twice is one delivery.
            lookup: Some(format!("{}\n{}", self.webhook_id, self.event_id)),
            state: self.state.as_str(),
            due_at: self.due_at,
            expires_at: Some(self.expires_at),
            ..Keys::default()
        }
    }
}

/// How far a reader of the outbox has come. It is written in the commit of what the reader made of the events, so that nothing is made
/// twice and nothing is missed, whoever else reads.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cursor {
    /// `cursor:` and the reader's name.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The last position it has seen.
    pub position: i64,
}

resource!(Cursor, Cursor);

impl Cursor {
    fn found_by(&self) -> Keys {
        Keys { state: "active", ..Keys::default() }
    }
}

/// A new webhook. `present` is how many the project has.
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

/// A webhook as its owner wants it now. Saying the same again changes nothing.
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

/// A webhook that we turn off ourselves, because nobody takes what it is told.
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

/// Sends a webhook an event that says nothing but that it works. Returns the id of the event.
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

/// Another try of a delivery, whatever came of it before.
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
