//! The only way to write to the store: seals the rows of a decision, settles the leases of tasks that end in it, and commits.

use std::collections::BTreeSet;

use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::machine::Machine;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::{Change, Decision, Wakeup};
use gpuaas_store::CommitError;

use crate::{Control, lease_settlement, resources};

/// Writes a decision, with its effects on the slots and machines of every task that ends in it, and with the seals of its
/// resources. The control plane writes everything through this function; the store rejects a decision that forgets a slot.
pub(crate) async fn commit(control: &Control, decision: Decision) -> Result<(), CommitError> {
    let mut decision = if decision.endings.is_empty() { decision } else { lease_settlement::settled(control, decision).await? };
    for change in &mut decision.changes {
        if let Change::ResourceInsert(document) = change {
            document.seal = resources::seal(&control.keys, document, document.version);
        } else if let Change::ResourceUpdate(document) = change {
            // The store increments the version with the write.
            document.seal = resources::seal(&control.keys, document, document.version + 1);
        }
    }
    let changed = fleet_changes(&decision);
    decision.wakeups.extend(changed.into_iter().map(Wakeup::Fleet));
    let changes_rights = decision.wakeups.contains(&Wakeup::Rights);
    let delivers = has_due_delivery(&decision, Timestamp::now());
    let written = control.store.commit(decision).await;
    if delivers && written.is_ok() {
        control.deliveries_due.notify_one();
    }
    if changes_rights {
        // Here at once, whatever the result; other processes get a wake-up.
        control.authz.forget();
    }
    written
}

/// Returns whether a delivery to a webhook is due now: a new or a replayed one. A delivery under way is due again later.
fn has_due_delivery(decision: &Decision, now: Timestamp) -> bool {
    decision.changes.iter().any(|change| {
        matches!(change, Change::ResourceInsert(document) | Change::ResourceUpdate(document)
            if document.kind == ResourceKind::Delivery && document.keys.due_at.is_some_and(|due| due <= now))
    })
}

/// Returns the nodes whose fleet view must be updated.
fn fleet_changes(decision: &Decision) -> BTreeSet<Option<NodeId>> {
    let of_change = |change: &Change| match change {
        Change::NodeInsert(node) | Change::NodeUpdate(node) => Some(Some(node.id)),
        Change::SlotInsert(slot) | Change::SlotUpdate(slot) => Some(Some(slot.node_id)),
        Change::ResourceInsert(document) | Change::ResourceUpdate(document) => match document.kind {
            ResourceKind::Machine => document.read::<Machine>().ok().map(|machine| Some(machine.node_id)),
            ResourceKind::Maintenance => Some(None),
            ResourceKind::Organization
            | ResourceKind::Project
            | ResourceKind::User
            | ResourceKind::ServiceAccount
            | ResourceKind::Member
            | ResourceKind::SignIn
            | ResourceKind::Sku
            | ResourceKind::Image
            | ResourceKind::SshKey
            | ResourceKind::Quota
            | ResourceKind::Allocation
            | ResourceKind::Webhook
            | ResourceKind::Delivery
            | ResourceKind::Idempotency
            | ResourceKind::Cursor
            | ResourceKind::Budget => None,
        },
        Change::EnrollmentInsert(_)
        | Change::EnrollmentUpdate(_)
        | Change::JoinTokenInsert(_)
        | Change::JoinTokenUpdate(_)
        | Change::CertificateInsert(_)
        | Change::CertificatesRevoke { .. }
        | Change::TaskInsert(_)
        | Change::TaskUpdate(_)
        | Change::EnvelopeInsert { .. }
        | Change::ReceiptInsert { .. }
        | Change::ApiTokenInsert(_)
        | Change::ApiTokenUpdate(_)
        | Change::ResourcesForget { .. }
        | Change::ServerSeen { .. }
        | Change::LogAppend(_) => None,
    };
    decision.changes.iter().filter_map(of_change).collect()
}
