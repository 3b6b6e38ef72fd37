//! The cloud-init seed for the guest's first boot: names, users, keys, drivers, and where to send its metrics.

use gpuaas_host::cloud_init::{self, GpuVendor, SeedSpec, TelemetrySeed};
use gpuaas_host::guests::InstanceFile;
use gpuaas_host::openssh_key;

use super::super::on_host;
use super::{TaskFailure, Work};

pub(super) async fn cloud_init_dir(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    Ok(work.host().instance_make(work.params.allocation_id).await?)
}

/// Creates the key that terminals sign in with and the host key that the guest must present. Both are generated once and removed with the
/// guest.
pub(super) async fn terminal_key(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let id = work.params.allocation_id;
    for (private, public, comment) in [
        (InstanceFile::TerminalKey, InstanceFile::TerminalKeyPublic, format!("gpuaas-terminal-{id}")),
        (InstanceFile::HostKey, InstanceFile::HostKeyPublic, format!("gpuaas-host-{id}")),
    ] {
        // The public half is written last: if it exists, both exist.
        if work.host().instance_read(id, public).await?.is_some() {
            continue;
        }
        let pair = openssh_key::generate(&comment)?;
        work.host().instance_write(id, private, pair.private_pem.as_bytes().to_vec()).await?;
        work.host().instance_write(id, public, pair.public_line.into_bytes()).await?;
    }
    let host_key = text(work, InstanceFile::HostKeyPublic).await?;
    let address = work.params.private_ip().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED);
    let known = openssh_key::known_hosts_line(address, &host_key);
    Ok(work.host().instance_write(id, InstanceFile::KnownHosts, known.into_bytes()).await?)
}

/// Creates the token by which the host recognizes the guest's metrics.
pub(super) async fn guest_telemetry_register(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let id = work.params.allocation_id;
    if work.host().instance_read(id, InstanceFile::TelemetryToken).await?.is_none() {
        let token = crate::guests::new_token().map_err(|error| TaskFailure::failed("no_random_numbers", error.to_string()))?;
        work.host().instance_write(id, InstanceFile::TelemetryToken, token.into_bytes()).await?;
    }
    let token = text(work, InstanceFile::TelemetryToken).await?;
    work.context.guests.register(id, &token);
    Ok(())
}

pub(super) async fn cloud_init_seed_files(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    let gpu = params.slots.first().and_then(|slot| slot.spec.pci_address.clone());
    let inventory = on_host(work.context, |host| host.inventory()).await?;
    let inventory = inventory.map_err(|error| TaskFailure::failed("machine_unknown", crate::error_chain::chain(&error)))?;
    let vendor = inventory.functions.iter().find(|function| Some(&function.address) == gpu.as_ref());
    let token = text(work, InstanceFile::TelemetryToken).await?;
    let seed = SeedSpec {
        allocation_id: params.allocation_id,
        guest: params.guest.clone(),
        terminal_public_key: text(work, InstanceFile::TerminalKeyPublic).await?,
        host_private_pem: text(work, InstanceFile::HostKey).await?,
        host_public_line: text(work, InstanceFile::HostKeyPublic).await?,
        mac_address: params.slots.first().map(|slot| slot.spec.mac_address.clone()).unwrap_or_default(),
        gpu_vendor: vendor.and_then(|function| match function.vendor_id.as_str() {
            "10de" => Some(GpuVendor::Nvidia),
            "1002" => Some(GpuVendor::Amd),
            _ => None,
        }),
        telemetry: work.context.guests.endpoint().map(|endpoint| TelemetrySeed { endpoint: endpoint.to_string(), token }),
    };
    for (file, content) in [
        (InstanceFile::MetaData, cloud_init::meta_data(&seed)),
        (InstanceFile::NetworkConfig, cloud_init::network_config(&seed)),
        (InstanceFile::UserData, cloud_init::user_data(&seed)),
    ] {
        work.host().instance_write(params.allocation_id, file, content.into_bytes()).await?;
    }
    Ok(())
}

pub(super) async fn cloud_localds(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    work.unless_stopped(work.host().seed_build(work.params.allocation_id)).await
}

/// Reads a file from the guest's folder; a missing file is an error.
async fn text(work: &Work<'_>, file: InstanceFile) -> Result<String, TaskFailure> {
    let bytes = work.host().instance_read(work.params.allocation_id, file).await?;
    let bytes = bytes
        .ok_or_else(|| TaskFailure::failed("instance_missing", format!("{} is gone from the guest's folder", file.name())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
