//! Completions: each is compared with the plain model, then the engine continues.

use super::context::{Check, Context, wrong};
use super::ops::closing;
use super::session::{Answer, Pending, Seq, Session};
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_client::agent::attention::Contract;
use kvtide_wire::entry::{Level, Op};
use kvtide_wire::status::Status;

impl Session {
    /// Read the completion ring of `channel`.
    pub fn answers(&mut self, cx: &mut Context, channel: usize) -> Check {
        while let Some(answer) = self.channels[channel].completions.pop(cx.now()) {
            self.answer(cx, channel, answer)?;
        }
        Ok(())
    }

    fn answer(&mut self, cx: &mut Context, channel: usize, (entry, list): Answer) -> Check {
        let me = self.index;
        let pending = self.channels[channel].pending.get_mut(usize::from(entry.tag)).and_then(Option::take);
        let Some(pending) = pending else {
            return wrong(
                Caught::Protocol,
                format!("s{me}.c{channel}: a completion for tag {}, which is free", entry.tag),
            );
        };
        let Some(status) = Status::from_code(entry.status) else {
            return wrong(Caught::Protocol, format!("s{me}: status code {} in a completion", entry.status));
        };
        cx.trace.fold(&[2, me as u64, u64::from(entry.tag), status as u64, entry.value, list.len() as u64]);
        cx.say(|| {
            format!(
                "s{me}.c{channel} <- {:?} seq {} {status:?} value {} list {list:?}",
                pending.op, pending.seq, entry.value
            )
        });
        if entry.op != pending.code || entry.list_len as usize != list.len() {
            return wrong(Caught::Protocol, format!("s{me}: the completion of {:?} is of another request", pending.op));
        }
        cx.coverage.op(pending.op, status);
        self.count(cx, status);
        if pending.declared {
            self.justified(cx, &pending, (status, &list))?;
            return self.declared(&pending, status, &list);
        }
        if pending.op == Op::Tier0Resize && !pending.nonsense {
            self.justified(cx, &pending, (status, &list))?;
            return self.resized(cx, &pending, status, entry.value);
        }
        if pending.op == Op::Guarantee && !pending.nonsense {
            self.justified(cx, &pending, (status, &list))?;
            return self.guarantee_answered(cx, &pending, status, entry.value);
        }
        if pending.nonsense {
            return match status {
                Status::Ok => wrong(Caught::WrongAnswer, format!("s{me}: nonsense {:?} succeeded", pending.op)),
                _ => Ok(()),
            };
        }
        if matches!(pending.op, Op::Follow | Op::ListBlocks) {
            self.justified(cx, &pending, (status, &list))?;
            return self.feed_answered(cx, &pending, (status, entry.value, &list));
        }
        if let Some(asked) = &pending.blocks {
            self.justified(cx, &pending, (status, &list))?;
            return self.blocks_answered(cx, (&pending, asked), status, entry.value, &list);
        }
        if let Some(seq) = self.seqs.get_mut(pending.seq as usize).and_then(Option::as_mut) {
            if exclusive(pending.op) {
                seq.busy = false;
            }
            let stays = match pending.op {
                // A failed park stays where it stopped.
                Op::Park => true,
                Op::Resume => status != Status::Ok,
                _ => false,
            };
            seq.parked |= pending.op == Op::Park;
            if closing(pending.op) && !stays {
                seq.closed = false;
                self.shared.seqs().open(pending.seq);
            }
        }
        if let (Op::Fault, Some(lane)) = (pending.op, pending.lane) {
            self.faulted(lane, pending.count, status);
        }
        if pending.op == Op::Acquire {
            self.acquired(&pending, status)?;
        }
        self.justified(cx, &pending, (status, &list))?;
        if status == Status::Lost && self.harmed(cx, pending.seq) {
            cx.coverage.met(Met::LostToDisk);
        }
        match status {
            Status::Ok => self.success(cx, &pending, entry.value, &list),
            _ => self.refusal(&pending, status, &list),
        }
    }

    fn count(&self, cx: &mut Context, status: Status) {
        match status {
            Status::Canceled => cx.coverage.met(Met::Cancel),
            Status::TimedOut => cx.coverage.met(Met::Deadline),
            Status::NoSpace => cx.coverage.met(Met::NoSpace),
            Status::Lost => cx.coverage.met(Met::Lost),
            _ => {}
        }
    }

    /// Check whether this request may have ended with this status.
    fn justified(&self, cx: &Context, pending: &Pending, (status, list): (Status, &[u32])) -> Check {
        let faults = &cx.faults;
        // A peer that invents the end of a job is disconnected, which loses its only copies, as a death does.
        let deaths = faults.die + faults.babble;
        // A sequence may get any error after its pages were lost with their holder, or after its step failed.
        let damaged = self.seq(pending.seq).is_some_and(|seq| seq.doomed);
        let explained = match status {
            Status::Ok => true,
            Status::Canceled => pending.cancelled,
            // The room for a step's pages was committed when they were reserved: only copies that never end can keep it waiting. The
            // engine's own pins may have taken all the frames, though.
            // Nothing has happened.
            Status::TimedOut if pending.op == Op::Follow => true,
            Status::TimedOut if pending.op == Op::Fault => {
                faults.endless + faults.refuse + deaths > 0
                    || self.pinned
                    || (cx.geometry.disk() && faults.disk.delays())
            }
            // Without short deadlines a deadline is far longer than any request, except with full tiers and copies that never end.
            Status::TimedOut => {
                !cx.geometry.roomy || faults.hurry + faults.endless + faults.refuse > 0 || faults.disk.delays()
            }
            Status::NoSpace if pending.op == Op::Publish && cx.ledger.errors > 0 => true,
            Status::NoSpace if pending.covered && self.guarantee_covers(cx, pending) => false,
            Status::NoSpace | Status::TooBig => !cx.geometry.roomy || faults.refuse > 0 || !faults.disk.works(),
            // Pages that left a window, and older snapshots, are dropped, even if a later request would pin them or truncate to
            // them.
            Status::Lost if matches!(pending.op, Op::Acquire | Op::Truncate) && cx.geometry.discards() => true,
            // The sequence advanced before the message about the end of the step was read, and its windows with it.
            Status::Lost if pending.op == Op::Fault && cx.geometry.discards() && !self.in_step(pending) => true,
            Status::Lost if self.harmed(cx, pending.seq) => true,
            Status::Lost => deaths + faults.daemon + faults.copy + faults.endless > 0,
            Status::Io => faults.copy + faults.endless + deaths + cx.ledger.errors > 0,
            // A cancel of an already ended request. The step is over and its sequences may be dropped before the message about it
            // is read.
            Status::NotFound | Status::State | Status::Range if pending.op == Op::Fault => !self.in_step(pending),
            Status::NotFound | Status::State if matches!(pending.op, Op::Step | Op::StepEnd) => true,
            Status::NotFound => pending.op == Op::Cancel || damaged,
            Status::NotAdmitted => {
                let unsure = !cx.geometry.roomy || !faults.none() || pending.first > 0 || !cx.geometry.disk();
                pending.op == Op::Publish && unsure
            }
            Status::Busy => matches!(pending.op, Op::Park | Op::Truncate | Op::SeqDrop | Op::Tier0Resize),
            // Blocks run out in a space that is not roomy.
            Status::Limit => !cx.geometry.roomy,
            Status::Again => pending.op == Op::Declare,
            Status::State => damaged,
            _ => false,
        };
        let of_blocks = pending.blocks.as_ref();
        if explained || of_blocks.is_some_and(|asked| self.blocks_explained(cx, pending, asked, (status, list))) {
            return Ok(());
        }
        let me = self.index;
        wrong(Caught::UnjustifiedError, format!("s{me}: {:?} of seq {} ended with {status:?}", pending.op, pending.seq))
    }

    /// Return whether the disk ever failed to deliver a page of this sequence.
    fn harmed(&self, cx: &Context, slot: u32) -> bool {
        let Some(seq) = self.seq(slot) else { return false };
        let page_tokens = cx.geometry.config.page_tokens;
        // Reserved pages that were not written have unknown content; if the sequence is parked they are on disk, too.
        if seq.parked && (seq.blocks.len() as u64) * u64::from(page_tokens) > seq.text.len() && cx.ledger.any_harm() {
            return true;
        }
        let harmed = |plane: u16, block: u32| {
            let spec = cx.geometry.config.planes[usize::from(plane)];
            let tags = (0..cx.geometry.slots())
                .filter_map(|at| seq.text.expected(&spec, plane, self.shard, (block, at), seq.text.len(), page_tokens));
            tags.into_iter().any(|tag| cx.ledger.harmed(tag))
        };
        (0..cx.geometry.planes()).any(|plane| (0..seq.blocks.len() as u32).any(|block| harmed(plane, block)))
    }

    fn success(&mut self, cx: &mut Context, pending: &Pending, value: u64, list: &[u32]) -> Check {
        let page_tokens = cx.geometry.config.page_tokens;
        match pending.op {
            Op::Reserve => {
                if value != list.len() as u64 || value != pending.count {
                    return self.impossible(
                        pending,
                        format!("{} blocks asked, {value} granted, {} listed", pending.count, list.len()),
                    );
                }
                self.all_new(cx, pending, list)?;
                if let Some(seq) = self.seq_mut(pending.seq) {
                    seq.blocks.extend_from_slice(list);
                    self.push(pending.seq, list);
                }
                Ok(())
            }
            Op::Fork => self.forked(cx, pending, value, list),
            Op::Truncate => {
                let whole = pending.count.div_ceil(u64::from(page_tokens)) as usize;
                self.all_new(cx, pending, list)?;
                let Some(seq) = self.seq_mut(pending.seq) else { return Ok(()) };
                let cut = (pending.count / u64::from(page_tokens)) as usize;
                match list {
                    [] => {}
                    [copy] if cut < seq.blocks.len() => seq.blocks[cut] = *copy,
                    _ => return self.impossible(pending, format!("{} blocks copied", list.len())),
                }
                seq.text.truncate(pending.count, page_tokens);
                seq.committed = seq.committed.min(pending.count);
                seq.published = seq.published.min((pending.count / u64::from(page_tokens)) as u32);
                seq.blocks.truncate(whole);
                let kept = if list.is_empty() { whole } else { cut };
                self.shared.seqs().cut(pending.seq, kept as u32);
                self.push(pending.seq, list);
                self.shared.seqs().commit(pending.seq, pending.count);
                Ok(())
            }
            Op::Publish => self.published(cx, pending, value),
            Op::AttachPrefix => self.prefix_attached(cx, pending, value, list),
            Op::Resume => {
                if let Some(seq) = self.seq_mut(pending.seq) {
                    seq.parked = false;
                }
                Ok(())
            }
            Op::Contract => {
                if let Some(seq) = self.seq_mut(pending.seq) {
                    seq.contract = Contract::of_word(pending.count);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn forked(&mut self, cx: &mut Context, pending: &Pending, value: u64, list: &[u32]) -> Check {
        let page_tokens = cx.geometry.config.page_tokens;
        self.all_new(cx, pending, list)?;
        let Some(parent) = self.seq(pending.seq) else { return Ok(()) };
        let shared = (parent.committed / u64::from(page_tokens)) as usize;
        let needed = parent.committed.div_ceil(u64::from(page_tokens)) as usize;
        if value as usize != shared || shared + list.len() < needed || shared + list.len() > parent.blocks.len() {
            let detail = format!(
                "shares {value} of {shared} sealed blocks and copies {} of {}",
                list.len(),
                parent.blocks.len()
            );
            return self.impossible(pending, detail);
        }
        let mut child = Seq { pins: Vec::new(), ..parent.clone() };
        child.blocks.truncate(shared);
        child.blocks.extend_from_slice(list);
        // Tokens that the parent wrote without committing do not belong to the child.
        child.text.reject(child.committed, page_tokens);
        child.prompt = None;
        self.shared.seqs().create(pending.other);
        self.push(pending.other, &child.blocks);
        self.shared.seqs().commit(pending.other, child.committed);
        self.seqs[pending.other as usize] = Some(child);
        Ok(())
    }

    fn published(&mut self, cx: &mut Context, pending: &Pending, value: u64) -> Check {
        if value > Level::Durable as u64 {
            return self.impossible(pending, format!("level {value}"));
        }
        let page_tokens = cx.geometry.config.page_tokens;
        let shard = self.shard;
        let Some(seq) = self.seq_mut(pending.seq) else { return Ok(()) };
        let end = pending.first + pending.count as u32;
        seq.published = seq.published.max(end);
        let text = seq.text.clone();
        (pending.first..end)
            .filter_map(|block| text.hash(block, page_tokens))
            .for_each(|hash| cx.library.done(hash, shard));
        let salt = cx.geometry.own.salt(self.replica);
        cx.library.remember(&mut cx.rng, salt, text);
        Ok(())
    }

    fn prefix_attached(&mut self, cx: &mut Context, pending: &Pending, value: u64, list: &[u32]) -> Check {
        let page_tokens = cx.geometry.config.page_tokens;
        let Some(text) = &pending.text else { return Ok(()) };
        let asked = text.len() / u64::from(page_tokens);
        if value != list.len() as u64 || value > asked {
            return self.impossible(pending, format!("{value} blocks found, {} listed, {asked} asked", list.len()));
        }
        let may = |block: u32| text.hash(block, page_tokens).is_some_and(|hash| cx.library.may_find(hash));
        // A prefix that a daemon found before its death was correct then.
        let alive = self.slot.is_some();
        if let Some(block) = (0..value as u32).find(|block| alive && !may(*block)) {
            return self.impossible(pending, format!("found block {block}, which not every shard has published"));
        }
        if pending.hole.is_some_and(|hole| value > u64::from(hole)) {
            return self.impossible(pending, format!("found {value} blocks over a hole at {:?}", pending.hole));
        }
        // A prefix without its last window or snapshot is not found at that length.
        let kept = cx.geometry.roomy && cx.faults.none() && !cx.geometry.discards();
        if kept && value < u64::from(pending.must_find) {
            return self
                .impossible(pending, format!("found {value} blocks of {} that are published", pending.must_find));
        }
        cx.coverage.met(if value > 0 { Met::AttachHit } else { Met::AttachMiss });
        let mut text = text.clone();
        text.truncate(value * u64::from(page_tokens), page_tokens);
        for (plane, block) in (0..cx.geometry.planes()).flat_map(|p| (0..value as u32).map(move |b| (p, b))) {
            let spec = cx.geometry.config.planes[usize::from(plane)];
            if let Some(tag) = text.expected(&spec, plane, self.shard, (block, 0), text.len(), page_tokens) {
                cx.ledger.found(tag);
            }
        }
        let Some(seq) = self.seq_mut(pending.seq) else { return Ok(()) };
        seq.committed = text.len();
        seq.published = value as u32;
        seq.text = text;
        seq.blocks = list.to_vec();
        let committed = seq.committed;
        self.push(pending.seq, list);
        self.shared.seqs().commit(pending.seq, committed);
        Ok(())
    }

    fn push(&self, slot: u32, blocks: &[u32]) {
        blocks.iter().for_each(|block| {
            self.shared.seqs().push(slot, *block);
        });
    }

    fn refusal(&mut self, pending: &Pending, status: Status, list: &[u32]) -> Check {
        if !list.is_empty() {
            return self.impossible(pending, format!("{status:?} with a list of {}", list.len()));
        }
        // The result of a fault for a finished step is ignored.
        let stale = pending.op == Op::Fault && !self.in_step(pending);
        let Some(seq) = self.seq_mut(pending.seq) else { return Ok(()) };
        match (pending.op, status) {
            _ if stale => {}
            (_, Status::Lost) | (Op::SeqCreate | Op::Commit, _) => seq.doomed = true,
            _ => {}
        }
        Ok(())
    }

    /// Check that granted blocks are not in use in this session. Blocks cut off by a pending truncation count as free: its
    /// completion may still be unread in another channel.
    fn all_new(&self, cx: &Context, pending: &Pending, list: &[u32]) -> Check {
        let page_tokens = u64::from(cx.geometry.config.page_tokens);
        let kept = |seq: usize| {
            let cuts = self.channels.iter().flat_map(|channel| channel.pending.iter().flatten());
            let cuts = cuts.filter(|other| other.op == Op::Truncate && other.seq as usize == seq);
            cuts.map(|cut| (cut.count / page_tokens) as usize).min().unwrap_or(usize::MAX)
        };
        let holds = |seq: usize, block: u32| {
            let blocks = self.seqs[seq].iter().flat_map(|seq| &seq.blocks);
            blocks.take(kept(seq)).any(|held| *held == block)
        };
        let taken = |block: &&u32| (0..self.seqs.len()).any(|seq| holds(seq, **block));
        match list.iter().find(taken) {
            Some(block) => self.impossible(pending, format!("granted block {block}, which is in use")),
            None => Ok(()),
        }
    }

    pub(super) fn impossible(&self, pending: &Pending, detail: String) -> Check {
        let me = self.index;
        wrong(Caught::WrongAnswer, format!("s{me}: {:?} of seq {}: {detail}", pending.op, pending.seq))
    }
}

/// Return whether the sequence waits for the end of this request.
fn exclusive(op: Op) -> bool {
    matches!(
        op,
        Op::Fork | Op::Truncate | Op::Publish | Op::AttachPrefix | Op::Park | Op::Resume | Op::Acquire | Op::Reserve
    )
}
