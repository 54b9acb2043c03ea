//! Advise on the use of blocks, and set the reading contract of a sequence.

use super::{Refusal, Sequences, Session, Started, Status, WireRequest, Work, check_range};
use kvtide_types::{Advice, Contract};

pub(super) fn begin(
    sequences: &mut Sequences,
    session: &Session,
    seq: u32,
    (first, count): (u32, u32),
    advice: Advice,
) -> Result<Started, Refusal> {
    sequences.seq_or_lease(seq)?;
    check_range(first, count, session.shared.seqs().len(seq))?;
    Ok(Started::Send(Work::plain(WireRequest::Advise { seq, first, count, advice })))
}

/// The contract takes effect with the daemon's answer: until then the daemon plans for the old one.
pub(super) fn contract(sequences: &mut Sequences, seq: u32, contract: Contract) -> Result<Started, Refusal> {
    sequences.seq(seq)?;
    if !contract.is_valid() {
        let why = format!("{contract:?}: the share is 1 to 1000 permille");
        return Err(Refusal::because(Status::Range, why));
    }
    Ok(Started::Send(Work::plain(WireRequest::Contract { seq, contract })))
}
