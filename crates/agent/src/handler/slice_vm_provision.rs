//! `slice.vm_provision`: creates a guest on leased slots, in the 17 phases that are listed here in order.
//!
//! Every phase is idempotent: after a restart of the agent the task resumes by running all of them, and each finds what it did before.
//! One undo serves all phases (`guests/cleanup.rs`). It consults the leases for what may have been touched, not the journal for what was
//! done, so it works the same whether a phase failed, the task was cancelled, or the agent was killed in the middle of a phase.

mod guest;
mod host;
mod image;
mod seed;

use std::collections::BTreeMap;
use std::time::Instant;

use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::Output as AnyOutput;
use gpuaas_contract::task::slice_vm_provision::{
    Acceleration, GuestTelemetry, Output, PHASES, Params, Performance, Readiness, TelemetrySource,
};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::guests::{DomainState, InstanceFile, Point, Power};
use gpuaas_host::{Host, HostError};

use super::{Context, Success, TaskFailure};
use crate::guests::cleanup::Cleanup;

/// How often one task is started before the agent gives up: a crash that repeats is not a coincidence.
const MAX_ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    LeaseAcquire,
    HostDependencies,
    HostPassthroughCheck,
    VfioBindCheck,
    ImageStatDownload,
    ImageDigestVerify,
    CloudInitDir,
    TerminalKey,
    GuestTelemetryRegister,
    CloudInitSeedFiles,
    CloudLocalds,
    RuntimeValidate,
    DhcpReservation,
    ImageWriteConvert,
    VirtInstall,
    Readiness,
    PerformanceProbe,
}

impl Phase {
    /// All phases, in order.
    const ALL: [Self; 17] = [
        Self::LeaseAcquire,
        Self::HostDependencies,
        Self::HostPassthroughCheck,
        Self::VfioBindCheck,
        Self::ImageStatDownload,
        Self::ImageDigestVerify,
        Self::CloudInitDir,
        Self::TerminalKey,
        Self::GuestTelemetryRegister,
        Self::CloudInitSeedFiles,
        Self::CloudLocalds,
        Self::RuntimeValidate,
        Self::DhcpReservation,
        Self::ImageWriteConvert,
        Self::VirtInstall,
        Self::Readiness,
        Self::PerformanceProbe,
    ];

    /// The name of the phase in receipts.
    fn name(self) -> &'static str {
        PHASES[self as usize]
    }

    /// The progress message shown to people.
    const fn says(self) -> &'static str {
        match self {
            Self::LeaseAcquire => "taking the slots",
            Self::HostDependencies => "looking for the programs that guests need",
            Self::HostPassthroughCheck => "checking KVM, IOMMU and VFIO",
            Self::VfioBindCheck => "binding the devices to vfio-pci",
            Self::ImageStatDownload => "fetching the image",
            Self::ImageDigestVerify => "checking the image",
            Self::CloudInitDir => "making the guest's folder",
            Self::TerminalKey => "making the guest's keys",
            Self::GuestTelemetryRegister => "registering the guest's telemetry",
            Self::CloudInitSeedFiles => "writing the seed",
            Self::CloudLocalds => "making the seed disk",
            Self::RuntimeValidate => "checking drive, bridge and memory",
            Self::DhcpReservation => "reserving the address",
            Self::ImageWriteConvert => "writing the image to the drive",
            Self::VirtInstall => "starting the guest",
            Self::Readiness => "waiting for the guest",
            Self::PerformanceProbe => "asking the guest what it sees",
        }
    }

    async fn run(self, work: &mut Work<'_>) -> Result<(), TaskFailure> {
        match self {
            Self::LeaseAcquire => host::lease_acquire(work).await,
            Self::HostDependencies => host::host_dependencies(work).await,
            Self::HostPassthroughCheck => host::host_passthrough_check(work).await,
            Self::VfioBindCheck => host::vfio_bind_check(work).await,
            Self::ImageStatDownload => image::image_stat_download(work).await,
            Self::ImageDigestVerify => image::image_digest_verify(work).await,
            Self::CloudInitDir => seed::cloud_init_dir(work).await,
            Self::TerminalKey => seed::terminal_key(work).await,
            Self::GuestTelemetryRegister => seed::guest_telemetry_register(work).await,
            Self::CloudInitSeedFiles => seed::cloud_init_seed_files(work).await,
            Self::CloudLocalds => seed::cloud_localds(work).await,
            Self::RuntimeValidate => host::runtime_validate(work).await,
            Self::DhcpReservation => guest::dhcp_reservation(work).await,
            Self::ImageWriteConvert => image::image_write_convert(work).await,
            Self::VirtInstall => guest::virt_install(work).await,
            Self::Readiness => guest::readiness(work).await,
            Self::PerformanceProbe => guest::performance_probe(work).await,
        }
    }
}

/// The inputs and results that the phases share.
struct Work<'a> {
    params: &'a Params,
    context: &'a Context,
    recovered: bool,
    acceleration: Acceleration,
    image_was_cached: bool,
    /// Virtual size of the disk in the image.
    disk_bytes: u64,
    readiness: Readiness,
    performance: Performance,
    timings: BTreeMap<String, u64>,
}

impl Work<'_> {
    fn host(&self) -> &Host {
        &self.context.host
    }

    /// Awaits a long operation, and gives up when the task is stopped.
    async fn unless_stopped<T>(&self, long: impl Future<Output = Result<T, HostError>>) -> Result<T, TaskFailure> {
        tokio::select! {
            biased;
            () = self.context.stop.cancelled() => Err(TaskFailure::stopped()),
            result = long => Ok(result?),
        }
    }

    async fn run_from(&mut self, first: Phase) -> Result<(), TaskFailure> {
        for phase in Phase::ALL.into_iter().filter(|phase| *phase >= first) {
            if self.context.stop.is_cancelled() {
                return Err(TaskFailure::stopped());
            }
            let begun = Instant::now();
            self.host().checkpoint(phase.name(), Point::Begin).await?;
            self.context.phases.enter(phase.name(), phase.says()).await;
            self.host().checkpoint(phase.name(), Point::Journaled).await?;
            phase.run(self).await?;
            let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.timings.insert(format!("{}_ms", phase.name()), milliseconds);
            self.host().checkpoint(phase.name(), Point::Done).await?;
        }
        Ok(())
    }

    /// The phase to begin with: a guest that is already running only has to become ready.
    async fn first_phase(&self) -> Result<Phase, TaskFailure> {
        if !self.recovered {
            return Ok(Phase::LeaseAcquire);
        }
        let leases = self.host().leases().await?;
        let mine = leases.iter().filter(|lease| lease.holder() == self.params.holder() && lease.power == Power::On).count();
        let runs =
            mine == self.params.slots.len() && self.host().domain_state(self.params.allocation_id).await? == DomainState::Running;
        Ok(if runs { Phase::Readiness } else { Phase::LeaseAcquire })
    }

    async fn output(&self) -> Result<Output, TaskFailure> {
        let params = self.params;
        let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).trim().to_owned();
        let read = |file| self.host().instance_read(params.allocation_id, file);
        Ok(Output {
            allocation_id: params.allocation_id,
            vm_name: params.guest.vm_name.clone(),
            default_user: params.guest.default_username.clone(),
            private_ip: params.private_ip().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED),
            ssh_port: 22,
            slot_count: u32::try_from(params.slots.len()).unwrap_or(u32::MAX),
            acceleration: self.acceleration,
            image_sha256: params.guest.image.sha256.clone(),
            image_was_cached: self.image_was_cached,
            host_key: text(read(InstanceFile::HostKeyPublic).await?),
            terminal_key: text(read(InstanceFile::TerminalKeyPublic).await?),
            readiness: self.readiness.clone(),
            performance: self.performance.clone(),
            telemetry: self.telemetry(),
            timings: self.timings.clone(),
            raw_vnc: false,
            console_model: "gateway_required".to_owned(),
            recovered: self.recovered,
        })
    }

    fn telemetry(&self) -> GuestTelemetry {
        let (source, reason) = match self.context.guests.endpoint() {
            None => (TelemetrySource::HostLocalProbe, "this host has no guest_telemetry_listen"),
            Some(_) if self.context.guests.has_reported(self.params.allocation_id) => (TelemetrySource::SliceGuest, ""),
            Some(_) => (TelemetrySource::HostLocalProbe, "the guest has not reported yet"),
        };
        GuestTelemetry { source, reason: reason.to_owned() }
    }
}

pub(super) async fn run(params: &Params, context: &Context) -> Result<Success, TaskFailure> {
    go(params, context, false).await
}

/// After a restart of the agent: resumes the task if it is still allowed, within its deadline and not crash-looping. Cleans up otherwise.
pub(super) async fn recover(params: &Params, context: &Context) -> Result<Success, TaskFailure> {
    let reason = if !context.still_allowed {
        Some(("policy_denied", "the host policy does not allow this task any more"))
    } else if Timestamp::now() > context.deadline {
        Some(("deadline_exceeded", "the agent came back after the task's deadline"))
    } else if context.attempt > MAX_ATTEMPTS {
        Some(("agent_restarted", "the agent was restarted again and again while the task ran"))
    } else {
        None
    };
    let Some((code, message)) = reason else { return go(params, context, true).await };
    let _claim = context.guests.claim(&params.slots).await;
    Err(undo(params, context, TaskFailure::interrupted(code, message)).await)
}

async fn go(params: &Params, context: &Context, recovered: bool) -> Result<Success, TaskFailure> {
    let _claim = context.guests.claim(&params.slots).await;
    // Keeps the image in the cache: another guest's image must not evict it between fetching and writing.
    let _image = context.host.image_hold(&params.guest.image.sha256);
    let mut work = Work {
        params,
        context,
        recovered,
        acceleration: Acceleration::Kvm,
        image_was_cached: recovered,
        disk_bytes: 0,
        readiness: Readiness { ssh: false, marker: false, attempts: 0 },
        performance: Performance::default(),
        timings: BTreeMap::new(),
    };
    let done = async {
        work.acceleration = host::acceleration(&work).await?;
        let first = work.first_phase().await?;
        work.run_from(first).await?;
        work.output().await
    };
    match done.await {
        Ok(output) => Ok(AnyOutput::SliceVmProvision(output).into()),
        Err(failure) => Err(undo(params, context, failure).await),
    }
}

/// Removes everything that the task may have created, and adds the cleanup proof to the failure.
async fn undo(params: &Params, context: &Context, why: TaskFailure) -> TaskFailure {
    tracing::warn!(code = why.code, message = why.message, "provisioning did not succeed; undoing it");
    context.phases.enter("cleanup", "undoing what was done").await;
    let holder = params.holder();
    let cleanup = Cleanup {
        host: &context.host,
        phases: &context.phases,
        guests: &context.guests,
        holder,
        slots: &params.slots,
        wipe: true,
        take_over: false,
        only_of: Some(context.task_id),
    };
    let (proof, errors) = cleanup.run().await;
    let ours = |lease: &gpuaas_host::guests::Lease| lease.holder() == holder && lease.task_id == context.task_id;
    // If the leases cannot be read, assume that this task still holds one.
    let still_held = context.host.leases().await.map_or(true, |leases| leases.iter().any(ours));
    let failure = if still_held {
        let blockers = proof.blockers(&params.slots, true);
        let reasons = errors.iter().map(|error| error.message.as_str()).chain(blockers.iter().map(|b| b.message.as_str()));
        let message = format!("{} ({}); not cleaned up: {}", why.message, why.code, reasons.collect::<Vec<_>>().join("; "));
        let outcome = if why.outcome == Outcome::Interrupted { Outcome::Interrupted } else { Outcome::Failed };
        TaskFailure { outcome, ..TaskFailure::failed("cleanup_blocked", message) }
    } else {
        why
    };
    TaskFailure { proof: Some(Box::new(proof)), ..failure }
}
