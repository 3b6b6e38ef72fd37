//! Files of the host's owner, and stored images.

use std::os::unix::fs::symlink;

use gpuaas_contract::guest::ImageFormat;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::server::{Reply, Server};
use super::{Digest, ImageWanted, Place, fails, fetch, file_of, name_of, names, stored, wanted, wanted_path};

const SIZE: usize = 2_500_000;

#[tokio::test]
async fn a_file_of_the_hosts_owner_is_copied() {
    let (place, file) = (Place::new(), file_of(1, SIZE));
    std::fs::create_dir(place.owner().join("sub")).expect("a folder");
    let path = place.owner().join("sub/a.img");
    std::fs::write(&path, &file).expect("written");
    let images = place.images();
    assert_eq!(fetch(&images, &wanted_path(&file, "sub/a.img")).await, Ok(stored(&file, false)));
    std::fs::write(&path, b"changed").expect("written");
    assert_eq!(std::fs::read(images.path_of(&Digest::of(&file))).expect("the image"), file, "it is a copy");
    assert_eq!(fetch(&images, &wanted_path(&file, "sub/a.img")).await, Ok(stored(&file, true)));
    assert_eq!(place.names(), [name_of(&file)]);
}

#[tokio::test]
async fn a_file_with_another_digest_is_not_taken() {
    let (place, file, other) = (Place::new(), file_of(2, SIZE), file_of(3, SIZE));
    std::fs::write(place.owner().join("a.img"), &other).expect("written");
    let error = fails(&place.images(), &wanted_path(&file, "a.img")).await;
    assert_eq!(error.code, "image_digest_mismatch");
    assert!(error.message.contains(Digest::of(&other).as_str()), "{error}");
    assert_eq!(place.names(), Vec::<String>::new());
    assert_eq!(names(&place.owner()), ["a.img"], "the owner's file is the owner's");
}

#[tokio::test]
async fn a_file_that_does_not_fit_is_not_copied() {
    let (place, file) = (Place::new(), file_of(4, SIZE));
    std::fs::write(place.owner().join("a.img"), &file).expect("written");
    let images = place.images_with(SIZE as u64 - 1, std::time::Duration::from_secs(60));
    assert_eq!(fails(&images, &wanted_path(&file, "a.img")).await.code, "image_cache_full");
}

#[tokio::test]
async fn a_path_leads_nowhere_but_to_a_plain_file_below_the_folder() {
    let (place, file) = (Place::new(), file_of(5, SIZE));
    let (owner, outside) = (place.owner(), place.folder.path().join("outside"));
    std::fs::create_dir(&outside).expect("a folder");
    std::fs::write(outside.join("a.img"), &file).expect("written");
    std::fs::write(owner.join("b.img"), &file).expect("written");
    std::fs::create_dir(owner.join("folder")).expect("a folder");
    symlink(outside.join("a.img"), owner.join("link")).expect("a link");
    symlink("b.img", owner.join("inner-link")).expect("a link");
    symlink(&outside, owner.join("folder-link")).expect("a link");
    mknodat(CWD, owner.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(owner.join("socket")).expect("a socket");
    let absolute = outside.join("a.img").display().to_string();
    let mut paths = vec![
        "../outside/a.img",
        "folder/../../outside/a.img",
        "link",
        "inner-link",
        "folder-link/a.img",
        "folder",
        "pipe",
        "socket",
        &absolute,
    ];
    // Only root can create one.
    let device =
        mknodat(CWD, owner.join("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), rustix::fs::makedev(1, 3));
    if device.is_ok() {
        paths.push("device");
    }
    let images = place.images();
    for path in paths {
        let error = fails(&images, &wanted_path(&file, path)).await;
        assert_eq!(error.code, "image_missing", "{path}: {error}");
        assert!(error.message.contains("is not taken"), "{path}: {error}");
    }
    assert_eq!(place.names(), Vec::<String>::new());
}

#[tokio::test]
async fn an_address_is_used_only_if_the_file_is_not_there() {
    let (place, file) = (Place::new(), file_of(6, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| Reply::good(&served, None, seen)).await;
    let both = |path: &str| ImageWanted { path: Some(path.to_owned()), ..wanted(&file, &server.url("/a")) };
    std::fs::write(place.owner().join("here.img"), &file).expect("written");
    assert_eq!(fetch(&place.images(), &both("here.img")).await, Ok(stored(&file, false)));
    assert_eq!(server.requests(), 0);
    let place = Place::new();
    for path in ["not-here.img", "not/here.img"] {
        let error = fails(&place.images(), &wanted_path(&file, path)).await;
        assert_eq!(error.code, "image_missing");
        assert!(error.message.contains(path), "{error}");
    }
    assert_eq!(fetch(&place.images(), &both("not-here.img")).await, Ok(stored(&file, false)));
    assert_eq!(server.requests(), 1);
    let nothing = ImageWanted { url: None, ..wanted(b"other", "") };
    assert_eq!(fails(&place.images(), &nothing).await.code, "image_missing");
}

#[tokio::test]
async fn a_stored_image_is_read_again_and_healed_if_it_is_damaged() {
    let (place, file) = (Place::new(), file_of(7, SIZE));
    std::fs::write(place.owner().join("a.img"), &file).expect("written");
    let (images, wanted) = (place.images(), wanted_path(&file, "a.img"));
    assert_eq!(images.verify(&wanted.sha256, ImageFormat::Raw).await.expect_err("refused").code, "image_missing");
    fetch(&images, &wanted).await.expect("stored");
    assert_eq!(images.verify(&wanted.sha256, ImageFormat::Raw).await, Ok(SIZE as u64));
    assert_eq!(images.verify(&wanted.sha256, ImageFormat::Qcow2).await.expect_err("refused").code, "image_mislabeled");
    let mut damaged = file.to_vec();
    damaged[SIZE - 1] ^= 1;
    std::fs::write(images.path_of(&wanted.sha256), damaged).expect("written");
    let error = images.verify(&wanted.sha256, ImageFormat::Raw).await.expect_err("refused");
    assert_eq!(error.code, "image_digest_mismatch");
    assert_eq!(place.names(), Vec::<String>::new());
    assert_eq!(fetch(&images, &wanted).await, Ok(stored(&file, false)));
    assert_eq!(images.verify(&wanted.sha256, ImageFormat::Raw).await, Ok(SIZE as u64));
}

#[tokio::test]
async fn a_qcow2_image_says_how_large_its_disk_is() {
    let mut file = vec![0; 262_144];
    file[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    file[20..24].copy_from_slice(&16_u32.to_be_bytes());
    file[24..32].copy_from_slice(&(10_u64 << 30).to_be_bytes());
    file[100..104].copy_from_slice(&112_u32.to_be_bytes());
    let place = Place::new();
    std::fs::write(place.owner().join("a.qcow2"), &file).expect("written");
    let images = place.images();
    fetch(&images, &wanted_path(&file, "a.qcow2")).await.expect("stored");
    assert_eq!(images.verify(&Digest::of(&file), ImageFormat::Qcow2).await, Ok(10 << 30));
    assert_eq!(images.verify(&Digest::of(&file), ImageFormat::Raw).await.expect_err("refused").code, "image_mislabeled");
    // An image that refers to another file is refused although its digest is right.
    file[8..16].copy_from_slice(&200_u64.to_be_bytes());
    file[16..20].copy_from_slice(&11_u32.to_be_bytes());
    std::fs::write(place.owner().join("b.qcow2"), &file).expect("written");
    fetch(&images, &wanted_path(&file, "b.qcow2")).await.expect("stored");
    assert_eq!(images.verify(&Digest::of(&file), ImageFormat::Qcow2).await.expect_err("refused").code, "image_refers_to_file");
}

#[tokio::test]
async fn an_empty_file_is_an_image_like_any_other() {
    let place = Place::new();
    std::fs::write(place.owner().join("empty"), b"").expect("written");
    let images = place.images();
    assert_eq!(fetch(&images, &wanted_path(b"", "empty")).await, Ok(stored(b"", false)));
    assert_eq!(images.verify(&Digest::of(b""), ImageFormat::Raw).await, Ok(0));
}
