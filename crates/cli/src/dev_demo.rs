//! What a newcomer finds in `gpuaas dev`: an organization with a project, products, an image, and slots on the simulated hosts.
//!
//! Everything is created through the API, as an operator would do it. The project is created last: once it exists, nothing is
//! created again, so that what the user changes or deletes stays that way.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use gpuaas_api::Client;
use gpuaas_api::client::WatchEvent;
use gpuaas_api::dto::{
    ImageCreate, Limits, OrganizationCreate, OrganizationListQuery, ProductKind, ProjectCreate, ProjectListQuery, SkuCreate,
    SshKeyCreate, TaskCreate, TopologyApprove,
};
use gpuaas_contract::Digest;
use gpuaas_contract::guest::{DriverStrategy, ImageFormat};
use gpuaas_contract::money::{Currency, Money};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::TaskState;
use gpuaas_contract::task::TaskType;

use crate::dev_ssh_key;
use crate::error::CliError;
use crate::exit::Exit;
use crate::pages::MAX_ITEMS;
use crate::tenants;

const ORGANIZATION: &str = "demo";
const PROJECT: &str = "default";
/// The project as it is typed on the command line.
pub(crate) const FULL_NAME: &str = "demo/default";
const IMAGE: &str = "ubuntu";
/// Name of the stored SSH key, for users who have none of their own.
const SSH_KEY: &str = "dev";
/// Time limit for the topology discovery of a simulated host.
const PATIENCE: Duration = Duration::from_secs(60);

/// Products: name, GPU as `vendor:device`, number of slots, price per hour in millionths.
const PRODUCTS: [(&str, &str, u32, i64); 3] =
    [("h100-1x", "10de:2330", 1, 2_500_000), ("h100-8x", "10de:2330", 8, 19_200_000), ("mi300x-1x", "1002:74a1", 1, 3_100_000)];

/// Creates what is missing, on the first start only.
pub(crate) async fn furnish(client: &Client, hosts: &[&str], data_dir: &Path) -> Result<(), CliError> {
    let query = OrganizationListQuery { name: Some(ORGANIZATION.to_owned()), ..OrganizationListQuery::default() };
    let organization = client.organizations(&query).await?.items.into_iter().find(|found| found.name == ORGANIZATION);
    if let Some(organization) = &organization {
        let query = ProjectListQuery {
            organization: Some(organization.id.to_string()),
            name: Some(PROJECT.to_owned()),
            ..ProjectListQuery::default()
        };
        if client.projects(&query).await?.items.iter().any(|project| project.name == PROJECT) {
            return Ok(());
        }
    }
    products(client).await?;
    image(client).await?;
    for host in hosts {
        slots(client, host).await?;
    }
    let organization = match organization {
        Some(organization) => organization,
        None => {
            let create = OrganizationCreate {
                name: ORGANIZATION.to_owned(),
                description: "Created by gpuaas dev".to_owned(),
                ..OrganizationCreate::default()
            };
            client.organization_create(&create, None).await?
        }
    };
    let create = ProjectCreate {
        name: PROJECT.to_owned(),
        description: "Created by gpuaas dev".to_owned(),
        limits: Limits::default(),
        owner_email: None,
    };
    let project = client.project_create(&organization.id.to_string(), &create, None).await?.id.to_string();
    let key = SshKeyCreate { name: SSH_KEY.to_owned(), public_key: dev_ssh_key::ensure(data_dir)? };
    client.ssh_key_add(&project, &key, None).await?;
    Ok(())
}

async fn products(client: &Client) -> Result<(), CliError> {
    let known = tenants::skus(client, MAX_ITEMS).await?.items;
    for (name, gpu, slots, price_per_hour) in PRODUCTS {
        if known.iter().any(|sku| sku.name == name) {
            continue;
        }
        let create = SkuCreate {
            name: name.to_owned(),
            description: "simulated".to_owned(),
            kind: ProductKind::Slice,
            slots: Some(slots),
            gpu_model: Some(gpu.to_owned()),
            // The simulated hosts may not have connected yet.
            allow_unknown_gpu: true,
            min_vcpus: 0,
            min_memory_mib: 0,
            price_per_hour: Money::of_millionths(price_per_hour, Currency::USD),
        };
        client.sku_create(&create, None).await?;
    }
    Ok(())
}

async fn image(client: &Client) -> Result<(), CliError> {
    if tenants::images(client, None, MAX_ITEMS).await?.items.iter().any(|image| image.name == IMAGE) {
        return Ok(());
    }
    // A simulated host has every image; only the digest must be well-formed.
    let create = ImageCreate {
        name: IMAGE.to_owned(),
        description: "simulated".to_owned(),
        url: Some("https://images.example.com/any.img".to_owned()),
        path: None,
        sha256: Digest::of(b""),
        format: ImageFormat::Qcow2,
        driver_strategy: DriverStrategy::None,
        default_username: None,
    };
    client.image_create(&create, None).await?;
    Ok(())
}

/// Runs a topology discovery on a host, and approves all candidates.
async fn slots(client: &Client, host: &str) -> Result<(), CliError> {
    let node = client.node(host).await?.id.to_string();
    if !client.node_topology(&node).await?.slots.is_empty() {
        return Ok(());
    }
    let create = TaskCreate {
        node: node.clone(),
        task_type: TaskType::SliceTopologyDiscover.as_str().to_owned(),
        params: serde_json::json!({}),
        queue_seconds: Some(PATIENCE.as_secs()),
        timeout_seconds: Some(PATIENCE.as_secs()),
    };
    let task = client.task_create(&create, None).await?;
    let ended = tokio::time::timeout(PATIENCE, until_ended(client, &task.id.to_string())).await;
    let late = |_| CliError::new(Exit::Timeout, "discovery_late", format!("{host} was not inspected in time"));
    let state = ended.map_err(late)??;
    if state != TaskState::Succeeded {
        return Err(CliError::new(Exit::Failed, "discovery_failed", format!("{host} could not be inspected: {state}")));
    }
    client.node_topology_approve(&node, &TopologyApprove { task_id: task.id, slots: None }).await?;
    Ok(())
}

async fn until_ended(client: &Client, task: &str) -> Result<Open<TaskState>, CliError> {
    let mut watch = client.task_watch(task).boxed();
    while let Some(event) = watch.next().await {
        if let WatchEvent::Task(task) = event?
            && task.ended()
        {
            return Ok(task.state);
        }
    }
    Err(CliError::internal("the server ended the watch before the task ended"))
}
