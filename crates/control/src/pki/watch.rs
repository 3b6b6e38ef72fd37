//! Monitors step-ca: checks periodically whether it is reachable, so that an operator learns about an outage long before
//! certificates expire.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::event::{CaState, Event};
use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::{Actor, Decision};

use super::{HealthState, StepCa};
use crate::transact::transact;
use crate::{Control, link};

/// How often step-ca is checked. Certificate requests notice an outage sooner.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// From here on the log warns that the enrollment certificate must be replaced.
const CREDENTIAL_ENDS_SOON: Duration = Duration::from_secs(7 * 24 * 3600);
/// Rounds between two such warnings: an hour.
const REMIND_EVERY: u32 = 240;

/// Starts the monitor if the cluster has a step-ca.
pub(crate) fn spawn_watch(control: &Arc<Control>) {
    if control.ca.step_ca().is_none() {
        return;
    }
    let tracker = control.background.clone();
    let control = Arc::clone(control);
    tracker.spawn(async move {
        let Some(step_ca) = control.ca.step_ca() else { return };
        let mut told = None;
        for round in 0_u32.. {
            let changed = tokio::select! {
                biased;
                () = control.shutdown.cancelled() => return,
                state = step_ca.probe() => state,
            };
            // A certificate request may have noticed first; compare with what was last reported.
            let state = changed.or_else(|| step_ca.health().state);
            control.metrics.ca_available(matches!(state, Some(HealthState::Available)));
            if let Some(state) = state
                && told.as_ref().map(std::mem::discriminant) != Some(std::mem::discriminant(&state))
            {
                // The first success after a start is not worth an event.
                if told.is_some() || matches!(state, HealthState::Unavailable(_)) {
                    tell(&control, step_ca, &state).await;
                }
                told = Some(state);
            }
            if round % REMIND_EVERY == 0 {
                remind(step_ca).await;
            }
            tokio::select! {
                biased;
                () = control.shutdown.cancelled() => return,
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
        }
    });
}

async fn tell(control: &Control, step_ca: &StepCa, state: &HealthState) {
    let (event, detail): (fn(CaState) -> Event, _) = match state {
        HealthState::Available => {
            tracing::info!(url = step_ca.url(), "step-ca answers again");
            (Event::CaAvailable, "")
        }
        HealthState::Unavailable(detail) => {
            tracing::error!(url = step_ca.url(), %detail, "step-ca does not answer; certificates stay valid until they expire");
            (Event::CaUnavailable, detail.as_str())
        }
    };
    let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
    let event = event(CaState {
        ca: "step-ca".to_owned(),
        url: step_ca.url().to_owned(),
        server_id: control.server_id,
        detail: detail.to_owned(),
    });
    let decision = Decision::default().record(&context, "step-ca", event);
    let told = transact(control, || async { Ok(((), decision.clone())) }).await;
    if let Err(error) = told {
        tracing::error!(error = %link::chain(&error), "the state of step-ca could not be recorded");
    }
}

async fn remind(step_ca: &StepCa) {
    match step_ca.credential_until().await {
        None => tracing::error!("the enrollment certificate for step-ca cannot be used; no certificate can be issued"),
        Some(until) if until.since(Timestamp::now()) < CREDENTIAL_ENDS_SOON => {
            tracing::warn!(%until, "the enrollment certificate for step-ca expires soon, and so do certificates issued with it; replace it");
        }
        Some(_) => {}
    }
}
