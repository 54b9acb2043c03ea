//! Steps of lanes: which pages count as needed.

use crate::api::{NONE, SeqId};
use crate::blocks::BlockTable;

impl BlockTable {
    /// Announce a step of a lane. The caller checked it. `same`: it reads the sequences of the lane's step before.
    pub(crate) fn announce_step(&mut self, s: u16, lane: u16, step: u64, seqs: &[SeqId], same: bool) {
        self.count_step();
        let host_clock = self.clock();
        self.tier0[s].clock += 1;
        let clock = self.tier0[s].clock;
        for &q in seqs {
            self.lists[s].seqs[q as usize].stamp = clock;
        }
        let l = &mut self.tier0[s].lanes[usize::from(lane)];
        l.active[usize::from(l.active_len)] = step;
        l.active_len += 1;
        l.epochs = if l.live { [clock, l.epochs[0], l.epochs[1]] } else { [clock; 3] };
        l.host_epochs = if l.live { [host_clock, l.host_epochs[0], l.host_epochs[1]] } else { [host_clock; 3] };
        if !same {
            (l.plan, l.plan_from) = (l.plan.wrapping_add(1), step);
        }
        l.live = true;
    }

    /// End a lane's step. Return false if it is not announced.
    pub(crate) fn end_step(&mut self, s: u16, lane: u16, step: u64) -> bool {
        let l = &mut self.tier0[s].lanes[usize::from(lane)];
        match l.active[..usize::from(l.active_len)] {
            [first, second] if first == step => l.active = [second, 0],
            [_, second] if second == step => {}
            [only] if only == step => {}
            _ => return false,
        }
        l.active_len -= 1;
        l.fault_frame = NONE;
        true
    }

    /// Set the step after the announced ones that the lane's walk has found pages for.
    pub(crate) fn set_expected(&mut self, s: u16, lane: u16, step: Option<u64>) {
        self.tier0[s].lanes[usize::from(lane)].expected = step;
    }

    /// Forget that pages of the expected step were evicted: the lane walks again.
    pub(crate) fn walks_again(&mut self, s: u16, lane: u16) {
        self.tier0[s].lanes[usize::from(lane)].plan_overtaken = false;
    }

    /// End the lane's plan; the frames of its stream list become ordinary clean ones.
    pub(crate) fn end_plan(&mut self, s: u16, lane: u16) {
        self.tier0[s].lanes[usize::from(lane)].live = false;
        for class in 0..self.geo().classes.len() {
            let mut f = self.tier0[s].lanes[usize::from(lane)].stream_lists[class].head;
            while f != NONE {
                let next = self.frame(s, f).links.next;
                self.unlist(s, f);
                self.settle(s, f);
                f = next;
            }
        }
    }

    /// Set the frame of the page that the lane was given for a fault.
    pub(crate) fn set_fault_frame(&mut self, s: u16, lane: u16, f: u32) {
        self.tier0[s].lanes[usize::from(lane)].fault_frame = f;
    }
}
