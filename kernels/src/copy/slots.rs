//! Batches in flight: a bounded number, each with its events and its list for the kernel.
//!
//! A slot is free, or it belongs to a batch from `take` until `poll` has reported its end. Its generation is then incremented, so
//! that an old ticket is never mistaken for a new one.

use super::{BATCHES_MAX, COPIES_MAX, Ticket, Way, lane::Lane};
use crate::{Device, Error, Event, Pinned, Result, params::CopyFragment};
use std::{
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, Instant},
};

/// The part of a batch for the copy engines, and the part for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Engines = 0,
    Kernel = 1,
}

/// Maximum fragments of a list: every copy of a batch, and the same number of cuts of copies that are longer than a launch.
pub(super) const LIST_MAX: usize = 2 * COPIES_MAX;

/// If the driver returns errors in place of a batch's state for this long, the device counts as lost.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// Sleep between two polls of [`Slots::settle`].
const NAP: Duration = Duration::from_micros(20);

/// How the end of a part is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nothing was enqueued.
    Nothing,
    /// By the slot's event.
    Event,
    /// By an idle stream, because the event could not be recorded.
    Stream,
}

struct Slot {
    events: [Event; 2],
    ends: [End; 2],
    way: Way,
    generation: u32,
    taken: bool,
    failed: Option<Error>,
    /// When the driver first returned an error in place of its state.
    unknown: Option<Instant>,
}

pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// A list of [`LIST_MAX`] fragments for each slot, which the kernel reads in place.
    lists: ManuallyDrop<Pinned>,
    leaked: bool,
}

impl Slots {
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let slot = |_| {
            Ok(Slot {
                events: [Event::new(device)?, Event::new(device)?],
                ends: [End::Nothing; 2],
                way: Way::Up,
                generation: 0,
                taken: false,
                failed: None,
                unknown: None,
            })
        };
        Ok(Self {
            slots: (0..BATCHES_MAX).map(slot).collect::<Result<_>>()?,
            free: (0..BATCHES_MAX).rev().collect(),
            lists: ManuallyDrop::new(Pinned::new(device, BATCHES_MAX * LIST_MAX * size_of::<CopyFragment>())?),
            leaked: false,
        })
    }

    /// Return a slot for a batch.
    pub fn take(&mut self, way: Way) -> Result<usize> {
        let Some(at) = self.free.pop() else {
            return Err(Error::Busy { what: "batches of copies", limit: BATCHES_MAX });
        };
        let slot = &mut self.slots[at];
        debug_assert!(!slot.taken && slot.failed.is_none());
        (slot.taken, slot.way, slot.ends, slot.unknown) = (true, way, [End::Nothing; 2], None);
        Ok(at)
    }

    pub fn ticket(&self, at: usize) -> Ticket {
        Ticket { slot: at as u32, generation: self.slots[at].generation }
    }

    /// Record the error to report when a batch has ended. The first one is kept.
    pub fn fail(&mut self, at: usize, error: Error) {
        self.slots[at].failed.get_or_insert(error);
    }

    /// Record the end of a part, after everything enqueued for it.
    pub fn record(&mut self, at: usize, part: Part, lane: &Lane) -> Result<()> {
        let slot = &mut self.slots[at];
        let recorded = lane.stream(part).record(&slot.events[part as usize]);
        slot.ends[part as usize] = if recorded.is_ok() { End::Event } else { End::Stream };
        recorded
    }

    /// Write the slot's list, which no kernel reads any more, and return its address on the device.
    pub fn write_list(&mut self, at: usize, fragments: &[CopyFragment]) -> u64 {
        assert!(fragments.len() <= LIST_MAX, "a list is as long as its slot's place");
        let first = at * LIST_MAX;
        // SAFETY: within the lists, at this slot's place, aligned to it; the slot's last kernel has ended, otherwise `poll` had not
        // freed it.
        unsafe {
            let place = self.lists.as_ptr().cast::<CopyFragment>().add(first);
            std::ptr::copy_nonoverlapping(fragments.as_ptr(), place, fragments.len());
        }
        self.lists.address() + (first * size_of::<CopyFragment>()) as u64
    }

    /// Return whether a batch has ended; if so, free its slot.
    pub fn poll(&mut self, ticket: Ticket, lanes: &[Lane; 3]) -> Result<bool> {
        let at = ticket.slot as usize;
        if !self.slots.get(at).is_some_and(|slot| slot.taken && slot.generation == ticket.generation) {
            return Err(Error::invalid("ticket", "the end of its batch was already reported"));
        }
        let slot = &mut self.slots[at];
        match has_ended(slot, lanes) {
            Ok(false) => {
                slot.unknown = None;
                return Ok(false);
            }
            Ok(true) => {}
            // Nothing runs on a lost device any more, so this is an end, too.
            Err(e) if e.is_lost() => drop(slot.failed.get_or_insert(e)),
            // The copies may still be in flight: their memory must not be reused.
            Err(e) => {
                if slot.unknown.get_or_insert_with(Instant::now).elapsed() < UNKNOWN_MAX {
                    return Ok(false);
                }
                return Err(lanes[slot.way.index()].stream(Part::Engines).device().give_up(&e));
            }
        }
        slot.taken = false;
        slot.generation = slot.generation.wrapping_add(1);
        let failed = slot.failed.take();
        self.free.push(at);
        failed.map_or(Ok(true), Err)
    }

    pub fn in_flight(&self) -> usize {
        BATCHES_MAX - self.free.len()
    }

    /// Poll all batches in flight until they have ended or the deadline has passed.
    pub fn settle(&self, lanes: &[Lane; 3], deadline: Instant) -> Result<bool> {
        for slot in self.slots.iter().filter(|slot| slot.taken) {
            while !has_ended(slot, lanes)? {
                if Instant::now() >= deadline {
                    return Ok(false);
                }
                // PACE: bounded by the deadline.
                std::thread::sleep(NAP);
            }
        }
        Ok(true)
    }

    /// Free the slots of all batches that have ended, even unreported ones. For batches with dropped tickets.
    pub fn reclaim(&mut self, lanes: &[Lane; 3]) -> Result<()> {
        for at in 0..self.slots.len() {
            if self.slots[at].taken && has_ended(&self.slots[at], lanes)? {
                let ticket = self.ticket(at);
                self.poll(ticket, lanes)?;
            }
        }
        Ok(())
    }

    /// Leak the lists: a kernel may still read them.
    pub fn leak(&mut self) {
        self.leaked = true;
    }
}

fn has_ended(slot: &Slot, lanes: &[Lane; 3]) -> Result<bool> {
    for part in [Part::Engines, Part::Kernel] {
        let ended = match slot.ends[part as usize] {
            End::Nothing => true,
            End::Event => slot.events[part as usize].query()?,
            End::Stream => lanes[slot.way.index()].stream(part).is_idle()?,
        };
        if !ended {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Drop for Slots {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: dropped once, here; no kernel reads the lists any more.
            unsafe { ManuallyDrop::drop(&mut self.lists) };
        }
    }
}
