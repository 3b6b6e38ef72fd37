//! Both ways to enroll, transition by transition.

mod support;

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::event::EventKind;
use gpuaas_contract::id::{EnrollmentId, JoinTokenId, NodeId};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_domain::enrollment::{
    self, Enrollment, EnrollmentState, JoinToken, MAX_TOKEN_USES, MAX_WAITING, MAX_WAITING_PER_ADDRESS, NewJoinToken, Queue,
    TOKEN_LIFE,
};
use gpuaas_domain::node::MAX_REASON;
use gpuaas_domain::{Change, Decision, RefusalKind};
use support::{NOW, assert_recorded, at, code, context, later, receipt_key};

const STATES: [EnrollmentState; 4] =
    [EnrollmentState::Pending, EnrollmentState::Approved, EnrollmentState::Enrolled, EnrollmentState::Rejected];

fn token() -> JoinToken {
    JoinToken {
        id: JoinTokenId::from_bytes([1; 16]),
        version: 3,
        secret_digest: Digest::of(b"secret"),
        note: String::new(),
        created_at: NOW,
        expires_at: later(900),
        uses: 1,
        used: Vec::new(),
        revoked_at: None,
        replace_node: None,
    }
}

fn request(state: EnrollmentState) -> Enrollment {
    Enrollment {
        id: EnrollmentId::from_bytes([1; 16]),
        version: 3,
        state,
        email: "ops@example.org".to_owned(),
        fingerprint: "f".to_owned(),
        csr_pem: String::new(),
        receipt_key: receipt_key().verifying_key(),
        facts: HostFacts::default(),
        poll_secret_digest: Digest::of(b"poll"),
        reason: String::new(),
        address: "192.0.2.1".to_owned(),
        node_id: None,
        created_at: NOW,
        expires_at: later(86_400),
        replace_node: None,
    }
}

#[test]
fn names_of_states_read_back() {
    for state in STATES {
        assert_eq!(EnrollmentState::parse(state.as_str()), Some(state));
    }
    assert_eq!(EnrollmentState::parse("maybe"), None);
}

#[test]
fn a_join_token_lives_as_long_as_asked_up_to_the_limit() {
    let create = |life, note: &str| {
        let new = NewJoinToken { note, life, uses: 1, replace_node: None };
        enrollment::token_create(token().id, Digest::of(b"s"), &new, &context())
    };
    let decision = create(Duration::from_secs(60), "rack 1").expect("made");
    let [Change::JoinTokenInsert(made)] = decision.changes.as_slice() else { panic!("{:?}", decision.changes) };
    assert_eq!((made.expires_at, made.version, made.uses, made.left(), made.revoked_at), (later(60), 0, 1, 1, None));
    assert_recorded(&decision, "gpuaas.join_token.created.v1", "join_token.create");
    assert!(!format!("{:?}", decision.events[0].data).contains("sha256"), "not even the hash of the secret is told");
    create(TOKEN_LIFE, "").expect("the limit itself is fine");
    assert_eq!(code(create(Duration::ZERO, "")), "token_life_invalid");
    assert_eq!(code(create(TOKEN_LIFE + Duration::from_micros(1), "")), "token_life_invalid");
    assert_eq!(code(create(TOKEN_LIFE, &"x".repeat(201))), "note_too_long");
}

#[test]
fn a_join_token_is_used_once_and_in_time() {
    let node = NodeId::generate();
    let used = enrollment::token_use(&token(), node, &at(later(900))).expect("the last moment counts");
    assert_eq!(used.changes, [Change::JoinTokenUpdate(JoinToken { used: vec![(later(900), node)], ..token() })]);
    assert_recorded(&used, "gpuaas.join_token.used.v1", "join_token.use");
    let refuse = |token: JoinToken, now| enrollment::token_use(&token, node, &at(now));
    assert_eq!(code(refuse(token(), later(901))), "join_token_expired");
    let spent = JoinToken { used: vec![(NOW, NodeId::generate())], ..token() };
    let refusal = refuse(spent, NOW).expect_err("refused");
    assert_eq!((refusal.code, refusal.kind), ("join_token_used", RefusalKind::Forbidden));
    assert_eq!(code(refuse(JoinToken { revoked_at: Some(NOW), ..token() }, NOW)), "join_token_revoked");
}

#[test]
fn a_join_token_is_taken_back_unless_it_was_used() {
    let decision = enrollment::token_revoke(&token(), &context()).expect("done");
    assert_eq!(decision.changes, [Change::JoinTokenUpdate(JoinToken { revoked_at: Some(NOW), ..token() })]);
    assert_recorded(&decision, "gpuaas.join_token.revoked.v1", "join_token.revoke");
    let revoked = JoinToken { revoked_at: Some(NOW), ..token() };
    assert_eq!(enrollment::token_revoke(&revoked, &context()), Ok(Decision::default()), "twice is once");
    let used = JoinToken { used: vec![(NOW, NodeId::generate())], ..token() };
    assert_eq!(code(enrollment::token_revoke(&used, &context())), "join_token_used");
    let half = JoinToken { uses: 2, ..used };
    let decision = enrollment::token_revoke(&half, &context()).expect("it would enroll another host");
    assert_eq!(decision.changes, [Change::JoinTokenUpdate(JoinToken { revoked_at: Some(NOW), ..half })]);
}

#[test]
fn a_join_token_for_many_hosts_counts_each_of_them() {
    let create = |uses, replace_node| {
        let new = NewJoinToken { note: "", life: TOKEN_LIFE, uses, replace_node };
        enrollment::token_create(token().id, Digest::of(b"s"), &new, &context())
    };
    for uses in [0, MAX_TOKEN_USES + 1, u32::MAX] {
        assert_eq!(code(create(uses, None)), "token_uses_invalid");
    }
    assert_eq!(code(create(2, Some(NodeId::generate()))), "token_uses_invalid", "a node is replaced by one host");
    create(1, Some(NodeId::generate())).expect("by one");
    let decision = create(MAX_TOKEN_USES, None).expect("made");
    let [Change::JoinTokenInsert(made)] = decision.changes.as_slice() else { panic!("{:?}", decision.changes) };
    let mut token = made.clone();
    for left in (0..MAX_TOKEN_USES).rev() {
        let used = enrollment::token_use(&token, NodeId::generate(), &context()).expect("there is one left");
        let [Change::JoinTokenUpdate(next)] = used.changes.as_slice() else { panic!("{:?}", used.changes) };
        token = next.clone();
        assert_eq!(token.left(), left);
    }
    assert_eq!(code(enrollment::token_use(&token, NodeId::generate(), &context())), "join_token_used");
}

#[test]
fn a_host_may_ask_with_an_email_while_there_is_room() {
    let asked = request(EnrollmentState::Pending);
    let queue = |waiting: u64, from_address: u64| Queue { waiting, from_address, ..Queue::default() };
    let (_, decision) = enrollment::request(asked.clone(), &queue(MAX_WAITING - 1, 0), &context()).expect("taken");
    assert_eq!(decision.changes, [Change::EnrollmentInsert(Box::new(asked.clone()))]);
    assert_recorded(&decision, "gpuaas.enrollment.requested.v1", "enrollment.request");
    assert_eq!(code(enrollment::request(asked.clone(), &queue(MAX_WAITING, 0), &context())), "too_many_enrollments");
    let full = queue(MAX_WAITING_PER_ADDRESS, MAX_WAITING_PER_ADDRESS);
    assert_eq!(code(enrollment::request(asked.clone(), &full, &context())), "too_many_enrollments_from_address");
    for email in ["", "@", "nobody", "a b@c.d", "a@b\n.c", &format!("{}@x", "a".repeat(254))] {
        let asked = Enrollment { email: email.to_owned(), ..asked.clone() };
        assert_eq!(code(enrollment::request(asked, &Queue::default(), &context())), "email_invalid", "{email:?}");
    }
}

#[test]
fn a_host_that_asks_again_keeps_its_place_even_in_a_full_queue() {
    let first = request(EnrollmentState::Pending);
    let again = Enrollment {
        id: EnrollmentId::from_bytes([2; 16]),
        version: 0,
        email: "other@example.org".to_owned(),
        poll_secret_digest: Digest::of(b"another"),
        expires_at: later(90_000),
        ..first.clone()
    };
    let queue =
        Queue { waiting: MAX_WAITING, from_address: MAX_WAITING_PER_ADDRESS, same: Some(first.clone()), displaceable: None };
    let (waits, decision) = enrollment::request(again.clone(), &queue, &context()).expect("taken");
    let wanted = Enrollment { poll_secret_digest: again.poll_secret_digest, expires_at: again.expires_at, ..first };
    assert_eq!((decision.changes, waits), (vec![Change::EnrollmentUpdate(Box::new(wanted.clone()))], wanted));
}

#[test]
fn a_full_queue_makes_room_at_the_cost_of_the_address_with_most() {
    let oldest = request(EnrollmentState::Pending);
    let asked =
        Enrollment { id: EnrollmentId::from_bytes([2; 16]), version: 0, address: "192.0.2.9".to_owned(), ..oldest.clone() };
    let queue = |held: u64, from_address: u64| Queue {
        waiting: MAX_WAITING,
        from_address,
        same: None,
        displaceable: Some((oldest.clone(), held)),
    };
    let (_, decision) = enrollment::request(asked.clone(), &queue(2, 0), &context()).expect("taken");
    let [Change::EnrollmentUpdate(lapsed), Change::EnrollmentInsert(_)] = &decision.changes[..] else { panic!("{decision:?}") };
    assert!(lapsed.id == oldest.id && lapsed.expires_at < NOW && lapsed.state == EnrollmentState::Pending);
    assert_eq!(decision.events[0].kind, EventKind::EnrollmentDisplaced);
    for (held, from_address) in [(1, 0), (3, 2), (3, 3)] {
        let refused = enrollment::request(asked.clone(), &queue(held, from_address), &context());
        assert_eq!(code(refused), "too_many_enrollments", "{held} {from_address}: nobody would have less");
    }
}

#[test]
fn every_word_of_an_operator_on_every_state() {
    for state in STATES {
        let approved = enrollment::approve(&request(state), None, None, &context());
        let rejected = enrollment::reject(&request(state), "unknown machine", &context());
        match state {
            EnrollmentState::Pending => {
                let approved = approved.expect("done");
                let next = Enrollment { state: EnrollmentState::Approved, ..request(state) };
                assert_eq!(approved.changes, [Change::EnrollmentUpdate(Box::new(next))]);
                assert_recorded(&approved, "gpuaas.enrollment.approved.v1", "enrollment.approve");
                let rejected = rejected.expect("done");
                let next =
                    Enrollment { state: EnrollmentState::Rejected, reason: "unknown machine".to_owned(), ..request(state) };
                assert_eq!(rejected.changes, [Change::EnrollmentUpdate(Box::new(next))]);
                assert_recorded(&rejected, "gpuaas.enrollment.rejected.v1", "enrollment.reject");
            }
            EnrollmentState::Approved => {
                assert_eq!(approved, Ok(Decision::default()));
                assert_eq!(code(rejected), "enrollment_decided");
            }
            EnrollmentState::Rejected => {
                assert_eq!(code(approved), "enrollment_decided");
                assert_eq!(rejected, Ok(Decision::default()));
            }
            EnrollmentState::Enrolled => {
                assert_eq!(code(approved), "enrollment_decided");
                assert_eq!(code(rejected), "enrollment_decided");
            }
        }
    }
    let pending = request(EnrollmentState::Pending);
    assert_eq!(code(enrollment::approve(&pending, None, None, &at(later(86_401)))), "enrollment_expired");
    assert_eq!(code(enrollment::reject(&pending, &"x".repeat(MAX_REASON + 1), &context())), "reason_too_long");
}

#[test]
fn only_an_approved_host_fetches_its_certificate_and_only_in_time() {
    let node = NodeId::generate();
    for state in STATES {
        let claimed = enrollment::claim(&request(state), node, &context());
        match state {
            EnrollmentState::Approved => {
                let next = Enrollment { state: EnrollmentState::Enrolled, node_id: Some(node), ..request(state) };
                assert_eq!(claimed, Ok(Change::EnrollmentUpdate(Box::new(next))));
            }
            EnrollmentState::Pending | EnrollmentState::Enrolled | EnrollmentState::Rejected => {
                assert_eq!(code(claimed), "enrollment_not_approved");
            }
        }
    }
    assert_eq!(code(enrollment::claim(&request(EnrollmentState::Approved), node, &at(later(86_401)))), "enrollment_expired");
}

#[test]
fn a_host_takes_over_a_node_only_if_an_operator_named_exactly_that_one() {
    use gpuaas_domain::enrollment::{Door, Existing, Replacement, check_replacement};
    use gpuaas_domain::node::NodeService;
    let (known, other) = (support::node(), NodeId::generate());
    let door = Door::Approval(request(EnrollmentState::Pending).id);
    let existing = |same_keys| Some(Existing { node: &known, same_keys });
    for door in [Door::Token, door] {
        assert_eq!(check_replacement(None, None, door), Ok(Replacement::New));
        assert_eq!(code(check_replacement(existing(false), None, door)), "replaces_node");
        assert_eq!(code(check_replacement(existing(false), Some(other), door)), "replace_node_mismatch");
        assert_eq!(code(check_replacement(None, Some(known.id), door)), "replace_node_mismatch");
        assert_eq!(check_replacement(existing(false), Some(known.id), door), Ok(Replacement::OtherKeys));
        // The same machine with the same keys, for example because the answer was lost.
        assert_eq!(check_replacement(existing(true), None, door), Ok(Replacement::SameKeys));
        for service in [NodeService::Locked, NodeService::Retired] {
            let distrusted = gpuaas_domain::node::Node { service, ..known.clone() };
            let existing = Some(Existing { node: &distrusted, same_keys: true });
            assert_eq!(code(check_replacement(existing, None, door)), "replaces_node", "its keys are in other hands, too");
            assert_eq!(check_replacement(existing, Some(known.id), door), Ok(Replacement::OtherKeys));
        }
    }
    let asked = request(EnrollmentState::Pending);
    assert_eq!(code(enrollment::approve(&asked, existing(false), None, &context())), "replaces_node");
    let approved = enrollment::approve(&asked, existing(false), Some(known.id), &context()).expect("named");
    let next = Enrollment { state: EnrollmentState::Approved, replace_node: Some(known.id), ..asked };
    assert_eq!(approved.changes, [Change::EnrollmentUpdate(Box::new(next))], "it is remembered for the moment it is fetched");
}
