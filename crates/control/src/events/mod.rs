//! Delivery of events: from the outbox to the bus ([`relay`]), to listeners ([`notify`]) and to webhooks ([`webhooks`],
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

/// The shortest time between two reads of the outbox. Under load, new events are then read together; after a quiet time, an event
/// is read at once.
const GATHER: Duration = Duration::from_millis(20);

/// Notifies about possible new events.
struct News(broadcast::Receiver<Wakeup>);

impl News {
    /// Subscribes from now on.
    fn of(control: &Control) -> Self {
        Self(control.store.wakeups())
    }

    /// Waits after a read until there may be new events, at most for this long. Returns false when the server stops.
    async fn more(&mut self, control: &Control, at_most: Duration) -> bool {
        let looked = Instant::now();
        tokio::select! {
            biased;
            () = control.shutdown.cancelled() => return false,
            () = tokio::time::sleep_until(looked + at_most) => return true,
            going_on = self.heard() => if !going_on { return false },
        }
        tokio::time::sleep_until(looked + GATHER).await;
        // The same read finds events of all these wake-ups.
        while matches!(self.0.try_recv(), Ok(_) | Err(TryRecvError::Lagged(_))) {}
        true
    }

    /// Waits for a wake-up. Returns false when there will be none.
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
