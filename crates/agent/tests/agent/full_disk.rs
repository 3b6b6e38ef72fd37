//! A full disk: failures and refusals, never a false success. Needs root for a small file system.

use std::path::{Path, PathBuf};

use gpuaas_agent::config::TransportChoice;
use gpuaas_contract::receipt::Outcome;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::harness::{Host, believe, ping};
use crate::server::{Server, Shared};

/// A small file system, removed with the value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("folder");
        mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(c"size=24m,mode=0700")).ok()?;
        Some(Self(at.to_owned()))
    }

    /// Fills the rest of the disk.
    fn fill(&self) -> PathBuf {
        use std::io::Write as _;
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path).expect("ballast");
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_tasks_fail_honestly_and_work_again_when_there_is_room() {
    let server = Server::start(Shared::new()).await;
    let shared = &server.shared;
    let host = Host::new(&server);
    let Some(disk) = SmallDisk::mount(&host.config.state_dir) else {
        eprintln!("skipped: mounting a file system needs root");
        return;
    };
    host.enroll(shared).await;
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    let ballast = disk.fill();
    let (task_id, signed) = shared.sign(&ping("no room"), |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let (bytes, _) = shared.receipt(task_id).await;
    let receipt = believe(shared, task_id, &signed.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.code.as_str()), (Outcome::Failed, "host_error"), "{}", receipt.message);
    assert!(receipt.message.contains("space"), "{}", receipt.message);
    assert_eq!(host.effects(task_id), 0);

    std::fs::remove_file(ballast).expect("room again");
    let (task_id, signed) = shared.sign(&ping("room"), |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let (bytes, _) = shared.receipt(task_id).await;
    assert_eq!(believe(shared, task_id, &signed.digest, &bytes).outcome, Outcome::Succeeded);
    assert_eq!(host.effects(task_id), 1);
    agent.stop().await;
}
