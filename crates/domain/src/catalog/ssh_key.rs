//! SSH keys of a project, by name.

use gpuaas_contract::event::{Event, SshKeyEvent};
use gpuaas_contract::id::{ProjectId, SshKeyId};
use gpuaas_contract::slice::SshPublicKey;
use gpuaas_contract::time::Timestamp;

use crate::decision::{Context, Decision};
use crate::names::checked_handle;
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};
use crate::tenancy::Project;

/// Maximum number of keys per project.
pub const MAX_KEYS_PER_PROJECT: u64 = 200;

/// A stored SSH public key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SshKey {
    /// Unique id of the key.
    pub id: SshKeyId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The project it belongs to.
    pub project_id: ProjectId,
    /// Name that people type; unique within the project.
    pub name: String,
    /// The key itself.
    pub public_key: SshPublicKey,
    /// The actor who added it.
    pub created_by: String,
    /// When it was added.
    pub created_at: Timestamp,
    /// When it was deleted; new allocations no longer get it, existing ones keep it. `None` while it is in use.
    pub deleted_at: Option<Timestamp>,
}

resource!(SshKey, SshKey);

impl SshKey {
    fn found_by(&self) -> Keys {
        let live = self.deleted_at.is_none();
        Keys {
            parent: self.project_id.to_string(),
            name: live.then(|| self.name.clone()),
            state: if live { "active" } else { "deleted" },
            ..Keys::default()
        }
    }
}

/// Adds a key. `present` is how many keys the project has.
pub fn add_ssh_key(
    id: SshKeyId,
    project: &Project,
    name: &str,
    public_key: SshPublicKey,
    present: u64,
    context: &Context,
) -> Result<(SshKey, Decision), Refusal> {
    project.check_live()?;
    if present >= MAX_KEYS_PER_PROJECT {
        let message = format!("a project has at most {MAX_KEYS_PER_PROJECT} SSH keys; delete some first");
        return Err(Refusal::conflict("too_many_ssh_keys", message));
    }
    let key = SshKey {
        id,
        version: 0,
        project_id: project.id,
        name: checked_handle(name, "an SSH key")?,
        public_key,
        created_by: context.actor.to_string(),
        created_at: context.now,
        deleted_at: None,
    };
    let event = Event::SshKeyAdded(SshKeyEvent { ssh_key_id: id, project_id: project.id, name: key.name.clone() });
    let decision = Decision::default().insert(&key);
    Ok((key, decision.record(context, id, event)))
}

/// Deletes a key: new allocations no longer get it. Idempotent.
pub fn delete_ssh_key(key: &SshKey, context: &Context) -> (SshKey, Decision) {
    if key.deleted_at.is_some() {
        return (key.clone(), Decision::default());
    }
    let next = SshKey { deleted_at: Some(context.now), ..key.clone() };
    let event = Event::SshKeyDeleted(SshKeyEvent { ssh_key_id: next.id, project_id: next.project_id, name: next.name.clone() });
    (next.clone(), Decision::default().update(&next).record(context, next.id, event))
}
