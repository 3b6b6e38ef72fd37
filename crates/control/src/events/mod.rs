//! What happened, on its way out: from the outbox to the bus ([`relay`]), to whoever is looking ([`notify`]) and to webhooks ([`webhooks`],
//! [`deliveries`]).

mod deliveries;
pub(crate) mod notify;
pub(crate) mod relay;
pub(crate) mod webhooks;

use std::time::Duration;

use gpuaas_domain::Wakeup;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::Instant;

use crate::Control;

/// How long after a look the next one is made, at the earliest. Where much happens there is something new all the time: then it is found
/// together. What happens after a quiet moment is found at once.
const GATHER: Duration = Duration::from_millis(20);

/// Says when there may be new events.
struct News(broadcast::Receiver<Wakeup>);

impl News {
    /// Of everything that happens from now on.
    fn of(control: &Control) -> Self {
        Self(control.store.wakeups())
    }

    /// Waits, for somebody who has just looked, until there may be something new; at most so long. False when the server stops.
    async fn more(&mut self, control: &Control, at_most: Duration) -> bool {
        let looked = Instant::now();
        tokio::select! {
            biased;
            () = control.shutdown.cancelled() => return false,
            () = tokio::time::sleep_until(looked + at_most) => return true,
            going_on = self.heard() => if !going_on { return false },
        }
        tokio::time::sleep_until(looked + GATHER).await;
        // The same look finds what was heard of meanwhile.
        while matches!(self.0.try_recv(), Ok(_) | Err(TryRecvError::Lagged(_))) {}
        true
    }

    /// Waits until something was heard. False when nothing will be.
    async fn heard(&mut self) -> bool {
        loop {
            match self.0.recv().await {
                Ok(Wakeup::Outbox) | Err(RecvError::Lagged(_)) => return true,
                Ok(
                    Wakeup::NodeWork(_)
                    | Wakeup::NodeAccess(_)
                    | Wakeup::Task(_)
                    | Wakeup::Allocation(_)
                    | Wakeup::Fleet(_)
                    | Wakeup::Link(_)
                    | Wakeup::Rights
                    | Wakeup::Progress { .. },
                ) => {}
                Err(RecvError::Closed) => return false,
            }
        }
    }
}
