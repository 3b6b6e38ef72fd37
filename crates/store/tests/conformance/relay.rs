//! Relaying the outbox: published events are marked, in order, and no others are.

use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Arc;

use gpuaas_contract::event::{Event, ProjectDeleted};
use gpuaas_contract::id::{EventId, ProjectId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, PlatformRole};
use gpuaas_domain::decision::Context;
use gpuaas_domain::{Change, OutboxEvent, Wakeup};
use gpuaas_store::{MAX_WAITING, OUTBOX_LANES, OutboxRow, RelayResult, Store, StoreConfig};
use tokio::sync::{Mutex, oneshot};

use crate::all_at_once;
use crate::support::{Database, NOW, api_token, changes, context, event, later, recorded};

crate::on_both_engines! {
    every_event_is_handed_out_once_and_marked
    only_what_is_said_to_be_published_is_marked
    a_relay_that_ends_early_leaves_everything
    a_lane_has_one_relay_at_a_time
    several_lanes_are_relayed_together_but_for_those_that_others_have
    events_of_a_subject_go_out_in_order_while_others_commit
    what_waits_is_counted_and_its_age_is_known
    published_events_are_forgotten_a_thousand_at_a_time
    every_commit_with_events_wakes_the_relay_once
    events_are_read_by_subject_and_by_project
    what_was_there_before_lanes_and_service_accounts_is_carried_over
}

fn all(rows: &[OutboxRow]) -> Vec<EventId> {
    rows.iter().map(|row| row.id).collect()
}

/// Publishes all pending events and returns them by lane, in order.
async fn drain(store: &Store, limit: u32) -> HashMap<u32, Vec<OutboxRow>> {
    let mut lanes: HashMap<u32, Vec<OutboxRow>> = HashMap::new();
    for lane in 0..OUTBOX_LANES {
        loop {
            let seen = lanes.entry(lane).or_default();
            let result = store.outbox_relay(from_ref(&lane), limit, async |rows| {
                let ids = all(&rows);
                seen.extend(rows);
                ids
            });
            let result = result.await.expect("relays");
            assert_eq!(result.found, result.published);
            if result.found == 0 {
                break;
            }
        }
    }
    lanes
}

/// Opens the store as another process, on engines that allow several.
async fn another(database: &Database, store: &Store) -> Store {
    match &database.config {
        StoreConfig::Sqlite { .. } => store.clone(),
        StoreConfig::Postgres { .. } => database.open().await,
    }
}

/// Returns the lane that has events.
async fn busy_lane(store: &Store) -> u32 {
    store.outbox_lanes_waiting().await.expect("counts").first().expect("one has some").0
}

async fn every_event_is_handed_out_once_and_marked(database: &Database) {
    let store = database.open().await;
    assert!(store.outbox_lanes_waiting().await.expect("counts").is_empty());
    let decisions = (0..200).map(|n| recorded(&format!("subject {n} ü"), []));
    assert!(all_at_once(&store, decisions.collect()).await.iter().all(Result::is_ok));
    let lanes = drain(&store, 7).await;
    assert!(lanes.values().filter(|rows| !rows.is_empty()).count() > 8, "subjects are spread over the lanes");
    let mut seen: Vec<EventId> = lanes.values().flat_map(|rows| all(rows)).collect();
    let listed = store.outbox_list(0, 1000).await.expect("lists");
    assert!(store.outbox_lanes_waiting().await.expect("counts").is_empty());
    let mut listed = all(&listed);
    seen.sort();
    listed.sort();
    assert_eq!(seen, listed);
    for rows in lanes.values() {
        assert!(rows.is_sorted_by(|one, other| one.position < other.position));
    }
    // The same subject is always in the same lane.
    store.commit(recorded("subject 5 ü", [])).await.expect("commits");
    let lane = busy_lane(&store).await;
    assert!(lanes[&lane].iter().any(|row| row.subject == "subject 5 ü"));
    let unknown = store.outbox_relay(&[OUTBOX_LANES], 10, async |rows| all(&rows)).await.expect("relays");
    assert_eq!(unknown, RelayResult::default(), "a lane that there is not");
}

async fn only_what_is_said_to_be_published_is_marked(database: &Database) {
    let store = database.open().await;
    for _ in 0..5 {
        store.commit(recorded("one subject", [])).await.expect("commits");
    }
    store.commit(recorded("another subject, in another lane", [])).await.expect("commits");
    let rows = store.outbox_list(0, 10).await.expect("lists");
    let foreign = rows[5].id;
    let lane = {
        let lanes = store.outbox_lanes_waiting().await.expect("counts");
        lanes.iter().find(|(_, waiting)| *waiting == 5).expect("the subjects are in different lanes").0
    };
    // The publisher fails for all events.
    let result = store.outbox_relay(from_ref(&lane), 10, async |_| Vec::new()).await.expect("relays");
    assert_eq!(result, RelayResult { found: 5, published: 0 });
    // The publisher fails after two events. It confirms one twice, one that it was not given, and one that does not exist.
    let result = store.outbox_relay(from_ref(&lane), 4, async |rows| {
        assert_eq!(rows.len(), 4);
        vec![rows[0].id, rows[1].id, rows[0].id, foreign, EventId::generate()]
    });
    assert_eq!(result.await.expect("relays"), RelayResult { found: 4, published: 2 });
    let result = store.outbox_relay(from_ref(&lane), 10, async |left| {
        assert_eq!(all(&left), all(&rows[2..5]));
        all(&left)
    });
    assert_eq!(result.await.expect("relays"), RelayResult { found: 3, published: 3 });
}

async fn a_relay_that_ends_early_leaves_everything(database: &Database) {
    let store = database.open().await;
    store.commit(recorded("subject", [])).await.expect("commits");
    let lane = busy_lane(&store).await;
    let (begun, has_begun) = oneshot::channel();
    let relay = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .outbox_relay(from_ref(&lane), 10, async move |_| {
                    let _ = begun.send(());
                    std::future::pending().await
                })
                .await
        }
    });
    has_begun.await.expect("begins");
    relay.abort();
    assert!(relay.await.expect_err("aborted").is_cancelled());
    // The lane is free again: at once on SQLite, as soon as the connection is closed on PostgreSQL.
    let result = loop {
        let result = store.outbox_relay(from_ref(&lane), 10, async |rows| all(&rows)).await.expect("relays");
        if result.found > 0 {
            break result;
        }
    };
    assert_eq!(result, RelayResult { found: 1, published: 1 });
}

async fn several_lanes_are_relayed_together_but_for_those_that_others_have(database: &Database) {
    let store = database.open().await;
    let other = another(database, &store).await;
    for n in 0..200 {
        store.commit(recorded(&format!("subject {}", n % 100), [])).await.expect("commits");
    }
    let waiting = store.outbox_lanes_waiting().await.expect("counts");
    let lanes: Vec<u32> = (0..OUTBOX_LANES).collect();
    let taken = waiting[0];
    let outer = store.outbox_relay(from_ref(&taken.0), 1000, async |held| {
        let others = other.outbox_relay(&lanes, 3, async |rows| {
            assert!(rows.is_sorted_by(|one, other| one.position < other.position), "the oldest first");
            assert!(held.iter().all(|one| !rows.contains(one)), "somebody else has these");
            all(&rows)
        });
        let others = others.await.expect("relays");
        let most: usize = waiting[1..].iter().map(|(_, waiting)| usize::try_from(*waiting).expect("few").min(3)).sum();
        assert_eq!(others, RelayResult { found: most, published: most }, "so many of every lane");
        Vec::new()
    });
    assert_eq!(outer.await.expect("relays").published, 0);
    let mut of_subject: HashMap<String, i64> = HashMap::new();
    loop {
        let result = store.outbox_relay(&lanes, 3, async |rows| {
            for row in &rows {
                assert!(of_subject.insert(row.subject.clone(), row.position) < Some(row.position), "{} in order", row.subject);
            }
            all(&rows)
        });
        if result.await.expect("relays").found == 0 {
            break;
        }
    }
    assert!(store.outbox_lanes_waiting().await.expect("counts").is_empty());
}

async fn a_lane_has_one_relay_at_a_time(database: &Database) {
    let store = database.open().await;
    let other = another(database, &store).await;
    for n in 0..50 {
        store.commit(recorded(&format!("subject {n}"), [])).await.expect("commits");
    }
    let lane = busy_lane(&store).await;
    let first = store.outbox_relay(from_ref(&lane), 1000, async |rows| {
        let taken = other.outbox_relay(from_ref(&lane), 1000, async |_| panic!("the lane is taken")).await.expect("relays");
        assert_eq!(taken, RelayResult::default());
        // Other lanes are free, and commits work.
        let free = (0..OUTBOX_LANES).find(|free| *free != lane).expect("there are several");
        other.outbox_relay(from_ref(&free), 1000, async |rows| all(&rows)).await.expect("relays");
        other.commit(recorded("subject 0", [])).await.expect("commits");
        all(&rows)
    });
    assert!(first.await.expect("relays").published > 0);
    let again = other.outbox_relay(from_ref(&lane), 1000, async |rows| all(&rows)).await.expect("relays");
    assert!(again.found <= 1, "only what came since is left");
    // With any number of relays over the same lanes, each event is published once.
    for n in 0..200 {
        store.commit(recorded(&format!("subject {n}"), [])).await.expect("commits");
    }
    let waiting: u64 = store.outbox_lanes_waiting().await.expect("counts").iter().map(|(_, waiting)| waiting).sum();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut relays = Vec::new();
    for store in [&store, &other, &store, &other] {
        let (store, seen) = (store.clone(), Arc::clone(&seen));
        relays.push(tokio::spawn(async move {
            while let Some((lane, _)) = store.outbox_lanes_waiting().await.expect("counts").first().copied() {
                let result = store.outbox_relay(from_ref(&lane), 3, async |rows| {
                    seen.lock().await.extend(all(&rows));
                    tokio::task::yield_now().await;
                    all(&rows)
                });
                result.await.expect("relays");
            }
        }));
    }
    for relay in relays {
        relay.await.expect("lives");
    }
    let mut seen = seen.lock().await.clone();
    let handed_out = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), handed_out), (usize::try_from(waiting).expect("fits"), seen.len()));
}

async fn events_of_a_subject_go_out_in_order_while_others_commit(database: &Database) {
    const SUBJECTS: usize = 24;
    const EACH: usize = 15;
    let store = database.open().await;
    let mut stores = vec![store.clone()];
    if let StoreConfig::Postgres { .. } = &database.config {
        stores.push(database.open().await);
    }
    let seen: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let mut writers = Vec::new();
    for subject in 0..SUBJECTS {
        let stores = stores.clone();
        writers.push(tokio::spawn(async move {
            // One after the other, each by another process.
            for n in 0..EACH {
                let event = event(serde_json::json!({ "n": n }));
                let decision = changes([]).record(&context(), format!("subject {subject}"), event);
                stores[n % stores.len()].commit(decision).await.expect("commits");
            }
        }));
    }
    let mut relays = Vec::new();
    for store in stores.iter().chain(&stores) {
        let (store, seen) = (store.clone(), Arc::clone(&seen));
        relays.push(tokio::spawn(async move {
            while seen.lock().await.len() < SUBJECTS * EACH {
                for lane in 0..OUTBOX_LANES {
                    let result = store.outbox_relay(from_ref(&lane), 5, async |rows| {
                        for row in &rows {
                            let body: serde_json::Value = serde_json::from_str(&row.body).expect("JSON");
                            seen.lock()
                                .await
                                .push((row.subject.clone(), body["data"]["params"]["n"].as_u64().expect("a number")));
                            tokio::task::yield_now().await;
                        }
                        all(&rows)
                    });
                    result.await.expect("relays");
                }
            }
        }));
    }
    for task in writers.into_iter().chain(relays) {
        task.await.expect("lives");
    }
    let mut by_subject: HashMap<String, Vec<u64>> = HashMap::new();
    for (subject, n) in seen.lock().await.iter() {
        by_subject.entry(subject.clone()).or_default().push(*n);
    }
    assert_eq!(by_subject.len(), SUBJECTS);
    let expected: Vec<u64> = (0..u64::try_from(EACH).expect("fits")).collect();
    for (subject, numbers) in by_subject {
        assert_eq!(numbers, expected, "{subject}");
    }
}

async fn what_waits_is_counted_and_its_age_is_known(database: &Database) {
    let store = database.open().await;
    assert_eq!(store.outbox_lag().await.expect("reads"), None);
    let at = |subject: &str, now| {
        let context = Context { now, ..context() };
        changes([]).record(&context, subject, event(serde_json::json!({})))
    };
    store.commit(at("first", later(50))).await.expect("commits");
    let lane = busy_lane(&store).await;
    for n in 0..20 {
        store.commit(at(&format!("subject {n}"), later(60 + n))).await.expect("commits");
    }
    assert_eq!(store.outbox_lag().await.expect("reads"), Some(later(50)));
    let waiting = store.outbox_lanes_waiting().await.expect("counts");
    assert_eq!(waiting.iter().map(|(_, waiting)| waiting).sum::<u64>(), 21);
    assert!(waiting.is_sorted() && waiting.iter().all(|(lane, waiting)| *lane < OUTBOX_LANES && *waiting > 0));
    let first = store.outbox_relay(from_ref(&lane), 1, async |rows| all(&rows)).await.expect("relays");
    assert_eq!(first, RelayResult { found: 1, published: 1 });
    let lag = store.outbox_lag().await.expect("reads").expect("others wait");
    assert!(lag >= later(60));
    // Many events of one decision, all in one lane.
    let mut many = recorded("first", []);
    let event = many.events[0].clone();
    many.events.extend((0..MAX_WAITING).map(|_| OutboxEvent { id: EventId::generate(), ..event.clone() }));
    store.commit(many).await.expect("commits");
    let waiting = store.outbox_lanes_waiting().await.expect("counts");
    assert_eq!(waiting.iter().map(|(_, waiting)| *waiting).max(), Some(MAX_WAITING), "counted up to a limit");
    drain(&store, 1000).await;
    assert!(store.outbox_lanes_waiting().await.expect("counts").is_empty());
    assert_eq!(store.outbox_lag().await.expect("reads"), None);
}

async fn published_events_are_forgotten_a_thousand_at_a_time(database: &Database) {
    let store = database.open().await;
    let mut many = recorded("subject", []);
    let event = many.events[0].clone();
    many.events.extend((1..1500).map(|_| OutboxEvent { id: EventId::generate(), ..event.clone() }));
    store.commit(many).await.expect("commits");
    let forever = Timestamp(i64::MAX);
    assert_eq!(store.outbox_forget(forever).await.expect("forgets"), 0, "nothing was published");
    drain(&store, 1000).await;
    store.commit(recorded("unpublished", [])).await.expect("commits");
    assert_eq!(store.outbox_forget(Timestamp(0)).await.expect("forgets"), 0, "nothing is that old");
    assert_eq!(store.outbox_forget(forever).await.expect("forgets"), 1000);
    assert_eq!(store.outbox_forget(forever).await.expect("forgets"), 500);
    assert_eq!(store.outbox_forget(forever).await.expect("forgets"), 0);
    let left = store.outbox_list(0, 10).await.expect("lists");
    assert_eq!(left.iter().map(|row| row.subject.as_str()).collect::<Vec<_>>(), ["unpublished"]);
    assert!(left[0].position > 1500, "positions are never used again");
    store.commit(recorded("later", [])).await.expect("commits");
    drain(&store, 10).await;
    while store.outbox_forget(forever).await.expect("forgets") > 0 {}
    store.commit(recorded("last", [])).await.expect("commits");
    let last = store.outbox_list(left[0].position, 10).await.expect("lists");
    assert_eq!(last.iter().map(|row| row.subject.as_str()).collect::<Vec<_>>(), ["last"], "not even when the outbox is empty");
    assert_eq!(store.audit_head().await.expect("reads").seq, 4, "forgetting leaves no audit row");
}

async fn every_commit_with_events_wakes_the_relay_once(database: &Database) {
    let store = database.open().await;
    let mut wakeups = store.wakeups();
    let mut two = recorded("subject", []).and(recorded("other", []));
    two = two.wakeup(Wakeup::Rights);
    store.commit(two).await.expect("commits");
    assert_eq!(wakeups.recv().await, Ok(Wakeup::Rights));
    assert_eq!(wakeups.recv().await, Ok(Wakeup::Outbox));
    store.commit(changes([Change::ResourcesForget { before: NOW }])).await.expect("commits");
    assert!(wakeups.is_empty(), "without an event nobody is woken");
}

async fn events_are_read_by_subject_and_by_project(database: &Database) {
    let store = database.open().await;
    assert_eq!(store.outbox_end().await.expect("reads"), 0);
    let (one, other) = (ProjectId::generate(), ProjectId::generate());
    for n in 0..12 {
        let of_project = |project_id| Event::ProjectDeleted(ProjectDeleted { project_id, name: "p".to_owned() });
        let event = match n % 3 {
            0 => of_project(one),
            1 => of_project(other),
            _ => event(serde_json::json!({ "project_id": one })),
        };
        let subject = if n % 2 == 0 { "even" } else { "odd" };
        let decision = changes([]).record(&context(), subject, event);
        store.commit(decision).await.expect("commits");
    }
    let rows = store.outbox_list(0, 100).await.expect("lists");
    assert_eq!(store.outbox_end().await.expect("reads"), rows[11].position);
    let at = |places: &[usize]| places.iter().map(|place| rows[*place].clone()).collect::<Vec<_>>();
    assert_eq!(store.outbox_of_subject("even", 0, 100).await.expect("reads"), at(&[0, 2, 4, 6, 8, 10]));
    assert_eq!(store.outbox_of_subject("even", rows[4].position, 2).await.expect("reads"), at(&[6, 8]));
    assert!(store.outbox_of_subject("neither", 0, 100).await.expect("reads").is_empty());
    assert_eq!(store.outbox_of_project(one, 0, 100).await.expect("reads"), at(&[0, 3, 6, 9]));
    assert_eq!(store.outbox_of_project(other, rows[1].position, 2).await.expect("reads"), at(&[4, 7]));
    assert!(store.outbox_of_project(ProjectId::generate(), 0, 100).await.expect("reads").is_empty());
}

async fn what_was_there_before_lanes_and_service_accounts_is_carried_over(database: &Database) {
    const SUBJECTS: [&str; 6] =
        ["", "a", "task_0192f0c1-7d3e-7000-8000-000000000001", "ü🎉", "\u{7f}\u{ff}", "node:rack 1 / \"x\" '"];
    let store = database.open().await;
    for subject in SUBJECTS {
        store.commit(recorded(subject, [])).await.expect("commits");
    }
    let token = ApiToken { parent: None, created_by: None, ..api_token() };
    store.commit(changes([Change::ApiTokenInsert(token.clone())])).await.expect("commits");
    store.close().await;
    // Back to the previous schema of events.
    let undo = [
        "ALTER TABLE join_tokens DROP COLUMN uses",
        "ALTER TABLE join_tokens DROP COLUMN joined",
        "DROP INDEX api_tokens_of_maker",
        "ALTER TABLE api_tokens DROP COLUMN created_by",
        "ALTER TABLE join_tokens DROP COLUMN replace_node",
        "ALTER TABLE enrollments DROP COLUMN replace_node",
        "DROP TABLE outbox_waiting",
        "ALTER TABLE outbox ADD COLUMN published_at INTEGER",
        "UPDATE outbox SET published_at = 5 WHERE subject = 'a'",
        "DROP INDEX outbox_of_project",
        "DROP INDEX outbox_of_subject",
        "ALTER TABLE outbox DROP COLUMN project",
        "ALTER TABLE outbox RENAME COLUMN lane TO wanted",
        "DROP TABLE outbox_lanes",
        "DROP TABLE resources",
        "DROP INDEX api_tokens_of_service_account",
        "DROP INDEX api_tokens_of_project",
        "ALTER TABLE api_tokens DROP COLUMN service_account",
        "ALTER TABLE api_tokens DROP COLUMN project",
        "ALTER TABLE api_tokens DROP COLUMN scopes",
        "ALTER TABLE api_tokens DROP COLUMN expires_at",
        "ALTER TABLE api_tokens DROP COLUMN parent",
        "ALTER TABLE enrollments DROP COLUMN address",
        "UPDATE api_tokens SET role = 'viewer'",
        "DELETE FROM schema_version WHERE version >= 4",
    ];
    let redone = "SELECT COUNT(*) AS wrong FROM outbox WHERE lane <> wanted OR lane NOT BETWEEN 0 AND 15";
    let spread = "SELECT COUNT(DISTINCT lane) AS lanes FROM outbox";
    let (wrong, lanes): (i64, i64) = match &database.config {
        StoreConfig::Sqlite { path } => {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let pool = sqlx::SqlitePool::connect_with(options).await.expect("opens");
            for sql in undo {
                sqlx::query(sql).execute(&pool).await.expect(sql);
            }
            database.open().await.close().await;
            let read = (sqlx::query_scalar(redone).fetch_one(&pool).await, sqlx::query_scalar(spread).fetch_one(&pool).await);
            pool.close().await;
            (read.0.expect("reads"), read.1.expect("reads"))
        }
        StoreConfig::Postgres { url, .. } => {
            let pool = sqlx::PgPool::connect(url).await.expect("opens");
            let drop_row_types = "DO $$ DECLARE name text; BEGIN \
                 FOR name IN SELECT typname FROM pg_type WHERE typtype = 'c' AND typname ~ '_row(_[0-9]+)?$' LOOP \
                 EXECUTE 'DROP TYPE ' || name; END LOOP; END $$";
            sqlx::query(drop_row_types).execute(&pool).await.expect("drops the types");
            for sql in undo {
                sqlx::query(sql).execute(&pool).await.expect(sql);
            }
            database.open().await.close().await;
            let read = (sqlx::query_scalar(redone).fetch_one(&pool).await, sqlx::query_scalar(spread).fetch_one(&pool).await);
            pool.close().await;
            (read.0.expect("reads"), read.1.expect("reads"))
        }
    };
    assert_eq!(wrong, 0);
    assert!(lanes > 1, "the subjects are in different lanes");
    let store = database.open().await;
    assert_eq!(store.outbox_list(0, 10).await.expect("lists").len(), SUBJECTS.len());
    let waiting = store.outbox_lanes_waiting().await.expect("counts").into_iter().map(|(_, waiting)| waiting).sum::<u64>();
    assert_eq!(usize::try_from(waiting), Ok(SUBJECTS.len() - 1), "what was published is not published again");
    let carried_over = store.api_token_get(token.id).await.expect("reads");
    assert_eq!((token.role, carried_over), (Some(PlatformRole::Support), Some(token)), "who looked may look");
}
