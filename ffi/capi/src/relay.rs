//! `kvt_relay`: questions to the relay that shares blocks between machines.

use super::channel::{hashes, kvt_hash};
use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, string, write};
use super::error::Fault;
use super::status::kvt_status;
use super::table::{Exclusive, ExclusiveUse, Table};
use kvtide_client::{Progress, Relay};
use kvtide_wire::status::Status;
use std::ffi::c_char;
use std::time::{Duration, Instant};

/// A connection to the relay of the engine's domain, for questions about the session's space.
///
/// A relay copies blocks to a store and back. It is a process beside the daemon, which may hang or be absent: no call
/// waits for it, except `kvt_relay_poll`, up to its timeout. After failures in a row, questions fail at once for a
/// while that doubles up to 30 seconds.
///
/// Thread safety: one thread at a time.
pub struct kvt_relay {
    _opaque: [u8; 0],
}

/// Kind of a question to a relay.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_question_kind {
    /// Bring a prefix in from the store. The daemon then has its blocks as if an engine had stored them: look them up
    /// once the answer is there.
    KVT_QUESTION_RECALL = 0,
    /// Bring in a prefix that another machine is sharing just now: the relay asks the store until all of it is there.
    KVT_QUESTION_AWAIT = 1,
    /// Copy a cached prefix out to the store, so that other machines can have it. The answer comes when the store has it.
    KVT_QUESTION_SHARE = 2,
}

/// Answer of a relay.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_answer {
    /// Of a recall or await: blocks of the prefix that the daemon has; before the end, that it is expected to have. Of a
    /// share: blocks that the store has.
    pub blocks: u32,
    /// Zero.
    pub reserved: u32,
    /// Before the end: microseconds in which the blocks are expected; 0 if unknown.
    pub within_us: u64,
}

static RELAYS: Table<Relay, Exclusive> = Table::new("kvt_relay", b'R');

fn enter(relay: *mut kvt_relay) -> Result<ExclusiveUse<Relay>, Fault> {
    RELAYS.enter(relay)
}

/// Ask a question of the client.
type Ask = fn(&mut Relay, &[u128], Duration) -> Option<u32>;

const QUESTIONS: [(kvt_question_kind, Ask); 3] = [
    (kvt_question_kind::KVT_QUESTION_RECALL, Relay::recall),
    (kvt_question_kind::KVT_QUESTION_AWAIT, Relay::await_shared),
    (kvt_question_kind::KVT_QUESTION_SHARE, Relay::share),
];
const _: () = {
    let mut i = 0;
    while i < QUESTIONS.len() {
        assert!(QUESTIONS[i].0 as usize == i);
        i += 1;
    }
};

/// Open a connection to the relay that the daemon names. It connects with its first question.
///
/// @param client  Session.
/// @param relay  Receives the handle. Close it with `kvt_relay_close`, before or after the session.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if the daemon names no relay (`relay_socket` in its configuration), or the space
///     stays on this machine; `KVT_ESYSTEM` if the token file cannot be read.
/// Thread safety: any thread.
/// Example: `if (kvt_relay_open(client, &relay) == KVT_ENOTFOUND) relay = NULL;`
///
/// # Safety
/// `relay` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_relay_open(client: *const kvt_client, relay: *mut *mut kvt_relay) -> kvt_status {
    entry("kvt_relay_open", || {
        check_out("relay", relay)?;
        let found = client::enter(client)?.client.relay()?;
        let none = "the daemon names no relay for this space (relay_socket of the domain in its configuration)";
        let handle = RELAYS.insert(found.ok_or_else(|| Fault::new(Status::NotFound, none))?)?;
        // SAFETY: the caller's contract.
        unsafe { write("relay", relay, handle) }
    })
}

/// Close a connection. Its questions have no answer any more; the relay finishes the copies that it has begun.
///
/// @param relay  Connection.
/// @return `KVT_OK`; `KVT_EINVAL` if the handle is already closed.
/// Thread safety: one thread at a time.
/// Example: `kvt_relay_close(relay);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_relay_close(relay: *mut kvt_relay) -> kvt_status {
    entry("kvt_relay_close", || RELAYS.close(relay))
}

/// Ask the relay about a prefix. `kvt_relay_poll` has the answer.
///
/// @param relay  Connection.
/// @param kind  A `kvt_question_kind`.
/// @param hashes  Hashes of the prefix's blocks, from its first block on. The first 8,000 are asked for.
/// @param count  Number of hashes.
/// @param wait_us  Microseconds until the answer is of no use any more, at most an hour.
/// @param question  Receives the number of the question, for `kvt_relay_poll`; never 0.
/// @return `KVT_OK`; `KVT_EAGAIN` if the relay cannot be asked now (`kvt_last_error` has the reason): compute the prefix;
///     `KVT_EINVAL` if there is no hash, or one of 0, or `kind` is not a `kvt_question_kind`.
/// Thread safety: one thread at a time.
/// Example: `kvt_relay_ask(relay, KVT_QUESTION_RECALL, hashes, count, 2000 * 1000, &question);`
///
/// # Safety
/// `hashes` must be valid for reads of `count` elements, `question` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_relay_ask(
    relay: *mut kvt_relay,
    kind: u32,
    hashes: *const kvt_hash,
    count: u32,
    wait_us: u64,
    question: *mut u32,
) -> kvt_status {
    entry("kvt_relay_ask", || {
        check_out("question", question)?;
        let invalid = |why: String| Fault::new(Status::Invalid, why);
        let found = QUESTIONS.get(kind as usize).copied();
        let (_, ask) = found.ok_or_else(|| invalid(format!("`kind` is {kind}, not a kvt_question_kind")))?;
        // SAFETY: the caller's contract.
        let hashes = unsafe { self::hashes(hashes, count) }?;
        if hashes.is_empty() {
            return Err(invalid("a question needs at least one hash".to_owned()));
        }
        if hashes.contains(&0) {
            return Err(invalid("a hash of 0 is reserved for \"no block\"".to_owned()));
        }
        let mut relay = enter(relay)?;
        let asked = ask(&mut relay, &hashes, Duration::from_micros(wait_us));
        let asked = asked.ok_or_else(|| Fault::new(Status::Again, relay.refusal().to_owned()))?;
        // SAFETY: the caller's contract.
        unsafe { write("question", question, asked) }
    })
}

/// Look how far a question is. After any status but `KVT_EAGAIN` the question is forgotten.
///
/// @param relay  Connection.
/// @param question  Its number.
/// @param timeout_us  Microseconds to wait for its end; 0: do not wait.
/// @param answer  Receives the answer; before the end, the expected one.
/// @return `KVT_OK` if it has ended; `KVT_EAGAIN` if not; `KVT_ENOTFOUND` if there is no answer in time, the relay has
///     ended, or there is no such question.
/// Thread safety: one thread at a time.
/// Example: `while ((status = kvt_relay_poll(relay, question, 0, &answer)) == KVT_EAGAIN) step();`
///
/// # Safety
/// `answer` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_relay_poll(
    relay: *mut kvt_relay,
    question: u32,
    timeout_us: u64,
    answer: *mut kvt_answer,
) -> kvt_status {
    entry("kvt_relay_poll", || {
        check_out("answer", answer)?;
        let mut relay = enter(relay)?;
        let (ended, found) = match relay.wait(question, Duration::from_micros(timeout_us)) {
            Progress::Done(blocks) => (Ok(()), kvt_answer { blocks, ..kvt_answer::default() }),
            Progress::Waiting(expected) => {
                let of = |(blocks, at): (u32, Instant)| {
                    let within_us = at.saturating_duration_since(Instant::now()).as_micros().max(1) as u64;
                    kvt_answer { blocks, reserved: 0, within_us }
                };
                (Err(Status::Again), expected.map(of).unwrap_or_default())
            }
            Progress::Failed => (Err(Status::NotFound), kvt_answer::default()),
        };
        // SAFETY: the caller's contract.
        unsafe { write("answer", answer, found) }?;
        ended.map_err(|status| match status {
            Status::Again => Fault::new(status, "the relay has not answered yet"),
            _ => Fault::new(status, relay.trouble().unwrap_or("no answer in time, or no such question").to_owned()),
        })
    })
}

/// Forget a question: its answer is not needed any more.
///
/// @param relay  Connection.
/// @param question  Its number; one that does not exist is no error.
/// @return `KVT_OK`; `KVT_EINVAL` if the handle is closed.
/// Thread safety: one thread at a time.
/// Example: `kvt_relay_forget(relay, question);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_relay_forget(relay: *mut kvt_relay, question: u32) -> kvt_status {
    entry("kvt_relay_forget", || {
        enter(relay)?.forget(question);
        Ok(())
    })
}

/// Send the relay the tokens of blocks, from which routers recognize prompts, if it publishes KV events.
///
/// @param relay  Connection.
/// @param hashes  Hashes of the blocks.
/// @param count  Number of blocks.
/// @param tokens  Their tokens: `page_tokens` for each block.
/// @param adapter  Name of the adapter (LoRA) with which they were computed; NULL for none.
/// @return `KVT_OK` if they were sent, or the relay does not need any; `KVT_EAGAIN` if they cannot be sent now; `KVT_ETOOBIG` if
///     the tokens of a page, or the name of the adapter, do not fit into a message.
/// Thread safety: one thread at a time.
/// Example: `kvt_relay_note(relay, hashes, count, tokens, NULL);`
///
/// # Safety
/// `hashes` must be valid for reads of `count` elements, `tokens` for `page_tokens` times as many; `adapter` must be NULL
/// or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_relay_note(
    relay: *mut kvt_relay,
    hashes: *const kvt_hash,
    count: u32,
    tokens: *const u32,
    adapter: *const c_char,
) -> kvt_status {
    entry("kvt_relay_note", || {
        // SAFETY: the caller's contract.
        let hashes = unsafe { self::hashes(hashes, count) }?;
        // SAFETY: the caller's contract.
        let adapter = if adapter.is_null() { "" } else { unsafe { string("adapter", adapter) }? };
        let mut relay = enter(relay)?;
        // SAFETY: the caller's contract.
        let tokens = unsafe { array("tokens", tokens, count as usize * relay.page_tokens() as usize) }?;
        if relay.note(&hashes, tokens, adapter) {
            return Ok(());
        }
        if !relay.can_note(adapter) {
            let why = "no message has room for the tokens of a page and the adapter's name";
            return Err(Fault::new(Status::TooBig, why));
        }
        Err(Fault::new(Status::Again, relay.trouble().unwrap_or("the relay reads too slowly").to_owned()))
    })
}
