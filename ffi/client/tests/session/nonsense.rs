//! A daemon that sends answers that do not match the requests: the request fails, nothing panics, and the answer has no effect.

use super::fake::{Command, LONG, Script, TOKENS, attached};
use kvtide_wire::{
    entry::{Completion, Op},
    status::Status,
};

fn raw(op: Op, value: u64, list_len: u32) -> Completion {
    Completion { value, list_len, ..Completion::new(op as u16, 0, Status::Ok) }
}

#[test]
fn answers_that_do_not_fit_fail_their_request_alone() {
    let (fake, client, mut channel) = attached();
    let seq = channel.create_seq().expect("create");
    let unknown = Completion { status: 12345, ..raw(Op::Reserve, 1, 0) };
    for (completion, list) in [
        (raw(Op::Reserve, 1, 0), vec![40]),     // no such block
        (raw(Op::Reserve, 2, 0), vec![1]),      // the list is shorter than the count
        (raw(Op::Reserve, 0, 0), vec![]),       // an empty answer
        (raw(Op::Reserve, 1, 100_000), vec![]), // a list longer than its area
        (raw(Op::Nop, 1, 0), vec![1]),          // another operation
        (unknown, vec![]),                      // no such status
    ] {
        fake.tell(Command::Answer { op: Op::Reserve, with: Script::Raw(completion, list) });
        let error = channel.reserve(seq, TOKENS, LONG).expect_err("nonsense");
        assert_eq!(error.status(), Status::Protocol, "{completion:?}");
        assert!(client.seq_blocks(seq).expect("blocks").is_empty());
    }
    channel.reserve(seq, TOKENS, LONG).expect("the session continues");
}

#[test]
fn completions_that_nobody_asked_for_are_counted() {
    let (fake, client, mut channel) = attached();
    for tag in [3, 60_000] {
        fake.tell(Command::Stray(Completion::new(Op::Nop as u16, tag, Status::Ok)));
    }
    while client.stats().completions_stray < 2 {
        channel.nop(LONG).expect("the channel continues");
    }
}
