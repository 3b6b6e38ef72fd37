//! Enrollment, certificates and links: who may connect, and when that ends.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::node::Host;
use common::{PATIENCE, TestServer};
use gpuaas_api::dto::{EnrollmentApprove, JoinTokenCreate, NodeRetire, Reason};
use gpuaas_contract::dsse;
use gpuaas_contract::id::AgentInstanceId;
use gpuaas_contract::link::{
    self, EnrollPending, EnrollRequest, EnrollStatus, Pong, Rejoin, RejoinChallenge, RejoinChallengeRequest, RejoinProof, Renew,
    Renewed, from_node, route, to_node,
};
use gpuaas_testkit::eventually_async;

async fn code(response: reqwest::Response) -> String {
    let status = response.status();
    let body: serde_json::Value = response.json().await.unwrap();
    assert!(!status.is_success(), "expected a refusal, got {body}");
    body["code"].as_str().unwrap().to_owned()
}

/// Creates a join token with which a host may take over this node.
async fn replacing(server: &TestServer, node: &Host) -> String {
    let wanted = JoinTokenCreate { replace_node: Some(node.node_id()), ..JoinTokenCreate::default() };
    server.client().join_token_create(&wanted, None).await.unwrap().token
}

#[tokio::test]
async fn a_join_token_is_good_for_one_host() {
    let server = TestServer::sqlite().await;
    let token = server.client().join_token_create(&JoinTokenCreate::default(), None).await.unwrap();
    let (first, second) = (Host::new(&server), Host::new(&server));
    let grant: link::Grant = first.enroll(&token.token).await.json().await.unwrap();
    // The same host may ask again, in case the answer was lost, and is the same node.
    let again: link::Grant = first.enroll(&token.token).await.json().await.unwrap();
    assert_eq!((grant.node_id, grant.node_epoch), (again.node_id, again.node_epoch));
    assert_eq!(code(second.enroll(&token.token).await).await, "join_token_used");
    assert_eq!(code(second.enroll("gpj_nonsense.00").await).await, "join_token_unknown");
    let revoked = server.client().join_token_create(&JoinTokenCreate::default(), None).await.unwrap();
    server.client().join_token_revoke(&revoked.join_token.id.to_string()).await.unwrap();
    assert_eq!(code(second.enroll(&revoked.token).await).await, "join_token_revoked");
    let short = JoinTokenCreate { life_seconds: Some(1), ..JoinTokenCreate::default() };
    let short = server.client().join_token_create(&short, None).await.unwrap();
    let expired = eventually_async(PATIENCE, "the token expires", || async {
        // Refused attempts do not use the token, so a stranger's malformed request does not either.
        let now = server.client().join_tokens(&Default::default()).await.unwrap();
        now.items.into_iter().find(|t| t.id == short.join_token.id && t.state.as_str() == "expired")
    });
    expired.await;
    assert_eq!(code(second.enroll(&short.token).await).await, "join_token_expired");
}

#[tokio::test]
async fn a_join_token_for_many_hosts_enrolls_no_more_than_that_also_when_they_come_at_once() {
    let server = TestServer::sqlite().await;
    let client = server.client();
    let wanted = JoinTokenCreate { uses: Some(5), ..JoinTokenCreate::default() };
    let token = client.join_token_create(&wanted, None).await.unwrap();
    assert_eq!((token.join_token.uses, token.join_token.left), (5, 5));
    let hosts: Vec<Host> = (0..12).map(|_| Host::new(&server)).collect();
    let answers = futures::future::join_all(hosts.iter().map(|host| host.enroll(&token.token))).await;
    let (mut joined, mut late) = (std::collections::BTreeSet::new(), None);
    for (host, answer) in hosts.iter().zip(answers) {
        if answer.status().is_success() {
            let grant: link::Grant = answer.json().await.unwrap();
            joined.insert(grant.node_id);
            // The answer may have been lost: that is no other use.
            let again: link::Grant = host.enroll(&token.token).await.json().await.unwrap();
            assert_eq!(again.node_id, grant.node_id);
        } else {
            assert_eq!(code(answer).await, "join_token_used");
            late = Some(host);
        }
    }
    assert_eq!(joined.len(), 5);
    let shown = client.join_tokens(&Default::default()).await.unwrap().items.remove(0);
    assert_eq!((shown.state.as_str(), shown.uses, shown.left), ("used", 5, 0));
    assert_eq!(shown.joined.iter().map(|joined| joined.node_id).collect::<std::collections::BTreeSet<_>>(), joined);
    let events = client.audit(&Default::default()).await.unwrap().items;
    assert_eq!(events.iter().filter(|row| row.action == "join_token.use").count(), 5);

    // Taken back, it enrolls no further host, and those that joined stay.
    let token = client.join_token_create(&wanted, None).await.unwrap();
    let late = late.expect("seven were too many");
    assert!(late.enroll(&token.token).await.status().is_success());
    let revoked = client.join_token_revoke(&token.join_token.id.to_string()).await.unwrap();
    assert_eq!((revoked.state.as_str(), revoked.left, revoked.joined.len()), ("revoked", 4, 1));
    assert_eq!(code(Host::new(&server).enroll(&token.token).await).await, "join_token_revoked");
    assert_eq!(client.nodes(&Default::default()).await.unwrap().items.len(), 6);
}

#[tokio::test]
async fn the_certificate_of_the_listener_is_shown_with_its_end() {
    let server = TestServer::sqlite().await;
    let info = server.client().cluster().await.unwrap();
    let [link] = info.listeners.as_slice() else { panic!("{:?}", info.listeners) };
    assert_eq!((link.listener.as_str(), link.renewal_error.as_deref()), ("link", None));
    assert!(link.certificate_renews_at.is_some_and(|at| info.server_time < at && at < link.certificate_expires_at), "{link:?}");
    let metrics = common::plain_http().get(format!("{}/metrics", server.url())).bearer_auth(&server.admin_token);
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    let left = metrics.lines().find_map(|line| line.strip_prefix("gpuaas_listener_certificate_seconds_left{listener=\"link\"} "));
    assert!(left.is_some_and(|left| left.parse::<i64>().unwrap() > 3600), "{metrics}");
    assert!(metrics.contains("gpuaas_listener_certificate_renewal_failing{listener=\"link\"} 0"), "{metrics}");
}

#[tokio::test]
async fn the_second_door_waits_for_an_operator() {
    let server = TestServer::sqlite().await;
    let ask = async |host: &Host| -> EnrollPending {
        let body = EnrollRequest { email: "ops@example.org".to_owned(), applicant: host.applicant() };
        host.anonymous().post(host.url(route::ENROLL_REQUEST)).json(&body).send().await.unwrap().json().await.unwrap()
    };
    let poll = async |host: &Host, pending: &EnrollPending, secret: &str| {
        let url = host.url(&route::ENROLL_POLL.replace("{enrollment}", &pending.enrollment_id.to_string()));
        host.anonymous().get(url).header(link::ENROLL_SECRET_HEADER, secret).send().await.unwrap()
    };
    let mut host = Host::new(&server);
    let pending = ask(&host).await;
    let status: EnrollStatus = poll(&host, &pending, &pending.poll_secret).await.json().await.unwrap();
    assert!(matches!(status, EnrollStatus::Pending));
    assert_eq!(code(poll(&host, &pending, "guess").await).await, "enrollment_unknown");
    server.client().enrollment_approve(&pending.enrollment_id.to_string(), &EnrollmentApprove::default()).await.unwrap();
    for _ in 0..2 {
        let status: EnrollStatus = poll(&host, &pending, &pending.poll_secret).await.json().await.unwrap();
        let EnrollStatus::Approved { grant } = status else { panic!("not approved: {status:?}") };
        assert!(
            host.grant.as_ref().is_none_or(|before| before.node_id == grant.node_id && before.node_epoch == grant.node_epoch)
        );
        host.grant = Some(*grant);
    }
    host.connect(&[]).await;

    let unwanted = Host::new(&server);
    let pending = ask(&unwanted).await;
    let reason = Reason { reason: "unknown machine".to_owned() };
    server.client().enrollment_reject(&pending.enrollment_id.to_string(), &reason).await.unwrap();
    let status: EnrollStatus = poll(&unwanted, &pending, &pending.poll_secret).await.json().await.unwrap();
    assert!(matches!(status, EnrollStatus::Rejected { reason } if reason == "unknown machine"));
    let body = EnrollRequest { email: "nobody".to_owned(), applicant: unwanted.applicant() };
    let refused = unwanted.anonymous().post(unwanted.url(route::ENROLL_REQUEST)).json(&body).send().await.unwrap();
    assert_eq!(code(refused).await, "email_invalid");
}

#[tokio::test]
async fn enrolling_the_same_machine_again_is_the_next_epoch_of_the_same_node() {
    let server = TestServer::sqlite().await;
    let old = Host::enrolled(&server).await;
    let mut old_link = old.connect(&[]).await;
    let task = server.client().task_create(&ping(&old), None).await.unwrap();
    old_link.offer().await;

    let mut new = Host::new(&server);
    new.fingerprint = old.fingerprint.clone();
    let token = replacing(&server, &old).await;
    new.grant = Some(new.enroll(&token).await.json().await.unwrap());
    assert_eq!((new.node_id(), new.grant().node_epoch), (old.node_id(), 2));
    // The open stream of the old certificate ends, and it cannot open another; its tasks are given up.
    let goodbye = old_link.goodbye().await;
    assert!(["epoch_retired", "certificate_revoked"].contains(&goodbye.as_str()), "{goodbye}");
    let refused = old.try_connect(old.hello(&[])).await.map(|_| ()).unwrap_err();
    assert!(refused.message().contains("certificate_revoked"), "{refused}");
    assert_eq!(server.client().task(&task.id.to_string()).await.unwrap().state.as_str(), "lost");
    new.connect(&[]).await;
}

fn ping(host: &Host) -> gpuaas_api::dto::TaskCreate {
    gpuaas_api::dto::TaskCreate {
        node: host.node_id().to_string(),
        task_type: "diag.ping".to_owned(),
        params: serde_json::json!({}),
        queue_seconds: None,
        timeout_seconds: None,
    }
}

#[tokio::test]
async fn a_certificate_is_renewed_for_the_same_key_only() {
    let server = TestServer::sqlite().await;
    let mut host = Host::enrolled(&server).await;
    let url = host.own_url(route::RENEW, "");
    let renewed = host.https().post(&url).json(&Renew { csr_pem: host.csr() }).send().await.unwrap();
    let renewed: Renewed = renewed.json().await.unwrap();
    let other_key = rcgen::KeyPair::generate().unwrap();
    let other = rcgen::CertificateParams::default().serialize_request(&other_key).unwrap().pem().unwrap();
    let refused = host.https().post(&url).json(&Renew { csr_pem: other }).send().await.unwrap();
    assert_eq!(code(refused).await, "tls_key_changed");
    let refused = host.https().post(&url).json(&Renew { csr_pem: "nonsense".to_owned() }).send().await.unwrap();
    assert_eq!(code(refused).await, "csr_invalid");
    host.grant.as_mut().unwrap().certificate_pem = renewed.certificate_pem;
    host.connect(&[]).await;
}

#[tokio::test]
async fn an_expired_node_rejoins_with_both_keys_and_a_fresh_challenge_a_counted_number_of_times() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    let challenge = async || -> String {
        let body = RejoinChallengeRequest { node_id: host.node_id() };
        let answer = host.anonymous().post(host.url(route::REJOIN_CHALLENGE)).json(&body).send().await.unwrap();
        answer.json::<RejoinChallenge>().await.unwrap().challenge
    };
    let rejoin = async |proof: &RejoinProof, key: &gpuaas_contract::key::SigningKey| {
        let proof = dsse::seal(link::REJOIN_PAYLOAD_TYPE, serde_json::to_vec(proof).unwrap(), key);
        let body = Rejoin { node_id: host.node_id(), proof };
        host.anonymous().post(host.url(route::REJOIN)).json(&body).send().await.unwrap()
    };
    let proof = RejoinProof {
        cluster_id: host.cluster_id(),
        node_id: host.node_id(),
        node_epoch: 1,
        challenge: challenge().await,
        csr_pem: host.csr(),
    };
    let stranger = gpuaas_contract::key::SigningKey::from_seed(&[5; 32]);
    assert_eq!(code(rejoin(&proof, &stranger).await).await, "rejoin_refused");
    let stale = RejoinProof { challenge: "1.AAAA".to_owned(), ..proof.clone() };
    assert_eq!(code(rejoin(&stale, &host.receipt_key).await).await, "challenge_invalid");
    let old_epoch = RejoinProof { node_epoch: 0, ..proof.clone() };
    assert_eq!(code(rejoin(&old_epoch, &host.receipt_key).await).await, "rejoin_refused");
    for _ in 0..gpuaas_domain::node::MAX_REJOINS {
        let answer = rejoin(&RejoinProof { challenge: challenge().await, ..proof.clone() }, &host.receipt_key).await;
        assert_eq!(answer.status(), 200);
    }
    let once_more = RejoinProof { challenge: challenge().await, ..proof };
    assert_eq!(code(rejoin(&once_more, &host.receipt_key).await).await, "rejoins_used_up");
}

#[tokio::test]
async fn revocation_closes_an_open_stream_and_every_door() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    let mut link = host.connect(&[]).await;
    server.client().node_retire(&host.node_id().to_string(), &NodeRetire::default()).await.unwrap();
    let reported = tokio::time::timeout(std::time::Duration::from_secs(5), link.goodbye()).await.expect("closed within 5 s");
    assert!(["node_retired", "certificate_revoked"].contains(&reported.as_str()), "{reported}");
    let refused = host.https().post(host.own_url(route::RENEW, "")).json(&Renew { csr_pem: host.csr() }).send().await.unwrap();
    let refused = code(refused).await;
    assert!(["node_retired", "certificate_revoked"].contains(&refused.as_str()), "{refused}");
    match host.try_connect(host.hello(&[])).await {
        Ok(mut link) => assert_eq!(link.goodbye().await, "node_retired"),
        Err(status) => assert!(status.message().contains("certificate_revoked"), "{status}"),
    }
}

#[tokio::test]
async fn a_node_is_offline_the_moment_its_stream_drops_and_a_late_close_does_not_take_the_next_one_down() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    let online = async |wanted: bool| {
        eventually_async(PATIENCE, &format!("online is {wanted}"), || async {
            let node = server.client().node(&host.node_id().to_string()).await.unwrap();
            (node.online == wanted).then_some(node)
        })
        .await
    };
    let first = host.connect(&[]).await;
    let session = online(true).await.session.unwrap().id;
    drop(first);
    online(false).await;
    // Two links of the same process: the newer one wins, and the end of the older one changes nothing.
    let mut older = host.connect(&[]).await;
    let newer = host.connect(&[]).await;
    assert_eq!(older.goodbye().await, "session_replaced");
    drop(older);
    let node = online(true).await;
    assert_eq!(node.session.as_ref().unwrap().id.to_string(), newer.welcome.session_id);
    assert_ne!(node.session.unwrap().id, session);
    let audit = server.client().audit(&Default::default()).await.unwrap();
    let offline = audit.items.iter().filter(|row| row.action == "node.disconnect").count();
    assert_eq!(offline, 1, "the fenced session must not write an offline row");
}

#[tokio::test]
async fn a_second_live_copy_of_an_identity_locks_the_node() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    let mut link = host.connect(&[]).await;
    let original = tokio::spawn(async move {
        loop {
            match link.next().await {
                Some(to_node::Message::Ping(ping)) => {
                    let _ = link.say.send(from_node::Message::Pong(Pong { nonce: ping.nonce }).into()).await;
                }
                Some(to_node::Message::Goodbye(goodbye)) => return goodbye.code,
                Some(_) => {}
                None => return "stream ended".to_owned(),
            }
        }
    });
    // The thief has the files, but is another process.
    let mut copy = host.stolen();
    copy.instance = AgentInstanceId::generate();
    let mut thief = copy.try_connect(copy.hello(&[])).await.unwrap();
    assert_eq!(thief.goodbye().await, "node_locked");
    let reported = original.await.unwrap();
    assert!(["node_locked", "certificate_revoked"].contains(&reported.as_str()), "{reported}");
    let node = server.client().node(&host.node_id().to_string()).await.unwrap();
    assert_eq!(node.service.as_str(), "locked");
    // A machine that enrolls again is trusted again, with new keys.
    let mut fresh = Host::new(&server);
    fresh.fingerprint = host.fingerprint.clone();
    let token = replacing(&server, &host).await;
    fresh.grant = Some(fresh.enroll(&token).await.json().await.unwrap());
    fresh.connect(&[]).await;
}

#[tokio::test]
async fn a_restarted_agent_replaces_its_dead_link() {
    let server = TestServer::sqlite().await;
    let mut host = Host::enrolled(&server).await;
    let dead = host.connect(&[]).await;
    // The old process is gone with its proof; its connection still looks open to the server.
    host = host.stolen();
    host.instance = AgentInstanceId::generate();
    host.connect(&[]).await;
    drop(dead);
    assert_eq!(server.client().node(&host.node_id().to_string()).await.unwrap().service.as_str(), "in_service");
}

#[tokio::test]
async fn rotated_keys_reach_connected_nodes_before_envelopes_signed_with_them() {
    let server = TestServer::sqlite().await;
    let mut host = Host::enrolled(&server).await;
    let mut link = host.connect(&[]).await;
    let states = |keys: gpuaas_api::dto::Page<gpuaas_api::dto::SigningKey>| -> Vec<String> {
        keys.items.into_iter().map(|key| key.state.to_string()).collect()
    };
    assert_eq!(states(server.client().signing_keys_stage().await.unwrap()), ["active", "staged"]);
    assert_eq!(states(server.client().signing_keys_rotate().await.unwrap()), ["grace", "active"]);
    let set = loop {
        match link.next().await {
            Some(to_node::Message::VerifierSet(set)) if set.version == 3 => break set,
            Some(_) => {}
            None => panic!("the stream ended"),
        }
    };
    server.client().task_create(&ping(&host), None).await.unwrap();
    let offer = link.offer().await;
    host.grant.as_mut().unwrap().verifier_set = set.document;
    host.verify(&offer.envelope);
}

#[tokio::test]
async fn swapped_keys_in_the_database_do_not_open_a_link() {
    let server = TestServer::sqlite().await;
    let (honest, thief) = (Host::enrolled(&server).await, Host::enrolled(&server).await);
    let path = format!("sqlite:{}", server.dir.join("test.db").display());
    let pool = sqlx::SqlitePool::connect(&path).await.unwrap();
    let swap = "UPDATE nodes SET receipt_key = (SELECT receipt_key FROM nodes WHERE id = $1) WHERE id = $2";
    let done =
        sqlx::query(swap).bind(thief.node_id().to_string()).bind(honest.node_id().to_string()).execute(&pool).await.unwrap();
    assert_eq!(done.rows_affected(), 1);
    pool.close().await;
    let mut link = honest.try_connect(honest.hello(&[])).await.unwrap();
    assert_eq!(link.goodbye().await, "node_record_forged");
}

#[tokio::test]
async fn a_receipt_of_an_earlier_epoch_can_still_be_checked_from_the_root_key_alone() {
    let server = TestServer::sqlite().await;
    let old = Host::enrolled(&server).await;
    let mut link = old.connect(&[]).await;
    let task = server.client().task_create(&ping(&old), None).await.unwrap();
    let verified = old.verify(&link.offer().await.envelope);
    assert_eq!(link.receipt(task.id, old.receipt_payload(&verified, 1, None).sign(&old.receipt_key).receipt).await, "");
    let mut new = Host::new(&server);
    new.fingerprint = old.fingerprint.clone();
    let token = replacing(&server, &old).await;
    assert_eq!(new.enroll(&token).await.status(), 200);

    let evidence = server.client().task_evidence(&task.id.to_string()).await.unwrap();
    assert_eq!(evidence.receipt_key, old.receipt_key.verifying_key());
    let record = evidence.node_record.expect("the record of that enrollment");
    let payload = dsse::open(&record, 64 * 1024, "application/vnd.gpuaas.node-record.v1+json", &evidence.root_key)
        .expect("signed by the root");
    let payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(payload["receipt_key"], serde_json::to_value(&evidence.receipt_key).unwrap());
    assert_eq!(payload["node_epoch"], 1);
}

#[tokio::test]
async fn a_server_without_the_keys_of_its_database_does_not_start() {
    let mut server = TestServer::sqlite().await;
    server.server.take().unwrap().stop().await;
    let keys = server.dir.join("keys");
    std::fs::rename(&keys, server.dir.join("elsewhere")).unwrap();
    let refused =
        gpuaas_control::start(TestServer::config(&server.dir, None)).await.err().expect("no new keys for an old database");
    assert!(matches!(refused, gpuaas_control::StartError::KeysMissing(_)), "{refused}");
    assert!(!gpuaas_control::pki::KeyRing::exists(&keys), "nothing was made");
    std::fs::remove_dir_all(&keys).ok();
    std::fs::rename(server.dir.join("elsewhere"), &keys).unwrap();
    let again = gpuaas_control::start(TestServer::config(&server.dir, None)).await.expect("starts with its keys");
    again.stop().await;
}
