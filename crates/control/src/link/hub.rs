//! The open links of this process, by node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuaas_contract::id::{NodeId, SessionId, TaskId};
use gpuaas_domain::node::Node;

use super::session::{LinkSession, Place};

/// All links of this process.
#[derive(Default)]
pub struct Hub {
    sessions: Mutex<HashMap<NodeId, Arc<LinkSession>>>,
    opening: Mutex<HashMap<NodeId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<LinkSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serializes the opening of a node's links: the store and this map must agree on which one is the last.
    pub(crate) async fn open_one(&self, node: NodeId) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
            // Removes the entries of finished openings.
            opening.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(opening.entry(node).or_default())
        };
        turn.lock_owned().await
    }

    /// Returns the node's link, if this process holds it.
    pub fn get(&self, node: NodeId) -> Option<Arc<LinkSession>> {
        self.lock().get(&node).cloned()
    }

    /// Makes `session` the node's link and fences the previous one.
    pub fn take_over(&self, session: &Arc<LinkSession>) {
        let before = self.lock().insert(session.node_id, Arc::clone(session));
        if let Some(before) = before {
            before.fence();
        }
    }

    /// Removes a session, unless a newer one replaced it.
    pub fn remove(&self, node: NodeId, session: SessionId) {
        let mut sessions = self.lock();
        if sessions.get(&node).is_some_and(|live| live.id == session) {
            sessions.remove(&node);
        }
    }

    /// Returns all links.
    pub fn all(&self) -> Vec<Arc<LinkSession>> {
        self.lock().values().cloned().collect()
    }

    /// Wakes the driver of a node, because there may be work.
    pub fn wake(&self, node: NodeId) {
        if let Some(session) = self.get(node) {
            session.wake();
        }
    }

    /// Reserves room for one task on the open link of a node, if this process holds that link and nothing is queued for the node.
    pub fn place(&self, node: &Node, task: TaskId) -> Option<Place> {
        self.get(node.id).filter(|session| session.node_epoch == node.epoch).and_then(|session| Place::take(session, task))
    }
}
