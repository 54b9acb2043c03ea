//! The socket where engines' adapters ask for prefixes: to bring them in, or to copy them out. The daemon's answer to an attach has its path.

use crate::config;
use crate::error::Error;
use crate::places::{self, Places, QUIET, Quiet, Waiting};
use crate::queue::{Expected, Outcome, Recall, Share};
use crate::spaces::Spaces;
use crate::trace::OpenSpan;
use kvtide_types::Status;
use kvtide_wire::hello::{
    Answer, Ask, AskHello, AskWelcome, Disconnect, MESSAGE_MAX, Note, QUESTION_HASHES_MAX, QUESTIONS_MAX, ToRelay,
    Token, What, is_local,
};
use kvtide_wire::os::socket::Listener;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

/// Permission bits of the socket. The right to ask is decided by uid and token, as at the daemon's.
const MODE: u32 = 0o666;
/// Engines of one user at a time that may ask for their uid.
const USER_MAX: usize = 64;
/// Engines of the domain at a time that may ask for their token, whatever their uid: containers often have the same. It is what the users of three
/// uids could have.
const TOKEN_MAX: usize = 3 * USER_MAX;
/// Engines at a time: those with a token leave room for a user's.
const CONNECTIONS_MAX: usize = TOKEN_MAX + USER_MAX;
/// Time for the first message of a connection.
const HELLO: Duration = Duration::from_secs(5);
/// Maximum time that a question waits for its space to be served, and the time between two looks.
const SERVED: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);
/// Time until a prefix is shared or awaited again of which a part is missing.
const AGAIN: Duration = Duration::from_millis(50);
/// Pause after a failed accept: descriptors may be used up.
const PAUSE: Duration = Duration::from_millis(100);

/// Bind the socket of a domain and answer on it until the runtime ends.
///
/// # Errors
/// A token file cannot be used, or the socket cannot be bound.
pub fn start(settings: &config::Adapters, domain: usize, spaces: &Arc<Spaces>) -> Result<(), Error> {
    let tokens = settings.tokens.iter().map(|path| config::read_token(path)).collect::<Result<_, _>>()?;
    let access = Access { uids: settings.uids.clone(), tokens };
    let failed = |source| Error::Socket { path: settings.socket.clone(), source };
    places::check_directory(&settings.socket).map_err(|source| {
        let action = "use the directory of the socket";
        Error::File { action, path: settings.socket.clone(), source }
    })?;
    let path = Listener::bind(&settings.socket, MODE).map_err(failed)?;
    // A read or write of a packet socket is one message, so tokio's stream serves it too.
    let listener = path.as_fd().try_clone_to_owned().map(std::os::unix::net::UnixListener::from);
    let listener = listener.and_then(UnixListener::from_std);
    let action = "wait for adapters on a socket";
    let listener = listener.map_err(|source| Error::System { action, source })?;
    let adapters = Arc::new(Adapters {
        access,
        domain,
        spaces: Arc::clone(spaces),
        places: Places::default(),
        waiting: Waiting::default(),
        quiet: Quiet::default(),
    });
    spaces.shared.runtime.spawn(async move {
        adapters.accept(&listener).await;
        drop(path); // its drop removes the socket
    });
    Ok(())
}

/// The engines that may ask.
struct Access {
    uids: Vec<u32>,
    tokens: Vec<Token>,
}

impl Access {
    /// Return by which right an engine asks, or why it may not. A token that is not known is refused even if the uid may ask.
    fn admit(&self, uid: u32, token: Option<&Token>) -> Result<Right, String> {
        match token {
            // Each comparison takes the same time.
            Some(token) => match self.tokens.iter().fold(false, |known, one| known | (one == token)) {
                true => Ok(Right::Token),
                false => Err("unknown token; the tokens of the relay's [domains.adapters] must list its file".into()),
            },
            None if self.uids.contains(&uid) => Ok(Right::Uid(uid)),
            None => Err(format!(
                "uid {uid} may not ask; add it to the uids of the relay's [domains.adapters], or use a token"
            )),
        }
    }
}

struct Adapters {
    access: Access,
    /// Index of the domain.
    domain: usize,
    spaces: Arc<Spaces>,
    places: Places<Right>,
    /// Those whose first message has not come, by user.
    waiting: Waiting<u32>,
    quiet: Quiet,
}

impl Adapters {
    async fn accept(self: Arc<Self>, listener: &UnixListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    tokio::spawn(Arc::clone(&self).serve(socket));
                }
                Err(error) => {
                    tracing::warn!("an adapter was not accepted: {error}");
                    // PACE: until descriptors are free again.
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn serve(self: Arc<Self>, socket: UnixStream) {
        let Ok(uid) = socket.peer_cred().map(|peer| peer.uid()) else { return };
        let connection = Connection { socket, adapters: &self };
        if let Err((status, text)) = self.talk(&connection, uid).await {
            connection.end(uid, status, text).await;
        }
    }

    /// Talk with an engine until it closes the connection. It takes a place only once it has shown that it may ask.
    async fn talk(&self, connection: &Connection<'_>, uid: u32) -> Result<(), End> {
        let first = {
            let (_waits, gives_way) = self.waiting.enter(uid);
            tokio::select! {
                biased;
                first = tokio::time::timeout(HELLO, connection.receive()) => first,
                _ = gives_way => return Err((Status::Limit, "other connections need the place; send the hello at once".into())),
            }
        };
        let hello = match first {
            Ok(Ok(Some(ToRelay::Hello(hello)))) => hello,
            Ok(Ok(Some(_))) => return Err((Status::Protocol, "expected a hello first".into())),
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(end)) => return Err(end),
            Err(_) => return Err((Status::TimedOut, format!("no message within {HELLO:?}"))),
        };
        let right = self.access.admit(uid, hello.token.as_ref()).map_err(|text| (Status::Permission, text))?;
        let Some(_place) = self.places.take(right, right.places_max(), CONNECTIONS_MAX) else {
            let of = match right {
                Right::Uid(_) => format!("{USER_MAX} of this user"),
                Right::Token => format!("{TOKEN_MAX} with a token"),
            };
            return Err((Status::Limit, format!("{CONNECTIONS_MAX} engines are connected, or {of}, the maximum")));
        };
        connection.answer(hello).await
    }
}

/// By which right an engine asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Right {
    /// Its user.
    Uid(u32),
    /// A token of the domain.
    Token,
}

impl Right {
    fn places_max(self) -> usize {
        match self {
            Right::Uid(_) => USER_MAX,
            Right::Token => TOKEN_MAX,
        }
    }
}

struct Connection<'a> {
    socket: UnixStream,
    adapters: &'a Adapters,
}

/// Why a connection ends, if not because the engine closed it.
type End = (Status, String);

impl Connection<'_> {
    /// Wait for the next message. `None`: the engine has closed the connection.
    async fn receive(&self) -> Result<Option<ToRelay>, End> {
        // One byte more, so that a message that is too long is noticed.
        let mut buffer = vec![0; MESSAGE_MAX + 1];
        loop {
            let read = match self.socket.readable().await {
                Ok(()) => self.socket.try_read(&mut buffer),
                Err(error) => Err(error),
            };
            return match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Ok(0) => Ok(None),
                Ok(len) => {
                    ToRelay::decode(&buffer[..len]).map(Some).map_err(|error| (error.status(), error.to_string()))
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
                Err(error) => Err((Status::System, format!("cannot receive: {error}"))),
            };
        }
    }

    /// Send a message. An engine that does not read its answers is cut off.
    fn send(&self, message: &[u8]) -> Result<(), End> {
        match self.socket.try_write(message) {
            Ok(_) => Ok(()),
            Err(error) => Err((Status::System, format!("cannot send an answer: {error}"))),
        }
    }

    /// End the connection: send the reason, and log it.
    async fn end(&self, uid: u32, status: Status, text: String) {
        if self.adapters.quiet.may_log() {
            tracing::warn!("the connection of an adapter of uid {uid} ends: {text}");
        }
        let _ = tokio::time::timeout(QUIET, self.socket.writable()).await;
        let _ = self.send(&Disconnect { status, text }.encode());
    }

    /// Answer the questions of an engine until it closes the connection.
    async fn answer(&self, AskHello { fingerprint, .. }: AskHello) -> Result<(), End> {
        let wants_notes = self.adapters.spaces.shared.events.of(self.adapters.domain).is_some();
        let wants_traces = self.adapters.spaces.shared.spans.is_some();
        self.send(&AskWelcome { wants_notes, wants_traces }.encode())?;
        let (answers, mut answered) = mpsc::channel(QUESTIONS_MAX);
        // They end with the connection.
        let (mut questions, mut open) = (JoinSet::new(), HashMap::new());
        // The parts of a question that have arrived.
        let mut part: Option<Ask> = None;
        loop {
            let message = tokio::select! {
                message = self.receive() => message?,
                Some(answer) = answered.recv() => {
                    self.send(&Answer::encode(&answer))?;
                    continue;
                }
                Some(ended) = questions.join_next() => {
                    match ended {
                        Ok(id) => _ = open.remove(&id),
                        // It was forgotten, or has panicked.
                        Err(_) => open.retain(|_, task: &mut AbortHandle| !task.is_finished()),
                    }
                    continue;
                }
            };
            let ask = match message {
                None => return Ok(()),
                Some(ToRelay::Ask(ask)) => ask,
                Some(ToRelay::Note(note)) => {
                    self.note(fingerprint, note).await;
                    continue;
                }
                Some(ToRelay::Forget(forget)) => {
                    if let Some(task) = open.remove(&forget.id) {
                        task.abort();
                    }
                    continue;
                }
                Some(ToRelay::Hello(_)) => return Err((Status::Protocol, "a second hello".into())),
            };
            let ask = match part.take() {
                None => ask,
                Some(mut first) if (first.id, first.what) == (ask.id, ask.what) => {
                    first.hashes.extend(ask.hashes);
                    Ask { more: ask.more, ..first }
                }
                Some(first) => {
                    let text = format!("question {} begins before question {} is whole", ask.id, first.id);
                    return Err((Status::Protocol, text));
                }
            };
            if ask.hashes.len() > QUESTION_HASHES_MAX {
                return Err((Status::Limit, format!("a question has more than {QUESTION_HASHES_MAX} hashes")));
            }
            if ask.more {
                part = Some(ask);
                continue;
            }
            if open.len() >= QUESTIONS_MAX {
                // Its client counts fewer: some may have ended in this moment. Nothing is promised.
                self.send(&Answer { id: ask.id, done: true, blocks: 0, in_us: 0 }.encode())?;
                continue;
            }
            let (domain, spaces, answers) = (self.adapters.domain, Arc::clone(&self.adapters.spaces), answers.clone());
            let id = ask.id;
            // Here, so that a question that is forgotten at once has one too.
            let span = spaces.shared.spans.clone().zip(ask.trace).map(|(spans, context)| {
                let name = &spaces.shared.config.domains[domain].name;
                OpenSpan::new(spans, context, ask.what, ask.hashes.len(), name)
            });
            let task = questions.spawn(async move {
                question(&spaces, domain, fingerprint, ask, span, &answers).await;
                id
            });
            open.insert(id, task);
        }
    }

    /// Keep the tokens of blocks.
    async fn note(&self, fingerprint: [u8; 32], Note { hashes, tokens, adapter }: Note) {
        let spaces = &self.adapters.spaces;
        let domain = self.adapters.domain;
        let name = spaces.shared.config.domains[domain].name.as_str();
        // Only of a space of its own domain.
        let Some(events) = spaces.shared.events.of(domain).filter(|_| spaces.serves(Some(name), fingerprint)) else {
            return;
        };
        let events = Arc::clone(events);
        let adapter = Some(adapter).filter(|name| !name.is_empty());
        // It writes a file.
        let kept =
            tokio::task::spawn_blocking(move || events.note(&fingerprint, hashes, &tokens, adapter.as_deref())).await;
        match kept {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::warn!("an engine's tokens of blocks are not used: {error}");
            }
            Ok(Err(error)) => tracing::warn!("an engine's tokens of blocks are not kept over a restart: {error}"),
            Err(error) => tracing::error!("a thread that keeps tokens has failed: {error}"),
        }
    }
}

/// Answer a question. No engine waits for an answer after the question's time.
async fn question(
    spaces: &Spaces,
    domain: usize,
    fingerprint: [u8; 32],
    ask: Ask,
    mut span: Option<OpenSpan>,
    answers: &mpsc::Sender<Answer>,
) {
    let name = spaces.shared.config.domains[domain].name.as_str();
    let domain = Some(name);
    let until = Instant::now() + Duration::from_millis(ask.wait_ms.into());
    let answer = |done, blocks: usize, within: Option<Duration>| {
        let in_us = within.map_or(0, |within| within.as_micros().clamp(1, u32::MAX.into()) as u32);
        Answer { id: ask.id, done, blocks: u32::try_from(blocks).unwrap_or(u32::MAX), in_us }
    };
    if ask.what == What::Share && ask.hashes.iter().any(|hash| is_local(*hash)) {
        // They stay here, however often it is tried.
        let missing = Some("stays_on_its_machine");
        span.iter_mut().for_each(|span| span.ended("Ok", Some(Outcome { missing, ..Outcome::default() })));
        let _ = answers.send(answer(true, 0, None)).await;
        return;
    }
    // The engine may have attached just now, and the relay follows it.
    let wait = until.min(Instant::now() + SERVED);
    while !spaces.serves(domain, fingerprint) && Instant::now() < wait {
        // PACE: until the space is served, at most for the time above.
        tokio::time::sleep(LOOK).await;
    }
    span.iter_mut().for_each(|span| span.about(spaces.described(name, fingerprint)));
    let mut ended = |status, outcome| span.iter_mut().for_each(|span| span.ended(status, outcome));
    let mut outcome = Outcome::default();
    loop {
        let (done, answered) = oneshot::channel();
        let hashes = ask.hashes.clone();
        // A space that is not served drops the question, and then nothing of the prefix is promised.
        match ask.what {
            What::Share => {
                spaces.share(domain, fingerprint, Share { hashes, there: outcome.blocks, until, done });
            }
            What::Recall | What::Await => {
                let (expected, will_be) = oneshot::channel();
                let (of_engine, fresh) = (true, ask.what == What::Await);
                let expected = (!fresh).then_some(expected);
                spaces.recall(domain, fingerprint, Recall { hashes, until, of_engine, fresh, expected, done });
                let wait = tokio::time::timeout_at(until.into(), will_be);
                if !fresh && let Ok(Ok(Expected { blocks, within })) = wait.await {
                    let _ = answers.send(answer(false, blocks, within)).await;
                }
            }
        }
        outcome = match tokio::time::timeout_at(until.into(), answered).await {
            Ok(Ok(next)) => Outcome { brought: outcome.brought + next.brought, ..next },
            Ok(Err(_)) if spaces.serves(domain, fingerprint) => Outcome { missing: Some("refused"), ..outcome },
            Ok(Err(_)) => Outcome { missing: Some("not_served"), ..outcome },
            Err(_) => return ended("TimedOut", None),
        };
        // What is shared may still be on its way into the daemon, or the store may take nothing now; what is awaited, into the store.
        let again = Instant::now() + AGAIN;
        if ask.what == What::Recall || outcome.blocks >= ask.hashes.len() || again >= until {
            break;
        }
        tokio::time::sleep_until(again.into()).await;
    }
    ended("Ok", Some(outcome));
    let _ = answers.send(answer(true, outcome.blocks, None)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_tokens_have_shares_of_their_own() {
        let places = Places::default();
        let one = |right: Right| places.take(right, right.places_max(), CONNECTIONS_MAX);
        let take = |right, count: usize| -> Vec<_> { (0..count).map_while(|_| one(right)).collect() };
        let tokens = take(Right::Token, 1000);
        assert_eq!((tokens.len(), take(Right::Uid(65534), 1000).len()), (TOKEN_MAX, USER_MAX));
        drop(tokens);
        let users: Vec<_> = (0..10).flat_map(|uid| take(Right::Uid(uid), 1000)).collect();
        assert_eq!(users.len(), CONNECTIONS_MAX);
    }
}
