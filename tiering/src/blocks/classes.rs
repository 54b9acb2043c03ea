//! Size classes of a session's frames: how many there are, and what is short.

use crate::blocks::{BlockTable, FrameState, NO_LANE, On, Tier0Class};
use crate::mutants::{self, Mutant};

impl BlockTable {
    pub(super) fn class_mut(&mut self, s: u16, f: u32) -> &mut Tier0Class {
        let class = self.tier0[s].class_of_frame(f);
        &mut self.tier0[s].classes[usize::from(class)]
    }

    /// Set the number of frames of a size class. Frames beyond it are not used for other pages.
    pub(crate) fn set_frames(&mut self, s: u16, class: u8, frames: u32) {
        let c = &mut self.tier0[s].classes[usize::from(class)];
        let committed = c.committed_in_host();
        let (base, before) = (c.base, c.count);
        c.scan = c.scan_of(frames);
        c.count = frames;
        let now = c.committed_in_host();
        self.host.commit(class, committed, now);
        for f in base + frames.min(before)..base + frames.max(before) {
            let state = self.frame(s, f).state;
            match (frames < before, state) {
                (true, FrameState::Free) if !mutants::on(Mutant::ShrinkKeepsFreeFrames) => {
                    self.unlist(s, f);
                    self.frame_mut(s, f).state = FrameState::Away;
                }
                (true, FrameState::Free) => {}
                (true, _) => {
                    self.tier0[s].classes[usize::from(class)].beyond += 1;
                    self.settle(s, f);
                }
                (false, FrameState::Away) => {
                    self.frame_mut(s, f).state = FrameState::Free;
                    self.enlist(s, f, On::Free, NO_LANE);
                }
                (false, _) => {
                    self.tier0[s].classes[usize::from(class)].beyond -= 1;
                    self.settle(s, f);
                }
            }
        }
    }

    /// A search found no frame of a size class: pages of others must be stored.
    pub(crate) fn count_shortage(&mut self, s: u16, class: u8) {
        self.tier0[s].classes[usize::from(class)].shortage += 1;
    }

    pub(crate) fn forget_shortages(&mut self, s: u16) {
        for class in &mut self.tier0[s].classes {
            class.shortage = 0;
        }
    }

    /// Begin or stop storing dirty pages ahead of need.
    pub(crate) fn set_cleaning(&mut self, s: u16, class: usize, on: bool) {
        self.tier0[s].classes[class].cleaning = on;
    }

    /// Count one page more, or one fewer, that an acquire in progress will pin.
    pub(crate) fn commit_pin(&mut self, s: u16, class: u8, more: bool) {
        let committed = &mut self.tier0[s].classes[usize::from(class)].committed_pins;
        *committed = if more { *committed + 1 } else { *committed - 1 };
    }
}
