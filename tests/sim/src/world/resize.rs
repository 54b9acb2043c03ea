//! Engines that return tier-0 memory and take it again: after a shrink no page is in the removed frames, none is placed there, and
//! their former pages are in another place or were not needed.

use super::context::{Check, Context, wrong};
use super::requests::request;
use super::session::{Pending, Session};
use crate::base::mix;
use crate::coverage::Met;
use crate::failure::Caught;
use crate::memory::Place;
use kvtide_client::agent::protocol as agent;
use kvtide_wire::entry::{NONE_U32, Op};
use kvtide_wire::status::Status;
use std::ops::Range;

impl Session {
    /// Return the frames of a class that have no memory now.
    fn gone(&self, cx: &Context, class: usize) -> Range<u32> {
        let base = cx.geometry.class_base(class as u8);
        base + self.sizes[class]..base + cx.geometry.tier0[class]
    }

    /// Return whether a frame has memory.
    pub(super) fn has_frame(&self, cx: &Context, frame: u32) -> bool {
        !(0..self.sizes.len()).any(|class| self.gone(cx, class).contains(&frame))
    }

    /// Request more or fewer frames of some class, unless that is in progress; additional memory exists before the request.
    pub(super) fn resize(&mut self, cx: &mut Context, channel: usize) -> bool {
        let class = cx.rng.index(self.sizes.len());
        let (before, max) = (self.sizes[class], cx.geometry.tier0[class]);
        if self.resizing[class] {
            return false;
        }
        let least = cx.geometry.class_planes[class].max(2);
        let frames = if cx.rng.chance(300) { max } else { cx.rng.between(u64::from(least), u64::from(max)) as u32 };
        let (mut entry, mut pending) = request(Op::Tier0Resize, NONE_U32);
        (entry.first, entry.count) = (class as u32, frames);
        // An engine that pins pages, or has rarely idle lanes, would wait for a long time.
        entry.timeout_us = cx.rng.between(1, 20_000);
        (pending.first, pending.count, pending.other) = (class as u32, u64::from(frames), before);
        let sent = self.send(cx, channel, entry, &[], pending);
        if sent {
            self.resizing[class] = true;
            self.sizes[class] = before.max(frames);
        }
        sent
    }

    /// Handle the response to a resize.
    pub(super) fn resized(&mut self, cx: &mut Context, pending: &Pending, status: Status, value: u64) -> Check {
        let (class, before) = (pending.first as usize, pending.other);
        self.resizing[class] = false;
        if status != Status::Ok {
            self.sizes[class] = before;
            return Ok(());
        }
        if value != pending.count {
            let (me, count) = (self.index, pending.count);
            return wrong(
                Caught::WrongAnswer,
                format!("s{me}: asked for {count} frames of class {class}, has {value}"),
            );
        }
        self.sizes[class] = pending.count as u32;
        cx.coverage.met(if self.sizes[class] < before { Met::Tier0Shrank } else { Met::Tier0Grew });
        self.give_back(cx, class)
    }

    /// Remove memory: nothing may be using it, and a later access finds garbage.
    fn give_back(&mut self, cx: &mut Context, class: usize) -> Check {
        let (me, gone) = (self.index, self.gone(cx, class));
        for lane in self.lanes.iter().map(|lane| lane.reader.view()).filter(|view| view.active()) {
            let shown = lane.table().iter().filter_map(|entry| entry.checked_sub(1)).find(|frame| gone.contains(frame));
            if let Some(frame) = shown {
                let detail = format!("s{me} lane {} shows frame {frame}, which loses its memory", lane.lane());
                return wrong(Caught::WrongTable, detail);
            }
        }
        let uses = |place| matches!(place, agent::Place::Frame(frame) if gone.contains(&frame));
        if let Some(copy) = self.copies.iter().flatten().find(|copy| uses(copy.from) || uses(copy.to)) {
            return wrong(Caught::Overlap, format!("s{me}: {copy:?} is under way, and memory goes there"));
        }
        for frame in gone {
            for slot in 0..cx.geometry.slots() {
                let tag = mix(me as u64, u64::from(frame)) | 1 << 63;
                cx.arenas.write(Place { arena: self.tier0, frame }, slot, tag);
            }
        }
        Ok(())
    }
}
