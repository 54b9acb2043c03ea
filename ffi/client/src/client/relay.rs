//! Questions of an engine to the relay of its domain: bring a prefix in from the store, or copy one out.
//!
//! No call blocks, except [`Relay::wait`]. A relay that is not there, hangs or is slow costs a question its answer and nothing else: after
//! failures in a row, questions are refused at once for a while that doubles.

use kvtide_wire::{
    Error as WireError,
    hello::{
        Ask, AskHello, AskWelcome, Forget, FromRelay, MESSAGE_MAX, Note, QUESTION_HASHES_MAX, QUESTIONS_MAX,
        TEXT_BYTES_MAX, Token, WAIT_MS_MAX, What, ask_hashes_max, note_hashes_max,
    },
    os::{
        poll,
        socket::{Received, Socket},
    },
    trace::TraceContext,
};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    os::fd::AsFd,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Questions at a time to copy prefixes out, which may take long; the others are to bring prefixes in.
const SHARES_MAX: usize = 16;
const RECALLS_MAX: usize = QUESTIONS_MAX - SHARES_MAX;
/// Messages that wait until the socket has room: 2 MiB. A question that would wait behind more is refused.
const UNSENT_MAX: usize = 128;
/// Questions without an answer in time, one after another, after which the relay is left alone.
const LATE_MAX: u32 = 3;
/// Pause after a failure; it doubles up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time between two attempts to send messages for which the socket had no room, during a wait.
const SEND_AGAIN: Duration = Duration::from_millis(1);
/// Maximum time of a question.
const WAIT_MAX: Duration = Duration::from_millis(WAIT_MS_MAX as u64);

/// How far a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No answer yet. With an expectation, if the relay has one: this many blocks of the prefix will be there at this time.
    Waiting(Option<(u32, Instant)>),
    /// Recall: the daemon has this many blocks of the prefix, from the first on. Share: the store has them.
    Done(u32),
    /// No answer came in time, the connection is lost, or the question is unknown.
    Failed,
}

struct Question {
    what: What,
    until: Instant,
    progress: Progress,
}

/// A connection to a relay. One thread at a time.
pub struct Relay {
    path: PathBuf,
    token: Option<Token>,
    fingerprint: [u8; 32],
    page_tokens: u32,
    socket: Option<Socket>,
    /// Parts of questions for which the socket had no room.
    unsent: VecDeque<Vec<u8>>,
    /// The relay's last welcome; `None` before.
    welcome: Option<AskWelcome>,
    trace: Option<TraceContext>,
    questions: BTreeMap<u32, Question>,
    /// Number of the next question; never 0, which callers may use for none.
    next: u32,
    /// Questions in a row that were not answered in time.
    late: u32,
    pause: Duration,
    resume: Option<Instant>,
    trouble: String,
}

impl Relay {
    pub(super) fn new(path: PathBuf, token: Option<Token>, fingerprint: [u8; 32], page_tokens: u32) -> Relay {
        Relay {
            path,
            token,
            fingerprint,
            page_tokens,
            socket: None,
            unsent: VecDeque::new(),
            welcome: None,
            trace: None,
            questions: BTreeMap::new(),
            next: 1,
            late: 0,
            pause: PAUSE_MIN,
            resume: None,
            trouble: String::new(),
        }
    }

    /// Ask to bring in the blocks with these `hashes`: a prefix, from its first block on. Return the number of the question; its
    /// answer comes within `wait`, or it has failed. Numbers are never 0. `None`: the relay cannot be asked now, see [`Relay::refusal`].
    pub fn recall(&mut self, hashes: &[u128], wait: Duration) -> Option<u32> {
        self.ask(What::Recall, hashes, wait)
    }

    /// Ask to bring in a prefix that another machine is sharing just now: the relay asks the store until it has all of it. Otherwise as
    /// [`Relay::recall`].
    pub fn await_shared(&mut self, hashes: &[u128], wait: Duration) -> Option<u32> {
        self.ask(What::Await, hashes, wait)
    }

    /// Ask to copy out the cached blocks with these `hashes`, and to answer when the store has them. Otherwise as [`Relay::recall`].
    pub fn share(&mut self, hashes: &[u128], wait: Duration) -> Option<u32> {
        self.ask(What::Share, hashes, wait)
    }

    /// Return how far a question is. One that is done or has failed is forgotten.
    pub fn poll(&mut self, question: u32) -> Progress {
        self.receive();
        let Some(asked) = self.questions.get(&question) else { return Progress::Failed };
        let progress = asked.progress;
        match progress {
            Progress::Waiting(_) if asked.until > Instant::now() => return progress,
            Progress::Waiting(_) => {
                self.forget(question);
                self.late += 1;
                if self.late >= LATE_MAX {
                    self.fail(format!("no answer in time to {LATE_MAX} questions in a row"));
                }
                return Progress::Failed;
            }
            Progress::Done(_) => (self.late, self.resume, self.pause) = (0, None, PAUSE_MIN),
            Progress::Failed => {}
        }
        self.questions.remove(&question);
        progress
    }

    /// Wait at most `timeout` for more of an answer than [`Progress::Waiting`]; return how far it is then.
    pub fn wait(&mut self, question: u32, timeout: Duration) -> Progress {
        let until = Instant::now() + timeout.min(WAIT_MAX);
        loop {
            let progress = self.poll(question);
            let due = self.questions.get(&question).map_or(until, |question| question.until.min(until));
            let left = due.saturating_duration_since(Instant::now());
            let Some(socket) = self.socket.as_ref() else { return progress };
            if !matches!(progress, Progress::Waiting(_)) || until <= Instant::now() {
                return progress;
            }
            let left = if self.unsent.is_empty() { left } else { left.min(SEND_AGAIN) };
            if let Err(error) = poll::readable(&[socket.as_fd()], left) {
                self.fail(error.to_string());
            }
        }
    }

    /// Forget a question: its answer is not needed any more. The relay stops to work on it.
    pub fn forget(&mut self, question: u32) {
        let asked = self.questions.remove(&question);
        if asked.is_some_and(|asked| matches!(asked.progress, Progress::Waiting(_))) && self.socket.is_some() {
            self.send(Forget { id: question }.encode(), true);
        }
    }

    /// Return what the relay wants, if it is known. Connects if it is not.
    fn welcome(&mut self) -> Option<AskWelcome> {
        if self.connect() {
            self.receive();
        }
        self.welcome
    }

    /// Return whether the relay needs the tokens of blocks: it publishes KV events, or it is not known yet.
    pub fn wants_notes(&mut self) -> bool {
        self.welcome().is_none_or(|welcome| welcome.wants_notes)
    }

    /// Return whether the relay makes spans of traced questions. False until it has answered a first connection.
    pub fn traces(&mut self) -> bool {
        self.welcome().is_some_and(|welcome| welcome.wants_traces)
    }

    /// Set the trace that questions belong to from now on: the relay makes a span of each, a child of the context's span. `None`: no
    /// trace. No effect unless the relay traces ([`Relay::traces`]).
    pub fn trace(&mut self, context: Option<TraceContext>) {
        self.trace = context;
    }

    /// Return the tokens of a page.
    #[must_use]
    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Return whether a message has room for the tokens of a page and an adapter's name.
    #[must_use]
    pub fn can_note(&self, adapter: &str) -> bool {
        note_hashes_max(self.page_tokens as usize) > 0 && adapter.len() <= TEXT_BYTES_MAX
    }

    /// Send the tokens of blocks: as many as a page has for each hash. `adapter`: name of the adapter (LoRA) they were computed with; empty
    /// for none. Return whether they were sent, or the relay needs none.
    pub fn note(&mut self, hashes: &[u128], tokens: &[u32], adapter: &str) -> bool {
        let each = self.page_tokens as usize;
        let most = note_hashes_max(each);
        if !self.can_note(adapter) || tokens.len() != hashes.len() * each || !self.connect() {
            return false;
        }
        self.receive();
        if self.welcome.is_some_and(|welcome| !welcome.wants_notes) {
            return true;
        }
        hashes.chunks(most).zip(tokens.chunks(most * each)).all(|(hashes, tokens)| {
            let note = Note { hashes: hashes.into(), tokens: tokens.into(), adapter: adapter.into() };
            let sent = note.encode().map(|message| self.send(message, false));
            sent.unwrap_or(false)
        })
    }

    /// Return why the relay cannot be used now; `None` if nothing is known to be wrong.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        Some(self.trouble.as_str()).filter(|_| self.resume.is_some())
    }

    /// Return why a question was refused just now, if it had hashes and none of them was 0.
    #[must_use]
    pub fn refusal(&self) -> &str {
        self.trouble().unwrap_or("too many questions are open: poll them to their end, or forget them")
    }

    fn ask(&mut self, what: What, hashes: &[u128], wait: Duration) -> Option<u32> {
        let now = Instant::now();
        self.questions.retain(|_, question| question.until + WAIT_MAX > now);
        let hashes = &hashes[..hashes.len().min(QUESTION_HASHES_MAX)];
        let is_share = |what| what == What::Share;
        let open = self.questions.values().filter(|open| is_share(open.what) == is_share(what)).count();
        let most = if is_share(what) { SHARES_MAX } else { RECALLS_MAX };
        let is_full = open >= most || self.unsent.len() >= UNSENT_MAX;
        if hashes.is_empty() || hashes.contains(&0) || is_full || !self.connect() {
            return None;
        }
        let wait = wait.min(WAIT_MAX);
        let trace = self.trace.filter(|_| self.traces());
        let id = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        let most = ask_hashes_max(trace.is_some());
        let (last, wait_ms) = (hashes.len().div_ceil(most) - 1, wait.as_millis() as u32);
        for (index, part) in hashes.chunks(most).enumerate() {
            let ask = Ask { id, what, wait_ms, more: index < last, hashes: part.into(), trace };
            if !self.send(ask.encode().ok()?, true) {
                return None;
            }
        }
        self.questions.insert(id, Question { what, until: now + wait, progress: Progress::Waiting(None) });
        Some(id)
    }

    /// Connect, unless it is connected or in a pause.
    fn connect(&mut self) -> bool {
        if self.socket.is_some() {
            return true;
        }
        if self.resume.is_some_and(|resume| resume > Instant::now()) {
            return false;
        }
        let hello = AskHello { fingerprint: self.fingerprint, token: self.token.clone() }.encode();
        match Socket::connect(&self.path).and_then(|socket| socket.send(&hello, &[]).map(|()| socket)) {
            Ok(socket) => {
                self.socket = Some(socket);
                true
            }
            Err(error) => {
                self.fail(error.to_string());
                false
            }
        }
    }

    /// Send a message. Without room in the socket it is sent later if it `may_wait`; otherwise it is not sent. Return whether it is or
    /// will be.
    fn send(&mut self, message: Vec<u8>, may_wait: bool) -> bool {
        self.send_unsent();
        let Some(socket) = &self.socket else { return false };
        if self.unsent.is_empty() {
            match socket.send(&message, &[]) {
                Ok(()) => return true,
                Err(error) if error.is_full() => {}
                Err(error) => {
                    self.cut(&error);
                    return false;
                }
            }
        }
        if may_wait {
            self.unsent.push_back(message);
        }
        may_wait
    }

    /// Send what waits, as far as the socket has room.
    fn send_unsent(&mut self) {
        while let (Some(socket), Some(message)) = (&self.socket, self.unsent.front()) {
            match socket.send(message, &[]) {
                Ok(()) => _ = self.unsent.pop_front(),
                Err(error) if error.is_full() => return,
                Err(error) => return self.cut(&error),
            }
        }
    }

    /// The connection is cut: note the relay's reason, or the error.
    fn cut(&mut self, error: &WireError) {
        self.unsent.clear(); // receiving would send it again
        self.receive();
        if self.socket.is_some() {
            self.fail(error.to_string());
        }
    }

    /// Read the answers that have arrived.
    fn receive(&mut self) {
        self.send_unsent();
        let mut buffer = [0; MESSAGE_MAX];
        while let Some(socket) = &self.socket {
            let message = match socket.receive(&mut buffer, 0) {
                Ok(Received::Message(len, _)) => FromRelay::decode(&buffer[..len]),
                Ok(Received::Empty) => return,
                Ok(Received::Closed) => Err(WireError::Closed { tried: "receive an answer" }),
                Err(error) => Err(error),
            };
            match message {
                Ok(FromRelay::Welcome(welcome)) => self.welcome = Some(welcome),
                Ok(FromRelay::Answer(answer)) => {
                    if let Some(question) = self.questions.get_mut(&answer.id) {
                        let at =
                            (answer.in_us > 0).then(|| Instant::now() + Duration::from_micros(answer.in_us.into()));
                        question.progress = match answer.done {
                            true => Progress::Done(answer.blocks),
                            false => Progress::Waiting(at.map(|at| (answer.blocks, at))),
                        };
                    }
                }
                Ok(FromRelay::Disconnect(end)) => self.fail(end.text),
                Err(error) => self.fail(error.to_string()),
            }
        }
    }

    /// Close the connection and leave the relay alone for a while. Open questions have failed.
    fn fail(&mut self, why: String) {
        (self.socket, self.late) = (None, 0);
        // The next relay may be of another version, which does not know traces.
        self.welcome = self.welcome.map(|welcome| AskWelcome { wants_traces: false, ..welcome });
        self.unsent.clear();
        for question in self.questions.values_mut() {
            if matches!(question.progress, Progress::Waiting(_)) {
                question.progress = Progress::Failed;
            }
        }
        self.trouble = format!("the relay at {} cannot be asked: {why}", self.path.display());
        self.resume = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("path", &self.path)
            .field("questions", &self.questions.len())
            .finish_non_exhaustive()
    }
}
