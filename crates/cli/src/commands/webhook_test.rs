//! `gpuaas webhook test`: one real delivery, and what came of it.

use std::time::Duration;

use gpuaas_api::dto::{Delivery, DeliveryListQuery};
use gpuaas_contract::state::DeliveryState;
use tokio::time::Instant;

use super::webhook::delivery_details;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::View;

/// How often the result is asked for.
const PAUSE: Duration = Duration::from_millis(300);
/// The delivery is among the newest.
const NEWEST: u32 = 20;

pub(super) async fn run(session: &CommandContext, webhook: &str, timeout: Duration) -> Result<Exit, CliError> {
    let client = session.client()?;
    let test = client.webhook_test(webhook).await?;
    let until = Instant::now() + timeout;
    let mut seen: Option<Delivery> = None;
    while Instant::now() < until {
        tokio::time::sleep(PAUSE).await;
        let query = DeliveryListQuery { limit: Some(NEWEST), ..DeliveryListQuery::default() };
        let newest = client.webhook_deliveries(webhook, &query).await?.items;
        seen = newest.into_iter().find(|delivery| delivery.event_id == test.event_id).or(seen);
        // One attempt is enough to show the result; the server makes the others by itself.
        if seen.as_ref().is_some_and(|delivery| !delivery.last.is_empty()) {
            break;
        }
    }
    let Some(delivery) = seen else {
        let message = format!("nothing was sent within {} seconds", timeout.as_secs());
        return Err(CliError::new(Exit::Timeout, "webhook_test_timeout", message)
            .hint(format!("`gpuaas webhook deliveries {webhook}` shows it later; does a server have the role `webhook`?")));
    };
    session.output.print(&delivery, |delivery| View::Details(delivery_details(delivery)))?;
    if delivery.last.is_empty() {
        session.output.hint(&format!("there is no answer yet; `gpuaas webhook deliveries {webhook}` shows it later"));
        return Ok(Exit::Timeout);
    }
    if delivery.state == DeliveryState::Delivered {
        return Ok(Exit::Done);
    }
    session.output.hint("the delivery failed; like every delivery, it is retried");
    Ok(Exit::Failed)
}
