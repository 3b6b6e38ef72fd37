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

/// Most keys of one project.
pub const MAX_KEYS_PER_PROJECT: u64 = 200;

/// A stored key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SshKey {
    /// Its id.
    pub id: SshKeyId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The project it belongs to.
    pub project_id: ProjectId,
    /// What people type; no other key of the project has it.
    pub name: String,
    /// The key.
    pub public_key: SshPublicKey,
    /// Who added it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
    /// Set when it is no longer given to new allocations. Those that have it keep it.
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

/// A new key. `present` is how many the project has.
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

/// A key is given to no new allocation. Saying it twice changes nothing.
pub fn delete_ssh_key(key: &SshKey, context: &Context) -> (SshKey, Decision) {
    if key.deleted_at.is_some() {
        return (key.clone(), Decision::default());
    }
    let next = SshKey { deleted_at: Some(context.now), ..key.clone() };
    let event = Event::SshKeyDeleted(SshKeyEvent { ssh_key_id: next.id, project_id: next.project_id, name: next.name.clone() });
    (next.clone(), Decision::default().update(&next).record(context, next.id, event))
}
