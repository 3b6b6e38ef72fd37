//! Tests of the log buffer.

use super::*;

fn task(n: u8) -> TaskId {
    TaskId::from_bytes([n; 16])
}

async fn drain(spool: &Spool) -> Vec<LogLine> {
    let mut lines = Vec::new();
    loop {
        let batch = spool.next_batch().await;
        if batch.is_empty() {
            return lines;
        }
        lines.extend(batch);
    }
}

fn positions(lines: &[LogLine]) -> Vec<LogPosition> {
    lines.iter().map(|line| LogPosition { task_id: line.task_id.clone(), sequence: line.sequence }).collect()
}

fn bytes_in(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("list").map(|entry| entry.expect("entry"));
    files.filter(|e| e.path().extension().is_some_and(|x| x == "seg")).map(|e| e.metadata().expect("meta").len()).sum()
}

#[tokio::test]
async fn lines_come_in_order_and_again_until_they_are_acknowledged() {
    let folder = tempfile::tempdir().expect("folder");
    let spool = Spool::open(folder.path(), 1 << 20).expect("opens");
    for n in 0..5 {
        spool.append(task(1), "stdout", format!("one {n}")).await;
        spool.append(task(2), "stdout", format!("two {n}")).await;
    }
    let first = drain(&spool).await;
    assert_eq!(first.len(), 10);
    assert!(first.iter().all(|line| line.dropped == 0));
    let ones: Vec<_> = first.iter().filter(|l| l.task_id == task(1).to_string()).map(|l| l.sequence).collect();
    assert_eq!(ones, [1, 2, 3, 4, 5]);
    spool.acknowledge(positions(&first[..4])).await;
    spool.rewind().await;
    assert_eq!(drain(&spool).await, first[4..]);
}

#[tokio::test]
async fn lines_survive_a_restart_and_sequences_go_on() {
    let folder = tempfile::tempdir().expect("folder");
    let spool = Spool::open(folder.path(), 1 << 20).expect("opens");
    for n in 0..3 {
        spool.append(task(1), "stdout", format!("line {n}")).await;
    }
    let lines = drain(&spool).await;
    spool.acknowledge(positions(&lines)).await;
    spool.append(task(1), "stdout", "kept".to_owned()).await;
    spool.flush().await;
    drop(spool);
    let spool = Spool::open(folder.path(), 1 << 20).expect("opens");
    spool.append(task(1), "stdout", "after".to_owned()).await;
    let lines: Vec<_> = drain(&spool).await.into_iter().map(|l| (l.sequence, l.text, l.dropped)).collect();
    assert_eq!(lines, [(4, "kept".to_owned(), 0), (5, "after".to_owned(), 0)]);
}

#[tokio::test]
async fn a_torn_last_line_is_left_out_and_the_others_are_kept() {
    let folder = tempfile::tempdir().expect("folder");
    let spool = Spool::open(folder.path(), 1 << 20).expect("opens");
    spool.append(task(1), "stdout", "whole".to_owned()).await;
    spool.append(task(1), "stdout", "torn".to_owned()).await;
    spool.flush().await;
    drop(spool);
    let segment = folder.path().join("000000000001.seg");
    let length = segment.metadata().expect("meta").len();
    OpenOptions::new().write(true).open(&segment).expect("opens").set_len(length - 2).expect("torn");
    let spool = Spool::open(folder.path(), 1 << 20).expect("opens");
    spool.append(task(1), "stdout", "next".to_owned()).await;
    let texts: Vec<_> = drain(&spool).await.into_iter().map(|l| l.text).collect();
    assert_eq!(texts, ["whole", "next"]);
}

#[tokio::test]
async fn the_buffer_is_bounded_and_says_how_many_lines_it_dropped() {
    let folder = tempfile::tempdir().expect("folder");
    let cap = 64 * 1024;
    let spool = Spool::open(folder.path(), cap).expect("opens");
    for n in 0..2000 {
        spool.append(task(1), "stdout", format!("line {n} {}", "x".repeat(100))).await;
    }
    spool.flush().await;
    assert!(bytes_in(folder.path()) <= cap, "{} bytes", bytes_in(folder.path()));
    let lines = drain(&spool).await;
    assert!(lines[0].dropped > 0);
    assert_eq!(lines[0].dropped, lines[0].sequence - 1);
    assert!(lines[1..].iter().all(|line| line.dropped == 0));
    assert_eq!(lines.last().expect("lines").sequence, 2000);
    spool.acknowledge(positions(&lines)).await;
    spool.flush().await;
    assert!(bytes_in(folder.path()) <= cap / 8, "acknowledged segments are gone");
}

#[tokio::test]
async fn a_closed_task_whose_lines_were_all_dropped_still_says_so() {
    let folder = tempfile::tempdir().expect("folder");
    let spool = Spool::open(folder.path(), 64 * 1024).expect("opens");
    spool.append(task(1), "stdout", "lost".to_owned()).await;
    spool.close(task(1)).await;
    for n in 0..2000 {
        spool.append(task(2), "stdout", format!("line {n} {}", "x".repeat(100))).await;
    }
    // The notice itself may be dropped and repeated; the last one counts.
    let lines = drain(&spool).await;
    let notice = lines.iter().rfind(|line| line.task_id == task(1).to_string()).expect("a notice");
    assert!(notice.stream == "agent" && notice.dropped >= 1, "{notice:?}");
}

#[tokio::test]
async fn one_long_line_is_cut_and_not_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let spool = Spool::open(folder.path(), 1 << 20).expect("opens");
    spool.append(task(1), "stdout", "ä".repeat(100_000)).await;
    let lines = drain(&spool).await;
    assert!(lines[0].text.len() <= MAX_TEXT + 16 && lines[0].text.ends_with("[line cut]"));
}

#[tokio::test]
async fn no_more_than_a_window_is_on_its_way() {
    let folder = tempfile::tempdir().expect("folder");
    let spool = Spool::open(folder.path(), 8 << 20).expect("opens");
    for _ in 0..WINDOW_LINES + 100 {
        spool.append(task(1), "stdout", "x".to_owned()).await;
    }
    let lines = drain(&spool).await;
    assert_eq!(lines.len(), WINDOW_LINES);
    spool.acknowledge(positions(&lines)).await;
    assert_eq!(drain(&spool).await.len(), 100);
}
