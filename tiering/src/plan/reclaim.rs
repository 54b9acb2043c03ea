//! Relief for a full host tier although all pages fit into tier 0 and host together. Pages that are also pinned in tier 0 need no
//! host frame. Pages that are only in host, while their session has room in tier 0, are loaded there and release their host frames.
//! The latter occurs only in spaces with several sessions: a session that is itself short of tier-0 frames always has pages in both
//! tiers.

use crate::actions::ActionBuf;
use crate::api::NONE;
use crate::counters::Reason;
use crate::pages::{FrameState, On};
use crate::sessions::Task;
use crate::space::{Core, NewJob};

/// Maximum number of host frames that one call checks.
const SEARCH_MAX: u32 = 1 << 14;

impl Core {
    pub(crate) fn issue_reclaim(&mut self, s: u16, buf: &mut ActionBuf) {
        for class in 0..self.geo.classes.len() as u8 {
            if !self.host.is_reclaiming(class) || !self.can_send(s, buf) {
                continue;
            }
            // A loaded page must not be displaced by the next one before it has released its host frame.
            if self.second_copy(s, class).is_none() {
                self.bring_one_home(s, class, buf);
            }
        }
    }

    /// Return the next page in host, from the end of the last search, that passes the test.
    fn search_host(&mut self, class: u8, passes: impl Fn(&Core, u32) -> bool) -> Option<u32> {
        for _ in 0..SEARCH_MAX.min(self.host.len()) {
            let Some((at, page)) = self.host.search_next(class) else { continue };
            if self.pages[page as usize].host == at && self.is_private(page) && passes(self, page) {
                return Some(page);
            }
        }
        None
    }

    /// Return whether only its home session reads the page, and it will not be written.
    fn is_private(&self, page: u32) -> bool {
        let block = &self.blocks[self.geo.block_of(page)];
        block.live() && block.refs_home > 0 && block.refs_other == 0
    }

    /// Return a page that stays in its session's tier 0, so that its host copy can be dropped.
    pub(crate) fn copy_of_what_stays(&mut self, class: u8) -> Option<u32> {
        let stays = |core: &Core, page: u32| {
            let home = core.blocks[core.geo.block_of(page)].home;
            core.pages[page as usize].loads == 0
                && !core.is_mapped(page)
                && !core.pages[page as usize].writing()
                && core.find_copy(page, home).is_some_and(|f| {
                    let frame = core.frame(home, f);
                    frame.state == FrameState::Present
                        && frame.job == NONE
                        && !matches!(frame.on, On::Stream | On::Outgoing)
                })
        };
        self.search_host(class, stays)
    }

    fn bring_one_home(&mut self, s: u16, class: u8, buf: &mut ActionBuf) {
        let away = |core: &Core, page: u32| {
            let home = core.blocks[core.geo.block_of(page)].home;
            home == s && core.pages[page as usize].frame == NONE && core.pages[page as usize].invalidating == 0
        };
        let Some(page) = self.search_host(class, away) else { return };
        if self.must_wait(s, page) {
            return;
        }
        let Some(pick) = self.pick_free(s, class).or_else(|| self.pick_clean(s, class, None)) else { return };
        self.place(s, pick, NewJob { task: Task::CopyIn, page, reason: Reason::Request, op: NONE, source: NONE }, buf);
    }
}
