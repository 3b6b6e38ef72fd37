//! Every way in which a connection to a server can fail has its own code, exit code and advice.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gpuaas_testkit::{Launch, PATIENCE, Program, TempDir, free_port};
use serde_json::Value;

use crate::cluster::{Cluster, Store};

/// Starts a server whose REST listener uses TLS with this certificate.
fn tls_server(dir: &TempDir, name: &str, not_before_days: i64) -> (Program, u16, String) {
    let day = |days: i64| {
        let now = gpuaas_contract::time::Timestamp::now().0 / 1_000_000;
        let time = now + days * 86_400;
        // rcgen takes year, month and day, so they are cut from the time in UTC.
        let text = gpuaas_contract::time::Timestamp(time * 1_000_000).rfc3339();
        rcgen::date_time_ymd(text[0..4].parse().unwrap(), text[5..7].parse().unwrap(), text[8..10].parse().unwrap())
    };
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.not_before, params.not_after) = (day(not_before_days), day(not_before_days + 30));
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("api.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("api.key"), key.serialize_pem()).unwrap();
    std::fs::set_permissions(dir.join("api.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let port = free_port();
    let mut server = Launch::new("gpuaas")
        .args(["server", "--data-dir"])
        .arg(dir.join("server"))
        .args(["--api-listen", &format!("127.0.0.1:{port}"), "--link-listen", &format!("127.0.0.1:{}", free_port())])
        .arg("--api-cert")
        .arg(dir.join("api.pem"))
        .arg("--api-key")
        .arg(dir.join("api.key"))
        .start(dir.path());
    server.wait_for_line("link ready", PATIENCE);
    (server, port, dir.join("api.pem").display().to_string())
}

/// Runs the program. Returns its exit code and the error that it prints as JSON.
fn error(dir: &Path, arguments: &[&str]) -> (i32, Value) {
    error_of(dir, Launch::new("gpuaas").args(arguments))
}

fn error_of(dir: &Path, launch: Launch) -> (i32, Value) {
    let (status, stdout, stderr) = launch.args(["-o", "json"]).run(dir, PATIENCE);
    assert_eq!(stdout, "", "nothing but a result is on stdout");
    let last = stderr.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error} in {stderr}"));
    assert_eq!(error["error"]["exit_code"].as_i64(), status.code().map(i64::from), "{stderr}");
    assert!(error["error"]["hint"].is_string(), "it says what to do next: {stderr}");
    (status.code().unwrap(), error["error"].clone())
}

fn told(dir: &Path, arguments: &[&str]) -> (i32, String) {
    let (code, error) = error(dir, arguments);
    (code, error["code"].as_str().unwrap().to_owned())
}

#[test]
fn certificates_that_are_not_trusted_say_why() {
    let dir = TempDir::new();
    let (_server, port, ca) = tls_server(&dir, "gpuaas.example.com", -1);
    let https = format!("https://127.0.0.1:{port}");
    let (code, unknown) = error(dir.path(), &["node", "ls", "--url", &https]);
    assert_eq!((code, unknown["code"].as_str()), (6, Some("server_untrusted")));
    let (code, other) = error(dir.path(), &["node", "ls", "--url", &https, "--ca-file", &ca]);
    assert_eq!((code, other["code"].as_str()), (6, Some("server_name_mismatch")));
    assert!(other["message"].as_str().unwrap().contains("gpuaas.example.com"), "{other}");
}

#[test]
fn plain_http_to_a_tls_port_and_the_reverse_are_noticed() {
    let dir = TempDir::new();
    let (_server, port, ca) = tls_server(&dir, "localhost", -1);
    let (code, plain) = error(dir.path(), &["node", "ls", "--url", &format!("http://127.0.0.1:{port}")]);
    assert_eq!((code, plain["code"].as_str()), (6, Some("wrong_scheme")), "{plain}");
    assert!(plain["hint"].as_str().unwrap().contains("https://"), "{plain}");
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let secure = cluster.url().replace("http://", "https://");
    let (code, reverse) = error(dir.path(), &["node", "ls", "--url", &secure, "--ca-file", &ca]);
    assert_eq!((code, reverse["code"].as_str()), (6, Some("wrong_scheme")), "{reverse}");
    assert!(reverse["hint"].as_str().unwrap().contains("http://"), "{reverse}");
}

#[test]
fn a_certificate_of_another_time_leads_to_the_clocks() {
    let dir = TempDir::new();
    let (_server, port, ca) = tls_server(&dir, "localhost", 3);
    let url = format!("https://localhost:{port}");
    let (code, early) = error(dir.path(), &["node", "ls", "--url", &url, "--ca-file", &ca]);
    assert_eq!((code, early["code"].as_str()), (6, Some("certificate_time")), "{early}");
    assert!(early["hint"].as_str().unwrap().contains("date -u"), "{early}");
}

#[test]
fn a_socket_that_cannot_be_used_says_why() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let dir = cluster.dir.path();
    let missing = cluster.dir.join("no.sock").display().to_string();
    assert_eq!(told(dir, &["node", "ls", "--socket", &missing]), (6, "socket_missing".to_owned()));
    // A socket whose server is gone.
    let dead = cluster.dir.join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert_eq!(told(dir, &["node", "ls", "--socket", dead.to_str().unwrap()]), (6, "server_unreachable".to_owned()));
    let socket = cluster.dir.join("server/admin.sock").display().to_string();
    let works = cluster.cli(&["node", "ls", "--socket", &socket, "-o", "json"]);
    assert_eq!(works.code, 0, "{works:?}");
    if !rustix::process::geteuid().is_root() {
        return gpuaas_testkit::skip("a socket of another user", "only root can become another user");
    }
    // The user `nobody` may not enter the server's folder.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = Launch::new("gpuaas").program().display().to_string();
    let as_nobody = Launch::at("/usr/bin/setpriv").args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", &program]);
    let (code, error) = error_of(Path::new("/"), as_nobody.args(["node", "ls", "--socket", &socket]));
    assert_eq!((code, error["code"].as_str()), (5, Some("socket_forbidden")), "{error}");
}

#[test]
fn a_wrong_token_says_how_to_sign_in() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let wrong = ["node", "ls", "--url", &cluster.url(), "--token", "gpt_0000000000000000000000000000000000000000000"];
    let (code, error) = error(cluster.dir.path(), &wrong);
    assert_eq!(code, 5, "{error}");
    assert!(error["hint"].as_str().unwrap().contains("gpuaas login"), "{error}");
}

#[test]
fn a_port_in_use_and_a_database_that_is_down_say_so() {
    let dir = TempDir::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let data = |name: &str| dir.join(name).display().to_string();
    let (link, free) = (format!("127.0.0.1:{}", free_port()), free_port().to_string());
    let server = ["server", "--data-dir", &data("server"), "--api-listen", &format!("127.0.0.1:{port}"), "--link-listen", &link];
    let (code, error_) = error(dir.path(), &server);
    assert_eq!((code, error_["code"].as_str()), (4, Some("port_in_use")), "{error_}");
    assert!(error_["hint"].as_str().unwrap().contains("--api-listen"), "{error_}");
    let dev = ["dev", "--data-dir", &data("dev"), "--api-port", &port, "--link-port", &free];
    let (code, error_) = error(dir.path(), &dev);
    assert_eq!((code, error_["code"].as_str()), (4, Some("port_in_use")), "{error_}");
    assert!(error_["hint"].as_str().unwrap().contains("--api-port"), "{error_}");
    let store = format!("postgres://gpuaas@127.0.0.1:{}/gpuaas", free_port());
    let down = ["server", "--data-dir", &data("down"), "--store", &store, "--link-listen", &link];
    let (code, error_) = error(dir.path(), &down);
    assert_eq!((code, error_["code"].as_str()), (6, Some("store_unreachable")), "{error_}");
    assert!(error_["hint"].as_str().unwrap().contains("--store"), "{error_}");
}
