//! The life cycle of a node, transition by transition.

mod support;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{NodeId, SessionId};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_domain::node::{
    self, Admission, Certificate, LinkTransport, LiveSession, MAX_REASON, MAX_REJOINS, Node, NodeService, Operation,
};
use gpuaas_domain::{Change, Decision, RefusalKind, Wakeup};
use support::{NOW, assert_recorded, code, context, later, node, node_of, receipt_key, session};

fn admission() -> Admission {
    Admission {
        fingerprint: "f".to_owned(),
        receipt_key: receipt_key().verifying_key(),
        tls_key_digest: Digest::of(b"new key"),
        facts: HostFacts { hostname: "new-name".to_owned(), ..HostFacts::default() },
    }
}

fn certificate(node: &Node) -> Certificate {
    Certificate {
        serial: "01".to_owned(),
        node_id: node.id,
        node_epoch: node.epoch,
        not_before: NOW,
        not_after: later(86_400),
        revoked_at: None,
    }
}

fn in_service(service: NodeService) -> Node {
    Node { service, service_reason: "why".to_owned(), session: Some(session()), ..node() }
}

#[test]
fn names_of_states_read_back() {
    for service in NodeService::ALL {
        assert_eq!(NodeService::parse(service.as_str()), Some(service));
    }
    for transport in [LinkTransport::Stream, LinkTransport::Poll] {
        assert_eq!(LinkTransport::parse(transport.as_str()), Some(transport));
    }
    assert_eq!(NodeService::parse("gone"), None);
    assert_eq!(LinkTransport::parse("carrier pigeon"), None);
}

#[test]
fn only_a_node_in_service_takes_work_and_no_locked_or_retired_one_connects() {
    let takes = NodeService::ALL.map(|service| (service.takes_work(), service.may_connect()));
    assert_eq!(takes, [(true, true), (false, true), (false, true), (false, false), (false, false)]);
}

#[test]
fn a_node_that_takes_no_work_still_lets_its_slices_go() {
    use gpuaas_contract::task::TaskType;
    for service in NodeService::ALL {
        for kind in TaskType::ALL {
            let serves = matches!(
                kind,
                TaskType::SliceVmRelease
                    | TaskType::SliceVmPower
                    | TaskType::SliceConsoleRead
                    | TaskType::AllocationDeprovisionUser
            );
            let expected = if serves { service.may_connect() } else { service.takes_work() };
            assert_eq!(service.takes(kind), expected, "{kind} on a node that is {}", service.as_str());
        }
    }
}

#[test]
fn a_new_machine_becomes_a_new_node_in_its_first_epoch() {
    let id = NodeId::generate();
    let (new, decision) = node::enroll(None, admission(), id, &context());
    assert_eq!((new.id, new.epoch, new.version, new.service), (id, 1, 0, NodeService::InService));
    assert_eq!((new.name.as_str(), new.fingerprint.as_str()), ("new-name", "f"));
    assert!(decision.changes.is_empty(), "the caller adds the node with its signed record; nothing is revoked");
    assert_recorded(&decision, "gpuaas.node.enrolled.v1", "node.enroll");
}

#[test]
fn a_known_machine_stays_the_same_node_in_its_next_epoch_and_its_old_certificates_end() {
    for service in NodeService::ALL {
        let old = Node { rejoins: 7, ..in_service(service) };
        let (next, decision) = node::enroll(Some(old.clone()), admission(), NodeId::generate(), &context());
        assert_eq!((next.id, next.version, next.epoch), (old.id, old.version, old.epoch + 1));
        assert_eq!((next.session.clone(), next.rejoins, next.created_at), (None, 0, old.created_at));
        assert_eq!(next.tls_key_digest, Digest::of(b"new key"));
        assert!(next.record.is_empty(), "the old signed record does not cover the new keys");
        let (expected, reason) = match service {
            NodeService::Draining | NodeService::Quarantined => (service, "why"),
            NodeService::InService | NodeService::Locked | NodeService::Retired => (NodeService::InService, ""),
        };
        assert_eq!((next.service, next.service_reason.as_str()), (expected, reason));
        let revoke = Change::CertificatesRevoke { node_id: old.id, up_to_epoch: old.epoch, at: NOW };
        assert_eq!(decision.changes, [revoke]);
        assert_eq!(decision.wakeups, [Wakeup::NodeAccess(old.id)]);
    }
}

#[test]
fn every_operation_from_every_state() {
    use NodeService::{Draining, InService, Quarantined, Retired};
    use Operation::{Drain, Quarantine, Retire, Undrain, Unquarantine};
    let table: [(Operation, [Result<NodeService, &str>; 5]); 5] = [
        // From:          in service       draining            quarantined                locked               retired
        (Drain, [Ok(Draining), Ok(Draining), Err("node_quarantined"), Err("node_locked"), Err("node_state")]),
        (Undrain, [Ok(InService), Ok(InService), Err("node_quarantined"), Err("node_locked"), Err("node_state")]),
        (Quarantine, [Ok(Quarantined), Ok(Quarantined), Ok(Quarantined), Err("node_locked"), Err("node_state")]),
        (Unquarantine, [Ok(InService), Err("node_state"), Ok(InService), Err("node_locked"), Err("node_state")]),
        (Retire, [Ok(Retired), Ok(Retired), Ok(Retired), Ok(Retired), Ok(Retired)]),
    ];
    for (operation, expected) in table {
        for (service, expected) in NodeService::ALL.into_iter().zip(expected) {
            let before = in_service(service);
            let result = node::operate(&before, operation, "maintenance", &context());
            match expected {
                Err(expected) => {
                    let refusal = result.expect_err("refused");
                    assert_eq!((refusal.code, refusal.kind), (expected, RefusalKind::Conflict), "{operation:?} from {service:?}");
                }
                // In service there is no reason to store: nothing changes, whatever reason is given.
                Ok(InService) if service == InService => assert_eq!(result.expect("done"), Decision::default()),
                Ok(next) => {
                    let after = node_of(&result.expect("done"));
                    assert_eq!(after.service, next, "{operation:?} from {service:?}");
                    let reason = if next == InService { "" } else { "maintenance" };
                    assert_eq!((after.service_reason.as_str(), after.version), (reason, before.version));
                    assert_eq!(after.session.is_none(), next == Retired, "running work goes on unless the node is retired");
                }
            }
        }
    }
}

#[test]
fn doing_what_is_done_changes_nothing() {
    let cases = [
        (Operation::Drain, NodeService::Draining),
        (Operation::Undrain, NodeService::InService),
        (Operation::Quarantine, NodeService::Quarantined),
        (Operation::Unquarantine, NodeService::InService),
        (Operation::Retire, NodeService::Retired),
    ];
    for (operation, service) in cases {
        for reason in ["", "why"] {
            let decision = node::operate(&in_service(service), operation, reason, &context()).expect("fine");
            assert_eq!(decision, Decision::default(), "{operation:?}");
        }
    }
}

#[test]
fn a_reason_is_bounded() {
    let long = "x".repeat(MAX_REASON + 1);
    assert_eq!(code(node::operate(&node(), Operation::Drain, &long, &context())), "reason_too_long");
    node::operate(&node(), Operation::Drain, &long[1..], &context()).expect("just fits");
}

#[test]
fn retiring_and_locking_revoke_and_drop_the_link() {
    let before = in_service(NodeService::InService);
    let revoke = Change::CertificatesRevoke { node_id: before.id, up_to_epoch: before.epoch, at: NOW };
    let retired = node::operate(&before, Operation::Retire, "sold", &context()).expect("done");
    assert!(retired.changes.contains(&revoke));
    assert_recorded(&retired, "gpuaas.node.retired.v1", "node.retire");
    assert!(retired.wakeups.contains(&Wakeup::NodeAccess(before.id)));

    let locked = node::lock(&before, &context());
    assert!(locked.changes.contains(&revoke));
    let after = node_of(&locked);
    assert_eq!((after.service, after.session), (NodeService::Locked, None));
    assert_recorded(&locked, "gpuaas.node.locked.v1", "node.lock");
    assert_eq!(locked.wakeups, [Wakeup::NodeAccess(before.id)]);

    for service in [NodeService::Locked, NodeService::Retired] {
        assert!(node::lock(&Node { service, ..before.clone() }, &context()).is_empty(), "{service:?}");
    }
}

#[test]
fn a_link_comes_up_only_for_a_node_that_may_connect() {
    for service in NodeService::ALL {
        let before = Node { service, ..node() };
        let live = session();
        let result = node::connected(&before, live.clone(), None, &context());
        match service {
            NodeService::InService | NodeService::Draining | NodeService::Quarantined => {
                let decision = result.expect("may");
                let after = node_of(&decision);
                assert_eq!((after.session, after.last_seen_at, after.name), (Some(live), Some(NOW), before.name));
                assert_recorded(&decision, "gpuaas.node.online.v1", "node.connect");
                assert_eq!(decision.wakeups, [], "the link looks for work by itself");
            }
            NodeService::Locked => assert_eq!(code(result), "node_locked"),
            NodeService::Retired => assert_eq!(code(result), "node_retired"),
        }
    }
    let facts = HostFacts { hostname: "renamed".to_owned(), ..HostFacts::default() };
    let connected = node_of(&node::connected(&node(), session(), Some(facts.clone()), &context()).expect("may"));
    assert_eq!((connected.name.as_str(), connected.facts), ("rack-1", facts), "a node does not name itself");
}

#[test]
fn only_an_operator_renames_a_node_and_to_a_plain_name() {
    let before = node();
    let facts = HostFacts { hostname: "renamed".to_owned(), ..before.facts.clone() };
    assert_eq!(node_of(&node::facts_changed(&before, facts, &context())).name, before.name);
    let decision = node::rename(&before, "gpu-07.rack_2", &context()).expect("a name");
    assert_eq!(node_of(&decision), Node { name: "gpu-07.rack_2".to_owned(), ..before.clone() });
    assert_recorded(&decision, "gpuaas.node.renamed.v1", "node.rename");
    assert!(node::rename(&before, &before.name, &context()).expect("the same").is_empty());
    let (id, long) = (NodeId::generate().to_string(), "x".repeat(254));
    for bad in ["", "-x", "..", "a b", "a\u{7}", "ä", "a/b", id.as_str(), long.as_str()] {
        assert_eq!(code(node::rename(&before, bad, &context())), "name_invalid", "{bad:?}");
    }
}

#[test]
fn a_late_close_of_an_old_link_never_marks_a_reconnected_node_offline() {
    let (old, new) = (session(), session());
    let first = node_of(&node::connected(&node(), old.clone(), None, &context()).expect("may"));
    let second = node_of(&node::connected(&first, new.clone(), None, &context()).expect("may"));
    assert_eq!(node::disconnected(&second, old.id, "stream dropped", &context()), Decision::default());
    assert_eq!(node::disconnected(&node(), old.id, "stream dropped", &context()), Decision::default(), "offline already");

    let decision = node::disconnected(&second, new.id, "stream dropped", &support::at(later(9)));
    let after = node_of(&decision);
    assert_eq!((after.session, after.last_seen_at), (None, Some(later(9))));
    assert_recorded(&decision, "gpuaas.node.offline.v1", "node.disconnect");
    let unrelated = LiveSession { id: SessionId::generate(), ..new };
    assert!(node::disconnected(&second, unrelated.id, "", &context()).is_empty());
}

#[test]
fn facts_are_written_only_when_they_differ() {
    let before = node();
    assert!(node::facts_changed(&before, before.facts.clone(), &context()).is_empty());
    let facts = HostFacts { kernel: "6.12".to_owned(), ..before.facts.clone() };
    let decision = node::facts_changed(&before, facts.clone(), &context());
    assert_eq!((node_of(&decision).facts, node_of(&decision).name), (facts, before.name));
    assert_recorded(&decision, "gpuaas.node.facts_changed.v1", "node.facts");
}

#[test]
fn a_renewal_resets_the_rejoins_and_is_conditional_on_the_node() {
    for rejoins in [0, 3] {
        let before = Node { rejoins, ..node() };
        let decision = node::renewed(&before, certificate(&before), &context()).expect("may");
        // Written over the version that was read, so that a lock or a retirement in between is a conflict.
        assert_eq!(
            decision.changes,
            [Change::CertificateInsert(certificate(&before)), Change::NodeUpdate(Box::new(Node { rejoins: 0, ..before })),]
        );
        assert_recorded(&decision, "gpuaas.node.certificate_renewed.v1", "node.renew");
    }
}

#[test]
fn rejoins_are_counted_and_end() {
    let mut current = node();
    for count in 1..=MAX_REJOINS {
        let decision = node::rejoined(&current, certificate(&current), &context()).expect("may");
        current = node_of(&decision);
        assert_eq!(current.rejoins, count);
        assert!(decision.changes.contains(&Change::CertificateInsert(certificate(&current))));
    }
    assert_eq!(code(node::rejoined(&current, certificate(&current), &context())), "rejoins_used_up");
}

#[test]
fn no_certificate_for_a_node_that_is_not_trusted() {
    for service in [NodeService::Locked, NodeService::Retired] {
        let before = Node { service, ..node() };
        assert_eq!(code(node::renewed(&before, certificate(&before), &context())), "node_not_trusted");
        assert_eq!(code(node::rejoined(&before, certificate(&before), &context())), "node_not_trusted");
    }
}
