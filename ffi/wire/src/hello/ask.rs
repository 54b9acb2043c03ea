//! Ask: an engine asks the relay of its domain, over a socket of the relay, to bring blocks in or to copy them out.

use super::codec::{Reader, Writer, within, wrong};
use super::{Disconnect, HEAD_BYTES, Kind, MESSAGE_MAX, TEXT_BYTES_MAX, Token};
use crate::error::Error;
use crate::trace::TraceContext;
use alloc::string::String;
use alloc::vec::Vec;
use zeroize::Zeroizing;

/// Maximum hashes of an [`Ask`]; a longer prefix is asked for in several messages.
pub const ASK_HASHES_MAX: usize = ask_hashes_max(false);
/// Maximum hashes of a question, over all its messages.
pub const QUESTION_HASHES_MAX: usize = 8 * ASK_HASHES_MAX;
/// Maximum questions of one engine at a time.
pub const QUESTIONS_MAX: usize = 64;
/// Maximum milliseconds of a question: an hour.
pub const WAIT_MS_MAX: u32 = 3_600_000;
/// Maximum hashes of a [`Note`]; fewer if their tokens need the room.
pub const NOTE_HASHES_MAX: usize = 256;
const HASH_BYTES: usize = 16;
/// Highest 32 bits of the hashes of blocks that stay on their machine.
const LOCAL: u128 = 0xffff_ffff << 96;
/// Bytes of the other fields of an [`Ask`].
const ASK_FIELDS: usize = 4 + 4 + 2 + 2 + 2;
/// Bytes of a trace context.
const TRACE_BYTES: usize = 16 + 8;

/// Return the hash for a block that is to stay on its machine, because no other machine can use it: relays do not copy it.
#[must_use]
pub const fn local_hash(hash: u128) -> u128 {
    hash | LOCAL
}

/// Return whether the block with this hash stays on its machine. Of other blocks, one in 2^32 does too.
#[must_use]
pub const fn is_local(hash: u128) -> bool {
    hash & LOCAL == LOCAL
}

/// First message of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskHello {
    /// Fingerprint of the space that all questions are about.
    pub fingerprint: [u8; 32],
    /// Token that the relay demands; without one the engine's uid decides.
    pub token: Option<Token>,
}

/// The relay's answer to [`AskHello`]. A refusal is a [`Disconnect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskWelcome {
    /// The relay publishes KV events and needs the tokens of blocks for it.
    pub wants_notes: bool,
    /// The relay makes spans of questions with a trace context. Relays that do not know it refuse such questions.
    pub wants_traces: bool,
}

/// Kind of a question.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Bring a prefix in from the store.
    Recall = 0,
    /// Copy a prefix out to the store, and answer when the store has it.
    Share = 1,
    /// Recall a prefix that another machine is sharing: ask the store again until it has all of it.
    Await = 2,
}

/// A question about a prefix, or a part of one: messages with the same id belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Number of the question, which the answer repeats.
    pub id: u32,
    /// Its kind.
    pub what: What,
    /// Milliseconds until the answer is of no use any more, at most [`WAIT_MS_MAX`].
    pub wait_ms: u32,
    /// More hashes follow, in the next message.
    pub more: bool,
    /// Hashes of the blocks of the prefix, from the first on, in order. 1 to [`ask_hashes_max`], none of them 0.
    pub hashes: Vec<u128>,
    /// The engine's span; the relay takes it from the first message of a question.
    pub trace: Option<TraceContext>,
}

/// How far a question is. The first answer may be an expectation; the last one has `done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the question.
    pub id: u32,
    /// Nothing more comes.
    pub done: bool,
    /// Recall: blocks of the prefix that the daemon has, or will have. Share: blocks that the store has.
    pub blocks: u32,
    /// If not done: expected microseconds until these blocks are there; 0 if unknown.
    pub in_us: u32,
}

/// The answer to a question is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// Number of the question; one that is not open is no error.
    pub id: u32,
}

/// Tokens of blocks, which routers need to recognize a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Hashes of blocks. 1 to [`NOTE_HASHES_MAX`], none of them 0.
    pub hashes: Vec<u128>,
    /// Tokens of all of them, equally many each.
    pub tokens: Vec<u32>,
    /// Name of the adapter (LoRA) with which they were computed; empty for none.
    pub adapter: String,
}

/// Return how many hashes fit into one [`Ask`].
#[must_use]
pub const fn ask_hashes_max(is_traced: bool) -> usize {
    (MESSAGE_MAX - HEAD_BYTES - ASK_FIELDS - if is_traced { TRACE_BYTES } else { 0 }) / HASH_BYTES
}

/// Return how many hashes fit into one [`Note`] with `page_tokens` tokens each; 0 if not even one does.
#[must_use]
pub const fn note_hashes_max(page_tokens: usize) -> usize {
    let room = MESSAGE_MAX - HEAD_BYTES - 2 - 4 - 2 - TEXT_BYTES_MAX;
    let fits = room / (HASH_BYTES + 4 * page_tokens);
    if fits < NOTE_HASHES_MAX { fits } else { NOTE_HASHES_MAX }
}

/// A decoded message of an engine to the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToRelay {
    /// The first message.
    Hello(AskHello),
    /// A question.
    Ask(Ask),
    /// Tokens.
    Note(Note),
    /// An answer that is not needed.
    Forget(Forget),
}

/// A decoded message of the relay to an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromRelay {
    /// The engine may ask.
    Welcome(AskWelcome),
    /// An answer.
    Answer(Answer),
    /// The connection ends, with the reason; the last message.
    Disconnect(Disconnect),
}

impl ToRelay {
    /// Decode one datagram.
    ///
    /// # Errors
    /// It is none of these messages, or a field is out of its bounds.
    pub fn decode(bytes: &[u8]) -> Result<ToRelay, Error> {
        let (kind, mut reader) = Reader::open(bytes, "question")?;
        let message = match kind {
            k if k == Kind::AskHello as u32 => ToRelay::Hello(AskHello::read(&mut reader)?),
            k if k == Kind::Ask as u32 => ToRelay::Ask(Ask::read(&mut reader)?),
            k if k == Kind::Note as u32 => ToRelay::Note(Note::read(&mut reader)?),
            k if k == Kind::Forget as u32 => ToRelay::Forget(Forget { id: reader.u32("id")? }),
            k => return Err(wrong("question", "kind", k, "12, 14, 16 or 17 (engine to relay)")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl FromRelay {
    /// Decode one datagram.
    ///
    /// # Errors
    /// It is none of these messages, or a field is out of its bounds.
    pub fn decode(bytes: &[u8]) -> Result<FromRelay, Error> {
        let (kind, mut reader) = Reader::open(bytes, "answer")?;
        let message = match kind {
            k if k == Kind::AskWelcome as u32 => {
                // What a newer relay wants besides is not for this engine.
                let wants = reader.u16("wants")?;
                FromRelay::Welcome(AskWelcome { wants_notes: wants & 1 != 0, wants_traces: wants & 2 != 0 })
            }
            k if k == Kind::Answer as u32 => FromRelay::Answer(Answer::read(&mut reader)?),
            k if k == Kind::Disconnect as u32 => FromRelay::Disconnect(Disconnect::read(&mut reader)?),
            k => return Err(wrong("answer", "kind", k, "5, 13 or 15 (relay to engine)")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl AskHello {
    /// Return the datagram. It contains the token.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut w = Writer::open(Kind::AskHello);
        w.raw(&self.fingerprint);
        Token::write(self.token.as_ref(), &mut w);
        Zeroizing::new(w.finish())
    }

    fn read(r: &mut Reader<'_>) -> Result<AskHello, Error> {
        Ok(AskHello { fingerprint: r.array("fingerprint")?, token: Token::read(r)? })
    }
}

impl AskWelcome {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::AskWelcome);
        w.u16(u16::from(self.wants_notes) | u16::from(self.wants_traces) << 1);
        w.finish()
    }
}

impl Ask {
    /// Return the datagram.
    ///
    /// # Errors
    /// A field is out of its bounds.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        check_hashes("ask", &self.hashes, ask_hashes_max(self.trace.is_some()))?;
        within("ask", "wait_ms", self.wait_ms, 0, WAIT_MS_MAX.into())?;
        let mut w = Writer::open(Kind::Ask);
        w.u32(self.id).u32(self.wait_ms).u16(self.what as u16).u16(self.more.into());
        write_hashes(&mut w, &self.hashes);
        if let Some(TraceContext { trace, parent }) = self.trace {
            w.raw(&trace.to_le_bytes()).u64(parent);
        }
        Ok(w.finish())
    }

    fn read(r: &mut Reader<'_>) -> Result<Ask, Error> {
        let (id, wait_ms) = (r.u32("id")?, r.u32("wait_ms")?);
        within("ask", "wait_ms", wait_ms, 0, WAIT_MS_MAX.into())?;
        let what = match r.u16("what")? {
            0 => What::Recall,
            1 => What::Share,
            2 => What::Await,
            other => return Err(wrong("ask", "what", other, "0 (recall), 1 (share) or 2 (await)")),
        };
        let more = flag(r, "more")?;
        let hashes = read_hashes("ask", r, ASK_HASHES_MAX)?;
        let trace = match r.is_empty() {
            true => None,
            false => {
                let (trace, parent) = (u128::from_le_bytes(r.array("trace")?), r.u64("parent span")?);
                if trace == 0 || parent == 0 {
                    return Err(wrong("ask", "trace or parent span", 0, "ids that are not 0"));
                }
                Some(TraceContext { trace, parent })
            }
        };
        Ok(Ask { id, what, wait_ms, more, hashes, trace })
    }
}

impl Answer {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::Answer);
        w.u32(self.id).u32(self.blocks).u32(self.in_us).u16(self.done.into());
        w.finish()
    }

    fn read(r: &mut Reader<'_>) -> Result<Answer, Error> {
        let (id, blocks, in_us) = (r.u32("id")?, r.u32("blocks")?, r.u32("in_us")?);
        Ok(Answer { id, done: flag(r, "done")?, blocks, in_us })
    }
}

impl Forget {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::Forget);
        w.u32(self.id);
        w.finish()
    }
}

impl Note {
    /// Return the datagram.
    ///
    /// # Errors
    /// A field is out of its bounds.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        check_hashes("note", &self.hashes, NOTE_HASHES_MAX)?;
        let tokens = self.tokens.len();
        let bytes = HEAD_BYTES + 2 + HASH_BYTES * self.hashes.len() + 4 + 4 * tokens + 2 + self.adapter.len();
        within("note", "bytes", bytes as u64, 0, MESSAGE_MAX as u64)?;
        check_tokens(self.hashes.len(), tokens)?;
        let mut w = Writer::open(Kind::Note);
        write_hashes(&mut w, &self.hashes);
        w.u32(tokens as u32);
        for token in &self.tokens {
            w.u32(*token);
        }
        w.text(&self.adapter);
        Ok(w.finish())
    }

    fn read(r: &mut Reader<'_>) -> Result<Note, Error> {
        let hashes = read_hashes("note", r, NOTE_HASHES_MAX)?;
        let count = r.u32("number of tokens")? as usize;
        within("note", "number of tokens", count as u64, 0, (MESSAGE_MAX / 4) as u64)?;
        check_tokens(hashes.len(), count)?;
        let tokens = (0..count).map(|_| r.u32("tokens")).collect::<Result<_, _>>()?;
        Ok(Note { hashes, tokens, adapter: r.text("adapter")? })
    }
}

fn flag(r: &mut Reader<'_>, field: &'static str) -> Result<bool, Error> {
    let value = r.u16(field)?;
    within("question or answer", field, value, 0, 1)?;
    Ok(value == 1)
}

fn check_tokens(hashes: usize, tokens: usize) -> Result<(), Error> {
    if tokens > 0 && tokens.is_multiple_of(hashes) {
        return Ok(());
    }
    Err(wrong("note", "number of tokens", tokens, alloc::format!("a multiple of the {hashes} blocks")))
}

fn check_hashes(message: &'static str, hashes: &[u128], most: usize) -> Result<(), Error> {
    within(message, "number of hashes", hashes.len() as u64, 1, most as u64)?;
    if hashes.contains(&0) {
        return Err(wrong(message, "hash", 0, "a hash that is not 0"));
    }
    Ok(())
}

fn write_hashes(w: &mut Writer, hashes: &[u128]) {
    w.reserve(2 + HASH_BYTES * hashes.len()).u16(hashes.len() as u16);
    for hash in hashes {
        w.raw(&hash.to_le_bytes());
    }
}

fn read_hashes(message: &'static str, r: &mut Reader<'_>, most: usize) -> Result<Vec<u128>, Error> {
    let count = r.u16("number of hashes")?;
    within(message, "number of hashes", count, 1, most as u64)?;
    let hashes = (0..count).map(|_| r.array("hash").map(u128::from_le_bytes)).collect::<Result<Vec<_>, _>>()?;
    check_hashes(message, &hashes, most)?;
    Ok(hashes)
}
