//! Several callers for the same image, and limited space.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::server::{End, Reply, Server};
use super::{Arc, Bytes, Duration, Place, eventually, fails, fetch, file_of, name_of, stored, wanted};

const SIZE: usize = 300_000;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_callers_make_one_request() {
    let (place, file) = (Place::new(), file_of(1, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| Reply::good(&served, None, seen)).await;
    let (images, wanted) = (place.images(), wanted(&file, &server.url("/a")));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (images, wanted) = (images.clone(), wanted.clone());
        callers.spawn(async move { fetch(&images, &wanted).await });
    }
    while let Some(result) = callers.join_next().await {
        assert_eq!(result.expect("no panic").expect("stored").bytes, SIZE as u64);
    }
    assert_eq!(server.requests(), 1);
    assert_eq!(place.names(), [name_of(&file)]);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_download_going_on() {
    let (place, file) = (Place::new(), file_of(2, SIZE));
    let (served, open) = (file.clone(), Arc::new(AtomicBool::new(false)));
    let opened = Arc::clone(&open);
    let server = Server::start(move |seen| {
        // Until the test releases it, each answer breaks after a while.
        let reply = Reply::good(&served, None, seen);
        if opened.load(Ordering::SeqCst) { reply } else { reply.ending(End::Cut(10_000)) }
    })
    .await;
    let (images, wanted) = (place.images(), wanted(&file, &server.url("/a")));
    {
        let caller = fetch(&images, &wanted);
        tokio::select! {
            result = caller => panic!("it cannot have ended: {result:?}"),
            () = eventually("the server was asked", || server.requests() > 0) => {}
        }
    }
    open.store(true, Ordering::SeqCst);
    eventually("it is complete", || images.path_of(&wanted.sha256).exists()).await;
    let requests = server.requests();
    assert!(matches!(fetch(&images, &wanted).await, Ok(found) if found.bytes == SIZE as u64));
    assert_eq!(server.requests(), requests, "the next one finds it");
}

#[tokio::test]
async fn everybody_who_waits_is_told_how_it_ended() {
    let (place, file) = (Place::new(), file_of(3, SIZE));
    let server = Server::start(|_| Reply::status(404)).await;
    let (images, wanted) = (place.images(), wanted(&file, &server.url("/a")));
    let (one, two) = tokio::join!(fetch(&images, &wanted), fetch(&images, &wanted));
    assert_eq!(one.as_ref().expect_err("refused").code, "image_http_status");
    assert_eq!(one, two);
    assert_eq!(server.requests(), 1);
    fails(&images, &wanted).await;
    assert_eq!(server.requests(), 2, "a failure is not kept for those who come later");
}

#[tokio::test]
async fn somebody_elses_bad_address_is_not_mine() {
    let (place, file) = (Place::new(), file_of(4, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| if seen.path == "/good" { Reply::whole(&served) } else { Reply::status(404) }).await;
    let images = place.images();
    let (bad, good) = (wanted(&file, &server.url("/bad")), wanted(&file, &server.url("/good")));
    let (bad, good) = tokio::join!(fetch(&images, &bad), fetch(&images, &good));
    assert_eq!(bad.expect_err("refused").code, "image_http_status");
    assert_eq!(good, Ok(stored(&file, false)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_images_come_in_at_once_and_the_others_wait() {
    let place = Place::new();
    let files: Vec<Bytes> = (0..6).map(|seed| file_of(100 + seed, SIZE)).collect();
    let (served, open) = (files.clone(), Arc::new(AtomicBool::new(false)));
    let (opened, asked) = (Arc::clone(&open), Arc::new(AtomicUsize::new(0)));
    let first = Arc::clone(&asked);
    let server = Server::start(move |seen| {
        let index: usize = seen.path.trim_start_matches('/').parse().expect("a number");
        if seen.from().is_none() {
            first.fetch_add(1, Ordering::SeqCst);
        }
        let reply = Reply::good(&served[index], None, seen);
        if opened.load(Ordering::SeqCst) { reply } else { reply.ending(End::Stall(1000)) }
    })
    .await;
    // The stall limit does not apply until the test releases it; then each request is repeated.
    let images = place.images_with(u64::MAX, Duration::from_secs(2));
    let mut callers = tokio::task::JoinSet::new();
    for (index, file) in files.iter().enumerate() {
        let (images, wanted) = (images.clone(), wanted(file, &server.url(&format!("/{index}"))));
        callers.spawn(async move { fetch(&images, &wanted).await });
    }
    eventually("two are asked for", || asked.load(Ordering::SeqCst) >= 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2, "the others wait for their turn");
    open.store(true, Ordering::SeqCst);
    while let Some(result) = callers.join_next().await {
        result.expect("no panic").expect("stored");
    }
    assert_eq!(place.names().len(), 6);
}

/// Returns a server with these files under `/0`, `/1`, …
async fn library(files: &[Bytes]) -> Server {
    let served = files.to_vec();
    Server::start(move |seen| {
        let index: usize = seen.path.trim_start_matches('/').parse().expect("a number");
        Reply::good(&served[index], None, seen)
    })
    .await
}

fn used_at(path: &std::path::Path, seconds: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).expect("the time");
}

#[tokio::test]
async fn what_was_not_used_for_the_longest_time_makes_room() {
    let place = Place::new();
    let files: Vec<Bytes> = (0..5).map(|seed| file_of(200 + seed, SIZE)).collect();
    let server = library(&files).await;
    let images = place.images_with(3 * SIZE as u64, PATIENCE);
    let wanted: Vec<_> = files.iter().enumerate().map(|(index, file)| wanted(file, &server.url(&format!("/{index}")))).collect();
    for (index, wanted) in wanted[..3].iter().enumerate() {
        fetch(&images, wanted).await.expect("stored");
        used_at(&images.path_of(&wanted.sha256), 1000 + index as u64);
    }
    // The first one is used again, so the second one is the least recently used.
    assert_eq!(fetch(&images, &wanted[0]).await, Ok(stored(&files[0], true)));
    assert_eq!(fetch(&images, &wanted[3]).await, Ok(stored(&files[3], false)));
    let there = |index: usize| images.path_of(&wanted[index].sha256).exists();
    assert_eq!([there(0), there(1), there(2), there(3)], [true, false, true, true]);

    // The next would be the third, but it is held.
    let held = images.hold(&wanted[2].sha256);
    let again = images.hold(&wanted[2].sha256);
    drop(held);
    used_at(&images.path_of(&wanted[0].sha256), 2000);
    fetch(&images, &wanted[4]).await.expect("stored");
    assert_eq!([there(0), there(2), there(3), there(4)], [false, true, true, true]);
    assert_eq!(place.names().len(), 3, "nothing else is left: {:?}", place.names());

    // When all are held there is no space, and nothing is removed in vain.
    let others = [images.hold(&wanted[3].sha256), images.hold(&wanted[4].sha256)];
    let error = fails(&images, &wanted[1]).await;
    assert_eq!(error.code, "image_cache_full");
    assert!(error.message.contains("image_cache_bytes"), "{error}");
    assert_eq!([there(2), there(3), there(4)], [true, true, true]);
    drop((again, others));
    assert_eq!(fetch(&images, &wanted[1]).await, Ok(stored(&files[1], false)));
}

#[tokio::test]
async fn an_image_that_comes_in_has_its_room_from_the_start() {
    let place = Place::new();
    let files: Vec<Bytes> = (0..2).map(|seed| file_of(300 + seed, SIZE)).collect();
    let served = files.clone();
    let server = Server::start(move |seen| {
        let index: usize = seen.path.trim_start_matches('/').parse().expect("a number");
        let reply = Reply::good(&served[index], None, seen);
        if index == 0 { reply.ending(End::Stall(1000)) } else { reply }
    })
    .await;
    let images = place.images_with(SIZE as u64 + 5000, PATIENCE);
    let (slow, asking) = (wanted(&files[0], &server.url("/0")), images.clone());
    let part = place.store().join(format!("{}.part", name_of(&files[0])));
    let caller = tokio::spawn(async move { fetch(&asking, &slow).await });
    eventually("the first one is coming in", || part.metadata().is_ok_and(|meta| meta.len() == 1000)).await;
    let error = fails(&images, &wanted(&files[1], &server.url("/1"))).await;
    assert_eq!(error.code, "image_cache_full", "{error}");
    caller.abort();
}

#[tokio::test]
async fn old_parts_are_removed_and_young_ones_are_not() {
    let (place, file) = (Place::new(), file_of(5, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| Reply::good(&served, None, seen)).await;
    std::fs::create_dir(place.store()).expect("the folder");
    let at = |name: &str| place.store().join(name);
    let (old, young) = (format!("sha256-{}", "0".repeat(64)), format!("sha256-{}", "1".repeat(64)));
    for name in [&old, &young] {
        for suffix in [".part", ".source"] {
            std::fs::write(at(&format!("{name}{suffix}")), b"x").expect("written");
        }
    }
    std::fs::write(at(&format!("{old}.gone")), b"x").expect("written");
    std::fs::write(at("somebody's"), b"x").expect("written");
    for name in [format!("{old}.part"), format!("{old}.source"), format!("{young}.source"), "somebody's".to_owned()] {
        used_at(&at(&name), 1000);
    }
    fetch(&place.images(), &wanted(&file, &server.url("/a"))).await.expect("stored");
    let mut left = vec![format!("{young}.part"), format!("{young}.source"), name_of(&file), "somebody's".to_owned()];
    left.sort();
    assert_eq!(place.names(), left);
}

#[tokio::test]
async fn the_rest_of_a_download_makes_room_like_an_image() {
    let (place, file) = (Place::new(), file_of(6, SIZE));
    let server = library(std::slice::from_ref(&file)).await;
    std::fs::create_dir(place.store()).expect("the folder");
    let rest = place.store().join(format!("sha256-{}.part", "0".repeat(64)));
    std::fs::write(&rest, vec![0; SIZE]).expect("written");
    fetch(&place.images_with(SIZE as u64 + 10, PATIENCE), &wanted(&file, &server.url("/0"))).await.expect("stored");
    assert_eq!(place.names(), [name_of(&file)]);
}
