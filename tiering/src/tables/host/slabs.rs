//! Slabs, from the grant to the return.

use super::{Host, HostRec, QUARANTINED, Slab};
use crate::api::{HostFrame, NONE};
use crate::config::Class;
use crate::error::Error;
use crate::lists::List;

/// Slab ids are below this.
pub(crate) const SLABS_MAX: u32 = 1 << 16;

/// Share of the granted memory that a space keeps free beyond its needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// One tenth, so that returned memory is not requested again soon.
    Tenth,
    /// Nothing: another space needs the memory now.
    None,
}

impl Host {
    /// Add a granted slab, which was requested.
    pub fn slab_granted(&mut self, class: u8, slab: u32, frames: u32, classes: &[Class]) -> Result<(), Error> {
        let Some(c) = self.classes.get(usize::from(class)) else {
            return Err(Error::Slab { slab, why: "no such size class" });
        };
        if !c.asked {
            return Err(Error::Slab { slab, why: "grant was not requested" });
        }
        self.grant(class, slab, frames)?;
        self.slab_bytes = self.slab_bytes.max(u64::from(frames) * u64::from(classes[usize::from(class)].stride));
        let c = self.of_mut(class);
        (c.asked, c.refused, c.refusals) = (false, false, 0);
        Ok(())
    }

    /// Add a slab. Allocates memory; grants are rare.
    pub(super) fn grant(&mut self, class: u8, slab: u32, frames: u32) -> Result<(), Error> {
        let refuse = |why| Err(Error::Slab { slab, why });
        if slab >= SLABS_MAX {
            return refuse("id must be below 65,536");
        }
        if frames == 0 || u64::from(frames) + self.recs.len() as u64 >= u64::from(QUARANTINED) {
            return refuse("frame count is 0 or exceeds the range of frame ids");
        }
        if self.slabs.get(slab as usize).is_some_and(|s| s.live) {
            return refuse("id is in use");
        }
        if self.slabs.len() <= slab as usize {
            self.slabs.resize(slab as usize + 1, Slab::default());
        }
        let rec = HostRec { page: NONE, slab: slab as u16, ..HostRec::default() };
        let base = match self.holes.iter().position(|&(_, n)| n == frames) {
            Some(hole) => {
                let (base, n) = self.holes.swap_remove(hole);
                self.recs[base as usize..(base + n) as usize].fill(rec);
                base
            }
            None => {
                let base = self.recs.len() as u32;
                self.recs.resize((base + frames) as usize, rec);
                base
            }
        };
        let mut free = List::default();
        for at in base..base + frames {
            free.push_back(&mut self.recs, at);
        }
        self.slabs[slab as usize] = Slab { live: true, class, base, frames, free, ..Slab::default() };
        let c = &mut self.classes[usize::from(class)];
        c.open.push_back(&mut self.slabs, slab);
        c.granted += u64::from(frames);
        Ok(())
    }

    pub(super) fn put_back(&mut self, at: u32) {
        self.recs[at as usize].page = NONE;
        let slab = self.slab_of(at);
        let s = &mut self.slabs[slab as usize];
        s.free.push_front(&mut self.recs, at);
        let class = usize::from(s.class);
        if s.draining {
            self.classes[class].drained += 1;
        } else if s.free.len == 1 {
            self.classes[class].open.push_back(&mut self.slabs, slab);
        }
    }

    /// Return the location of a frame as jobs name it.
    pub fn location(&self, at: u32) -> HostFrame {
        let slab = self.recs[at as usize].slab;
        HostFrame { slab: u32::from(slab), slot: at - self.slabs[usize::from(slab)].base }
    }

    /// Return the slab of a frame.
    pub fn slab_of(&self, at: u32) -> u32 {
        self.recs[at as usize].slab.into()
    }

    /// Return the record range of a slab's frames.
    pub fn frames_of(&self, slab: u32) -> std::ops::Range<u32> {
        let s = &self.slabs[slab as usize];
        s.base..s.base + s.frames
    }

    /// Remove a slab of the class with all frames free, if the others suffice for the admitted pages, for `stream` frames through
    /// which pages on NVMe stream, and for the spare share.
    pub fn return_idle(&mut self, class: u8, spare: Spare, stream: u64) -> Option<u32> {
        let (c, free) = (self.of(class), self.free_frames(class));
        let committed = (c.committed + c.quarantined).saturating_sub(c.used + c.quarantined);
        let keep = committed.max(if spare == Spare::Tenth { c.granted / 10 } else { 0 }).max(stream);
        let slab = c.open.iter(&self.slabs).find(|&s| {
            let slab = &self.slabs[s as usize];
            slab.free.len == slab.frames && free - u64::from(slab.frames) >= keep
        })?;
        self.remove(slab);
        Some(slab)
    }

    /// Remove a slab with all frames free.
    pub(super) fn remove(&mut self, slab: u32) {
        let s = std::mem::take(&mut self.slabs[slab as usize]);
        self.slabs[slab as usize].links = s.links;
        let c = &mut self.classes[usize::from(s.class)];
        if s.draining {
            (c.draining, c.drained) = (0, 0);
        } else {
            c.open.remove(&mut self.slabs, slab);
        }
        c.granted -= u64::from(s.frames);
        self.holes.push((s.base, s.frames));
    }
}
