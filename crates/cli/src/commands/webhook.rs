//! `gpuaas webhook`: addresses that are told what happens in a project.

use clap::Subcommand;
use gpuaas_api::dto::{Delivery, DeliveryListQuery, Webhook, WebhookChange, WebhookCreate};
use gpuaas_contract::event::short_kind;
use gpuaas_contract::state::DeliveryState;

use super::confirm::ConfirmArgs;
use super::events::KindParser;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};
use crate::pages;
use crate::tenants;

/// Webhooks of a project. One is named by its id, a unique beginning of it, or its address.
#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Tell an address what happens. The secret that signs what it is told is shown once.
    ///
    /// For example: gpuaas webhook create https://example.com/hook --kind allocation.active --kind allocation.failed
    Create {
        /// Where it is; starts with https://.
        address: String,
        /// In words.
        #[arg(long, default_value = "")]
        description: String,
        /// Kind of event, such as `allocation` or `allocation.active`; may be given several times. All unless given.
        #[arg(long = "kind", value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
        kinds: Vec<String>,
    },
    /// List webhooks.
    #[command(alias = "list")]
    Ls,
    /// Show a webhook.
    #[command(alias = "get")]
    Show {
        /// The webhook.
        webhook: String,
    },
    /// Change a webhook.
    Change {
        /// The webhook.
        webhook: String,
        /// Another address.
        #[arg(long, value_name = "URL")]
        address: Option<String>,
        /// Other words.
        #[arg(long)]
        description: Option<String>,
        /// Kinds of events, instead of all it has; may be given several times.
        #[arg(long = "kind", value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
        kinds: Vec<String>,
        /// Every kind of event.
        #[arg(long, conflicts_with = "kinds")]
        all_kinds: bool,
        /// Turn it on again.
        #[arg(long, conflicts_with = "disable")]
        enable: bool,
        /// Turn it off.
        #[arg(long)]
        disable: bool,
        /// Make another secret, which is shown once. Deliveries are signed with both until the next change of the secret.
        #[arg(long)]
        rotate_secret: bool,
    },
    /// Delete a webhook. Asks for its id first on a terminal.
    #[command(alias = "rm")]
    Delete {
        /// The webhook.
        webhook: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// List what was sent to a webhook, the newest first.
    Deliveries {
        /// The webhook.
        webhook: String,
        /// Only those in this state: pending, delivered, failed.
        #[arg(long)]
        state: Option<DeliveryState>,
    },
    /// Send a delivery again.
    Replay {
        /// The delivery's id.
        delivery: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: WebhookCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        WebhookCommand::Create { address, description, kinds } => {
            let project = tenants::project(session).await?.id.to_string();
            let created = client.webhook_create(&project, &WebhookCreate { url: address, description, kinds }, None).await?;
            session.output.print(&created, |made| View::Details(details(&made.webhook).field("secret", &made.secret)))?;
            session.output.hint("keep the secret now: it is not shown again");
        }
        WebhookCommand::Ls => {
            let project = tenants::project(session).await?.id.to_string();
            let webhooks = tenants::webhooks(client, &project).await?;
            session.output.print(&webhooks, |webhooks: &Vec<Webhook>| table(webhooks))?;
            if webhooks.is_empty() {
                session.output.hint("there are no webhooks; `gpuaas webhook create https://…` makes one");
            }
        }
        WebhookCommand::Show { webhook } => {
            let webhook = client.webhook(&tenants::webhook(session, &webhook).await?).await?;
            session.output.print(&webhook, |webhook| View::Details(details(webhook)))?;
        }
        WebhookCommand::Change { webhook, address, description, kinds, all_kinds, enable, disable, rotate_secret } => {
            let enabled = if enable { Some(true) } else { disable.then_some(false) };
            let kinds = (all_kinds || !kinds.is_empty()).then_some(kinds);
            let change = WebhookChange { url: address, description, kinds, enabled, rotate_secret };
            if change == WebhookChange::default() {
                return Err(CliError::usage("nothing_to_change", "say what to change; `gpuaas webhook change --help` lists it"));
            }
            let changed = client.webhook_change(&tenants::webhook(session, &webhook).await?, &change, None).await?;
            session
                .output
                .print(&changed, |changed| View::Details(details(&changed.webhook).maybe("secret", changed.secret.as_deref())))?;
            if changed.secret.is_some() {
                session.output.hint("keep the secret now: it is not shown again");
            }
        }
        WebhookCommand::Delete { webhook, confirm } => {
            let id = tenants::webhook(session, &webhook).await?;
            confirm.ask_for_name(&format!("Delete the webhook {id}?"), &id)?;
            let gone = client.webhook_delete(&id, None).await?;
            session.output.print(&gone, |webhook| View::Details(details(webhook)))?;
        }
        WebhookCommand::Deliveries { webhook, state } => {
            let webhook = tenants::webhook(session, &webhook).await?;
            let fetch = async |after, limit| {
                client.webhook_deliveries(&webhook, &DeliveryListQuery { state, after, limit: Some(limit) }).await
            };
            let found = pages::collect(session.limit_or(50), fetch).await?;
            session.output.print(&found.items, |deliveries: &Vec<Delivery>| deliveries_table(deliveries))?;
            if found.items.is_empty() {
                session.output.hint("nothing was sent that is kept");
            } else if found.more {
                session.output.hint("there are more; --limit shows them");
            }
        }
        WebhookCommand::Replay { delivery } => {
            let delivery = client.delivery_replay(&delivery).await?;
            session.output.print(&delivery, |delivery| {
                View::Details(
                    Details::default()
                        .field("id", delivery.id)
                        .field("event", delivery.event_id)
                        .field("kind", &delivery.kind)
                        .field("state", &delivery.state)
                        .field("attempts", delivery.attempts)
                        .field("last", &delivery.last)
                        .maybe("due", delivery.due_at.map(moment)),
                )
            })?;
        }
    }
    Ok(Exit::Done)
}

fn kinds(webhook: &Webhook) -> String {
    if webhook.kinds.is_empty() { "all".to_owned() } else { webhook.kinds.join(", ") }
}

fn state(webhook: &Webhook) -> &'static str {
    if webhook.enabled { "active" } else { "off" }
}

fn details(webhook: &Webhook) -> Details {
    Details::default()
        .field("id", webhook.id)
        .field("address", &webhook.url)
        .field("description", &webhook.description)
        .field("kinds", kinds(webhook))
        .field("state", state(webhook))
        .maybe("off because", webhook.disabled_reason.as_deref())
        .field("failed in a row", webhook.failed)
        .field("created", moment(webhook.created_at))
        .maybe("deleted", webhook.deleted_at.map(moment))
}

fn table(webhooks: &[Webhook]) -> View {
    if webhooks.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&webhooks.iter().map(|webhook| webhook.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "ADDRESS", "KINDS", "STATE", "FAILED", "AGE"]);
    for (webhook, id) in webhooks.iter().zip(ids) {
        let age = age(Some(webhook.created_at));
        let state = state(webhook).to_owned();
        table.row([id, webhook.url.clone(), kinds(webhook), state, webhook.failed.to_string(), age]);
    }
    View::Table(table)
}

fn deliveries_table(deliveries: &[Delivery]) -> View {
    if deliveries.is_empty() {
        return View::Nothing;
    }
    // Whole ids: replaying takes nothing else.
    let mut table = Table::new(["ID", "KIND", "STATE", "ATTEMPTS", "LAST", "AGE"]);
    for delivery in deliveries {
        table.row([
            delivery.id.to_string(),
            short_kind(&delivery.kind).to_owned(),
            delivery.state.to_string(),
            delivery.attempts.to_string(),
            delivery.last.clone(),
            age(Some(delivery.created_at)),
        ]);
    }
    View::Table(table)
}
