//! SIGHUP: reload the configuration and the token files. Values that can change at run time take effect; the others are logged as
//! needing a restart. An invalid file changes nothing.

use super::{Control, disks};
use crate::announce::{RELOADED, say};
use crate::attach::Tokens;
use crate::config::{Change, Effect};
use crate::error::Error;
use crate::host::{NodeMessage, bytes_per_day};
use crate::http;
use crate::status::Quota;
use crate::supervisor;
use std::path::Path;

impl Control {
    /// Reload everything and log the result. Return the changes, or why nothing changed.
    pub(super) fn reload(&mut self) -> Result<Vec<String>, String> {
        supervisor::reloading();
        let reloaded = self.try_reload();
        let outcome = match &reloaded {
            Ok(changes) => {
                report(changes);
                "is in effect"
            }
            Err(error) => {
                tracing::error!("reload failed, the configuration is unchanged: {error}");
                "is not in effect, the log says why"
            }
        };
        let result = reloaded.map(|changes| changes.iter().map(ToString::to_string).collect());
        let result: Result<Vec<String>, String> = result.map_err(|error| error.to_string());
        self.thread_registry.reloaded(result.clone());
        supervisor::ready(&format!("serving {}", self.config.daemon.socket.display()));
        say(RELOADED, Path::new(&format!("{} {outcome}", self.source.name())));
        result
    }

    fn try_reload(&mut self) -> Result<Vec<Change>, Error> {
        let (next, changes) = self.config.reloaded(self.source.load()?);
        // Everything that can fail comes before the first change.
        let tokens = Tokens::load(&next.domains)?;
        let access = http::access(&next)?;
        if next.daemon.log != self.config.daemon.log {
            self.log.change(&next.daemon.log)?;
        }
        let quotas = NodeMessage::Quotas {
            names: next.domains.iter().map(|domain| domain.name.clone()).collect(),
            host: next.domains.iter().map(|domain| domain.host_bytes).collect(),
            nvme: next.domains.iter().map(|domain| domain.nvme_bytes).collect(),
            bytes_per_day: bytes_per_day(&next),
        };
        self.spaces.tell_node(quotas);
        self.spaces.reconfigure(&next);
        self.thread_registry.bound_disks(disks::bounds(&next));
        self.thread_registry.set_quotas(Quota::of(&next.domains));
        self.config = next;
        self.tokens = tokens;
        self.access.renew(&access);
        Ok(changes)
    }
}

fn report(changes: &[Change]) {
    for change in changes {
        match change.effect {
            Effect::Restart => tracing::warn!("{change}"),
            _ => tracing::info!("{change}"),
        }
    }
    let restarts = changes.iter().filter(|change| change.effect == Effect::Restart).count();
    tracing::info!(
        "configuration and token files reloaded: {} values changed, {restarts} of them need a restart",
        changes.len()
    );
}
