//! Pins: taken locally if the range is resident, requested otherwise, and read outside of steps while they are held.

use super::context::{Check, Context, wrong};
use super::requests::request;
use super::session::{Pending, PinRange, Session};
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_client::agent::protocol::PageRange;
use kvtide_wire::entry::Op;
use kvtide_wire::status::Status;

impl Session {
    /// Pin a range of sealed blocks.
    pub(super) fn acquire(&mut self, cx: &mut Context, channel: usize, slot: u32, range: PageRange) {
        let Some(id) = self.shared.pins().pin(self.shared.seqs(), &range) else { return };
        self.pinned = true;
        let mut pin = PinRange { range, id, remote: false };
        let me = self.index;
        if self.resident(&range) {
            cx.say(|| format!("s{me} pins {range:?} locally"));
            cx.coverage.met(Met::PinLocal);
            if let Some(seq) = self.seq_mut(slot) {
                seq.pins.push(pin);
            }
            return;
        }
        pin.remote = true;
        let (mut entry, mut pending) = request(Op::Acquire, slot);
        (entry.first, entry.count, entry.lane, entry.flags) = (range.first, range.count, range.plane, range.planes);
        pending.pin = Some(pin);
        if !self.send_exclusive(cx, channel, slot, entry, &[], pending) {
            self.shared.pins().release(self.shared.seqs(), id);
        }
    }

    /// Handle the response to an acquire.
    pub(super) fn acquired(&mut self, pending: &Pending, status: Status) -> Check {
        let Some(pin) = pending.pin else { return Ok(()) };
        if status != Status::Ok {
            self.shared.pins().release(self.shared.seqs(), pin.id);
            return Ok(());
        }
        if !self.resident(&pin.range) {
            return wrong(
                Caught::WrongAnswer,
                format!("s{}: {:?} is acquired and not resident", self.index, pin.range),
            );
        }
        if let Some(seq) = self.seq_mut(pending.seq) {
            seq.pins.push(pin);
        }
        Ok(())
    }

    /// Release a pin.
    pub(super) fn release(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let Some(seq) = self.seq(slot) else { return };
        let at = cx.rng.index(seq.pins.len());
        let pin = seq.pins[at];
        if pin.remote {
            let (mut entry, pending) = request(Op::Release, slot);
            let range = pin.range;
            (entry.first, entry.count, entry.lane, entry.flags) = (range.first, range.count, range.plane, range.planes);
            if !self.send(cx, channel, entry, &[], pending) {
                return;
            }
        }
        let me = self.index;
        cx.say(|| format!("s{me} unpins {:?}", pin.range));
        self.shared.pins().release(self.shared.seqs(), pin.id);
        if let Some(seq) = self.seq_mut(slot) {
            seq.pins.swap_remove(at);
        }
    }

    /// Forget the pins of a dropped sequence.
    pub(super) fn forget_pins(&mut self, slot: u32) {
        let pins = self.seq_mut(slot).map(|seq| std::mem::take(&mut seq.pins)).unwrap_or_default();
        for pin in pins {
            self.shared.pins().release(self.shared.seqs(), pin.id);
        }
    }

    /// Check that pinned pages stay readable in place, with or without a step.
    pub(super) fn read_pins(&self, cx: &mut Context) -> Check {
        for (slot, seq) in self.seqs.iter().enumerate() {
            let Some(seq) = seq else { continue };
            for pin in &seq.pins {
                for (index, plane) in pages(&pin.range) {
                    let frame = self.frame_of(slot as u32, index, plane);
                    let Some(frame) = frame else {
                        let detail = format!(
                            "s{}: page {index} of seq {slot} in plane {plane} is pinned and was taken away",
                            self.index
                        );
                        return wrong(Caught::WrongContent, detail);
                    };
                    self.compare_page(cx, &seq.text, (slot as u32, index, plane), frame, "pin")?;
                    cx.coverage.met(Met::PinRead);
                }
            }
        }
        Ok(())
    }

    fn resident(&self, range: &PageRange) -> bool {
        pages(range).all(|(index, plane)| self.frame_of(range.seq, index, plane).is_some())
    }

    fn frame_of(&self, slot: u32, index: u32, plane: u16) -> Option<u32> {
        let block = self.shared.seqs().block(slot, index)?;
        // Pinned pages are in tier 0.
        self.shared.resident(block, plane).filter(|_| self.shared.in_tier0(block, plane))
    }
}

/// Return block indices and planes of a range.
fn pages(range: &PageRange) -> impl Iterator<Item = (u32, u16)> {
    let planes = range.plane..range.plane + range.planes;
    (range.first..range.first + range.count).flat_map(move |index| planes.clone().map(move |plane| (index, plane)))
}
