//! The socket where engines' adapters ask for prefixes: to bring them in, or to copy them out. The daemon's answer to an attach has its path.

use crate::config;
use crate::error::Error;
use crate::queue::{Expected, Recall, Share};
use crate::spaces::Spaces;
use kvtide_types::Status;
use kvtide_wire::hello::{
    Answer, Ask, AskHello, AskWelcome, Disconnect, MESSAGE_MAX, Note, QUESTION_HASHES_MAX, QUESTIONS_MAX, ToRelay,
    Token, What, is_local,
};
use kvtide_wire::os::socket::Listener;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

/// Permission bits of the socket. The right to ask is decided by uid and token, as at the daemon's.
const MODE: u32 = 0o666;
/// Engines at a time.
const CONNECTIONS_MAX: usize = 256;
/// Time for the first message of a connection.
const HELLO: Duration = Duration::from_secs(5);
/// Maximum time that a question waits for its space to be served, and the time between two looks.
const SERVED: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);
/// Time until a prefix is shared or awaited again of which a part is missing.
const AGAIN: Duration = Duration::from_millis(50);
/// Time between two lines in the log about connections, and of the attempt to send the reason.
const QUIET: Duration = Duration::from_secs(1);
/// Connections of one user at a time.
const USER_MAX: usize = 64;
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
        logged: Mutex::default(),
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
    /// Return why an engine may not ask; `None` if it may. A token that is not known is refused even if the uid may ask.
    fn refusal(&self, uid: u32, token: Option<&Token>) -> Option<String> {
        match token {
            // Each comparison takes the same time.
            Some(token) => {
                let known = self.tokens.iter().fold(false, |known, one| known | (one == token));
                (!known)
                    .then(|| "unknown token; the tokens of the relay's [domains.adapters] must list its file".into())
            }
            None if self.uids.contains(&uid) => None,
            None => Some(format!(
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
    places: Places,
    /// Time of the last line in the log about a connection.
    logged: Mutex<Option<Instant>>,
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

    /// Return whether a line may be logged: engines and strangers must not fill the log.
    fn may_log(&self) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let may = logged.is_none_or(|at| at.elapsed() >= QUIET);
        if may {
            *logged = Some(Instant::now());
        }
        may
    }

    async fn serve(self: Arc<Self>, socket: UnixStream) {
        let Ok(uid) = socket.peer_cred().map(|peer| peer.uid()) else { return };
        let connection = Connection { socket, adapters: &self };
        let Some(_place) = Place::take(&self.places, uid) else {
            let text = format!("{CONNECTIONS_MAX} engines are connected, or {USER_MAX} of this user, the maximum");
            return connection.end(uid, Status::Limit, text).await;
        };
        let end = match tokio::time::timeout(HELLO, connection.receive()).await {
            Ok(Ok(Some(ToRelay::Hello(hello)))) => match self.access.refusal(uid, hello.token.as_ref()) {
                None => connection.answer(hello).await,
                Some(text) => Err((Status::Permission, text)),
            },
            Ok(Ok(Some(_))) => Err((Status::Protocol, "expected a hello first".into())),
            Ok(Ok(None)) => Ok(()),
            Ok(Err(end)) => Err(end),
            Err(_) => Err((Status::TimedOut, format!("no message within {HELLO:?}"))),
        };
        if let Err((status, text)) = end {
            connection.end(uid, status, text).await;
        }
    }
}

/// Connections of each user.
type Places = Mutex<HashMap<u32, usize>>;

/// One of the places for connections, until it is dropped. A user cannot take them all.
struct Place<'a> {
    places: &'a Places,
    uid: u32,
}

impl Place<'_> {
    fn take(places: &Places, uid: u32) -> Option<Place<'_>> {
        let mut all = places.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = all.values().sum();
        let own = all.get(&uid).copied().unwrap_or(0);
        (total < CONNECTIONS_MAX && own < USER_MAX).then(|| {
            all.insert(uid, own + 1);
            Place { places, uid }
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&self.uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => _ = all.remove(&self.uid),
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
        if self.adapters.may_log() {
            tracing::warn!("the connection of an adapter of uid {uid} ends: {text}");
        }
        let _ = tokio::time::timeout(QUIET, self.socket.writable()).await;
        let _ = self.send(&Disconnect { status, text }.encode());
    }

    /// Answer the questions of an engine until it closes the connection.
    async fn answer(&self, AskHello { fingerprint, .. }: AskHello) -> Result<(), End> {
        let wants_notes = self.adapters.spaces.shared.events.is_some();
        self.send(&AskWelcome { wants_notes }.encode())?;
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
            let task = questions.spawn(async move {
                question(&spaces, domain, fingerprint, ask, &answers).await;
                id
            });
            open.insert(id, task);
        }
    }

    /// Keep the tokens of blocks.
    async fn note(&self, fingerprint: [u8; 32], Note { hashes, tokens, adapter }: Note) {
        let spaces = &self.adapters.spaces;
        let domain = spaces.shared.config.domains[self.adapters.domain].name.as_str();
        // Only of a space of its own domain.
        let Some(events) = spaces.shared.events.clone().filter(|_| spaces.serves(Some(domain), fingerprint)) else {
            return;
        };
        let adapter = Some(adapter).filter(|name| !name.is_empty());
        // It writes a file.
        let kept =
            tokio::task::spawn_blocking(move || events.note(&fingerprint, hashes, &tokens, adapter.as_deref())).await;
        match kept {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("tokens of an adapter are not kept over a restart: {error}"),
            Err(error) => tracing::error!("a thread that keeps tokens has failed: {error}"),
        }
    }
}

/// Answer a question. No engine waits for an answer after the question's time.
async fn question(spaces: &Spaces, domain: usize, fingerprint: [u8; 32], ask: Ask, answers: &mpsc::Sender<Answer>) {
    let domain = Some(spaces.shared.config.domains[domain].name.as_str());
    let until = Instant::now() + Duration::from_millis(ask.wait_ms.into());
    let answer = |done, blocks: usize, within: Option<Duration>| {
        let in_us = within.map_or(0, |within| within.as_micros().clamp(1, u32::MAX.into()) as u32);
        Answer { id: ask.id, done, blocks: u32::try_from(blocks).unwrap_or(u32::MAX), in_us }
    };
    if ask.what == What::Share && ask.hashes.iter().any(|hash| is_local(*hash)) {
        // They stay here, however often it is tried.
        let _ = answers.send(answer(true, 0, None)).await;
        return;
    }
    // The engine may have attached just now, and the relay follows it.
    let wait = until.min(Instant::now() + SERVED);
    while !spaces.serves(domain, fingerprint) && Instant::now() < wait {
        // PACE: until the space is served, at most for the time above.
        tokio::time::sleep(LOOK).await;
    }
    let mut blocks = 0;
    loop {
        let (done, ended) = oneshot::channel();
        let hashes = ask.hashes.clone();
        // A space that is not served drops the question, and then nothing of the prefix is promised.
        match ask.what {
            What::Share => {
                spaces.share(domain, fingerprint, Share { hashes, there: blocks, until, done });
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
        blocks = match tokio::time::timeout_at(until.into(), ended).await {
            Ok(ended) => ended.unwrap_or(blocks),
            Err(_) => return,
        };
        // What is shared may still be on its way into the daemon, or the store may take nothing now; what is awaited, into the store.
        let again = Instant::now() + AGAIN;
        if ask.what == What::Recall || blocks >= ask.hashes.len() || again >= until {
            break;
        }
        tokio::time::sleep_until(again.into()).await;
    }
    let _ = answers.send(answer(true, blocks, None)).await;
}
