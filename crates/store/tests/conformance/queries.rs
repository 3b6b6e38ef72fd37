//! Queries find what they should, and nothing else.

use std::collections::HashSet;

use gpuaas_contract::id::{ServerId, SessionId, TaskId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Change;
use gpuaas_domain::audit_chain::Head;
use gpuaas_domain::node::{LinkTransport, LiveSession, Node, NodeService};
use gpuaas_domain::task::{TaskRecord, TaskState};
use gpuaas_store::{NodeFilter, TaskFilter};

use crate::all_at_once;
use crate::support::{Database, NOW, changes, context, later, node, stored_node, task};

crate::on_both_engines! {
    queries_for_work_find_exactly_the_work
    due_tasks_are_those_that_tick_changes
    nodes_of_dead_servers_are_found
    lists_page_and_filter
    counts_follow_every_change
}

async fn queries_for_work_find_exactly_the_work(database: &Database) {
    let store = database.open().await;
    let (busy, idle) = (stored_node(&store).await, stored_node(&store).await);
    let mut all = Vec::new();
    for state in TaskState::ALL {
        for dispatches in [0, 2] {
            for cancel_requested_at in [None, Some(NOW)] {
                let ended_at = state.ended().then_some(NOW);
                let made = TaskRecord { state, dispatches, cancel_requested_at, ended_at, ..task(&busy) };
                // Combinations that the domain never creates are left out.
                let possible = dispatches > 0 || state == TaskState::Queued && cancel_requested_at.is_none() || state.ended();
                if possible {
                    store.commit(changes([Change::TaskInsert(Box::new(made.clone()))])).await.expect("commits");
                    all.push(made);
                }
            }
        }
    }
    let wanted =
        |wanted: &dyn Fn(&TaskRecord) -> bool| all.iter().filter(|task| wanted(task)).map(|task| task.id).collect::<Vec<_>>();
    let ids = |found: Vec<TaskRecord>| found.iter().map(|task| task.id).collect::<Vec<_>>();
    let queued = wanted(&|task| task.state == TaskState::Queued && task.cancel_requested_at.is_none());
    assert_eq!(queued.len(), 2);
    assert_eq!(ids(store.task_queued(busy.id, 100).await.expect("reads")), queued);
    assert_eq!(ids(store.task_queued(busy.id, 1).await.expect("reads")), queued[..1]);
    let outstanding = wanted(&|task| {
        task.state.in_hand() || task.state == TaskState::Dispatched || (task.state == TaskState::Queued && task.dispatches > 0)
    });
    assert_eq!(ids(store.task_outstanding(busy.id).await.expect("reads")), outstanding);
    let cancelling = wanted(&|task| !task.state.ended() && task.cancel_requested_at.is_some() && task.dispatches > 0);
    assert_eq!(cancelling.len(), 4);
    assert_eq!(ids(store.task_cancellations(busy.id).await.expect("reads")), cancelling);
    let open = wanted(&|task| !task.state.ended());
    assert_eq!(ids(store.task_open(busy.id).await.expect("reads")), open);
    assert_eq!(store.task_unfinished_count(busy.id).await.expect("counts"), u64::try_from(open.len()).expect("fits"));
    assert_eq!(store.nodes_with_queued_tasks().await.expect("reads"), [busy.id]);
    assert_eq!(store.gone_nodes_with_open_tasks().await.expect("reads"), []);
    for (node, service) in [(&busy, NodeService::Locked), (&idle, NodeService::Retired)] {
        let gone = Node { service, ..node.clone() };
        store.commit(changes([Change::NodeUpdate(Box::new(gone))])).await.expect("commits");
    }
    assert_eq!(store.gone_nodes_with_open_tasks().await.expect("reads"), [busy.id]);
    assert_eq!(store.task_unfinished_count(idle.id).await.expect("counts"), 0);
    let count = u64::try_from(open.len()).expect("fits");
    assert_eq!(store.task_unfinished_below(busy.id, count).await.expect("counts"), Err(count));
    assert_eq!(store.task_unfinished_below(busy.id, count + 1).await.expect("counts"), Ok(()));
    // Every call counts as a task. Before the answer is no, tasks are counted, and there are none.
    for _ in 0..200 {
        assert_eq!(store.task_unfinished_below(busy.id, count + 1).await.expect("counts"), Ok(()));
    }
    assert!(store.task_queued(idle.id, 10).await.expect("reads").is_empty());
}

async fn due_tasks_are_those_that_tick_changes(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let mut all = Vec::new();
    for state in [TaskState::Queued, TaskState::Dispatched, TaskState::Accepted, TaskState::Started, TaskState::Expired] {
        for queue_until in [later(10), later(1000)] {
            for lease_until in [None, Some(later(20)), Some(later(500))] {
                for envelope_start_by in [None, Some(later(15)), Some(later(700))] {
                    for cancel_requested_at in [None, Some(later(1))] {
                        all.push(TaskRecord {
                            state,
                            queue_until,
                            lease_until,
                            envelope_start_by,
                            cancel_requested_at,
                            ..task(&node)
                        });
                    }
                }
            }
        }
    }
    store.commit(changes(all.iter().cloned().map(Box::new).map(Change::TaskInsert))).await.expect("commits");
    for seconds in [0, 10, 11, 20, 21, 135, 136, 500, 501, 819, 820, 821, 1000, 1001, 2000] {
        let context = gpuaas_domain::decision::Context { now: later(seconds), ..context() };
        let ticking = all.iter().filter(|task| !gpuaas_domain::task::tick(task, &context).is_empty()).map(|task| task.id);
        let due = store.task_due(context.now, 1000).await.expect("reads");
        assert_eq!(due.iter().map(|task| task.id).collect::<HashSet<_>>(), ticking.collect(), "at {seconds} s");
    }
    assert_eq!(store.task_due(later(2000), 3).await.expect("reads").len(), 3);
}

async fn nodes_of_dead_servers_are_found(database: &Database) {
    let store = database.open().await;
    let server = ServerId::generate();
    let on = |server| {
        let session = LiveSession {
            server,
            id: SessionId::generate(),
            transport: LinkTransport::Stream,
            ..node().session.expect("has one")
        };
        Node { session: Some(session), ..node() }
    };
    let (alive, orphan, offline) = (on(server), on(ServerId::generate()), Node { session: None, ..node() });
    let inserts = [&alive, &orphan, &offline].map(|node| Change::NodeInsert(Box::new(node.clone())));
    store.commit(changes(inserts)).await.expect("commits");
    let seen = |at| changes([Change::ServerSeen { server, at }]);
    store.commit(seen(later(10))).await.expect("commits");
    let dead = async |at: Timestamp| {
        let nodes = store.nodes_of_dead_servers(at).await.expect("reads");
        nodes.iter().map(|node| node.id).collect::<Vec<_>>()
    };
    assert_eq!(dead(later(10)).await, [orphan.id]);
    assert_eq!(dead(later(11)).await, [alive.id, orphan.id]);
    // A late message does not count, and several at once are one row.
    let results = all_at_once(&store, (0..20).map(|n| seen(later(n * 2))).collect()).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(dead(later(38)).await, [orphan.id]);
    assert_eq!(dead(later(39)).await, [alive.id, orphan.id]);
    assert_eq!(store.audit_head().await.expect("reads"), Head::genesis(), "presence leaves no audit row");
}

async fn lists_page_and_filter(database: &Database) {
    let store = database.open().await;
    let online = stored_node(&store).await;
    let offline = Node { session: None, service: NodeService::Draining, ..node() };
    store.commit(changes([Change::NodeInsert(Box::new(offline.clone()))])).await.expect("commits");
    let list = async |service, online, after| {
        let nodes = store.node_list(&NodeFilter { service, online }, after, 10).await.expect("lists");
        nodes.iter().map(|node| node.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None, None).await, [online.id, offline.id]);
    assert_eq!(list(None, None, Some(online.id)).await, [offline.id]);
    assert_eq!(list(Some(NodeService::Draining), None, None).await, [offline.id]);
    assert_eq!(list(None, Some(true), None).await, [online.id]);
    assert_eq!(list(Some(NodeService::Draining), Some(true), None).await, []);
    assert_eq!(list(None, Some(false), None).await, [offline.id]);

    let mut tasks = Vec::new();
    for n in 0..30 {
        let owner = if n % 2 == 0 { &online } else { &offline };
        let state = TaskState::ALL[n % TaskState::ALL.len()];
        let made = TaskRecord { state, ended_at: state.ended().then_some(NOW), ..task(owner) };
        store.commit(changes([Change::TaskInsert(Box::new(made.clone()))])).await.expect("commits");
        tasks.push(made);
    }
    tasks.reverse();
    let check = async |filter: TaskFilter, wanted: &dyn Fn(&TaskRecord) -> bool| {
        let wanted: Vec<TaskId> = tasks.iter().filter(|task| wanted(task)).map(|task| task.id).collect();
        assert!(!wanted.is_empty(), "{filter:?}");
        let mut found: Vec<TaskId> = Vec::new();
        loop {
            let page = store.task_list(&filter, found.last().copied(), 4).await.expect("lists");
            assert!(page.len() <= 4);
            if page.is_empty() {
                break;
            }
            found.extend(page.iter().map(|task| task.id));
        }
        assert_eq!(found, wanted, "{filter:?}");
    };
    check(TaskFilter::default(), &|_| true).await;
    check(TaskFilter { node: Some(online.id), ..TaskFilter::default() }, &|task| task.node_id == online.id).await;
    check(TaskFilter { open_only: true, ..TaskFilter::default() }, &|task| !task.state.ended()).await;
    let both = TaskFilter { node: Some(online.id), open_only: true, ..TaskFilter::default() };
    check(both, &|task| task.node_id == online.id && !task.state.ended()).await;
    for state in TaskState::ALL {
        check(TaskFilter { state: Some(state), ..TaskFilter::default() }, &|task| task.state == state).await;
    }
    let correlation_id = tasks[7].correlation_id.clone();
    let filter = TaskFilter { correlation_id: Some(correlation_id.clone()), ..TaskFilter::default() };
    check(filter, &|task| task.correlation_id == correlation_id).await;
}

async fn counts_follow_every_change(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let online = Node { service: NodeService::Retired, ..crate::support::node() };
    let offline = Node { session: None, service: NodeService::Retired, ..crate::support::node() };
    store.commit(changes([online, offline].map(Box::new).map(Change::NodeInsert))).await.expect("commits");
    let counts = store.node_counts().await.expect("counts");
    assert_eq!(counts.online, 2);
    let expected = NodeService::ALL.map(|service| match service {
        NodeService::InService => (service, 1),
        NodeService::Retired => (service, 2),
        NodeService::Draining | NodeService::Quarantined | NodeService::Locked => (service, 0),
    });
    assert_eq!(counts.by_service, expected);

    let tasks: Vec<TaskRecord> = (0..60).map(|_| task(&node)).collect();
    let inserts = tasks.iter().map(|task| changes([Change::TaskInsert(Box::new(task.clone()))]));
    assert!(all_at_once(&store, inserts.collect()).await.iter().all(Result::is_ok));
    let updates = tasks.iter().enumerate().map(|(n, task)| {
        // A third moves on, a third stays in its state, a third is stale.
        let (state, version) = ([TaskState::Started, TaskState::Queued, TaskState::Failed][n % 3], i64::from(n % 3 == 2) * 9);
        changes([Change::TaskUpdate(Box::new(TaskRecord { state, version, ..task.clone() }))])
    });
    let results = all_at_once(&store, updates.collect()).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 40);
    let counted = store.task_counts().await.expect("counts");
    let expected = TaskState::ALL.map(|state| match state {
        TaskState::Queued => (state, 40),
        TaskState::Started => (state, 20),
        other => (other, 0),
    });
    assert_eq!(counted, expected);
}
