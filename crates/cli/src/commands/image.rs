//! `gpuaas image`: the images that guests are created from.

use clap::Subcommand;
use gpuaas_api::dto::{Image, ImageCreate};
use gpuaas_contract::Digest;
use gpuaas_contract::slice::UserName;

use super::confirm::ConfirmArgs;
use super::slice_create::{Driver, Format, digest};
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::MAX_ITEMS;
use crate::tenants;

/// Images. Images of the platform are available to everybody, those of an organization to all its projects.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Create an image for your organization, or with --platform for everybody.
    ///
    /// For example: gpuaas image create ubuntu --from https://images.example.com/u.img --sha256 9f86d0… --platform
    Create(Box<CreateArgs>),
    /// List the images that can be used.
    #[command(alias = "list")]
    Ls {
        /// Only images of the platform.
        #[arg(long)]
        platform: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Delete an image. Existing guests are not affected. Asks for its name first.
    #[command(alias = "rm")]
    Delete {
        /// Image: its name, its id or a unique prefix of it.
        image: String,
        /// Delete an image of the platform.
        #[arg(long)]
        platform: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// The image to create.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name: lower-case letters, digits and single dashes.
    name: String,
    /// URL that hosts download the image from.
    #[arg(long, value_name = "URL", required_unless_present = "path")]
    from: Option<String>,
    /// Path of a file in the hosts' image folder; only for images of the platform.
    #[arg(long, conflicts_with = "from", requires = "platform")]
    path: Option<String>,
    /// SHA-256 of the file. Hosts always check it.
    #[arg(long, value_name = "HEX", value_parser = digest)]
    sha256: Digest,
    /// Format of the file.
    #[arg(long, value_enum, default_value_t = Format::Qcow2)]
    format: Format,
    /// How the GPU driver is installed.
    #[arg(long, value_enum, default_value_t = Driver::None)]
    driver: Driver,
    /// Default user name [default: ubuntu].
    #[arg(long)]
    user: Option<UserName>,
    /// Description.
    #[arg(long, default_value = "")]
    description: String,
    /// Create the image for everybody, for operators.
    #[arg(long)]
    platform: bool,
}

pub(super) async fn run(session: &CommandContext, command: ImageCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let image = match command {
        ImageCommand::Create(args) => create(session, *args).await?,
        ImageCommand::Ls { platform, list: args } => {
            let project = if platform { None } else { Some(tenants::project(session).await?.id.to_string()) };
            let list = List {
                // A project also sees images of its organization and of the platform, whose events its own stream does not carry.
                changes: if platform { Changes::Platform("image") } else { Changes::Unannounced },
                time: |image: &Image| Some(image.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("there are no images yet; `gpuaas image create` creates one"),
            };
            return list.run(session, args, async |limit| tenants::images(client, project.as_deref(), limit).await).await;
        }
        ImageCommand::Delete { image, platform, confirm } => {
            if platform {
                let image = tenants::image(client, None, &image).await?;
                confirm.ask_for_name(&format!("Delete the image {} of the platform?", image.name), &image.name)?;
                client.image_delete(&image.id.to_string()).await?
            } else {
                let project = tenants::project(session).await?.id.to_string();
                let image = tenants::image(client, Some(&project), &image).await?;
                confirm.ask_for_name(&format!("Delete the image {}?", image.name), &image.name)?;
                client.project_image_delete(&project, &image.id.to_string()).await?
            }
        }
    };
    session.output.print(&image, |image| View::Details(details(image)))?;
    Ok(Exit::Done)
}

async fn create(session: &CommandContext, args: CreateArgs) -> Result<Image, CliError> {
    let client = session.client()?;
    let create = ImageCreate {
        name: args.name,
        description: args.description,
        url: args.from,
        path: args.path,
        sha256: args.sha256,
        format: args.format.into(),
        driver_strategy: args.driver.into(),
        default_username: args.user,
    };
    if args.platform {
        return Ok(client.image_create(&create, None).await?);
    }
    Ok(client.project_image_create(&tenants::project(session).await?.id.to_string(), &create, None).await?)
}

fn owner(image: &Image) -> &'static str {
    if image.organization_id.is_some() { "organization" } else { "platform" }
}

fn details(image: &Image) -> Details {
    Details::default()
        .field("id", image.id)
        .field("name", &image.name)
        .field("description", &image.description)
        .field("owner", owner(image))
        .maybe("from", image.url.as_deref())
        .maybe("path", image.path.as_deref())
        .field("digest", &image.sha256)
        .field("format", &image.format)
        .field("driver", &image.driver_strategy)
        .field("user", &image.default_username)
        .field("created by", &image.created_by)
        .field("created", moment(image.created_at))
        .maybe("deleted", image.deleted_at.map(moment))
}

fn table(images: &[Image]) -> View {
    if images.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&images.iter().map(|image| image.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "OWNER", "FORMAT", "DRIVER", "USER", "AGE", "DESCRIPTION"]);
    for (image, id) in images.iter().zip(ids) {
        table.row([
            id,
            image.name.clone(),
            owner(image).to_owned(),
            image.format.clone(),
            image.driver_strategy.clone(),
            image.default_username.clone(),
            age(Some(image.created_at)),
            image.description.clone(),
        ]);
    }
    View::Table(table)
}
