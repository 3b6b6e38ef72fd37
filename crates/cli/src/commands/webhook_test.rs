//! `gpuaas webhook test`: sends one real delivery and shows its result.

use std::time::Duration;

use gpuaas_api::dto::{Delivery, DeliveryListQuery};
use gpuaas_contract::state::DeliveryState;
use tokio::time::Instant;

use super::webhook::delivery_details;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::View;

/// Pause between two polls for the result.
const PAUSE: Duration = Duration::from_millis(300);
/// How many deliveries to fetch per poll. The test's delivery is among the newest.
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
        // The first attempt is enough to show the result; the server makes further attempts by itself.
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
