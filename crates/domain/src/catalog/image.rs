//! Images: what the disks of guests start with. The platform's images are for everyone, those of an organization for all its projects.

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

/// Maximum length of an image URL.
const MAX_URL: usize = 2000;

/// The initial content of a guest's disk.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Image {
    /// Unique id of the image.
    pub id: ImageId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The organization that owns it; `None` for the platform.
    pub organization_id: Option<OrgId>,
    /// Name that people type; unique among the images of its owner.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// Where hosts download it; `None` if they have it as a file.
    pub url: Option<String>,
    /// File in the hosts' image folder; only for images of the platform.
    pub path: Option<String>,
    /// Digest of the file, verified by every host.
    pub sha256: Digest,
    /// Declared format of the file.
    pub format: ImageFormat,
    /// How the GPU driver gets into the guest.
    pub driver_strategy: DriverStrategy,
    /// User name in guests unless the request names one.
    pub default_username: UserName,
    /// The actor who created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was deleted; it can no longer be ordered, but guests created from it continue. `None` while it can be.
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

    /// Where hosts find it, as tasks state it. Only the platform's own images are marked as trusted.
    pub fn source(&self) -> ImageSource {
        ImageSource {
            path: self.path.clone(),
            url: self.url.clone(),
            sha256: self.sha256.clone(),
            format: self.format,
            trusted: self.organization_id.is_none(),
        }
    }

    /// Whether projects of this organization can see and order it.
    pub fn is_for(&self, organization: OrgId) -> bool {
        self.deleted_at.is_none() && self.organization_id.is_none_or(|owner| owner == organization)
    }
}

/// The content of an image to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewImage {
    /// Name that people type.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// Where hosts download it.
    pub url: Option<String>,
    /// File in the hosts' image folder; only for images of the platform.
    pub path: Option<String>,
    /// Digest of the file.
    pub sha256: Digest,
    /// Declared format of the file.
    pub format: ImageFormat,
    /// How the GPU driver gets into the guest.
    pub driver_strategy: DriverStrategy,
    /// User name in guests unless the request names one.
    pub default_username: UserName,
}

/// Creates an image of an organization, or of the platform.
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

/// Deletes an image: it can no longer be ordered. Idempotent.
pub fn delete_image(image: &Image, context: &Context) -> (Image, Decision) {
    if image.deleted_at.is_some() {
        return (image.clone(), Decision::default());
    }
    let next = Image { deleted_at: Some(context.now), ..image.clone() };
    let event = Event::ImageDeleted(ImageDeleted { image_id: next.id, name: next.name.clone() });
    (next.clone(), Decision::default().update(&next).record(context, next.id, event))
}
