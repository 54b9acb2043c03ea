//! Host is full although everything fits: pages that are only there, while the session that owns them has room in tier 0, go
//! back to it, and give their host frames up. Only spaces with several sessions come to this: a session that is short of
//! tier-0 frames itself always has pages in both tiers.

use crate::actions::ActionBuf;
use crate::api::NONE;
use crate::counters::Reason;
use crate::pages::BlockState;
use crate::sessions::Task;
use crate::space::{Core, NewJob};

/// Host frames that one call looks at.
const SEARCH_MAX: u32 = 256;

impl Core {
    pub(crate) fn pump_squeeze(&mut self, s: u16, buf: &mut ActionBuf) {
        for class in 0..self.geo.classes.len() as u8 {
            if self.host.classes[usize::from(class)].squeezed && self.can_send(s, buf) {
                self.bring_one_home(s, class, buf);
            }
        }
    }

    fn bring_one_home(&mut self, s: u16, class: u8, buf: &mut ActionBuf) {
        let len = self.host.recs.len() as u32;
        for _ in 0..SEARCH_MAX.min(len) {
            let search = &mut self.host.classes[usize::from(class)].search;
            *search = (*search + 1) % len;
            let at = *search;
            let Some(page) = self.host.page_in(at, class) else { continue };
            let block = &self.blocks[self.geo.block_of(page)];
            let state = &self.pages[page as usize];
            let alone =
                block.home == s && block.refs_other == 0 && block.state == BlockState::Sealed && state.host == at;
            if !alone || state.frame != NONE || self.must_wait(s, page) {
                continue;
            }
            let Some(pick) = self.pick_free(s, class).or_else(|| self.pick_clean(s, class, None)) else { return };
            let new = NewJob { task: Task::Load, page, reason: Reason::Request, op: NONE, source: NONE };
            return self.place(s, pick, new, buf);
        }
    }
}
