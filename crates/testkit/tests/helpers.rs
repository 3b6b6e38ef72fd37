//! Checks that the helpers behave as the tests that use them assume.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use gpuaas_testkit::{Failpoints, Launch, NetNs, PATIENCE, TcpProxy, TempDir, eventually, free_port, pg_database};
use sqlx::Connection as _;

fn shell(script: &str) -> Launch {
    Launch::at("/bin/sh").arg("-c").arg(script)
}

#[test]
fn a_line_is_found_on_either_output_and_a_program_that_ends_is_noticed() {
    let folder = TempDir::new();
    let mut program = shell("echo first; echo ready on port 17 >&2; exec sleep 600").start(folder.path());
    assert_eq!(program.wait_for_line("ready", PATIENCE), "ready on port 17");
    assert_eq!(program.stdout(), "first\n");
    assert!(program.is_running());
    program.sigterm();
    assert!(!program.wait(PATIENCE).success());
    assert!(!program.is_running());
}

#[test]
fn waiting_for_a_line_that_never_comes_fails_when_the_program_ends() {
    let folder = TempDir::new();
    let mut program = shell("echo goodbye").start(folder.path());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| program.wait_for_line("hello", PATIENCE)));
    let message = outcome.expect_err("there is no such line");
    assert!(message.downcast_ref::<String>().is_some_and(|text| text.contains("ended without printing")), "{message:?}");
}

#[test]
fn a_dropped_program_is_killed() {
    let folder = TempDir::new();
    let program = shell("exec sleep 600").start(folder.path());
    let process = Path::new("/proc").join(program.id().to_string());
    assert!(process.exists());
    drop(program);
    assert!(!process.exists(), "the program outlived its handle");
}

#[test]
fn nothing_of_the_tests_environment_reaches_a_program() {
    let folder = TempDir::new();
    let (status, output, _) = shell("env").env("CHOSEN", "1").run(folder.path(), PATIENCE);
    assert!(status.success());
    assert!(output.contains("CHOSEN=1"), "{output}");
    assert!(!output.contains("CARGO"), "{output}");
}

#[test]
fn a_failpoint_is_waited_for_until_it_is_hit() {
    let folder = TempDir::new();
    let failpoints = Failpoints::new(folder.join("points"));
    failpoints.arm("step");
    assert!(!failpoints.is_hit("step"));
    // Does the same as `gpuaas_failpoint::hit`, in a separate process.
    let script = "mv \"$GPUAAS_FAILPOINT_DIR/step.armed\" \"$GPUAAS_FAILPOINT_DIR/step.hit\"; exec sleep 600";
    let _program = shell(script).failpoints(&failpoints).start(folder.path());
    failpoints.wait_hit("step");
    failpoints.arm("step");
    assert!(!failpoints.is_hit("step"), "arming again forgets the hit");
    assert!(failpoints.disarm("step"));
}

#[test]
#[should_panic(expected = "this did not happen within 50ms: pigs fly")]
fn what_never_happens_fails_with_a_sentence() {
    eventually(Duration::from_millis(50), "pigs fly", || None::<()>);
}

#[test]
fn free_ports_are_free_and_different() {
    let (one, two) = (free_port(), free_port());
    assert_ne!(one, two);
    for port in [one, two] {
        TcpListener::bind(("127.0.0.1", port)).expect("a free port can be listened on");
    }
}

#[tokio::test]
async fn every_test_gets_an_empty_database_of_its_own_and_leaves_none() {
    let (Some(one), Some(two)) = (pg_database(), pg_database()) else { return };
    let mut connection = sqlx::PgConnection::connect(one.url()).await.expect("connect");
    sqlx::raw_sql("CREATE TABLE t (n BIGINT)").execute(&mut connection).await.expect("create a table");
    let mut other = sqlx::PgConnection::connect(two.url()).await.expect("connect");
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE tablename = 't'").fetch_one(&mut other).await.expect("count");
    assert_eq!(tables, 0, "the second database sees the first one's table");

    // The database is dropped although a connection is open.
    let url = one.url().to_owned();
    drop(one);
    assert!(sqlx::PgConnection::connect(&url).await.is_err(), "the database is still there");
}

#[test]
fn a_program_in_a_namespace_reaches_the_host_until_the_cable_is_cut() {
    let Some(namespace) = NetNs::new() else { return };
    let folder = TempDir::new();
    let listener = TcpListener::bind((namespace.host_address(), 0)).expect("listen on the cable");
    let port = listener.local_addr().expect("an address").port();
    let dial = format!("exec 3<>/dev/tcp/{}/{port}", namespace.host_address());
    let call = || Launch::at("/bin/bash").args(["-c", &dial]).in_namespace(&namespace);

    let mut program = call().start(folder.path());
    let (_, peer) = listener.accept().expect("a call from inside");
    assert_eq!(peer.ip(), namespace.address(), "the call came from somewhere else");
    assert!(program.wait(PATIENCE).success());

    namespace.cut();
    let (status, _, _) = call().run(folder.path(), 4 * PATIENCE);
    assert!(!status.success(), "the host was reached through a cut cable");

    namespace.restore();
    eventually(PATIENCE, "the host is reached again", || call().run(folder.path(), PATIENCE).0.success().then_some(()));

    let name = namespace.name().to_owned();
    drop(namespace);
    assert!(!Path::new("/run/netns").join(name).exists(), "the namespace is still there");
}

#[test]
fn a_proxy_carries_both_ways_until_answers_are_lost_and_works_again_after_a_reset() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("listen");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map(|stream| stream.expect("a client")) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    let proxy = TcpProxy::start(port);
    let echo = |mut stream: &TcpStream| {
        let mut answer = [0; 5];
        stream.write_all(b"hello")?;
        stream.read_exact(&mut answer).map(|()| answer)
    };
    let stream = TcpStream::connect(proxy.address()).expect("connect");
    assert_eq!(echo(&stream).expect("an answer"), *b"hello");
    proxy.lose_answers();
    (&stream).write_all(b"hello").expect("sent");
    eventually(PATIENCE, "the answer is lost", || (proxy.lost_bytes() == 5).then_some(()));
    proxy.reset();
    assert!(echo(&stream).is_err(), "the old connection was cut");
    assert_eq!(echo(&TcpStream::connect(proxy.address()).expect("connect")).expect("an answer"), *b"hello");
}
