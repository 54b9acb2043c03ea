//! Guarantees: the number of blocks that a session can have at any time, whatever other sessions do.
//!
//! A guarantee is admitted like that many new blocks, and charged until the session ends or replaces it (`account`). Cached blocks
//! may use the memory meanwhile, since they can be evicted.

use crate::api::{NONE, Status};
use crate::disk::Admit;
use crate::paging::Paging;
use crate::sessions::{Guarantee, Phase, Who};

impl Paging<'_> {
    pub(crate) fn guarantee(&mut self, who: Who, blocks: u32, due: u64) {
        let session = self.tier0(who.session);
        if blocks > 0 && !session.exists() {
            // Its blocks have no home, so none of them would count.
            return self.complete(who, Status::Invalid, 0);
        }
        if let Some(op) = self.new_op(who, NONE, Guarantee { blocks }, due) {
            self.enter(who.session, op, Phase::Admission);
        }
    }

    pub(crate) fn admit_guarantee(&mut self, s: u16, Guarantee { blocks: wanted }: Guarantee) -> Admit {
        // Memory is requested even if block ids are short, so that the refusal reports the possible number.
        let blocks = wanted.min(self.ids_for_guarantee(s));
        let mut decision = Admit::Yes;
        for class in 0..self.geo().classes.len() {
            let (pages, new) = self.needs_of_guarantee(s, class, blocks);
            match self.admit_host(class as u8, pages, new) {
                Admit::Yes => {}
                Admit::Wait => decision = Admit::Wait,
                no => return no,
            }
        }
        if decision == Admit::Yes && blocks < wanted { Admit::No(Status::NoSpace) } else { decision }
    }

    pub(crate) fn start_guarantee(&mut self, s: u16, op: u32, Guarantee { blocks }: Guarantee) {
        self.set_guarantee(s, blocks);
        self.finish_with(s, op, Status::Ok, blocks.into());
        self.wake_admission();
    }

    /// Refuse a guarantee, and say how many blocks could be guaranteed.
    pub(crate) fn refuse_guarantee(&mut self, s: u16, op: u32, Guarantee { blocks: wanted }: Guarantee) {
        let (mut fits, mut too_many) = (0, wanted.min(self.ids_for_guarantee(s).saturating_add(1)));
        while too_many - fits > 1 {
            let blocks = fits + (too_many - fits) / 2;
            let fits_class = |class| {
                let (pages, new) = self.needs_of_guarantee(s, class, blocks);
                self.fits_host(class as u8, pages, new)
            };
            if (0..self.geo().classes.len()).all(fits_class) {
                fits = blocks;
            } else {
                too_many = blocks;
            }
        }
        self.finish_with(s, op, Status::NoSpace, fits.into());
    }

    /// Return the largest guarantee for which there are block ids.
    fn ids_for_guarantee(&self, s: u16) -> u32 {
        let taken = self.blocks().referred + self.blocks().promised - self.unclaimed(s);
        self.tier0(s).own_blocks + self.blocks().max.saturating_sub(taken)
    }

    /// Return the host frames of a class, and the blocks, that a guarantee needs in addition to those committed to the session.
    fn needs_of_guarantee(&self, s: u16, class: usize, blocks: u32) -> (u64, u64) {
        let c = &self.tier0(s).classes[class];
        let guaranteed = u64::from(blocks) * u64::from(self.geo().classes[class].planes);
        let pages = c.committed_with(c.committed, guaranteed, c.room()).saturating_sub(c.committed_in_host());
        (pages, self.unclaimed_of(s, blocks).saturating_sub(self.unclaimed(s)).into())
    }
}
