//! Reattach: a new session around the tier 0 of an old session, after its daemon has died.
//!
//! All handles of the old session have been returned, so no frame is read and no copy runs. Its page table contains exactly the
//! pages with complete bytes. Each sequence is declared block by block. The new daemon answers with new block ids, under which
//! the new mover adopts the frames. No job is processed before the last frame is adopted: the daemon may use a block in its plans
//! as soon as it has answered.

use super::{
    Error, Options, Refusal, Result, attach, channel,
    inner::{Held, Inner},
    options::deadline,
};
use crate::agent::{
    attention::Contract,
    protocol::{Shared, seqs::SeqState},
    session::Session,
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{entry::NONE_U32, status::Status};
use std::{collections::HashMap, path::Path, sync::Arc, time::Instant};

pub(super) fn reattach(old: &Inner, socket: &Path) -> Result<Arc<Inner>> {
    let error = |status| Error::call("reattach", 0, status);
    old.session.ours().map_err(error)?;
    if old.session.alive() {
        let alive = Refusal::because(Status::State, "the session is alive: its daemon has not died");
        return Err(Error::refused("reattach", 0, alive));
    }
    let mut channels = Held::all(&old.channels, &old.session)?;
    let mut lanes = Held::all(&old.lanes, &old.session)?;
    old.stop();
    let until = deadline(old.options.timeout);
    old.session.copy_loop().settle(until).map_err(error)?;
    let options = Options { socket: socket.to_owned(), ..old.options.clone() };
    let mut connected = attach::connect(&options, Some(Arc::clone(&old.session.tier0)))?;
    let session = Arc::clone(&connected.session);
    let mut adoption = Adoption {
        old: &old.session.shared,
        session: &session,
        blocks: HashMap::new(),
        deadline: deadline(options.timeout),
    };
    for (was, now) in channels.states.iter_mut().zip(&mut connected.channels) {
        for seq in was.sequences().live() {
            adoption.sequence(seq, now).map_err(|status| Error::call("declare sequence", u64::from(seq), status))?;
        }
    }
    let inner = attach::start(options, connected)?;
    channels.states.clear();
    lanes.states.clear();
    Ok(inner)
}

struct Adoption<'a> {
    old: &'a Shared,
    session: &'a Session,
    /// New id of each declared old block.
    blocks: HashMap<u32, u32>,
    deadline: Instant,
}

impl Adoption<'_> {
    /// Declare a sequence. A sequence with missing pages becomes lost.
    fn sequence(&mut self, seq: u32, channel: &mut channel::State) -> std::result::Result<(), Status> {
        let seqs = self.session.shared.seqs();
        self.take_slot(seq)?;
        let held = self.held(seq);
        if !seqs.create(seq) {
            return Err(Status::Limit);
        }
        let declared = match held {
            Some(blocks) => self.declare(seq, &blocks, channel),
            None => Err(Status::Lost),
        };
        match declared {
            Ok(()) => {}
            Err(status @ (Status::Daemon | Status::TimedOut | Status::Fork)) => return Err(status),
            Err(_) => seqs.lose(seq),
        }
        channel.sequences().take_over(seq);
        Ok(())
    }

    /// Remove a sequence's slot from the free slots.
    fn take_slot(&self, seq: u32) -> std::result::Result<(), Status> {
        let slots = &self.session.seq_slots;
        for _ in 0..slots.len() {
            match slots.pop() {
                Some(slot) if slot == seq => return Ok(()),
                Some(slot) => {
                    let _ = slots.push(slot); // the pop freed its place
                }
                None => break,
            }
        }
        Err(Status::Limit) // the new daemon grants fewer sequences
    }

    /// Return the tier-0 frame that holds a page. A mapped frame does not count: its page is in the old daemon's memory.
    fn in_tier0(&self, block: u32, plane: u16) -> Option<u32> {
        self.old.resident(block, plane).filter(|frame| !self.old.geometry().is_mapped_frame(*frame))
    }

    /// Return the frames that hold each block of a sequence; `None` if a page that a step would read is missing. Incomplete blocks
    /// beyond the committed tokens are left out.
    fn held(&self, seq: u32) -> Option<Vec<(u32, Vec<u32>)>> {
        let (geometry, seqs) = (self.old.geometry(), self.old.seqs());
        if seqs.state(seq) != SeqState::Live {
            return None;
        }
        let tokens = seqs.committed(seq);
        let committed = geometry.blocks_for(tokens);
        let mut blocks = Vec::new();
        for (index, block) in seqs.block_ids(seq).into_iter().enumerate() {
            let planes = 0..geometry.plane_count() as u16;
            let frames: Vec<Option<u32>> = planes.clone().map(|plane| self.in_tier0(block, plane)).collect();
            let index = index as u32;
            let needed = |plane: u16| index >= committed || geometry.needed(plane, tokens).contains(&index);
            if planes.clone().any(|plane| frames[usize::from(plane)].is_none() && needed(plane)) {
                if index < committed {
                    return None;
                }
                break;
            }
            blocks.push((block, frames.into_iter().map(|frame| frame.unwrap_or(NONE_U32)).collect()));
        }
        Some(blocks)
    }

    fn declare(
        &mut self,
        seq: u32,
        blocks: &[(u32, Vec<u32>)],
        channel: &mut channel::State,
    ) -> std::result::Result<(), Status> {
        let (shared, seqs) = (&self.session.shared, self.session.shared.seqs());
        let tokens = self.old.seqs().committed(seq);
        channel.ask(WireRequest::SeqCreate { seq }, self.deadline)?;
        for (index, (block, frames)) in blocks.iter().enumerate() {
            let request = WireRequest::Declare { seq, index: index as u32, tokens, frames };
            let answer = channel.ask(request, self.deadline)?;
            let [new] = answer[..] else { return Err(Status::Protocol) };
            match self.blocks.get(block) {
                Some(known) if *known == new => {}
                Some(_) => return Err(Status::Protocol),
                None => self.adopt(new, frames)?,
            }
            self.blocks.insert(*block, new);
            if new >= shared.geometry().bounds().blocks_max || !seqs.push(seq, new) {
                return Err(Status::Protocol);
            }
            // Pages that are not full are still written by the sequence.
            if (index as u64 + 1) * u64::from(shared.geometry().bounds().page_tokens) <= tokens {
                self.session.attention.adopted(new);
            }
        }
        seqs.commit(seq, tokens);
        self.contract(seq, channel)
    }

    /// Set the sequence's previous reading contract. If the daemon refuses it, the sequence is read by `exact`.
    fn contract(&self, seq: u32, channel: &mut channel::State) -> std::result::Result<(), Status> {
        let word = self.old.seqs().contract(seq);
        let contract = Contract::of_word(word);
        if contract == Contract::Exact {
            return Ok(());
        }
        match channel.ask(WireRequest::Contract { seq, contract }, self.deadline) {
            Ok(_) => self.session.shared.seqs().set_contract(seq, word),
            Err(status @ (Status::Daemon | Status::TimedOut | Status::Fork)) => return Err(status),
            Err(_) => {}
        }
        Ok(())
    }

    fn adopt(&self, block: u32, frames: &[u32]) -> std::result::Result<(), Status> {
        let mut copy_loop = self.session.copy_loop();
        for (plane, frame) in frames.iter().enumerate().filter(|(_, frame)| **frame != NONE_U32) {
            copy_loop.mover().adopt(block, plane as u16, *frame)?;
        }
        Ok(())
    }
}
