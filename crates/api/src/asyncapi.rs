//! Every kind of event that leaves gpuaas, and the AsyncAPI 3.0 document about them.
//!
//! A test looks for kinds in the code that records them: one that is missing here fails it, and so does one that nobody records.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::dto::CloudEvent;
use crate::openapi::{sorted, speak_plainly};
use crate::routes;

/// Where schemas are in the document, as a JSON pointer.
const SCHEMAS: &str = "/components/schemas";

/// One kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// Its CloudEvents type.
    pub kind: &'static str,
    /// What it says, in a sentence.
    pub summary: &'static str,
}

macro_rules! event_kinds {
    ($($kind:literal: $summary:literal;)*) => {
        /// Every kind of event, by name.
        pub const EVENT_KINDS: &[EventKind] = &[$(EventKind { kind: concat!("gpuaas.", $kind, ".v1"), summary: $summary }),*];
    };
}

event_kinds! {
    "allocation.active": "The allocation can be used.";
    "allocation.described": "The allocation's name or tags were changed.";
    "allocation.extended": "The allocation may be kept for longer.";
    "allocation.failed": "The allocation came to nothing; the reason is in `code`.";
    "allocation.maintenance_announced": "The allocation's host will be worked on.";
    "allocation.maintenance_cancelled": "The allocation's host will not be worked on after all.";
    "allocation.placing": "A place for the allocation is being looked for, for the first time or again.";
    "allocation.power_failed": "A request to stop, start or reboot came to nothing.";
    "allocation.power_ordered": "The host was told to stop, start or reboot the allocation.";
    "allocation.power_requested": "Somebody wants the allocation stopped, started or rebooted.";
    "allocation.provisioning": "The allocation has a place, and is being made there.";
    "allocation.rebooted": "The allocation was rebooted.";
    "allocation.release_blocked": "The allocation is over, but nothing proves that its host is clean; an operator has to look.";
    "allocation.release_failed": "Giving the allocation back did not work, and is tried again.";
    "allocation.release_ordered": "The host was told to give the allocation back.";
    "allocation.release_requested": "Somebody gives the allocation back.";
    "allocation.release_waiting": "Giving the allocation back waits for the budget of destructive commands, and goes on by itself.";
    "allocation.released": "The allocation is over, and its host is proven clean.";
    "allocation.releasing": "The allocation is being given back.";
    "allocation.requested": "Somebody asked for an allocation.";
    "allocation.retried": "Somebody wants what failed to be tried again.";
    "allocation.started": "The allocation was started.";
    "allocation.stopped": "The allocation was stopped, and keeps its place.";
    "api_key.created": "A service account has a new key.";
    "api_key.revoked": "A key of a service account counts no more.";
    "api_token.created": "There is a new API token of the platform.";
    "api_token.revoked": "An API token of the platform counts no more.";
    "budget.exhausted": "The budget of destructive commands is used up; what is refused or waits goes on when an hour is over, or when it is lifted.";
    "budget.lifted": "Somebody allowed more destructive commands for an hour.";
    "ca.available": "The certificate authority answers again.";
    "ca.unavailable": "The certificate authority does not answer; certificates are valid until they expire.";
    "delivery.replayed": "Somebody wants a delivery to a webhook to be sent again.";
    "enrollment.approved": "An operator let a host in.";
    "enrollment.displaced": "A host that waited had to make room, because the queue was full and its address had most places.";
    "enrollment.rejected": "An operator turned a host away.";
    "enrollment.requested": "A host wants to be let in.";
    "image.created": "There is a new image.";
    "image.deleted": "An image is offered no more.";
    "join_token.created": "There is a new join token for hosts.";
    "join_token.revoked": "A join token counts no more.";
    "machine.cleanup_blocked": "Nothing proves that a machine is clean; an operator has to look.";
    "machine.freed": "A machine is proven clean, and serves the next one.";
    "machine.in_use": "A machine is in the hands of an allocation.";
    "machine.leased": "A machine was set aside for an allocation.";
    "machine.offered": "A whole machine is offered to tenants.";
    "machine.releasing": "A machine is being given back.";
    "machine.withdrawn": "A whole machine is offered no more.";
    "maintenance.announced": "Work on a host was announced.";
    "maintenance.cancelled": "Announced work on a host was called off.";
    "member.accepted": "Somebody who was invited has signed in and is a member.";
    "member.added": "Somebody was made a member, or invited to be one.";
    "member.changed": "A member has another role.";
    "member.removed": "Somebody is no longer a member.";
    "node.budget_exceeded": "A node sent more than it may make the server store within the hour; the rest is dropped.";
    "node.certificate_renewed": "A node has a new certificate.";
    "node.draining": "A node takes nothing new.";
    "node.enrolled": "A host has become a node.";
    "node.facts_changed": "What a node says about its hardware has changed.";
    "node.in_service": "A node takes work.";
    "node.locked": "A node was locked, because two live copies of its identity were seen.";
    "node.offline": "A node's link is gone.";
    "node.online": "A node has a link.";
    "node.quarantined": "A node is kept apart, and its slots with it.";
    "node.rejoined": "A node that had been away for too long was let in again.";
    "node.renamed": "An operator gave a node another name.";
    "node.retired": "A node is gone for good.";
    "organization.changed": "An organization was changed.";
    "organization.created": "There is a new organization.";
    "organization.deleted": "The organization was deleted.";
    "project.changed": "A project was changed.";
    "project.created": "There is a new project.";
    "project.deleted": "A project is gone.";
    "quota.set": "An organization or a project has other limits.";
    "service_account.created": "There is a new service account.";
    "service_account.deleted": "A service account is gone, and its keys with it.";
    "sign_in.approved": "Somebody let a device sign in for them.";
    "sign_in.denied": "Somebody refused a device that wanted to sign in for them.";
    "sign_in.revoked": "A sign-in is over before its time.";
    "sign_in.started": "Somebody began to sign in.";
    "signing_key.changed": "The keys that sign tasks were changed.";
    "sku.changed": "Something in the catalog was changed.";
    "sku.created": "There is something new in the catalog.";
    "slot.approved": "An operator made a slot of what a node has found on itself.";
    "slot.cleanup_blocked": "Nothing proves that a slot is clean; an operator has to look.";
    "slot.freed": "A slot is proven clean, and serves the next one.";
    "slot.in_use": "A slot is in the hands of an allocation.";
    "slot.leased": "A slot was set aside for an allocation.";
    "slot.needs_wipe": "A slot has to be wiped before it serves the next one.";
    "slot.quarantined": "A slot is kept apart.";
    "slot.releasing": "A slot is being given back.";
    "slot.taken_over": "A slot went from one task of its allocation to the next.";
    "slot.unquarantined": "A slot is no longer kept apart.";
    "slot.withdrawn": "A slot is gone for good.";
    "ssh_key.added": "Somebody has a new SSH key.";
    "ssh_key.deleted": "An SSH key is gone.";
    "task.accepted": "A node has written a task down.";
    "task.cancel_requested": "Somebody wants a task to end.";
    "task.cancelled": "A task was ended before it was done.";
    "task.dispatched": "A task was signed and sent to its node.";
    "task.expired": "A task waited for too long and was never sent.";
    "task.failed": "A node says that a task failed.";
    "task.interrupted": "A task was cut off by a restart of its node.";
    "task.lost": "A node fell silent with a task; it may have run.";
    "task.queued": "There is a task for a node.";
    "task.refused": "A node refused a task.";
    "task.requeued": "A node does not have a task that was sent to it, and it is sent again.";
    "task.started": "A node has begun with a task.";
    "task.succeeded": "A node has proven that a task is done.";
    "user.changed": "What is known about somebody has changed.";
    "user.created": "Somebody signed in for the first time, or was written down by an operator.";
    "user.deactivated": "Somebody may sign in no more.";
    "user.password_set": "Somebody has another password.";
    "user.reactivated": "Somebody may sign in again.";
    "user.sign_in_failed": "Somebody tried to sign in with a wrong password.";
    "user.signed_in": "Somebody signed in.";
    "webhook.changed": "A webhook was changed, turned on or off, or deleted, or has a new secret.";
    "webhook.created": "There is a new webhook.";
    "webhook.disabled": "A webhook was turned off, because nobody takes what it is told.";
}

/// The whole document. The same for the same program, with the keys of every object in order.
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
        })
        .into_generator();
    generator.subschema_for::<CloudEvent>();
    let schemas = generator.take_definitions(true);
    let (mut messages, mut listed) = (Map::new(), Map::new());
    for EventKind { kind, summary } in EVENT_KINDS {
        let payload = json!({
            "allOf": [{ "$ref": "#/components/schemas/CloudEvent" }, { "properties": { "type": { "const": kind } } }],
        });
        let message = json!({
            "name": kind, "title": kind, "summary": summary,
            "contentType": "application/cloudevents+json", "payload": payload,
            "tags": [{ "name": kind.split('.').nth(1) }],
        });
        messages.insert((*kind).to_owned(), message);
        listed.insert((*kind).to_owned(), json!({ "$ref": format!("#/components/messages/{kind}") }));
    }
    let channel =
        |address: &str, description: &str| json!({ "address": address, "description": description, "messages": listed });
    let mut document = json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events of gpuaas",
            "version": "v1",
            "description": "What happens, as CloudEvents 1.0. Every event comes at least once; the same event always has the same `id`. Events \
                            with one `subject` come in their order. Consumers ignore kinds and fields that they do not know.",
            "license": { "name": "Apache-2.0" },
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": {
            "stream": channel(
                "gpuaas.{kind}.{subject}",
                "A stream of NATS JetStream, where there is one. The address is the event's type, with the configured prefix in place of \
                 `gpuaas`, and its subject as the last token. `Nats-Msg-Id` is the event's id.",
            ),
            "platformEvents": channel(routes::EVENTS, "Server-sent events of the whole platform, for operators."),
            "projectEvents": channel(routes::PROJECT_EVENTS, "Server-sent events of one project."),
            "projectSocket": channel(
                routes::PROJECT_EVENTS_WS,
                "A WebSocket with the events of one project. `sequence` is the event's position.",
            ),
            "webhook": channel("{url}", "Webhooks of projects, signed as the Standard Webhooks specification has it."),
        },
        "operations": operations(&["stream", "platformEvents", "projectEvents", "projectSocket", "webhook"]),
        "components": { "messages": messages, "schemas": schemas },
    });
    document["channels"]["stream"]["parameters"] = json!({
        "kind": { "description": "The event's type without `gpuaas.`, its dots kept." },
        "subject": { "description": "What it happened to; characters other than letters, digits, `-` and `_` are `_`." },
    });
    for channel in ["projectEvents", "projectSocket"] {
        document["channels"][channel]["parameters"] = json!({ "project": { "description": "The project's id." } });
    }
    document["channels"]["webhook"]["parameters"] = json!({ "url": { "description": "What the webhook's owner has chosen." } });
    speak_plainly(&mut document);
    sorted(document)
}

fn operations(channels: &[&str]) -> Value {
    let send = |channel: &&str| {
        (format!("{channel}Send"), json!({ "action": "send", "channel": { "$ref": format!("#/channels/{channel}") } }))
    };
    Value::Object(channels.iter().map(send).collect())
}
