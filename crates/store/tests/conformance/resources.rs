//! Resources: stored as written, found by their keys, unique where required.

use std::collections::BTreeMap;

use gpuaas_domain::Change;
use gpuaas_domain::audit_chain::Head;
use gpuaas_domain::resource::{Document, Keys, ResourceKind};
use gpuaas_store::{CommitError, ResourceFilter, Store, StoreError};

use crate::all_at_once;
use crate::support::{Database, NOW, changes, document, later, recorded};

crate::on_both_engines! {
    a_document_comes_back_as_it_was_without_its_keys
    a_document_is_found_by_name_by_lookup_and_by_ids
    a_known_id_name_or_lookup_conflicts
    of_many_with_one_name_or_lookup_exactly_one_wins
    a_name_that_is_given_up_can_be_taken
    due_resources_come_oldest_first
    lists_filter_and_page_completely_in_both_directions
    tags_of_any_text_are_compared_as_texts
    names_are_searched_without_wildcards
    a_text_with_nul_is_refused_and_breaks_no_list
    what_has_expired_is_forgotten_a_thousand_at_a_time
    an_id_that_was_forgotten_starts_anew
}

fn insert(document: &Document) -> Change {
    Change::ResourceInsert(Box::new(document.clone()))
}

fn update(document: &Document) -> Change {
    Change::ResourceUpdate(Box::new(document.clone()))
}

fn keyed(id: &str, keys: Keys) -> Document {
    Document { keys, ..document(ResourceKind::Allocation, id) }
}

fn named(id: &str, parent: &str, name: &str) -> Document {
    keyed(id, Keys { parent: parent.to_owned(), name: Some(name.to_owned()), state: "active", ..Keys::default() })
}

/// Returns the document as the store reads it.
fn read(document: &Document, version: i64) -> Document {
    Document { version, keys: Keys::default(), ..document.clone() }
}

async fn put(store: &Store, documents: &[Document]) {
    store.commit(changes(documents.iter().map(insert))).await.expect("commits");
}

async fn ids(store: &Store, kind: ResourceKind, filter: &ResourceFilter) -> Vec<String> {
    let found = store.resource_list(kind, filter, None, false, 1000).await.expect("lists");
    assert_eq!(
        store.resource_count(kind, filter).await.expect("counts"),
        u64::try_from(found.len()).expect("fits"),
        "{filter:?}"
    );
    found.into_iter().map(|document| document.id).collect()
}

async fn a_document_comes_back_as_it_was_without_its_keys(database: &Database) {
    let store = database.open().await;
    let keys = Keys {
        parent: "proj_1".to_owned(),
        name: Some("näme \"x\"".to_owned()),
        lookup: Some("issuer|sübject".to_owned()),
        owner: Some("node_1".to_owned()),
        state: "active",
        due_at: Some(later(1)),
        expires_at: Some(later(2)),
    };
    for kind in ResourceKind::ALL {
        let written = Document {
            keys: keys.clone(),
            body: r#"{"id":"x","text":"ä \\ \" \u0001 'quoted'","number":18446744073709551615}"#.to_owned(),
            ..document(kind, &format!("{}_1", kind.as_str()))
        };
        put(&store, std::slice::from_ref(&written)).await;
        assert_eq!(store.resource_get(kind, &written.id).await.expect("reads"), Some(read(&written, 0)));
        let other = ResourceKind::ALL.into_iter().find(|other| *other != kind).expect("there are several");
        assert_eq!(store.resource_get(other, &written.id).await.expect("reads"), None, "of another kind");
        let bare = Document { body: "{}".to_owned(), seal: "other".to_owned(), keys: Keys::default(), ..written.clone() };
        store.commit(changes([update(&bare)])).await.expect("commits");
        assert_eq!(store.resource_get(kind, &written.id).await.expect("reads"), Some(read(&bare, 1)));
        let stale = store.commit(changes([update(&written)])).await;
        assert!(matches!(stale, Err(CommitError::Conflict)), "{stale:?}");
        // Every key was overwritten.
        assert_eq!(store.resource_by_name(kind, "proj_1", "näme \"x\"").await.expect("reads"), None);
        assert_eq!(store.resource_by_lookup(kind, "issuer|sübject").await.expect("reads"), None);
        assert!(store.resource_due(kind, later(9), 10).await.expect("reads").is_empty());
        for filter in [
            ResourceFilter { parent: Some("proj_1".to_owned()), ..ResourceFilter::default() },
            ResourceFilter { owner: Some("node_1".to_owned()), ..ResourceFilter::default() },
            ResourceFilter { states: vec!["active"], ..ResourceFilter::default() },
        ] {
            assert!(ids(&store, kind, &filter).await.is_empty(), "{filter:?}");
        }
    }
}

async fn a_document_is_found_by_name_by_lookup_and_by_ids(database: &Database) {
    let store = database.open().await;
    let (one, other) = (named("alloc_1", "proj_1", "box"), named("alloc_2", "proj_2", "box"));
    let mut third = named("alloc_3", "proj_2", "Box");
    third.keys.lookup = Some("ext-3".to_owned());
    put(&store, &[one.clone(), other.clone(), third.clone()]).await;
    let by_name = async |parent, name| store.resource_by_name(ResourceKind::Allocation, parent, name).await.expect("reads");
    assert_eq!(by_name("proj_1", "box").await, Some(read(&one, 0)));
    assert_eq!(by_name("proj_2", "box").await, Some(read(&other, 0)));
    assert_eq!(by_name("proj_2", "Box").await, Some(read(&third, 0)), "letters count as they are");
    assert_eq!(by_name("proj_3", "box").await, None);
    assert_eq!(store.resource_by_name(ResourceKind::Machine, "proj_1", "box").await.expect("reads"), None);
    assert_eq!(store.resource_by_lookup(ResourceKind::Allocation, "ext-3").await.expect("reads"), Some(read(&third, 0)));
    assert_eq!(store.resource_by_lookup(ResourceKind::Allocation, "ext-4").await.expect("reads"), None);
    assert_eq!(store.resource_by_lookup(ResourceKind::Machine, "ext-3").await.expect("reads"), None);

    let many = async |ids: &[&str]| {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        store.resource_many(ResourceKind::Allocation, &ids).await.expect("reads")
    };
    assert_eq!(many(&["alloc_3", "alloc_1", "alloc_9", "'", "\0", "alloc_1"]).await, [read(&one, 0), read(&third, 0)]);
    assert!(many(&[]).await.is_empty());
    let mut thousands: Vec<String> = (0..2500).map(|n| format!("none_{n}")).collect();
    thousands.extend([one.id.clone(), other.id.clone()]);
    assert_eq!(
        store.resource_many(ResourceKind::Allocation, &thousands).await.expect("reads").len(),
        2,
        "however many are asked for"
    );
}

async fn a_known_id_name_or_lookup_conflicts(database: &Database) {
    let store = database.open().await;
    let mut known = named("alloc_1", "proj_1", "box");
    known.keys.lookup = Some("ext".to_owned());
    put(&store, &[known.clone(), document(ResourceKind::Allocation, "alloc_2")]).await;
    let mut same_lookup = document(ResourceKind::Allocation, "alloc_4");
    same_lookup.keys.lookup = Some("ext".to_owned());
    let renamed = named("alloc_2", "proj_1", "box");
    let by_lookup = Document { id: "alloc_2".to_owned(), ..same_lookup.clone() };
    let refused = [
        insert(&document(ResourceKind::Allocation, "alloc_1")),
        insert(&document(ResourceKind::Machine, "alloc_1")),
        insert(&named("alloc_3", "proj_1", "box")),
        insert(&same_lookup),
        update(&renamed),
        update(&by_lookup),
        update(&document(ResourceKind::Allocation, "alloc_9")),
    ];
    // The first ones row by row, the others with a single statement that is refused.
    for change in refused.iter().chain(&refused) {
        for decision in [changes([change.clone()]), recorded("refused", [change.clone()])] {
            let result = store.commit(decision).await;
            assert!(matches!(result, Err(CommitError::Conflict)), "{change:?}: {result:?}");
        }
    }
    assert_eq!(store.audit_head().await.expect("reads"), Head::genesis(), "no conflict left an audit row");
    // With another kind or parent it is another name.
    let elsewhere = Document { kind: ResourceKind::Machine, ..named("machine_1", "proj_1", "box") };
    put(&store, &[elsewhere, named("alloc_5", "proj_2", "box")]).await;
    let free = named("alloc_6", "proj_1", "other");
    store.commit(recorded("fine", [insert(&free), update(&known)])).await.expect("its own name is no conflict");
}

async fn of_many_with_one_name_or_lookup_exactly_one_wins(database: &Database) {
    let store = database.open().await;
    store.commit(recorded("warm", [])).await.expect("commits");
    for by_lookup in [false, true] {
        let rival = |n: usize| {
            let mut rival = document(ResourceKind::Allocation, &format!("alloc_{by_lookup}_{n:02}"));
            match by_lookup {
                true => rival.keys.lookup = Some("ext".to_owned()),
                false => rival.keys.name = Some("box".to_owned()),
            }
            rival
        };
        let own = |n: usize| named(&format!("own_{by_lookup}_{n:02}"), "proj_1", &format!("own {by_lookup} {n}"));
        // Each of them also writes a row without conflicts, which is rolled back with it.
        let decisions = (0..40).map(|n| match n % 4 {
            0 => recorded("rival", [insert(&rival(n)), insert(&own(n))]),
            _ => recorded("own", [insert(&own(n))]),
        });
        let results = all_at_once(&store, decisions.collect()).await;
        let mut winners = 0;
        for (n, result) in results.iter().enumerate() {
            let stored = store.resource_get(ResourceKind::Allocation, &own(n).id).await.expect("reads").is_some();
            match (n % 4, result) {
                (0, Ok(())) => winners += 1,
                (0, Err(CommitError::Conflict)) | (_, Ok(())) => {}
                (_, other) => panic!("{n}: {other:?}"),
            }
            assert_eq!(stored, result.is_ok(), "{n}");
        }
        assert_eq!(winners, 1);
    }
    assert_eq!(store.audit_head().await.expect("reads").seq, 1 + 2 * 31);
}

async fn a_name_that_is_given_up_can_be_taken(database: &Database) {
    let store = database.open().await;
    let first = named("alloc_9", "proj_1", "box");
    put(&store, std::slice::from_ref(&first)).await;
    let released = Document { keys: Keys { name: None, ..first.keys.clone() }, ..first.clone() };
    store.commit(changes([update(&released)])).await.expect("commits");
    let mut holder = named("alloc_8", "proj_1", "box");
    put(&store, std::slice::from_ref(&holder)).await;
    assert_eq!(
        store.resource_by_name(ResourceKind::Allocation, "proj_1", "box").await.expect("reads").map(|found| found.id),
        Some(holder.id.clone())
    );
    // Also within one decision, row by row and with a single statement, whichever id is smaller.
    for n in 0..6 {
        let next = named(&format!("alloc_{}", if n % 2 == 0 { n } else { n + 100 }), "proj_1", "box");
        let over = Document { keys: Keys { name: None, ..holder.keys.clone() }, ..holder.clone() };
        store.commit(recorded("passed on", [insert(&next), update(&over)])).await.expect("commits");
        let found = store.resource_by_name(ResourceKind::Allocation, "proj_1", "box").await.expect("reads");
        assert_eq!(found.map(|found| found.id), Some(next.id.clone()));
        holder = next;
    }
}

async fn due_resources_come_oldest_first(database: &Database) {
    let store = database.open().await;
    let due = |id: &str, at: Option<u64>| keyed(id, Keys { state: "active", due_at: at.map(later), ..Keys::default() });
    let mut machine = due("machine_1", Some(1));
    machine.kind = ResourceKind::Machine;
    let all = [due("a", Some(30)), due("b", Some(10)), due("c", None), due("d", Some(20)), due("e", Some(10)), machine];
    put(&store, &all).await;
    let found = async |at, limit| {
        let found = store.resource_due(ResourceKind::Allocation, later(at), limit).await.expect("reads");
        found.into_iter().map(|document| document.id).collect::<Vec<_>>()
    };
    assert!(found(9, 10).await.is_empty());
    assert_eq!(found(10, 10).await, ["b", "e"], "due at this very moment is due");
    assert_eq!(found(29, 10).await, ["b", "e", "d"]);
    assert_eq!(found(30, 10).await, ["b", "e", "d", "a"]);
    assert_eq!(found(30, 2).await, ["b", "e"]);
    let put_off = Document { keys: Keys { due_at: Some(later(40)), ..all[1].keys.clone() }, ..all[1].clone() };
    store.commit(changes([update(&put_off)])).await.expect("commits");
    assert_eq!(found(50, 10).await, ["e", "d", "a", "b"]);
}

async fn lists_filter_and_page_completely_in_both_directions(database: &Database) {
    const STATES: [&str; 3] = ["queued", "active", "released"];
    let store = database.open().await;
    let mut all: Vec<Document> = Vec::new();
    for n in 0..60 {
        let keys = Keys {
            parent: format!("proj_{}", n % 4),
            owner: (n % 3 > 0).then(|| format!("node_{}", n % 3)),
            state: STATES[n % 5 % 3],
            ..Keys::default()
        };
        let tags: BTreeMap<&str, &str> = if n % 2 == 0 { [("team", "a")].into() } else { BTreeMap::new() };
        let body = serde_json::json!({ "name": format!("Box-{n}"), "tags": tags }).to_string();
        all.push(Document { body, ..keyed(&format!("alloc_{n:03}"), keys) });
    }
    // Rows of another kind with the same keys do not interfere.
    let machines = all.iter().map(|document| Document {
        kind: ResourceKind::Machine,
        id: document.id.replace("alloc", "machine"),
        ..document.clone()
    });
    put(&store, &all).await;
    put(&store, &machines.collect::<Vec<_>>()).await;
    let check = async |filter: ResourceFilter, wanted: &dyn Fn(&Document) -> bool| {
        let mut wanted: Vec<String> =
            all.iter().filter(|document| wanted(document)).map(|document| document.id.clone()).collect();
        let count = store.resource_count(ResourceKind::Allocation, &filter).await.expect("counts");
        assert_eq!(count, u64::try_from(wanted.len()).expect("fits"), "{filter:?}");
        for newest_first in [false, true] {
            let mut found: Vec<String> = Vec::new();
            loop {
                let after = found.last().map(String::as_str);
                let page = store.resource_list(ResourceKind::Allocation, &filter, after, newest_first, 4).await.expect("lists");
                assert!(page.len() <= 4);
                if page.is_empty() {
                    break;
                }
                found.extend(page.into_iter().map(|document| document.id));
            }
            assert_eq!(found, wanted, "{filter:?} {newest_first}");
            wanted.reverse();
        }
    };
    let text = |text: &str| text.to_owned();
    let none = ResourceFilter::default;
    check(none(), &|_| true).await;
    check(ResourceFilter { parent: Some(text("proj_1")), ..none() }, &|document| document.keys.parent == "proj_1").await;
    check(ResourceFilter { parent: Some(text("proj_9")), ..none() }, &|_| false).await;
    let two = vec![text("proj_3"), text("proj_1"), text("proj_3"), text("'; --")];
    let of_two = |document: &Document| ["proj_1", "proj_3"].contains(&document.keys.parent.as_str());
    check(ResourceFilter { parents: Some(two.clone()), ..none() }, &of_two).await;
    check(ResourceFilter { parents: Some(Vec::new()), ..none() }, &|_| false).await;
    let both = ResourceFilter { parent: Some(text("proj_1")), parents: Some(two.clone()), ..none() };
    check(both, &|document| document.keys.parent == "proj_1").await;
    let neither = ResourceFilter { parent: Some(text("proj_0")), parents: Some(two.clone()), ..none() };
    check(neither, &|_| false).await;
    check(ResourceFilter { owner: Some(text("node_2")), ..none() }, &|document| document.keys.owner.as_deref() == Some("node_2"))
        .await;
    for state in STATES {
        check(ResourceFilter { states: vec![state], ..none() }, &|document| document.keys.state == state).await;
        let of_project = ResourceFilter { states: vec![state], parent: Some(text("proj_2")), ..none() };
        check(of_project, &|document| document.keys.state == state && document.keys.parent == "proj_2").await;
    }
    let live = vec!["active", "queued", "active"];
    let is_live = |document: &Document| document.keys.state != "released";
    check(ResourceFilter { states: live.clone(), ..none() }, &is_live).await;
    let of_owner = ResourceFilter { states: live.clone(), owner: Some(text("node_1")), ..none() };
    check(of_owner, &|document| is_live(document) && document.keys.owner.as_deref() == Some("node_1")).await;
    let everything = ResourceFilter {
        parents: Some(two),
        owner: Some(text("node_2")),
        states: live,
        tags: vec![(text("team"), text("a"))],
        name_contains: Some(text("BOX-")),
        ..none()
    };
    let tagged = |document: &Document| document.body.contains("team");
    check(everything.clone(), &|document| {
        of_two(document) && is_live(document) && document.keys.owner.as_deref() == Some("node_2") && tagged(document)
    })
    .await;
    check(ResourceFilter { parents: None, ..everything.clone() }, &|document| {
        is_live(document) && document.keys.owner.as_deref() == Some("node_2") && tagged(document)
    })
    .await;
    check(ResourceFilter { parents: None, owner: None, ..everything }, &|document| is_live(document) && tagged(document)).await;
}

async fn tags_of_any_text_are_compared_as_texts(database: &Database) {
    let store = database.open().await;
    let hostile = [
        "plain",
        "a.b",
        "a\"b",
        "a'b",
        "a\\b",
        "a\\\"b",
        "$",
        "$.x",
        "$[0]",
        "a%",
        "a_",
        "%",
        "_",
        "ü",
        "🎉",
        "\u{1}",
        "\n",
        "",
        " ",
        "[0]",
        "0",
        "1",
        "true",
        "null",
        "tags",
        "{}",
        "a\u{fffd}",
        "\\u0041",
        "'; DROP TABLE resources; --",
        "a#b",
        "*",
        "::json",
    ];
    let mut all = Vec::new();
    for (n, text) in hostile.iter().enumerate() {
        // The text once as a key and once as a value.
        for (m, (key, value)) in [(*text, "value"), ("key", *text)].into_iter().enumerate() {
            let body = serde_json::json!({ "tags": { key: value, "all": "yes" } }).to_string();
            all.push(Document { body, ..document(ResourceKind::Allocation, &format!("alloc_{n:02}_{m}")) });
        }
    }
    // Without tags, with other tags, and with tags of another shape.
    for (n, body) in [
        r#"{}"#,
        r#"{"tags":null}"#,
        r#"{"tags":[]}"#,
        r#"{"tags":["plain","value"]}"#,
        r#"{"plain":"value"}"#,
        r#"{"tags":{"plain":{"value":1}}}"#,
    ]
    .iter()
    .enumerate()
    {
        all.push(Document { body: (*body).to_owned(), ..document(ResourceKind::Allocation, &format!("none_{n}")) });
    }
    put(&store, &all).await;
    let tagged = async |tags: &[(&str, &str)]| {
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ids(&store, ResourceKind::Allocation, &ResourceFilter { tags, ..ResourceFilter::default() }).await
    };
    for (n, text) in hostile.iter().enumerate() {
        assert_eq!(tagged(&[(text, "value")]).await, [format!("alloc_{n:02}_0")], "{text:?} as a key");
        assert_eq!(tagged(&[("key", text)]).await, [format!("alloc_{n:02}_1")], "{text:?} as a value");
        assert_eq!(tagged(&[("all", "yes"), ("key", text)]).await.len(), 1);
        assert_eq!(tagged(&[("all", "no"), ("key", text)]).await.len(), 0, "all of them must hold");
    }
    for absent in ["PLAIN", "a", "a.", "x", "alloc", "\u{0}", "'"] {
        assert!(tagged(&[(absent, "value")]).await.is_empty(), "{absent:?}");
        assert!(tagged(&[("key", absent)]).await.is_empty(), "{absent:?}");
    }
    assert_eq!(tagged(&[("all", "yes")]).await.len(), 2 * hostile.len());
}

async fn names_are_searched_without_wildcards(database: &Database) {
    let store = database.open().await;
    let names = ["Alpha", "beta", "50%", "50x", "a_b", "axb", "ÜBER", "über", "back\\slash", "quo\"te'", "naïve Box"];
    let mut all: Vec<Document> = names
        .iter()
        .enumerate()
        .map(|(n, name)| Document {
            body: serde_json::json!({ "name": name, "other": "alpha" }).to_string(),
            ..document(ResourceKind::Allocation, &format!("alloc_{n:02}"))
        })
        .collect();
    all.push(document(ResourceKind::Allocation, "nameless"));
    put(&store, &all).await;
    let found = async |part: &str| {
        let filter = ResourceFilter { name_contains: Some(part.to_owned()), ..ResourceFilter::default() };
        let found = ids(&store, ResourceKind::Allocation, &filter).await;
        found.iter().map(|id| names[id["alloc_".len()..].parse::<usize>().expect("a number")]).collect::<Vec<_>>()
    };
    assert_eq!(found("alpha").await, ["Alpha"]);
    assert_eq!(found("LPH").await, ["Alpha"]);
    assert_eq!(found("0%").await, ["50%"]);
    assert_eq!(found("%").await, ["50%"]);
    assert_eq!(found("A_B").await, ["a_b"]);
    assert_eq!(found("_").await, ["a_b"]);
    assert_eq!(found("\\").await, ["back\\slash"]);
    assert_eq!(found("\"TE'").await, ["quo\"te'"]);
    assert_eq!(found("über").await, ["über"], "beyond ASCII, letters count as they are");
    assert_eq!(found("ÜBER").await, ["ÜBER"]);
    assert_eq!(found("naïve b").await, ["naïve Box"]);
    assert!(found("gamma").await.is_empty());
    assert!(found("\0").await.is_empty());
}

async fn a_text_with_nul_is_refused_and_breaks_no_list(database: &Database) {
    let store = database.open().await;
    let with = |id: &str, name: &str| Document {
        body: serde_json::json!({ "name": name, "tags": { "a": "b" } }).to_string(),
        ..document(ResourceKind::Allocation, id)
    };
    let refused = store.commit(changes([insert(&with("alloc_1", "a\0b"))])).await;
    assert!(matches!(refused, Err(CommitError::Store(StoreError::BadDecision { .. }))), "{refused:?}");
    put(&store, &[with("alloc_2", "\\u0000")]).await;
    let filter = ResourceFilter {
        tags: vec![("a".to_owned(), "b".to_owned())],
        name_contains: Some("u0000".to_owned()),
        ..ResourceFilter::default()
    };
    assert_eq!(ids(&store, ResourceKind::Allocation, &filter).await, ["alloc_2"]);
}

async fn what_has_expired_is_forgotten_a_thousand_at_a_time(database: &Database) {
    let store = database.open().await;
    let until = |n: u64, at: Option<u64>| Document {
        keys: Keys { state: "active", expires_at: at.map(later), ..Keys::default() },
        ..document(ResourceKind::Delivery, &format!("dlv_{n:05}"))
    };
    // The higher the number, the earlier it expires.
    let all: Vec<Document> = (0..1200).map(|n| until(n, Some(2000 - n))).collect();
    put(&store, &all).await;
    put(&store, &[until(5000, None), until(5001, Some(5000))]).await;
    let forget = async |at| store.commit(changes([Change::ResourcesForget { before: later(at) }])).await.expect("commits");
    let left = async || store.resource_count(ResourceKind::Delivery, &ResourceFilter::default()).await.expect("counts");
    forget(801).await;
    assert_eq!(left().await, 1202, "what expires at that moment is not over");
    forget(802).await;
    assert_eq!(left().await, 1201);
    forget(3000).await;
    assert_eq!(left().await, 201, "a thousand at a time");
    assert!(store.resource_get(ResourceKind::Delivery, "dlv_00000").await.expect("reads").is_some(), "the longest expired first");
    forget(3000).await;
    assert_eq!(left().await, 2);
    // Together with others that share its transaction.
    let others = (0..20).map(|n| match n % 5 {
        0 => changes([Change::ResourcesForget { before: later(9000) }]),
        _ => recorded("other", [insert(&until(6000 + n, None))]),
    });
    let results = all_at_once(&store, others.collect()).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(left().await, 17);
    assert_eq!(store.audit_head().await.expect("reads").seq, 16, "forgetting leaves no audit row");
    assert!(store.resource_get(ResourceKind::Delivery, "dlv_05000").await.expect("reads").is_some(), "without an end it stays");
}

async fn an_id_that_was_forgotten_starts_anew(database: &Database) {
    let store = database.open().await;
    let short = keyed("idem_1", Keys { state: "active", expires_at: Some(NOW), ..Keys::default() });
    for _ in 0..3 {
        store.commit(recorded("made", [insert(&short)])).await.expect("commits");
        store.commit(recorded("changed", [update(&short)])).await.expect("commits");
        store.commit(recorded("changed", [update(&Document { version: 1, ..short.clone() })])).await.expect("commits");
        store.commit(changes([Change::ResourcesForget { before: later(1) }])).await.expect("commits");
        assert_eq!(store.resource_get(ResourceKind::Allocation, "idem_1").await.expect("reads"), None);
    }
}
