//! Purge of a tenant while the daemon runs: first the tenant's spaces end, then the host thread drops their regions and the disks erase
//! the tenant's keys. An attach that follows gets new regions and a new key, because all messages on the way keep their order.

use super::Control;
use crate::host::{NodeMessage, Purge};

impl Control {
    /// Take new requests, and go on with the one in progress.
    pub(super) fn purge(&mut self) {
        // Whoever asked may have given up.
        self.purging.take_if(|purge| purge.answers.is_closed());
        while let Some(purge) = self.purges.take() {
            match &self.purging {
                Some(other) => refuse(&purge, format!("tenant {:?} is being purged; try again", other.tenant)),
                None => self.purging = Some(purge),
            }
        }
        let Some(purge) = &self.purging else { return };
        // A tenant that is not configured any more has no spaces.
        if let Some(domain) = self.config.domains.iter().position(|domain| domain.name == purge.tenant) {
            let sessions = self.registry.list();
            let users = sessions.iter().filter(|session| session.domain == domain);
            let users: Vec<String> =
                users.map(|session| format!("{} (pid {})", session.program, session.pid)).take(NAMED).collect();
            if !users.is_empty() {
                let more = (self.registry.count(Some(domain)) as usize).saturating_sub(users.len());
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let text = format!(
                    "engines of tenant {:?} are attached: {}{more}; stop them first",
                    purge.tenant,
                    users.join(", ")
                );
                refuse(purge, text);
                self.purging = None;
                return;
            }
            if !self.spaces.end_all_of(domain) {
                return;
            }
        }
        if let Some(purge) = self.purging.take() {
            tracing::info!("operator: tenant {:?} is purged", purge.tenant);
            self.spaces.tell_node(NodeMessage::Purge(purge));
        }
    }

    /// Return true if a domain must not get sessions now.
    pub(super) fn is_purging(&self, domain: &str) -> bool {
        self.purging.as_ref().is_some_and(|purge| purge.tenant == domain && !purge.answers.is_closed())
    }
}

/// Sessions that are named.
const NAMED: usize = 8;

fn refuse(purge: &Purge, why: String) {
    let _ = purge.answers.send(Err(why));
}
