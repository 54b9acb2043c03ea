//! Advise on the use of blocks, and set the reading contract of a sequence.

use super::{Answered, Operation, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work};
use kvtide_types::{Advice, Contract};

pub(super) fn begin(
    sequences: &mut Sequences,
    session: &Session,
    seq: u32,
    (first, count): (u32, u32),
    advice: Advice,
) -> Result<Started, Refusal> {
    sequences.seq_or_lease(seq)?;
    let blocks = session.shared.seqs().len(seq);
    match first.checked_add(count) {
        Some(end) if end <= blocks => Ok(Started::Send(Work::plain(WireRequest::Advise { seq, first, count, advice }))),
        _ => {
            let why = format!("{count} blocks from block {first} on; the sequence has {blocks}");
            Err(Refusal::because(Status::Range, why))
        }
    }
}

/// The contract takes effect with the daemon's answer: until then the daemon plans for the old one.
#[derive(Debug)]
pub struct SetContract {
    seq: u32,
    contract: Contract,
}

impl SetContract {
    pub(super) fn begin(sequences: &mut Sequences, seq: u32, contract: Contract) -> Result<Started, Refusal> {
        sequences.seq(seq)?;
        if !contract.is_valid() {
            let why = format!("{contract:?}: the share is 1 to 1000 permille");
            return Err(Refusal::because(Status::Range, why));
        }
        Ok(Started::Send(Work::SetContract(SetContract { seq, contract })))
    }
}

impl Operation for SetContract {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Contract { seq: self.seq, contract: self.contract }
    }

    fn answered(&mut self, _: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        if reply.status == Status::Ok {
            session.shared.seqs().set_contract(self.seq, self.contract.word());
        }
        reply.done()
    }
}
