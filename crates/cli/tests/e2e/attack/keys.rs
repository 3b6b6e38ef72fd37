//! What an attacker finds who makes the server crash and reads what it leaves behind.

use std::os::unix::process::ExitStatusExt as _;

use gpuaas_testkit::{Launch, PATIENCE, TempDir, free_port};

#[test]
fn a_crashed_server_leaves_no_core_dump_and_its_keys_are_locked_in_memory() {
    let dir = TempDir::new();
    let address = || format!("127.0.0.1:{}", free_port());
    let launch = Launch::new("gpuaas")
        .args(["server", "--data-dir"])
        .arg(dir.join("server"))
        .args(["--api-listen", &address(), "--link-listen", &address()])
        .with_limits(&["--core=unlimited"]);
    let mut server = launch.start(dir.path());
    server.wait_for_line("link ready", PATIENCE);

    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let locked: u64 = locked.split_whitespace().next().unwrap().parse().unwrap();
    assert!(locked >= 12, "root, intent and signing key are a page each, but only {locked} KiB are locked");

    let status = server.crash(PATIENCE);
    assert_eq!(status.signal(), Some(6), "{status:?}");
    assert!(!status.core_dumped(), "the kernel wrote the server's memory to a file");
}
