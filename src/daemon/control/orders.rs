//! Orders of operators. A purge of a tenant while the daemon runs: first the tenant's spaces end, then the host thread drops their regions
//! and the disks erase the tenant's keys. Until the host thread has that message the tenant gets no new space, so an attach that
//! follows finds nothing, and gets new regions and a new key.

use super::Control;
use crate::host::NodeMessage;
use crate::orders::{Order, Purge, PurgeEvent};

/// Sessions that are named.
const NAMED: usize = 8;

impl Control {
    /// Take new orders, and go on with the purge in progress.
    pub(super) fn take_orders(&mut self) {
        while let Some(order) = self.orders.take() {
            match (order, &self.purging) {
                (Order::Reload(reply), _) => {
                    // The client may have disconnected.
                    let _ = reply.send(self.reload());
                }
                (Order::Purge(purge), None) => self.purging = Some(purge),
                (Order::Purge(purge), Some(other)) => {
                    purge.tell(PurgeEvent::Refused(format!("tenant {:?} is being purged; try again", other.tenant)));
                }
            }
        }
        self.go_on_purging();
    }

    fn go_on_purging(&mut self) {
        self.purged.take_if(|_| self.spaces.flush());
        let Some(purge) = &self.purging else { return };
        // A tenant that is not configured any more has no spaces.
        if let Some(domain) = self.config.domains.iter().position(|domain| domain.name == purge.tenant) {
            if let Some(why) = self.users(domain, purge) {
                purge.tell(PurgeEvent::Refused(why));
                self.purging = None;
                return;
            }
            if !self.spaces.end_all_of(domain) {
                return;
            }
        }
        if let Some(purge) = self.purging.take() {
            tracing::info!(
                "operator: purge of tenant {:?}: its spaces have ended; the disks erase its keys",
                purge.tenant
            );
            purge.tell(PurgeEvent::SpacesEnded);
            self.purged = Some(purge.tenant.clone());
            self.spaces.tell_node(NodeMessage::Purge(purge));
        }
    }

    /// Name the sessions of a tenant, if it has any.
    fn users(&self, domain: usize, purge: &Purge) -> Option<String> {
        let sessions = self.registry.list();
        let users: Vec<_> = sessions.iter().filter(|session| session.domain == domain).collect();
        let name = |session: &&crate::session::SessionInfo| format!("{} (pid {})", session.program, session.pid);
        let names: Vec<String> = users.iter().take(NAMED).map(name).collect();
        let more = users.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let text =
            format!("engines of tenant {:?} are attached: {}{more}; stop them first", purge.tenant, names.join(", "));
        (!users.is_empty()).then_some(text)
    }

    /// Return true if a domain must not get sessions now.
    pub(super) fn is_purging(&self, domain: &str) -> bool {
        self.purging.as_ref().is_some_and(|purge| purge.tenant == domain) || self.purged.as_deref() == Some(domain)
    }
}
