//! Relief for a full host tier although all pages fit into tier 0 and host together. Pages that are also pinned in tier 0 need no
//! host frame. Pages that are only in host, while their session has room in tier 0, are loaded there and release their host frames.
//! The latter occurs only in spaces with several sessions: a session that is itself short of tier-0 frames always has pages in both
//! tiers.

use crate::actions::ActionBuf;
use crate::api::NONE;
use crate::blocks::NewJob;
use crate::counters::Reason;
use crate::host::HostTier;
use crate::paging::Paging;
use crate::sessions::Task;

impl Paging<'_> {
    pub(crate) fn issue_reclaim(&mut self, s: u16, buf: &mut ActionBuf) {
        for class in 0..self.geo().classes.len() as u8 {
            if !self.host.is_reclaiming(class) || !self.can_send(s, buf) {
                continue;
            }
            // A loaded page must not be displaced by the next one before it has released its host frame.
            if self.second_copy(s, class).is_none() {
                self.bring_one_home(s, class, buf);
            }
        }
    }

    fn bring_one_home(&mut self, s: u16, class: u8, buf: &mut ActionBuf) {
        let away = |core: &HostTier, page: u32| {
            let home = core.block(core.geo().block_of(page)).home;
            home == s && core.page(page).frame == NONE && core.page(page).invalidating == 0
        };
        let Some(page) = self.search_host(class, away) else { return };
        if self.must_wait(s, page) {
            return;
        }
        let Some(pick) = self.pick_free(s, class).or_else(|| self.pick_clean(s, class, None)) else { return };
        self.place(s, pick, NewJob { task: Task::CopyIn, page, reason: Reason::Request, op: NONE, source: NONE }, buf);
    }
}
