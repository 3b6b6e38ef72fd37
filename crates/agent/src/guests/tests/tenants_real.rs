//! A tenant on this machine: signed tasks in, a real user, receipts out. Needs root.

use std::path::Path;
use std::time::Duration;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_host::exec::{Exec, first_installed};

use super::rig::{PERMISSIVE, Rig};
use super::tenants::{come, go, key};

const SETPRIV: &str = "/usr/bin/setpriv";

/// Returns why this machine cannot run the test.
fn reason_to_skip() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make users");
    }
    if first_installed(&["/usr/sbin/useradd"]).is_none() || first_installed(&[SETPRIV]).is_none() {
        return Some("useradd or setpriv is not installed");
    }
    Path::new("/proc/1/root/home").metadata().err().map(|_| "the root of the first process cannot be reached")
}

/// Returns whether a process of this user number runs.
fn runs(uid: u32) -> bool {
    let of_user = |entry: std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with(&format!("Uid:\t{uid}\t")))
    };
    std::fs::read_dir("/proc").expect("listed").flatten().any(of_user)
}

async fn life_of_a_tenant(rig: &Rig, tenant: AllocationId, name: &str) {
    let mut wanted = super::tenants::user(tenant, 1, name);
    // sudo may not be installed here.
    wanted.sudo = false;
    let made = rig.run(&gpuaas_contract::task::Task::AllocationProvisionUser(wanted)).await;
    assert_eq!(made.outcome, Outcome::Succeeded, "{made:?}");
    let output = made.output.expect("an output");
    let home = Path::new("/home").join(name);
    assert_eq!(output["home"], home.to_str().expect("text"));
    let keys = std::fs::read_to_string(home.join(".ssh/authorized_keys")).expect("there");
    assert_eq!(keys, format!("{}\n{}\n", key(1), key(2)));

    let uid = u32::try_from(output["uid"].as_u64().expect("a number")).expect("small");
    let file = Path::new("/var/tmp").join(format!("{name}-file"));
    std::fs::write(&file, b"x").expect("written");
    std::os::unix::fs::chown(&file, Some(uid), Some(uid)).expect("given");
    let exec = Exec::new(SETPRIV).arg("--reuid").arg(uid.to_string()).arg("--regid").arg(uid.to_string());
    let exec = exec.arg("--clear-groups").arg("--").arg("/bin/sleep").arg("600").deadline(Duration::from_secs(600));
    let process = tokio::spawn(exec.run());
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while !runs(uid) {
        assert!(tokio::time::Instant::now() < until, "the process runs");
        tokio::task::yield_now().await;
    }

    let gone = rig.run(&go(tenant, 1, name)).await;
    assert_eq!(gone.outcome, Outcome::Succeeded, "{gone:?}");
    let output = gone.output.expect("an output");
    assert_eq!((&output["existed"], &output["home_removed"]), (&true.into(), &true.into()));
    assert!(output["processes_ended"].as_u64().is_some_and(|count| count >= 1), "{output}");
    process.await.expect("no panic").expect_err("it was ended");
    assert!(home.symlink_metadata().is_err() && file.symlink_metadata().is_err());
    let asked = Exec::new("/usr/bin/getent").arg("passwd").arg(name).run_with_code().await.expect("asked");
    assert_eq!(asked.0, Some(2), "the system knows no such user");
    let again = rig.run(&go(tenant, 1, name)).await;
    assert_eq!(again.output.expect("an output")["existed"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_of_this_machine_comes_and_goes_without_a_trace() {
    if let Some(reason) = reason_to_skip() {
        println!("skipped: {reason}");
        return;
    }
    let rig = Rig::on_this_machine(&PERMISSIVE.replace("tenant-*", "gpuaas-t-*")).await;
    let (tenant, name) = (AllocationId::generate(), format!("gpuaas-t-a{}", std::process::id()));
    let rig = std::sync::Arc::new(rig);
    let life = {
        let (rig, name) = (std::sync::Arc::clone(&rig), name.clone());
        tokio::spawn(async move { life_of_a_tenant(&rig, tenant, &name).await }).await
    };
    // Cleans up whatever went wrong.
    let ended = rig.run(&go(tenant, 1, &name)).await;
    let _ = std::fs::remove_file(format!("/var/tmp/{name}-file"));
    life.expect("the life of a tenant went as it should");
    assert_eq!(ended.outcome, Outcome::Succeeded, "{ended:?}");
    // A released tenant cannot return with its old epoch.
    let stale = rig.run(&come(tenant, 1, &name)).await;
    assert_eq!(stale.code, "lease_epoch_stale", "{stale:?}");
}
