//! Guests: the agent's own time to create one, and the cost of writing and wiping its drives.
//!
//! The time to create a guest is that of the real agent process on a simulated host, whose drives, images and guests take no time. It is
//! read from the receipts. Images and wipes go to a real block device, through the operations that the agent's tasks use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use gpuaas_api::Client;
use gpuaas_api::dto::{SliceCreate, SliceRelease, SlotName, Task, TaskCreate, TopologyApprove};
use gpuaas_contract::cleanup::WipeMethod;
use gpuaas_contract::guest::{DEFAULT_USERNAME, GuestSpec, ImageFormat, ImageSource};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::task::slice_vm_provision::PHASES;
use gpuaas_contract::{Digest, dsse, receipt};
use gpuaas_host::guests::{ImageWanted, Layout};
use gpuaas_host::image::Images;
use gpuaas_host::{Host, RealHost};
use tokio_util::sync::CancellationToken;

use crate::child::Server;
use crate::cluster::Cluster;
use crate::drive::{self, BYTES, Drive, Medium};
use crate::measure::{Effort, Goal, Quantile, Round, Row, Side, count, interleave};
use crate::report::progress;
use crate::rows::footprint::only_node;
use crate::rows::latency::start_agent;
use crate::times::{TimeUnit, Times};
use crate::{Result, Setup};

/// The goal for the agent's own time to create a guest, in milliseconds.
const OVERHEAD_MS: f64 = 50.0;
/// The program that the product uses to write images.
const QEMU_IMG: &str = "/usr/bin/qemu-img";
/// The image alternates between content and holes of this size, in bytes.
const IMAGE_PART: u64 = 32 << 20;

/// Guests that are created and released one after the other on one slot.
struct Provisions {
    cluster: Cluster,
    _agent: Server,
    node: String,
}

impl Provisions {
    async fn start(setup: &Setup) -> Result<Self> {
        let cluster = Cluster::start(setup, "slice", None).await?;
        let agent = start_agent(setup, &setup.programs, &cluster, &cluster.folder.join("host"), "agent slice").await?;
        let node = only_node(&cluster).await?;
        let look = TaskCreate {
            node: node.clone(),
            task_type: "slice.topology_discover".to_owned(),
            params: serde_json::json!({}),
            queue_seconds: None,
            timeout_seconds: None,
        };
        let task_id = cluster.client.task_create(&look, None).await?.id;
        ended(&cluster.client, task_id).await?;
        let approve = TopologyApprove { task_id, slots: Some(vec![0]) };
        cluster.client.node_topology_approve(&node, &approve).await?;
        Ok(Self { cluster, _agent: agent, node })
    }

    /// Creates a guest and releases it. Returns how long the creation took, and how much of that was spent waiting for the guest to answer.
    async fn once(&self) -> Result<(Duration, Duration)> {
        let client = &self.cluster.client;
        let create = SliceCreate {
            node: self.node.clone(),
            slots: vec![SlotName::Index(0)],
            guest: GuestSpec {
                vm_name: "bench".parse()?,
                image: ImageSource {
                    path: Some("image.qcow2".to_owned()),
                    url: None,
                    sha256: Digest::of(b"image"),
                    format: ImageFormat::Qcow2,
                    trusted: false,
                },
                default_username: DEFAULT_USERNAME.parse()?,
                ssh_public_keys: Vec::new(),
                driver_strategy: Default::default(),
                ovs_bridge: None,
                graphics: false,
                graceful_timeout_seconds: None,
            },
        };
        let order = client.slice_create(&create, None).await?;
        ended(client, order.task.id).await?;
        let times = self.times_of(order.task.id).await?;
        let release = SliceRelease { wipe: true, graceful_timeout_seconds: None };
        let released = client.slice_release(&order.allocation_id.to_string(), &release, None).await?;
        ended(client, released.task.id).await?;
        Ok(times)
    }

    /// Reads the times from the receipt. The total is exact; the times of phases are whole milliseconds.
    async fn times_of(&self, task: TaskId) -> Result<(Duration, Duration)> {
        let evidence = self.cluster.client.task_evidence(&task.to_string()).await?;
        let receipt = evidence.receipt.ok_or("no receipt")?;
        let reported: receipt::Payload = serde_json::from_slice(&dsse::payload_unverified(&receipt)?)?;
        let phases: Vec<&str> = reported.phases.iter().map(|phase| phase.phase.as_str()).collect();
        if phases != PHASES {
            return Err(format!("task {task} went through other phases: {}", phases.join(", ")).into());
        }
        let all = reported.finished_at.since(reported.started_at.ok_or("a receipt without a start")?);
        let of_phases: u64 = reported.phases.iter().map(|phase| phase.milliseconds).sum();
        if Duration::from_millis(of_phases) > all {
            return Err(format!("task {task} took {all:?}, but its phases {of_phases} ms").into());
        }
        let waited = reported.phases.iter().find(|phase| phase.phase == "readiness").map_or(0, |phase| phase.milliseconds);
        Ok((all, Duration::from_millis(waited)))
    }
}

/// Waits until a task has succeeded, and returns it.
async fn ended(client: &Client, id: TaskId) -> Result<Task> {
    for _ in 0..4000 {
        let task = client.task(&id.to_string()).await?;
        match task.state.as_str() {
            "succeeded" => return Ok(task),
            state if task.ended() => {
                return Err(format!("{} ended as {state} ({}): {}", task.task_type, task.code, task.message).into());
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    Err(format!("task {id} did not end").into())
}

impl Side for Provisions {
    fn name(&self) -> String {
        "gpuaas".to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let (mut all, mut own) = (Times::new()?, Times::new()?);
            let begun = Instant::now();
            while all.len() == 0 || begun.elapsed() < time {
                let (took, waited) = self.once().await?;
                all.record(took)?;
                own.record(took.saturating_sub(waited))?;
            }
            Ok(Round::times(vec![all, own]))
        })
    }
}

pub(crate) async fn overhead(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let mut sides: Vec<Box<dyn Side>> = vec![Box::new(Provisions::start(setup).await?)];
    let measured = interleave(&mut sides, effort).await;
    let path = "17 phases of a guest";
    let p50 = |metric| Quantile { metric, share: 0.5, unit: TimeUnit::Milliseconds };
    Ok(vec![
        measured.own_time_row(&format!("{path}, simulated host, p50"), 0, p50(0), Goal::AtMost(OVERHEAD_MS)),
        measured.own_time_row(&format!("{path} but readiness, simulated host, p50"), 0, p50(1), Goal::Open),
    ])
}

/// Returns this machine as a host for guests, with all its files in one folder.
fn machine(folder: &Path) -> (Host, Layout) {
    let at = |name: &str| folder.join(name);
    let layout = Layout {
        leases: at("leases"),
        instances: at("slices"),
        images: at("store"),
        image_folders: vec![at("images")],
        image_cache_bytes: 4 * BYTES,
        dhcp_hosts: at("dhcp-hosts"),
        dnsmasq_pid: at("dnsmasq.pid"),
        console_bytes: 1 << 20,
        huge_pages: false,
    };
    (Host::Real(RealHost::new(&at("state"), layout.clone())), layout)
}

/// An image in the product's store.
#[derive(Clone)]
struct Image {
    sha256: Digest,
    path: PathBuf,
}

impl Image {
    /// Creates an image, half random content and half empty, and imports it like any image.
    async fn make(folder: &Path, host: &Host, layout: &Layout) -> Result<Self> {
        progress("making an image");
        let images = folder.join("images");
        std::fs::create_dir_all(&images)?;
        let (raw, image) = (folder.join("content.raw"), images.join("image.qcow2"));
        let file = std::fs::File::create(&raw)?;
        file.set_len(BYTES)?;
        let mut part = vec![0; usize::try_from(IMAGE_PART)?];
        for at in (0..BYTES).step_by(2 * part.len()) {
            drive::fill_by_chance(&mut part)?;
            std::os::unix::fs::FileExt::write_all_at(&file, &part, at)?;
        }
        drop(file);
        drive::run(QEMU_IMG, &["convert", "-f", "raw", "-O", "qcow2", drive::text(&raw)?, drive::text(&image)?]).await?;
        std::fs::remove_file(&raw)?;
        let sha256 = digest_of(&image)?;
        let wanted = ImageWanted {
            sha256: sha256.clone(),
            path: Some("image.qcow2".to_owned()),
            url: None,
            allowed_prefixes: Vec::new(),
            private_networks: Vec::new(),
        };
        host.image_fetch(&wanted, &|_, _| {}).await?;
        std::fs::remove_file(&image)?;
        let disk = host.image_verify(&sha256, ImageFormat::Qcow2).await?;
        if disk != BYTES {
            return Err(format!("the image's disk has {disk} bytes").into());
        }
        let path = Images::new(layout).path_of(&sha256);
        Ok(Self { sha256, path })
    }
}

fn digest_of(file: &Path) -> Result<Digest> {
    use std::io::Read as _;
    let (mut file, mut piece) = (std::fs::File::open(file)?, vec![0; 1 << 20]);
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => context.update(&piece[..read]),
        }
    }
    Ok(Digest::try_from(format!("sha256:{}", gpuaas_contract::hex(context.finish().as_ref())))?)
}

/// What one side does with the drive, repeatedly.
enum Job {
    /// Writes the image through the product.
    Write(Image),
    /// Writes the image with `qemu-img` alone.
    QemuImg(Image),
    /// Wipes through the product, which must choose this method.
    Wipe(WipeMethod),
    /// Overwrites everything with zeros, using `dd`.
    Dd,
}

/// One side. Both sides use the same drive in turn.
struct Work {
    job: Job,
    drive: Arc<Drive>,
    host: Host,
}

impl Work {
    /// Does the job once and returns its time, without the preparation and the check of the result.
    async fn once(&self) -> Result<Duration> {
        let (drive, node) = (&self.drive, drive::text(&self.drive.node)?);
        match &self.job {
            Job::Write(image) => {
                drive.spoil()?;
                let (stop, from) = (CancellationToken::new(), (&image.sha256, ImageFormat::Qcow2));
                let begun = Instant::now();
                self.host.drive_write_image(&drive.known_as, from, &|_, _| {}, &stop).await?;
                let took = begun.elapsed();
                compare(image, node).await?;
                Ok(took)
            }
            Job::QemuImg(image) => {
                drive.spoil()?;
                let source = drive::text(&image.path)?;
                let fixed = ["convert", "-f", "qcow2", "-O", "raw", "-n", "-t", "none", "-T", "none", "-W", "-m", "16"];
                let arguments: Vec<&str> = fixed.into_iter().chain([source, node]).collect();
                let begun = Instant::now();
                drive::run(QEMU_IMG, &arguments).await?;
                let took = begun.elapsed();
                compare(image, node).await?;
                Ok(took)
            }
            Job::Wipe(method) => {
                drive.fill()?;
                let begun = Instant::now();
                let proof = self.host.drive_wipe(&drive.known_as, &|_, _| {}).await?;
                let took = begun.elapsed();
                if proof.method != *method || !proof.is_clean() || !drive.is_zero()? {
                    return Err(format!("not wiped as it should: {proof:?}").into());
                }
                Ok(took)
            }
            Job::Dd => {
                drive.fill()?;
                let (of, count) = (format!("of={node}"), format!("count={}", BYTES / (4 << 20)));
                let begun = Instant::now();
                // `fsync` flushes to the drive at the end, as a wipe does.
                drive::run("dd", &["if=/dev/zero", &of, "bs=4M", &count, "oflag=direct", "conv=fsync,notrunc"]).await?;
                let took = begun.elapsed();
                if drive.is_zero()? { Ok(took) } else { Err("dd left something".into()) }
            }
        }
    }
}

/// Reads the whole drive and checks that it contains the image, with zeros where the image has holes.
async fn compare(image: &Image, node: &str) -> Result<()> {
    let arguments = ["compare", "-f", "qcow2", "-F", "raw", "-T", "none", drive::text(&image.path)?, node];
    drive::run(QEMU_IMG, &arguments).await.map(drop)
}

impl Side for Work {
    fn name(&self) -> String {
        match &self.job {
            Job::Write(_) | Job::Wipe(_) => "gpuaas",
            Job::QemuImg(_) => "qemu-img convert",
            Job::Dd => "dd oflag=direct",
        }
        .to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let (begun, mut times, mut took) = (Instant::now(), 0, Duration::ZERO);
            while times == 0 || begun.elapsed() < time {
                took += self.once().await?;
                times += 1;
            }
            let seconds = took.as_secs_f64() / count(times);
            Ok(Round::value(match &self.job {
                Job::Write(_) | Job::QemuImg(_) => seconds,
                Job::Wipe(_) | Job::Dd => count(usize::try_from(BYTES >> 20)?) / seconds,
            }))
        })
    }
}

pub(crate) async fn image_write(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    if !Path::new(QEMU_IMG).is_file() {
        return Err(format!("{QEMU_IMG} is not there; the Debian package qemu-utils has it").into());
    }
    let folder = tempfile::tempdir_in(&setup.disk)?;
    let (host, layout) = machine(folder.path());
    let drive = Arc::new(Drive::make(folder.path(), Medium::Disk, &host).await?);
    let image = Image::make(folder.path(), &host, &layout).await?;
    let side = |job| -> Box<dyn Side> { Box::new(Work { job, drive: Arc::clone(&drive), host: host.clone() }) };
    let mut sides = vec![side(Job::Write(image.clone())), side(Job::QemuImg(image))];
    let measured = interleave(&mut sides, longer(effort)).await;
    Ok(vec![measured.row("image of 1 GiB, half of it empty, onto a drive", "s", 0, 1, 0, Goal::AtMost(1.05))])
}

pub(crate) async fn wipe(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir_in(&setup.disk)?;
    let (host, _) = machine(folder.path());
    let mut rows = Vec::new();
    for (medium, method, path) in [
        (Medium::Disk, WipeMethod::Discard, "proven wipe of 1 GiB, by discarding"),
        (Medium::Memory, WipeMethod::Zero, "proven wipe of 1 GiB in memory, with zeros"),
    ] {
        let goal = Goal::AtLeast(0.95);
        let drive = match Drive::make(folder.path(), medium, &host).await {
            Ok(drive) => Arc::new(drive),
            Err(error) => {
                rows.push(Row::skipped(path, "dd oflag=direct", goal, error));
                continue;
            }
        };
        let side = |job| -> Box<dyn Side> { Box::new(Work { job, drive: Arc::clone(&drive), host: host.clone() }) };
        let mut sides = vec![side(Job::Wipe(method)), side(Job::Dd)];
        let measured = interleave(&mut sides, longer(effort)).await;
        rows.push(measured.row(path, "MiB/s", 0, 1, 0, goal));
    }
    Ok(rows)
}

/// Makes rounds longer: the drive is filled or changed before each operation and read afterwards, so a short round would have only one.
fn longer(effort: Effort) -> Effort {
    Effort { round_ms: effort.round_ms.max(4000), ..effort }
}
