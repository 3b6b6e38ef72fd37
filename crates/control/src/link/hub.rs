//! The open links of this process, by node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuaas_contract::id::{NodeId, SessionId};

use super::session::Session;

/// Every link this process holds.
#[derive(Default)]
pub struct Hub {
    sessions: Mutex<HashMap<NodeId, Arc<Session>>>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's link, if this process holds it.
    pub fn get(&self, node: NodeId) -> Option<Arc<Session>> {
        self.lock().get(&node).cloned()
    }

    /// Makes `session` the node's link and fences off the one before.
    pub fn take_over(&self, session: &Arc<Session>) {
        let before = self.lock().insert(session.node_id, Arc::clone(session));
        if let Some(before) = before {
            before.fence();
        }
    }

    /// Forgets a session, unless a newer one took its place.
    pub fn remove(&self, node: NodeId, session: SessionId) {
        let mut sessions = self.lock();
        if sessions.get(&node).is_some_and(|live| live.id == session) {
            sessions.remove(&node);
        }
    }

    /// All links.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    /// There may be work for a node: its driver looks.
    pub fn wake(&self, node: NodeId) {
        if let Some(session) = self.get(node) {
            session.work.notify_one();
        }
    }
}
