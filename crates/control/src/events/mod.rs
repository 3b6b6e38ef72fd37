//! What happened, on its way out: from the outbox to the bus ([`relay`]), to whoever is looking ([`notify`]) and to webhooks ([`webhooks`],
//! [`deliveries`]).

mod deliveries;
pub(crate) mod notify;
pub(crate) mod relay;
pub(crate) mod webhooks;

use std::time::Duration;

use gpuaas_domain::Hint;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::Control;

/// Waits until there may be new events, at most so long. False when the server stops.
async fn more(control: &Control, hints: &mut broadcast::Receiver<Hint>, at_most: Duration) -> bool {
    let deadline = tokio::time::Instant::now() + at_most;
    loop {
        tokio::select! {
            biased;
            () = control.shutdown.cancelled() => return false,
            () = tokio::time::sleep_until(deadline) => return true,
            hint = hints.recv() => match hint {
                Ok(Hint::Outbox) | Err(RecvError::Lagged(_)) => return true,
                Ok(
                    Hint::NodeWork(_)
                    | Hint::NodeAccess(_)
                    | Hint::Task(_)
                    | Hint::Allocation(_)
                    | Hint::Fleet(_)
                    | Hint::Rights
                    | Hint::Progress { .. },
                ) => {}
                Err(RecvError::Closed) => return false,
            },
        }
    }
}
