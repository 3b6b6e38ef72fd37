//! Sends deliveries to webhooks until they are accepted or expire.
//!
//! Delivery is at least once: the receiver detects repeats by `webhook-id`, the id of the event. A slow receiver gets only its
//! share of the concurrent deliveries; its other deliveries are postponed behind those of others.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gpuaas_backends::webhook::{TargetError, check_target, retry_after, sign};
use gpuaas_contract::id::{CorrelationId, WebhookId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::webhook::{Delivery, DeliveryState, MAX_FAILED, Webhook, turn_off};
use gpuaas_domain::{Actor, Decision};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use super::webhooks::secrets_of;
use crate::transact::transact;
use crate::{Control, resources};

/// Maximum number of concurrent deliveries.
const AT_ONCE: usize = 32;
/// Maximum number of concurrent deliveries to one webhook.
const TO_ONE: usize = 4;
/// Due deliveries that are read together.
const LOOK: u32 = 100;
/// How often the store is polled: for retries that are due, and for deliveries of other processes.
const SLOW_LOOK: Duration = Duration::from_secs(1);
/// Time limit for resolving a name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for one attempt.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A receiver that has not answered after this is slow.
const SLOW_AFTER: Duration = Duration::from_secs(2);
/// An attempt without a recorded result is repeated after this.
const LEASE: Duration = Duration::from_secs(60);
/// How long running attempts may take when the server stops.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of characters of a stored error.
const MAX_LAST: usize = 200;

/// Sends due deliveries until the server stops.
pub(super) async fn deliver(control: &Arc<Control>) {
    let mut under_way = UnderWay::default();
    loop {
        under_way.forget_ended();
        let started = match control.store.resource_due(ResourceKind::Delivery, Timestamp::now(), LOOK).await {
            Ok(found) => {
                let found = found.iter().filter_map(|document| resources::open::<Delivery>(control, document).ok()).collect();
                under_way.start(control, found).await
            }
            Err(error) => {
                tracing::warn!(%error, "due deliveries cannot be read; retrying");
                0
            }
        };
        if started > 0 && under_way.room() > 0 {
            continue;
        }
        tokio::select! {
            biased;
            () = control.shutdown.cancelled() => break,
            () = under_way.one_ends(), if !under_way.of.is_empty() => {}
            () = control.deliveries_due.notified() => {}
            () = tokio::time::sleep(SLOW_LOOK) => {}
        }
    }
    under_way.end(control).await;
}

/// Running attempts.
#[derive(Default)]
struct UnderWay {
    tasks: JoinSet<()>,
    /// The delivery of each, and its start.
    of: HashMap<Id, (Delivery, Instant)>,
}

/// What to do with a due delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    /// Others of the same webhook are running and will soon be done.
    Wait,
    /// The receiver is slow: others go first.
    StepBack,
}

impl UnderWay {
    fn room(&self) -> usize {
        AT_ONCE.saturating_sub(self.of.len())
    }

    /// Starts as many deliveries as there is room for. Returns how many.
    async fn start(&mut self, control: &Arc<Control>, found: Vec<Delivery>) -> usize {
        let (mut chosen, mut back) = (Vec::new(), Decision::default());
        let now = Timestamp::now();
        let mut begun: HashMap<WebhookId, (usize, bool)> = HashMap::new();
        for (delivery, since) in self.of.values() {
            let (count, slow) = begun.entry(delivery.webhook_id).or_default();
            *count += 1;
            *slow |= since.elapsed() >= SLOW_AFTER;
        }
        for delivery in found {
            let (count, slow) = begun.entry(delivery.webhook_id).or_default();
            match turn(*count, *slow) {
                Turn::Now if chosen.len() >= self.room() => break,
                Turn::Now => {
                    *count += 1;
                    chosen.push(delivery);
                }
                Turn::Wait => {}
                Turn::StepBack => back = back.update(&Delivery { due_at: Some(now.plus(TIMEOUT)), ..delivery }),
            }
        }
        if !back.is_empty()
            && let Err(error) = crate::commit::commit(control, back).await
        {
            tracing::debug!(%error, "another process has one of these deliveries");
        }
        // Together, so that they share a commit.
        let taken = futures::future::join_all(chosen.into_iter().map(|delivery| take(control, delivery))).await;
        let mut started = 0;
        for delivery in taken.into_iter().flatten() {
            let (owned, sent) = (Arc::clone(control), delivery.clone());
            let task = self.tasks.spawn(async move { attempt(&owned, sent).await });
            self.of.insert(task.id(), (delivery, Instant::now()));
            started += 1;
        }
        started
    }

    fn forget_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.of.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        }
    }

    async fn one_ends(&mut self) {
        if let Some(ended) = self.tasks.join_next_with_id().await {
            self.of.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        }
    }

    /// Waits a moment for running attempts. Those that are cut off are due again at once.
    async fn end(mut self, control: &Control) {
        let all = async {
            while !self.of.is_empty() {
                self.one_ends().await;
            }
        };
        if tokio::time::timeout(GRACE, all).await.is_ok() {
            return;
        }
        self.tasks.shutdown().await;
        for (delivery, _) in self.of.into_values() {
            let again = Delivery { due_at: Some(Timestamp::now()), ..delivery };
            if let Err(error) = crate::commit::commit(control, Decision::default().update(&again)).await {
                tracing::debug!(%error, delivery = %again.id, "an attempt that was cut off is repeated when its lease expires");
            }
        }
    }
}

/// Decides about a due delivery. `under_way` is the number of attempts to the same webhook; `slow` means that one of them has
/// waited for long.
fn turn(under_way: usize, slow: bool) -> Turn {
    match (under_way < TO_ONE, slow) {
        (true, _) => Turn::Now,
        (false, false) => Turn::Wait,
        (false, true) => Turn::StepBack,
    }
}

/// Takes a delivery. The first process that writes this has it; the others get a conflict.
async fn take(control: &Control, delivery: Delivery) -> Option<Delivery> {
    let due = Timestamp::now().plus(LEASE);
    let taken = Delivery { due_at: Some(due), attempts: delivery.attempts.saturating_add(1), ..delivery };
    crate::commit::commit(control, Decision::default().update(&taken)).await.ok()?;
    Some(Delivery { version: taken.version + 1, ..taken })
}

/// Makes one attempt and records the result.
async fn attempt(control: &Control, delivery: Delivery) {
    let webhook = match resources::get::<Webhook>(control, delivery.webhook_id).await {
        Ok(webhook) => webhook.filter(|webhook| webhook.deleted_at.is_none() && webhook.disabled.is_none()),
        // It is retried when its lease expires.
        Err(error) => return tracing::warn!(error = %crate::link::chain(&error), "a webhook cannot be read"),
    };
    let tried = match &webhook {
        Some(webhook) => send(control, webhook, &delivery).await,
        None => Tried::Useless("the webhook is disabled or deleted".to_owned()),
    };
    let jitter = f64::from(crate::pki::random::<1>()[0]) / 255.0;
    let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
    let written = transact(control, || async {
        let now = resources::get::<Delivery>(control, delivery.id).await?;
        if now.is_none_or(|now| now.version != delivery.version) {
            // A new delivery was requested: the result of this attempt no longer matters.
            return Ok(((), Decision::default()));
        }
        let webhook = resources::get::<Webhook>(control, delivery.webhook_id).await?;
        Ok(((), ended(&delivery, webhook.as_ref(), &tried, &context, jitter)))
    })
    .await;
    if let Err(error) = written {
        tracing::warn!(delivery = %delivery.id, error = %crate::link::chain(&error), "the result of a delivery was not recorded");
    }
}

/// The result of an attempt, with a message for the webhook's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tried {
    /// The receiver accepted it.
    Taken(String),
    /// A later attempt may succeed.
    NotTaken(String),
    /// A retry would not help.
    Useless(String),
    /// The receiver wants no more deliveries.
    Gone(String),
}

/// Returns the effect of an attempt on the delivery and its webhook.
fn ended(delivery: &Delivery, webhook: Option<&Webhook>, tried: &Tried, context: &Context, jitter: f64) -> Decision {
    let again = retry_after(usize::try_from(delivery.attempts).unwrap_or(usize::MAX), jitter);
    let failed = |why: &str| Delivery { state: DeliveryState::Failed, last: why.to_owned(), due_at: None, ..delivery.clone() };
    let next = match tried {
        Tried::Taken(answer) => Delivery {
            state: DeliveryState::Delivered,
            last: answer.clone(),
            due_at: None,
            delivered_at: Some(context.now),
            ..delivery.clone()
        },
        Tried::NotTaken(why) => match again {
            Some(wait) => Delivery { last: why.clone(), due_at: Some(context.now.plus(wait)), ..delivery.clone() },
            None => failed(why),
        },
        Tried::Useless(why) | Tried::Gone(why) => failed(why),
    };
    let decision = Decision::default().update(&next);
    let Some(webhook) = webhook.filter(|webhook| webhook.deleted_at.is_none() && webhook.disabled.is_none()) else {
        return decision;
    };
    match next.state {
        DeliveryState::Delivered if webhook.failed > 0 => decision.update(&Webhook { failed: 0, ..webhook.clone() }),
        DeliveryState::Failed => {
            let failed = webhook.failed.saturating_add(1);
            if matches!(tried, Tried::Gone(_)) {
                decision.and(turn_off(webhook, failed, next.last, context))
            } else if failed >= MAX_FAILED {
                let reason = format!("{failed} consecutive deliveries were not accepted, the last one because: {}", next.last);
                decision.and(turn_off(webhook, failed, reason, context))
            } else {
                decision.update(&Webhook { failed, ..webhook.clone() })
            }
        }
        DeliveryState::Delivered | DeliveryState::Pending => decision,
    }
}

/// Sends a delivery, only to checked addresses, and never follows redirects.
async fn send(control: &Control, webhook: &Webhook, delivery: &Delivery) -> Tried {
    match try_to_send(control, webhook, delivery).await {
        Ok(tried) | Err(tried) => tried,
    }
}

fn not_taken(why: impl std::fmt::Display) -> Tried {
    Tried::NotTaken(why.to_string().chars().take(MAX_LAST).collect())
}

async fn try_to_send(control: &Control, webhook: &Webhook, delivery: &Delivery) -> Result<Tried, Tried> {
    let useless = |why: &dyn std::fmt::Display| Tried::Useless(why.to_string());
    let url = reqwest::Url::parse(&webhook.url).map_err(|error| useless(&error))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(443);
    let resolved = resolve(&host, port).await?;
    let target =
        check_target(&webhook.url, &resolved, control.webhooks_to_private).map_err(|error| refused_target(&host, &error))?;
    let addresses: Vec<SocketAddr> = target.addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
    let now = Timestamp::now();
    let secrets = secrets_of(control, webhook, now).map_err(not_taken)?;
    let tls = gpuaas_api::tls_config(url.scheme() == "https", None).map_err(not_taken)?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .resolve_to_addrs(&host, &addresses)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(TIMEOUT)
        .user_agent(concat!("gpuaas-webhook/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(not_taken)?;
    let headers = sign(&secrets, &delivery.event_id.to_string(), now.0 / 1_000_000, delivery.body.as_bytes());
    let mut request = client.post(target.url).header("content-type", "application/cloudevents+json").body(delivery.body.clone());
    for (name, value) in headers.pairs() {
        request = request.header(name, value);
    }
    // The body of the answer is not read: nothing here would use it.
    let status = request.send().await.map_err(|error| not_taken(crate::link::chain(&error)))?.status();
    Ok(match status.as_u16() {
        200..=299 => Tried::Taken(status.to_string()),
        410 => Tried::Gone(format!("the receiver answered {status}: it wants no more deliveries")),
        300..=399 => not_taken(format!("the receiver answered {status}; redirects are not followed")),
        _ => not_taken(format!("the receiver answered {status}")),
    })
}

async fn resolve(host: &str, port: u16) -> Result<Vec<IpAddr>, Tried> {
    match tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(found)) => Ok(found.map(|address| address.ip()).collect()),
        Ok(Err(error)) => {
            tracing::debug!(host, %error, "the host of a webhook cannot be resolved");
            Err(no_address(host))
        }
        Err(_) => {
            tracing::debug!(host, "the host of a webhook cannot be resolved in time");
            Err(no_address(host))
        }
    }
}

/// Returns the result for every name that cannot be used: one that does not exist, one that the resolver does not answer, and one
/// with a forbidden address. The message is always the same; otherwise a tenant could find out which internal names exist.
fn no_address(host: &str) -> Tried {
    not_taken(format!("the name {host} has no address that webhooks are sent to; check its public DNS records"))
}

fn refused_target(host: &str, error: &TargetError) -> Tried {
    match error {
        TargetError::Name(_) | TargetError::NoAddress | TargetError::TooManyAddresses | TargetError::Address { .. } => {
            tracing::debug!(host, %error, "the host of a webhook may not be dialed");
            no_address(host)
        }
        TargetError::Unreadable | TargetError::TooLong | TargetError::NotHttps | TargetError::Decorated => {
            Tried::Useless(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::event::EventKind;
    use gpuaas_contract::id::{DeliveryId, EventId, ProjectId};
    use gpuaas_domain::Change;

    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

    fn webhook(failed: u32) -> Webhook {
        Webhook {
            id: WebhookId::generate(),
            version: 1,
            project_id: ProjectId::generate(),
            url: "https://hooks.example.com/".to_owned(),
            description: String::new(),
            kinds: Vec::new(),
            generation: 1,
            rotated_at: None,
            failed,
            disabled: None,
            tested_at: None,
            created_at: NOW,
            deleted_at: None,
        }
    }

    fn delivery(webhook: &Webhook, attempts: u32) -> Delivery {
        Delivery {
            id: DeliveryId::generate(),
            version: 1,
            webhook_id: webhook.id,
            event_id: EventId::generate(),
            kind: "gpuaas.allocation.active.v1".to_owned(),
            body: "{}".to_owned(),
            state: DeliveryState::Pending,
            attempts,
            last: String::new(),
            due_at: Some(NOW),
            created_at: NOW,
            delivered_at: None,
            expires_at: NOW,
        }
    }

    /// Returns the delivery after the attempt, the webhook if it changed, and the kinds of events.
    fn after(failed: u32, attempts: u32, tried: Tried) -> (Delivery, Option<Webhook>, Vec<EventKind>) {
        let webhook = webhook(failed);
        let context = Context { now: NOW, actor: Actor::System, correlation_id: CorrelationId::generate() };
        let decision = ended(&delivery(&webhook, attempts), Some(&webhook), &tried, &context, 0.5);
        let documents: Vec<_> = decision
            .changes
            .iter()
            .filter_map(|change| if let Change::ResourceUpdate(document) = change { Some(document) } else { None })
            .collect();
        let changed = documents
            .iter()
            .find(|document| document.kind == ResourceKind::Webhook)
            .map(|document| document.read().expect("JSON"));
        let delivery =
            documents.iter().find(|document| document.kind == ResourceKind::Delivery).expect("always").read().expect("JSON");
        (delivery, changed, decision.events.iter().map(|event| event.kind).collect())
    }

    fn no() -> Tried {
        Tried::NotTaken("no".to_owned())
    }

    #[test]
    fn what_is_not_taken_is_tried_nine_times_again_and_then_given_up() {
        for attempts in 1..=9 {
            let (delivery, webhook, _) = after(0, attempts, no());
            assert_eq!((delivery.state, webhook), (DeliveryState::Pending, None), "{attempts}");
            assert!(delivery.due_at > Some(NOW), "{attempts}");
        }
        let (first, _, _) = after(0, 1, no());
        assert_eq!(first.due_at, Some(NOW.plus(Duration::from_secs(5))));
        let (delivery, webhook, events) = after(0, 10, no());
        assert_eq!((delivery.state, delivery.due_at), (DeliveryState::Failed, None));
        assert_eq!((webhook.expect("counted").failed, events.len()), (1, 0));
    }

    #[test]
    fn a_webhook_that_takes_nothing_is_turned_off_and_that_is_an_event() {
        let (_, webhook, _) = after(MAX_FAILED - 2, 10, no());
        assert_eq!(webhook.expect("counted").disabled, None);
        let (_, webhook, events) = after(MAX_FAILED - 1, 10, no());
        let webhook = webhook.expect("turned off");
        assert!(webhook.failed == MAX_FAILED && webhook.disabled.is_some_and(|why| why.contains("no")));
        assert_eq!(events, [EventKind::WebhookDisabled]);
    }

    #[test]
    fn a_receiver_that_is_gone_is_believed_at_once() {
        let (delivery, webhook, events) = after(0, 1, Tried::Gone("gone".to_owned()));
        assert_eq!((delivery.state, webhook.expect("turned off").disabled.as_deref()), (DeliveryState::Failed, Some("gone")));
        assert_eq!(events, [EventKind::WebhookDisabled]);
    }

    #[test]
    fn what_is_taken_makes_the_failures_before_it_forgotten() {
        let (delivery, webhook, _) = after(7, 3, Tried::Taken("200 OK".to_owned()));
        assert_eq!((delivery.state, delivery.delivered_at, delivery.due_at), (DeliveryState::Delivered, Some(NOW), None));
        assert_eq!(webhook.expect("changed").failed, 0);
        assert_eq!(after(0, 1, Tried::Taken("200 OK".to_owned())).1, None);
    }

    #[test]
    fn a_webhook_that_is_off_is_left_alone() {
        let off = Webhook { disabled: Some("by its owner".to_owned()), ..webhook(3) };
        let context = Context { now: NOW, actor: Actor::System, correlation_id: CorrelationId::generate() };
        let decision = ended(&delivery(&off, 1), Some(&off), &Tried::Useless("off".to_owned()), &context, 0.5);
        assert_eq!((decision.changes.len(), decision.events.len()), (1, 0));
    }

    #[tokio::test]
    async fn a_name_that_is_internal_is_told_like_one_that_does_not_exist() {
        let nowhere = resolve("no-such-name.invalid", 443).await.expect_err("it does not exist");
        let url = "https://no-such-name.invalid/";
        for address in ["10.1.2.3", "127.0.0.1", "169.254.169.254", "fd00::1"] {
            let error = check_target(url, &[address.parse().expect("an address")], false).expect_err("refused");
            assert_eq!(refused_target("no-such-name.invalid", &error), nowhere, "{address}");
        }
        let error = check_target(url, &[], false).expect_err("refused");
        assert_eq!(refused_target("no-such-name.invalid", &error), nowhere);
    }

    #[test]
    fn a_slow_receiver_steps_back_behind_the_others() {
        assert_eq!((turn(0, true), turn(TO_ONE - 1, true)), (Turn::Now, Turn::Now));
        assert_eq!((turn(TO_ONE, false), turn(TO_ONE, true)), (Turn::Wait, Turn::StepBack));
    }
}
