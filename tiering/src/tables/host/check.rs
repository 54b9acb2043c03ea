//! Consistency of the tables, and counters to compare with what the callers count.

use super::{Host, HostOn};

impl Host {
    /// Return the frames of a class that are used, mapped and being written, the copies in flight, and the committed frames.
    pub fn counts(&self, class: u8) -> [u64; 5] {
        let c = self.of(class);
        [c.used, c.mapped.into(), c.writing.into(), c.copying.into(), c.committed]
    }

    /// Check that each frame is in the list that it is marked with and in no other, and that the counters of free and of read-ahead
    /// frames are right.
    pub fn check(&self) -> Result<(), String> {
        let mut listed = vec![HostOn::Nothing; self.recs.len()];
        for (class, c) in (0..).zip(&self.classes) {
            use HostOn::{AlsoInTier0, Clean, Dirty, NotAdmitted, ReadAhead};
            for on in [Dirty, Clean, AlsoInTier0, ReadAhead, NotAdmitted] {
                for at in c.lists[on as usize].iter(&self.recs) {
                    if std::mem::replace(&mut listed[at as usize], on) != HostOn::Nothing {
                        return Err(format!("host frame {at} is in two lists"));
                    }
                }
            }
            let of_class = self.slabs.iter().filter(|s| s.live && !s.draining && s.class == class);
            let free = of_class.map(|s| s.free.iter(&self.recs).count() as u64).sum::<u64>();
            if free != self.free_frames(class) {
                return Err(format!("host class {class}: counted {free} free frames"));
            }
            let ahead = (0..self.len()).filter(|&at| self.is_read_ahead(at) && self.class_of(at) == class).count();
            if c.read_ahead_frames as usize != ahead {
                let counter = c.read_ahead_frames;
                return Err(format!("host class {class}: {counter} frames read ahead, counted {ahead}"));
            }
        }
        for (at, (rec, is)) in self.recs.iter().zip(listed).enumerate() {
            if rec.on != is && (rec.on, is) != (HostOn::Moving, HostOn::Nothing) {
                return Err(format!("host frame {at} is marked {:?}, but is in list {is:?}", rec.on));
            }
        }
        Ok(())
    }
}
