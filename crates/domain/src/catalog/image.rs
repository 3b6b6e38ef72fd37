//! Images: what guests are made from. Those of the platform are for everybody, those of an organization for all its projects.

use gpuaas_contract::Digest;
use gpuaas_contract::event::{Event, ImageCreated, ImageDeleted};
use gpuaas_contract::guest::{DriverStrategy, ImageFormat, ImageSource};
use gpuaas_contract::id::{ImageId, OrgId};
use gpuaas_contract::slice::UserName;
use gpuaas_contract::time::Timestamp;

use crate::decision::{Context, Decision};
use crate::names::{checked_handle, checked_text};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// Longest address of an image.
const MAX_URL: usize = 2000;

/// What guests are made from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Image {
    /// Its id.
    pub id: ImageId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Whose it is; none for the platform's.
    pub organization_id: Option<OrgId>,
    /// What people type; no other image of the same owner has it.
    pub name: String,
    /// In words.
    pub description: String,
    /// Where hosts fetch it.
    pub url: Option<String>,
    /// A file in the hosts' image folder; only of the platform's.
    pub path: Option<String>,
    /// Digest of the file, checked by every host.
    pub sha256: Digest,
    /// What it is said to be.
    pub format: ImageFormat,
    /// How the GPU's driver gets into it.
    pub driver_strategy: DriverStrategy,
    /// The user it is made for.
    pub default_username: UserName,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
    /// Set when it can no longer be ordered. Guests made from it go on.
    pub deleted_at: Option<Timestamp>,
}

resource!(Image, Image);

impl Image {
    fn found_by(&self) -> Keys {
        let live = self.deleted_at.is_none();
        Keys {
            parent: self.organization_id.map(|id| id.to_string()).unwrap_or_default(),
            name: live.then(|| self.name.clone()),
            state: if live { "active" } else { "deleted" },
            ..Keys::default()
        }
    }

    /// Where hosts find it, as tasks say it. Only the platform's own images are vouched for.
    pub fn source(&self) -> ImageSource {
        ImageSource {
            path: self.path.clone(),
            url: self.url.clone(),
            sha256: self.sha256.clone(),
            format: self.format,
            trusted: self.organization_id.is_none(),
        }
    }

    /// Whether projects of this organization see it.
    pub fn is_for(&self, organization: OrgId) -> bool {
        self.deleted_at.is_none() && self.organization_id.is_none_or(|owner| owner == organization)
    }
}

/// A wanted image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewImage {
    /// What people type.
    pub name: String,
    /// In words.
    pub description: String,
    /// Where hosts fetch it.
    pub url: Option<String>,
    /// A file in the hosts' image folder.
    pub path: Option<String>,
    /// Digest of the file.
    pub sha256: Digest,
    /// What it is said to be.
    pub format: ImageFormat,
    /// How the GPU's driver gets into it.
    pub driver_strategy: DriverStrategy,
    /// The user it is made for.
    pub default_username: UserName,
}

/// A new image, of an organization or of the platform.
pub fn create_image(
    id: ImageId,
    organization_id: Option<OrgId>,
    new: NewImage,
    context: &Context,
) -> Result<(Image, Decision), Refusal> {
    let image = Image {
        id,
        version: 0,
        organization_id,
        name: checked_handle(&new.name, "an image")?,
        description: checked_text(&new.description, "the description")?,
        url: new.url,
        path: new.path,
        sha256: new.sha256,
        format: new.format,
        driver_strategy: new.driver_strategy,
        default_username: new.default_username,
        created_by: context.actor.to_string(),
        created_at: context.now,
        deleted_at: None,
    };
    check_source(&image)?;
    let event = Event::ImageCreated(ImageCreated {
        image_id: id,
        name: image.name.clone(),
        organization_id,
        sha256: image.sha256.clone(),
        url: image.url.clone(),
    });
    let decision = Decision::default().insert(&image);
    Ok((image, decision.record(context, id, event)))
}

fn check_source(image: &Image) -> Result<(), Refusal> {
    let invalid = |message: &str| Err(Refusal::invalid("image_invalid", message));
    match (&image.url, &image.path) {
        (None, None) => return invalid("an image needs the URL it is fetched from"),
        (_, Some(_)) if image.organization_id.is_some() => {
            return invalid("only images of the platform may be files of the hosts; give a URL");
        }
        (Some(_) | None, Some(_)) | (Some(_), None) => {}
    }
    let Some(url) = &image.url else { return Ok(()) };
    let plain = url.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'<' | b'>' | b'\\' | b'`'));
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    let host = host.split(['/', '?', '#']).next().unwrap_or_default();
    if url.len() > MAX_URL || !plain || host.is_empty() || host.contains('@') {
        return invalid("the URL must start with http:// or https://, name a host, and carry no user name or password");
    }
    Ok(())
}

/// An image can no longer be ordered. Saying it twice changes nothing.
pub fn delete_image(image: &Image, context: &Context) -> (Image, Decision) {
    if image.deleted_at.is_some() {
        return (image.clone(), Decision::default());
    }
    let next = Image { deleted_at: Some(context.now), ..image.clone() };
    let event = Event::ImageDeleted(ImageDeleted { image_id: next.id, name: next.name.clone() });
    (next.clone(), Decision::default().update(&next).record(context, next.id, event))
}
