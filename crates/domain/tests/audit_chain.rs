//! Any change to any part of any row is detected.

mod support;

use gpuaas_domain::audit_chain::{AuditRow, Head, append, verify};
use gpuaas_domain::decision::AuditEntry;
use support::{NOW, context};

fn chain(length: usize) -> Vec<AuditRow> {
    let mut head = Head::genesis();
    let rows = (0..length).map(|n| {
        let entry = AuditEntry {
            at: NOW,
            actor: format!("token:{n}"),
            action: "node.drain",
            target: format!("node {n} ü \u{1}"),
            correlation_id: context().correlation_id,
            detail: serde_json::json!({ "reason": "x", "n": n }),
        };
        let row = append(&head, &entry).expect("chains");
        head = Head { seq: row.seq, hash: row.hash.clone() };
        row
    });
    rows.collect()
}

#[test]
fn a_chain_verifies_as_a_whole_and_in_parts() {
    let rows = chain(5);
    let end = Head { seq: 5, hash: rows[4].hash.clone() };
    assert_eq!(verify(&Head::genesis(), &rows), Ok(end.clone()));
    let middle = verify(&Head::genesis(), &rows[..2]).expect("whole");
    assert_eq!(verify(&middle, &rows[2..]), Ok(end));
    assert_eq!(verify(&Head::genesis(), []), Ok(Head::genesis()));
}

#[test]
fn the_hashed_text_has_a_fixed_form() {
    let rows = chain(1);
    let body = r#"{"seq":1,"at":1800000000000000,"actor":"token:0","action":"node.drain","target":"node 0 ü \u0001","correlation_id":"corr-1","detail":{"n":0,"reason":"x"}}"#;
    assert_eq!(rows[0].body, body);
    let hashed = format!("sha256:{}\n{body}", "0".repeat(64));
    assert_eq!(rows[0].hash, gpuaas_contract::Digest::of(hashed.as_bytes()).to_string());
}

/// The exported rows with one byte of a row changed; skips changes after which it no longer parses.
fn every_changed_byte(rows: &[AuditRow], row: usize) -> impl Iterator<Item = Vec<AuditRow>> + '_ {
    let text = serde_json::to_vec(&rows[row]).expect("JSON");
    (0..text.len()).flat_map(move |at| {
        let text = text.clone();
        (0..8).filter_map(move |bit| {
            let mut changed = text.clone();
            changed[at] ^= 1 << bit;
            let changed: AuditRow = serde_json::from_slice(&changed).ok()?;
            let mut all = rows.to_vec();
            all[row] = changed;
            Some(all)
        })
    })
}

#[test]
fn every_changed_bit_of_every_row_is_found() {
    let rows = chain(3);
    let mut tried = 0;
    for row in 0..rows.len() {
        for changed in every_changed_byte(&rows, row) {
            // Some changes are only a different JSON spelling of the same row.
            if changed[row] != rows[row] {
                tried += 1;
                let broken = verify(&Head::genesis(), &changed).expect_err("found");
                assert!(broken.seq == changed[row].seq || broken.seq == rows[row].seq + 1, "{broken:?}");
            }
        }
    }
    assert!(tried > 2000, "only {tried} changes were tried");
}

#[test]
fn missing_added_and_swapped_rows_are_found() {
    let rows = chain(4);
    for lost in 0..3 {
        let mut changed = rows.clone();
        changed.remove(lost);
        assert!(verify(&Head::genesis(), &changed).is_err(), "row {lost} was taken out");
    }
    let mut doubled = rows.clone();
    doubled.insert(2, rows[1].clone());
    assert!(verify(&Head::genesis(), &doubled).is_err());
    let mut swapped = rows.clone();
    swapped.swap(1, 2);
    assert!(verify(&Head::genesis(), &swapped).is_err());
    // Truncation is only detected by comparing the head.
    assert_ne!(verify(&Head::genesis(), &rows[..3]), verify(&Head::genesis(), &rows));
}

#[test]
fn a_rewritten_row_with_a_fresh_hash_breaks_the_next_one() {
    let mut rows = chain(3);
    let entry = AuditEntry {
        at: NOW,
        actor: "somebody else".to_owned(),
        action: "node.drain",
        target: "x".to_owned(),
        correlation_id: context().correlation_id,
        detail: serde_json::Value::Null,
    };
    rows[1] = append(&Head { seq: 1, hash: rows[0].hash.clone() }, &entry).expect("chains");
    let broken = verify(&Head::genesis(), &rows).expect_err("found");
    assert_eq!(broken.seq, 3);
}
