//! Results of requests on blocks, compared with the plain model: exactly the bytes stored under a hash, or a list of the blocks
//! that did not arrive; no failed block visible; no pinned block gone.

use super::explain::{everything_stays, nothing_is_lost};
use super::{Asked, Lease, OwnMemory};
use crate::coverage::Met;
use crate::failure::Caught;
use crate::model::Text;
use crate::world::context::{Check, Context, wrong};
use crate::world::session::{Pending, Session};
use kvtide_client::agent::protocol as agent;
use kvtide_wire::entry::{Level, Op};
use kvtide_wire::geometry::PlaneKind;
use kvtide_wire::status::Status;

impl Session {
    /// Check the response to a request on blocks.
    pub(in crate::world) fn blocks_answered(
        &mut self,
        cx: &mut Context,
        (pending, asked): (&Pending, &Asked),
        status: Status,
        value: u64,
        list: &[u32],
    ) -> Check {
        self.nothing_under_way(pending, asked)?;
        match pending.op {
            Op::Lookup => self.looked_up(cx, (pending, asked), value, list),
            Op::Lease => self.leased(cx, (pending, asked), status, list),
            Op::LoadBlocks => self.loaded(cx, (pending, asked), status, value, list),
            Op::StoreBlocks => self.stored(cx, (pending, asked), status, value, list),
            _ => {
                if status == Status::NotFound {
                    cx.coverage.met(Met::LeaseExpired);
                }
                Ok(())
            }
        }
    }

    /// After the response a request's blocks belong to the engine: nothing reads or writes them any more.
    fn nothing_under_way(&self, pending: &Pending, asked: &Asked) -> Check {
        let named = |place| matches!(place, agent::Place::Engine(name) if asked.names.contains(&name));
        match self.copies.iter().flatten().find(|copy| named(copy.from) || named(copy.to)) {
            Some(copy) => {
                let (me, op) = (self.index, pending.op);
                wrong(Caught::Overlap, format!("s{me}: {op:?} was answered, and {copy:?} of it is under way"))
            }
            None => Ok(()),
        }
    }

    fn looked_up(&mut self, cx: &mut Context, (pending, asked): (&Pending, &Asked), value: u64, list: &[u32]) -> Check {
        let Some(text) = &pending.text else { return Ok(()) };
        let page_tokens = cx.geometry.config.page_tokens;
        let (found, in_host) = (value as u32, (value >> 32) as u32);
        let probes = &asked.probes;
        if !list.is_empty() || found as usize > probes.len() || in_host > found {
            let asked = probes.len();
            return self.impossible(pending, format!("{found} of {asked} found, {in_host} in host, {list:?} listed"));
        }
        let blocks = found.checked_sub(1).map_or(0, |last| probes[last as usize] + 1);
        let may = |block: u32| text.hash(block, page_tokens).is_some_and(|hash| cx.library.may_find(hash));
        if let Some(block) = (0..blocks).find(|block| self.slot.is_some() && !may(*block)) {
            return self.impossible(pending, format!("found block {block}, which not every shard has stored"));
        }
        if pending.hole.is_some_and(|hole| blocks > hole) {
            return self
                .impossible(pending, format!("found {blocks} blocks, from {:?} on of another chain", pending.hole));
        }
        // Where room is short, another shard's copy may have been dropped: a lease holds those of its own shard.
        let whole = cx.geometry.config.shards == 1 || cx.geometry.roomy;
        let held = cx.now() < asked.until_us && nothing_is_lost(cx) && whole;
        let known = probes.iter().filter(|at| **at < asked.known).count() as u32;
        // A prefix for which some shard lacks the windows is reported shorter.
        let stays = (held || asked.until_us == 0 && everything_stays(cx)) && !cx.geometry.discards();
        if found < known && stays {
            let (of, why) = (asked.known, if held { "leased" } else { "published" });
            return self.impossible(pending, format!("found {blocks} blocks of {of} that are {why}"));
        }
        if held {
            cx.coverage.met(Met::LeaseHeld);
        }
        cx.coverage.met(if blocks > 0 { Met::LookupHit } else { Met::LookupMiss });
        if blocks > 0 {
            self.has_found(cx, text.clone(), blocks);
        }
        Ok(())
    }

    fn leased(
        &mut self,
        cx: &mut Context,
        (pending, asked): (&Pending, &Asked),
        status: Status,
        list: &[u32],
    ) -> Check {
        let Some(text) = &pending.text else { return Ok(()) };
        let page_tokens = cx.geometry.config.page_tokens;
        if status != Status::Ok {
            if status == Status::NotFound {
                cx.coverage.met(Met::LeaseMissed);
            }
            return if list.is_empty() {
                Ok(())
            } else {
                self.impossible(pending, format!("{status:?} with {list:?}"))
            };
        }
        let [_, nvme, elsewhere] = *list else {
            return self.impossible(pending, format!("leased, with {list:?}"));
        };
        if list.iter().sum::<u32>() != asked.whole {
            return self.impossible(pending, format!("leased {} blocks, and {list:?} are somewhere", asked.whole));
        }
        let may = |block: u32| text.hash(block, page_tokens).is_some_and(|hash| cx.library.may_find(hash));
        if let Some(block) = (0..asked.whole).find(|block| self.slot.is_some() && !may(*block)) {
            return self.impossible(pending, format!("leased block {block}, which not every shard has stored"));
        }
        if nvme > 0 {
            cx.coverage.met(Met::LeaseOnDisk);
        }
        if elsewhere > 0 {
            cx.coverage.met(Met::LeaseElsewhere);
        }
        let Asked { whole: blocks, channel, until_us, .. } = *asked;
        self.own.leases.insert(pending.seq, Lease { text: text.clone(), blocks, channel, until_us });
        Ok(())
    }

    fn loaded(
        &mut self,
        cx: &mut Context,
        (pending, asked): (&Pending, &Asked),
        status: Status,
        value: u64,
        list: &[u32],
    ) -> Check {
        if asked.of_sequence
            && let Some(seq) = self.seq_mut(pending.seq)
        {
            seq.busy = false;
            seq.doomed |= status == Status::Lost;
        }
        let count = pending.count as u32;
        let refused = status != Status::Ok && value == 0 && list.is_empty();
        let adds_up = value + list.len() as u64 == u64::from(count) && (status == Status::Ok) == list.is_empty();
        if !(refused || adds_up && list.is_sorted_by(|a, b| a < b) && list.last().is_none_or(|last| *last < count)) {
            return self.impossible(pending, format!("{status:?}, {value} of {count} blocks came, {list:?} did not"));
        }
        if !list.is_empty() && value > 0 {
            cx.coverage.met(Met::LoadInPart);
        }
        for (at, name) in (0..).zip(&asked.names).filter(|(at, _)| !refused && !list.contains(at)) {
            self.compare_block(cx, (pending, asked), pending.first + at, *name)?;
        }
        self.own.spoil(&mut cx.arenas, &asked.names);
        self.own.give(&asked.names);
        Ok(())
    }

    /// Compare a loaded block with the content of the prefix.
    fn compare_block(&self, cx: &mut Context, (pending, asked): (&Pending, &Asked), index: u32, name: u32) -> Check {
        let Some(text) = &pending.text else { return Ok(()) };
        let page_tokens = cx.geometry.config.page_tokens;
        let tokens = u64::from(asked.whole) * u64::from(page_tokens);
        for plane in 0..cx.geometry.planes() {
            let spec = cx.geometry.config.planes[usize::from(plane)];
            let Some(place) = self.own.place(name, plane) else { continue };
            let Some(arena) = cx.arenas.get(place.arena) else { return Ok(()) };
            let tags = arena.frame(place.frame);
            let expected =
                |slot: usize| text.expected(&spec, plane, self.shard, (index, slot), text.len(), page_tokens);
            let right = tags.iter().enumerate().all(|(slot, tag)| expected(slot).is_none_or(|right| right == *tag));
            // A page out of its window, or a later snapshot, need not arrive; a step may advance while a sequence is loaded.
            let left = u64::from(index) < spec.kind.first_needed(tokens, page_tokens.into());
            let left = left || asked.of_sequence && spec.kind != PlaneKind::Full;
            let untouched = left && OwnMemory::is_spoilt(tags, place);
            if !right && !untouched {
                let (me, tags) = (self.index, format!("{tags:x?}"));
                let detail =
                    format!("block {index} of seq {} was loaded, in plane {plane} it holds {tags}", pending.seq);
                return wrong(Caught::WrongContent, format!("s{me}: {detail}"));
            }
            cx.coverage.met(if untouched { Met::WindowLeft } else { Met::BlockRead });
        }
        cx.coverage.met(if asked.of_sequence { Met::LoadOfSequence } else { Met::LoadOfLease });
        if self.own.is_apart() {
            cx.coverage.met(Met::MembersApart);
        }
        Ok(())
    }

    fn stored(
        &mut self,
        cx: &mut Context,
        (pending, asked): (&Pending, &Asked),
        status: Status,
        value: u64,
        list: &[u32],
    ) -> Check {
        let Some(text) = &pending.text else { return Ok(()) };
        let (count, level) = (pending.count as u32, asked.level.unwrap_or(Level::Published));
        // From the first failed block on all failed.
        let suffix = (count - list.len().min(count as usize) as u32..count).eq(list.iter().copied());
        let good = count - list.len() as u32 * u32::from(suffix);
        let adds_up = match (status, list.is_empty()) {
            (Status::Ok, true) if level == Level::Published => value == u64::from(count),
            (Status::Ok, _) => list.is_empty() && value == level as u64,
            // Refused; or all can be found without the requested durability: the value is the level reached.
            (_, true) => value < level as u64 || value == 0,
            (_, false) => value == u64::from(good),
        };
        if !suffix || !adds_up {
            return self.impossible(pending, format!("{status:?}, value {value} of {count} blocks, {list:?} failed"));
        }
        let refused = status != Status::Ok && list.is_empty() && level == Level::Published;
        let shard = self.shard;
        let visible = if refused { 0 } else { good as usize };
        // The response of a daemon that has died since is not valid any more.
        if self.slot.is_some() {
            asked.hashes[visible..].iter().for_each(|hash| cx.library.failed(*hash, shard));
            if status == Status::Ok {
                asked.hashes.iter().for_each(|hash| cx.library.done(*hash, shard));
            }
        }
        if !list.is_empty() {
            cx.coverage.met(Met::StoreCut);
        }
        if status == Status::Ok {
            cx.coverage.met(if level == Level::Published { Met::StorePublished } else { Met::StorePersisted });
            let salt = cx.geometry.own.salt(self.replica);
            cx.library.remember(&mut cx.rng, salt, text.clone());
        }
        self.same_own(cx, (pending, asked), text)?;
        self.own.spoil(&mut cx.arenas, &asked.names);
        self.own.give(&asked.names);
        Ok(())
    }

    /// Check that a store only read.
    fn same_own(&self, cx: &Context, (pending, asked): (&Pending, &Asked), text: &Text) -> Check {
        let page_tokens = cx.geometry.config.page_tokens;
        for (index, name) in (pending.first..).zip(&asked.names) {
            for plane in 0..cx.geometry.planes() {
                let spec = cx.geometry.config.planes[usize::from(plane)];
                let Some(place) = self.own.place(*name, plane) else { continue };
                let Some(arena) = cx.arenas.get(place.arena) else { return Ok(()) };
                let wrote = |slot: usize| {
                    text.expected(&spec, plane, self.shard, (index, slot), text.len(), page_tokens).unwrap_or(0)
                };
                if !arena.frame(place.frame).iter().enumerate().all(|(slot, tag)| *tag == wrote(slot)) {
                    let me = self.index;
                    let detail = format!("s{me}: block {index} was stored, and its plane {plane} written meanwhile");
                    return wrong(Caught::WrongContent, detail);
                }
            }
        }
        Ok(())
    }
}
