//! The engine process of the chats: `kvtide demo-chats`, started by `kvtide demo`.
//!
//! It answers every question twice: over plain arrays without a cache, and over kvtide. Prefill and
//! decode add in the same order whatever part of a prompt was loaded, so the logits are compared bit for bit.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use kvtide_daemon::output;
use serde::{Deserialize, Serialize};

use super::memory::{Memory, MemoryError};
use super::plan::{CHATS, Plan, TURNS};
use super::{Asked, Measured};
use crate::demo::engine::{Run, answer_of_parent, send_line, tie_to_parent};
use crate::demo::kv::{Kv, Plain};
use crate::demo::model::{CONFIG_JSON, Decoder, Scratch, WEIGHTS, WeightsError};
use crate::demo::sizes::CHUNK;

/// Flags from the demo to the engine of its chats.
#[derive(Clone, Debug, clap::Args)]
pub struct ChatArgs {
    /// Socket of the daemon
    #[arg(long)]
    pub socket: PathBuf,
    /// Tokens of a document
    #[arg(long)]
    pub document: usize,
    /// Tokens of an answer
    #[arg(long)]
    pub answer: usize,
    /// Flip one bit of a block that was loaded
    #[arg(long)]
    pub flip_bit: bool,
    /// Process id of the parent
    #[arg(long)]
    pub parent: i32,
}

/// A message to the parent: one JSON object per line on stdout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Message {
    /// A question was answered.
    Answered {
        /// Answers so far, of both runs.
        answers: usize,
    },
    /// The daemon is to be killed and started again; the answer on stdin is its new socket.
    Restart,
    /// All questions were answered.
    Ended {
        /// The measurements.
        measured: Measured,
    },
    /// The engine failed.
    Failed {
        /// The action, its object, and the reason.
        error: String,
        /// The daemon has ended.
        daemon: bool,
    },
}

/// Why the engine could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum ChatError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A call of kvtide failed, or the engine's memory did.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The plain array cannot be allocated.
    #[error("cannot allocate the plain array: {0}")]
    Plain(#[source] io::Error),
    /// The parent has ended, or does not read or answer.
    #[error("cannot report to the demo: {0}")]
    Report(#[source] io::Error),
}

/// Run the engine.
#[must_use]
pub fn run(args: &ChatArgs) -> ExitCode {
    let ran = match tie_to_parent(args.parent) {
        Ok(()) => answer_all(args),
        Err(error) => {
            output::say(format_args!("kvtide demo-chats: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let Err(error) = ran else { return ExitCode::SUCCESS };
    let daemon = matches!(&error, ChatError::Memory(error) if error.is_daemon());
    if matches!(error, ChatError::Report(_)) || send(&Message::Failed { error: error.to_string(), daemon }).is_err() {
        output::say(format_args!("kvtide demo-chats: {error}"));
    }
    ExitCode::FAILURE
}

fn send(message: &Message) -> Result<(), ChatError> {
    send_line(message).map_err(ChatError::Report)
}

/// Have the daemon killed and started again. Return its socket.
fn restart() -> Result<PathBuf, ChatError> {
    send(&Message::Restart)?;
    answer_of_parent().map(|line| line.trim_end().into()).map_err(ChatError::Report)
}

/// An answer: its tokens, and the logits that each was chosen from.
struct Answer {
    tokens: Vec<u16>,
    logits: Vec<f32>,
    first_token: Instant,
}

/// Compute a prompt from position `from` on, and decode the answer greedily.
fn answer<S: Kv>(
    run: &mut Run<'_, S>,
    scratch: &mut Scratch,
    (prompt, from): (&[u16], usize),
    count: usize,
) -> Result<Answer, S::Error> {
    run.rewind(from, 0);
    let mut logits = Vec::new();
    run.prefill(scratch, &prompt[from..], |_, rows| {
        logits.clear();
        logits.extend_from_slice(rows);
    })?;
    let first_token = Instant::now();
    // Of the last chunk, only the last row chooses a token.
    logits.drain(..logits.len() - run.vocabulary());
    let mut tokens = vec![run.next()];
    while tokens.len() < count {
        logits.extend_from_slice(run.step(scratch)?.2);
        tokens.push(run.next());
    }
    Ok(Answer { tokens, logits, first_token })
}

/// The questions, in the order in which they are asked: every chat once, then every chat again.
fn questions() -> impl Iterator<Item = (usize, usize)> {
    (0..TURNS).flat_map(|turn| (0..CHATS).map(move |chat| (turn, chat)))
}

fn answer_all(args: &ChatArgs) -> Result<(), ChatError> {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS)?;
    let plan = Plan::new(args.document, args.answer, decoder.config());
    let mut scratch = Scratch::new(decoder.config(), CHUNK, plan.tokens_max());
    let mut measured = Measured::default();
    let expected = without_cache(&decoder, &mut scratch, &plan, &mut measured)?;
    with_cache(&decoder, &mut scratch, &plan, args, &expected, &mut measured)?;
    send(&Message::Ended { measured })
}

/// Answer every question without kvtide. Return the answers. The first prompt of each chat is computed as a whole, which is the time
/// without a cache. Later ones continue in an array that keeps all KV of the chat: the same logits, in less time.
fn without_cache(
    decoder: &Decoder,
    scratch: &mut Scratch,
    plan: &Plan,
    measured: &mut Measured,
) -> Result<Vec<Answer>, ChatError> {
    let plain = || Plain::new(plan.planes, plan.tokens_max()).map_err(ChatError::Plain);
    let chats = (0..CHATS).map(|chat| Ok((Run::new(decoder, plain()?), plan.document(chat))));
    let mut chats = chats.collect::<Result<Vec<_>, ChatError>>()?;
    let mut answers = Vec::with_capacity(plan.questions());
    for (turn, chat) in questions() {
        let (run, text) = &mut chats[chat];
        let from = if turn == 0 { 0 } else { text.len() - 1 };
        text.extend(plan.question(chat, turn));
        let began = Instant::now();
        let Ok(given) = answer(run, scratch, (text, from), plan.answer_tokens);
        if turn == 0 {
            let first_token_s = given.first_token.duration_since(began).as_secs_f64();
            measured.without.push(Asked { chat, turn, prompt: text.len(), first_token_s, ..Asked::default() });
        }
        text.extend(&given.tokens);
        answers.push(given);
        send(&Message::Answered { answers: answers.len() })?;
    }
    Ok(answers)
}

/// Answer every question with kvtide, and compare the answers. Before the last one of each chat the daemon is killed.
fn with_cache(
    decoder: &Decoder,
    scratch: &mut Scratch,
    plan: &Plan,
    args: &ChatArgs,
    expected: &[Answer],
    measured: &mut Measured,
) -> Result<(), ChatError> {
    let mut memory = Memory::attach(&args.socket, plan)?;
    memory.flip = args.flip_bit;
    let mut run = Run::new(decoder, memory);
    let mut texts: Vec<Vec<u16>> = (0..CHATS).map(|chat| plan.document(chat)).collect();
    for ((turn, chat), expected) in questions().zip(expected) {
        if (turn, chat) == (TURNS - 1, 0) {
            count(run.store(), measured);
            run = Run::new(decoder, Memory::attach(&restart()?, plan)?);
        }
        let text = &mut texts[chat];
        text.extend(plan.question(chat, turn));
        let began = Instant::now();
        let found = run.store_mut().begin(chat, text, text.len() + plan.answer_tokens)?;
        let given = answer(&mut run, scratch, (text, found.tokens()), plan.answer_tokens)?;
        let first_token_s = given.first_token.duration_since(began).as_secs_f64();
        let prompt = text.len();
        text.extend(&given.tokens);
        // The last token was chosen, but not fed to the model yet.
        run.store_mut().end(&text[..text.len() - 1])?;
        let asked = Asked { chat, turn, prompt, own: found.own, host: found.host, nvme: found.nvme, first_token_s };
        if turn == TURNS - 1 { &mut measured.restarted } else { &mut measured.cached }.push(asked);
        compare(expected, &given, prompt, measured);
        send(&Message::Answered { answers: expected_so_far(plan, measured) })?;
    }
    count(run.store(), measured);
    Ok(())
}

fn expected_so_far(plan: &Plan, measured: &Measured) -> usize {
    plan.questions() + measured.cached.len() + measured.restarted.len()
}

fn count(memory: &Memory, measured: &mut Measured) {
    measured.preempted += memory.preempted;
    measured.not_stored += memory.not_stored;
}

/// Compare an answer, token for token and logits bit for bit. `prompt`: its position.
fn compare(expected: &Answer, given: &Answer, prompt: usize, measured: &mut Measured) {
    measured.tokens += given.tokens.len();
    measured.tokens_different += expected.tokens.iter().zip(&given.tokens).filter(|(a, b)| a != b).count();
    let vocabulary = given.logits.len() / given.tokens.len();
    measured.logits.add(&expected.logits, &given.logits, prompt - 1, vocabulary);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_of_one_logit_and_one_token_are_differences() {
        let made = |tokens: Vec<u16>, logits: Vec<f32>| Answer { tokens, logits, first_token: Instant::now() };
        let expected = made(vec![1, 2], vec![0.5; 6]);
        let mut measured = Measured::default();
        compare(&expected, &made(vec![1, 2], vec![0.5; 6]), 10, &mut measured);
        assert!(measured.logits.identical(6) && measured.tokens == 2 && measured.tokens_different == 0);
        let mut logits = vec![0.5_f32; 6];
        logits[4] = f32::from_bits(logits[4].to_bits() ^ 1);
        compare(&expected, &made(vec![1, 3], logits), 10, &mut measured);
        assert_eq!((measured.logits.different, measured.tokens_different), (1, 1));
        let first = measured.logits.first.unwrap();
        assert_eq!((first.position, first.token), (10, 1));
    }
}
