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

/// The shortest time between two reads of the outbox for those who watch or work with it.
const SOON: Duration = Duration::from_millis(20);
/// The same for those who are told over the network anyway.
const LATER: Duration = Duration::from_millis(250);

/// Notifies about possible new events.
struct News {
    wakeups: broadcast::Receiver<Wakeup>,
    /// The shortest time between two reads. Events in between are read together; after a quiet time, an event is read at once.
    gather: Duration,
}

impl News {
    /// Subscribes from now on.
    fn of(control: &Control, gather: Duration) -> Self {
        Self { wakeups: control.store.wakeups(), gather }
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
        tokio::time::sleep_until(looked + self.gather).await;
        // The same read finds events of all these wake-ups.
        while matches!(self.wakeups.try_recv(), Ok(_) | Err(TryRecvError::Lagged(_))) {}
        true
    }

    /// Waits for a wake-up. Returns false when there will be none.
    async fn heard(&mut self) -> bool {
        loop {
            match self.wakeups.recv().await {
                Ok(Wakeup::Outbox) | Err(RecvError::Lagged(_)) => return true,
                Ok(
                    Wakeup::NodeWork(_)
                    | Wakeup::NodeAccess(_)
                    | Wakeup::Task(_)
                    | Wakeup::Allocation(_)
                    | Wakeup::AllocationAdvanced(_)
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
