//! ZMTP 3.1, the protocol of ZeroMQ, as a server without I/O: greeting, handshake, frames (rfc.zeromq.org/spec/37 and /spec/24).
//!
//! A connection has one buffer of a fixed size. A frame that claims to be longer ends the connection before anything is reserved for it:
//! what a peer claims never decides how much memory is used.
//!
//! | mechanism | peer | server |
//! | --- | --- | --- |
//! | both | greeting | greeting, at once |
//! | NULL | READY with its socket type | READY |
//! | PLAIN | HELLO with name and password | WELCOME |
//! | | INITIATE with its socket type | READY |
//!
//! Then a subscriber sends SUBSCRIBE and CANCEL (3.1) or messages that begin with 1 and 0 (3.0), a router requests. Both may send PING.

use bytes::Bytes;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Maximum bytes of a frame of a peer: the longest request is a HELLO of PLAIN (517).
pub const FRAME_MAX: usize = 4096;
/// Maximum bytes of a password of PLAIN (specification 24).
pub const PASSWORD_MAX: usize = 255;
/// Bytes before the body of a long frame.
const HEAD_MAX: usize = 9;
/// Maximum subscriptions of a connection. A router has one, or one for each topic.
pub const SUBSCRIPTIONS_MAX: usize = 64;
/// Maximum bytes of a PING's context, which the PONG returns (specification 37).
const CONTEXT_MAX: usize = 16;

/// Bits of a frame's first byte.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Authentication of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// None.
    Null,
    /// By a password; its name does not matter.
    Plain,
}

impl Mechanism {
    fn name(self) -> &'static str {
        match self {
            Mechanism::Null => "NULL",
            Mechanism::Plain => "PLAIN",
        }
    }
}

/// The server's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// PUB: it sends batches to subscribers.
    Publish,
    /// ROUTER: it answers requests for replays.
    Replay,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Publish => "PUB",
            Role::Replay => "ROUTER",
        }
    }

    /// Return the types of socket that may connect to it.
    fn peers(self) -> &'static [&'static str] {
        match self {
            Role::Publish => &["SUB", "XSUB"],
            Role::Replay => &["DEALER", "REQ"],
        }
    }
}

/// A violation of the protocol by the peer. It ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

fn invalid<T>(why: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(why.into()))
}

/// A request of a peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// PLAIN: to be let in with this password. The answer is [`welcome`], or [`error`].
    Password(&'a [u8]),
    /// To end the handshake. The answer is [`ready`], or [`error`].
    Ready,
    /// Subscribe to topics with this prefix.
    Subscribe(&'a [u8]),
    /// Cancel that subscription.
    Cancel(&'a [u8]),
    /// The batches from this number on.
    Replay(u64),
    /// A sign of life. The answer is [`pong`].
    Ping {
        /// Tenths of a second after which the peer is gone if nothing comes; 0: no limit.
        ttl: u16,
        /// Bytes that the answer repeats.
        context: &'a [u8],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// PLAIN: HELLO comes next.
    Hello,
    /// READY or INITIATE comes next.
    Metadata,
    /// The server ends the handshake next.
    Ready,
    Open,
}

/// The server's side of a connection: bytes in, questions of the peer out.
#[derive(Debug)]
pub struct Session {
    role: Role,
    mechanism: Mechanism,
    state: State,
    buffer: Box<[u8; HEAD_MAX + FRAME_MAX]>,
    /// Start and end of the unread bytes in the buffer.
    start: usize,
    end: usize,
    /// Frames of a message that were read.
    frames: u32,
    /// The request in them.
    request: Option<u64>,
}

/// A frame of the buffer.
struct Frame {
    flags: u8,
    body: std::ops::Range<usize>,
}

impl Session {
    /// Begin a connection. The server sends its [`greeting`].
    #[must_use]
    pub fn new(role: Role, mechanism: Mechanism) -> Session {
        let buffer = Box::new([0; HEAD_MAX + FRAME_MAX]);
        Session { role, mechanism, state: State::Greeting, buffer, start: 0, end: 0, frames: 0, request: None }
    }

    /// Return where the peer's next bytes go: never empty once [`Session::next`] has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.buffer[self.end..]
    }

    /// Count bytes that were received into the room.
    pub fn filled(&mut self, bytes: usize) {
        self.end = self.buffer.len().min(self.end + bytes);
    }

    /// Note that the server has sent [`ready`].
    pub fn open(&mut self) {
        self.state = State::Open;
    }

    /// Return whether the handshake is over.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Overwrite all but the unread bytes, so that a password does not stay in memory.
    pub fn forget(&mut self) {
        self.buffer[..self.start].fill(0);
        self.buffer[self.end..].fill(0);
    }

    /// Return the next question in the bytes that have come; `None` until more come.
    ///
    /// # Errors
    /// The peer does not keep to the protocol.
    pub fn next(&mut self) -> Result<Option<Asked<'_>>, Invalid> {
        if self.state == State::Ready || self.state == State::Greeting && !self.greeted()? {
            return Ok(None);
        }
        // The loop finds where the question is; the borrow of its bytes is taken behind it.
        loop {
            let Some(Frame { flags, body }) = self.frame()? else { return Ok(None) };
            if self.state != State::Open {
                return self.handshake(flags, body).map(Some);
            }
            if flags & COMMAND != 0 {
                match command(&self.buffer[body.clone()])? {
                    ("ERROR", _) => return invalid("the peer reports an error"),
                    ("SUBSCRIBE" | "CANCEL" | "PING", _) => return self.command(body).map(Some),
                    // PONG, and what later versions may have.
                    _ => continue,
                }
            }
            if let Some(place) = self.message(flags, &body) {
                return Ok(Some(self.question(place)));
            }
        }
    }

    /// Check the greeting as far as it has come. Return true if it is whole.
    fn greeted(&mut self) -> Result<bool, Invalid> {
        let bytes = &self.buffer[self.start..self.end];
        // Octets 1 to 8 are padding: libzmq writes a length there, for its peers of version 1.
        if bytes.first().is_some_and(|first| *first != 0xff) || bytes.get(9).is_some_and(|last| *last != 0x7f) {
            return invalid("no greeting of ZMTP");
        }
        if bytes.get(10).is_some_and(|major| *major < 3) {
            return invalid("ZMTP 1 or 2; libzmq 4.0 or later is needed");
        }
        if bytes.len() < GREETING_BYTES {
            return Ok(false);
        }
        let name = bytes[12..32].split(|byte| *byte == 0).next().unwrap_or_default();
        let expected = self.mechanism.name();
        if name != expected.as_bytes() {
            let shown = String::from_utf8_lossy(name).escape_default().to_string();
            return invalid(match self.mechanism {
                Mechanism::Null => format!("mechanism {shown}; this socket needs {expected}"),
                Mechanism::Plain => {
                    format!("mechanism {shown}; this socket needs {expected}, with the token as the password")
                }
            });
        }
        self.start += GREETING_BYTES;
        self.state = match self.mechanism {
            Mechanism::Null => State::Metadata,
            Mechanism::Plain => State::Hello,
        };
        Ok(true)
    }

    /// Take a whole frame from the buffer.
    fn frame(&mut self) -> Result<Option<Frame>, Invalid> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(&flags) = bytes.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
            return invalid(format!("a frame with flags {flags:#04x}"));
        }
        let (head, length) = if flags & LONG == 0 {
            let Some(&length) = bytes.get(1) else { return Ok(None) };
            (2, u64::from(length))
        } else {
            let Some(length) = bytes.get(1..HEAD_MAX).and_then(|bytes| bytes.try_into().ok()) else { return Ok(None) };
            (HEAD_MAX, u64::from_be_bytes(length))
        };
        if length > FRAME_MAX as u64 {
            return invalid(format!("a frame of {length} bytes; the maximum is {FRAME_MAX}"));
        }
        let whole = head + length as usize;
        if bytes.len() < whole {
            return Ok(None);
        }
        let body = self.start + head..self.start + whole;
        self.start += whole;
        Ok(Some(Frame { flags, body }))
    }

    fn handshake(&mut self, flags: u8, body: std::ops::Range<usize>) -> Result<Asked<'_>, Invalid> {
        if flags & COMMAND == 0 {
            return invalid("a message before the end of the handshake");
        }
        let (name, rest) = command(&self.buffer[body])?;
        match (self.state, self.mechanism, name) {
            (State::Hello, _, "HELLO") => {
                self.state = State::Metadata;
                password(rest).map(Asked::Password)
            }
            (State::Metadata, Mechanism::Null, "READY") | (State::Metadata, Mechanism::Plain, "INITIATE") => {
                let found = socket_type(rest)?;
                if !self.role.peers().iter().any(|peer| peer.as_bytes() == found) {
                    let (shown, own) = (String::from_utf8_lossy(found).escape_default().to_string(), self.role.name());
                    return invalid(format!("a {shown} socket; {own} serves {}", self.role.peers().join(" and ")));
                }
                self.state = State::Ready;
                Ok(Asked::Ready)
            }
            (_, _, "ERROR") => invalid("the peer reports an error"),
            _ => invalid(format!("command {name} in the handshake")),
        }
    }

    fn command(&self, body: std::ops::Range<usize>) -> Result<Asked<'_>, Invalid> {
        let (name, rest) = command(&self.buffer[body])?;
        match (name, self.role) {
            ("SUBSCRIBE", Role::Publish) => Ok(Asked::Subscribe(rest)),
            ("CANCEL", Role::Publish) => Ok(Asked::Cancel(rest)),
            ("PING", _) => match rest.split_first_chunk::<2>() {
                Some((ttl, context)) if context.len() <= CONTEXT_MAX => {
                    Ok(Asked::Ping { ttl: u16::from_be_bytes(*ttl), context })
                }
                _ => invalid("a PING of a wrong length"),
            },
            _ => invalid(format!("command {name} to a {} socket", self.role.name())),
        }
    }

    /// Take a frame of a message. Return where its question is, if it ends one.
    fn message(&mut self, flags: u8, body: &std::ops::Range<usize>) -> Option<Place> {
        let (at, is_last) = (self.frames, flags & MORE == 0);
        let number = || self.buffer[body.clone()].try_into().map(u64::from_be_bytes).ok();
        self.request = if self.role == Role::Replay && at == 1 { number() } else { None };
        self.frames = if is_last { 0 } else { at.saturating_add(1) };
        match self.role {
            _ if !is_last => None,
            // Other messages of a subscriber have no meaning here.
            Role::Publish if at == 0 => match self.buffer[body.clone()].first() {
                Some(1) => Some(Place::Subscribe(body.start + 1..body.end)),
                Some(0) => Some(Place::Cancel(body.start + 1..body.end)),
                _ => None,
            },
            Role::Publish => None,
            Role::Replay => self.request.take().map(Place::Replay),
        }
    }

    fn question(&self, place: Place) -> Asked<'_> {
        match place {
            Place::Subscribe(topic) => Asked::Subscribe(&self.buffer[topic]),
            Place::Cancel(topic) => Asked::Cancel(&self.buffer[topic]),
            Place::Replay(first) => Asked::Replay(first),
        }
    }
}

/// A question in a message.
enum Place {
    Subscribe(std::ops::Range<usize>),
    Cancel(std::ops::Range<usize>),
    Replay(u64),
}

/// Return the name and the rest of a command's body.
fn command(body: &[u8]) -> Result<(&str, &[u8]), Invalid> {
    let named = body.split_first().and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
    match named.map(|(name, rest)| (str::from_utf8(name), rest)) {
        Some((Ok(name), rest)) if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok((name, rest))
        }
        _ => invalid("a command without a name"),
    }
}

/// Return the password of a HELLO: two strings, each behind a byte with its length.
fn password(rest: &[u8]) -> Result<&[u8], Invalid> {
    let string = |bytes: &'_ [u8]| -> Option<usize> { Some(1 + usize::from(*bytes.first()?)) };
    let parts = string(rest).and_then(|name| rest.get(name..)).filter(|rest| string(rest) == Some(rest.len()));
    parts.map_or_else(|| invalid("a HELLO of a wrong length"), |rest| Ok(&rest[1..]))
}

/// Return the socket type in the metadata of READY or INITIATE: names behind a byte, values behind four bytes with their length.
fn socket_type(mut rest: &[u8]) -> Result<&[u8], Invalid> {
    let mut found = None;
    while !rest.is_empty() {
        let property = || {
            let (name, rest) = rest[1..].split_at_checked(usize::from(rest[0]))?;
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length).try_into().ok()?)?;
            Some((name, value, rest))
        };
        let Some((name, value, left)) = property() else { return invalid("metadata of a wrong length") };
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = Some(value);
        }
        rest = left;
    }
    found.map_or_else(|| invalid("metadata without a socket type"), Ok)
}

/// Return the server's greeting.
#[must_use]
pub fn greeting(mechanism: Mechanism) -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    let name = mechanism.name().as_bytes();
    greeting[12..12 + name.len()].copy_from_slice(name);
    greeting[32] = u8::from(mechanism == Mechanism::Plain); // the server checks the password
    greeting
}

/// Return a command's frame: the name, and parts of at most 64 KiB.
fn command_frame(name: &str, parts: &[&[u8]]) -> Vec<u8> {
    let body = [&[name.len() as u8], name.as_bytes(), &parts.concat()].concat();
    let mut out = Vec::with_capacity(HEAD_MAX + body.len());
    push_frame(&mut out, COMMAND, &body);
    out
}

/// Return the server's answer to a password that is right.
#[must_use]
pub fn welcome() -> Vec<u8> {
    command_frame("WELCOME", &[])
}

/// Return the server's part of the end of the handshake.
#[must_use]
pub fn ready(role: Role) -> Vec<u8> {
    let (key, value) = ("Socket-Type", role.name().as_bytes());
    let length = (value.len() as u32).to_be_bytes();
    command_frame("READY", &[&[key.len() as u8], key.as_bytes(), &length, value])
}

/// Return a refusal, in place of an answer of the handshake.
#[must_use]
pub fn error(why: &str) -> Vec<u8> {
    let why = &why.as_bytes()[..why.len().min(255)];
    command_frame("ERROR", &[&[why.len() as u8], why])
}

/// Return the answer to a PING.
#[must_use]
pub fn pong(context: &[u8]) -> Vec<u8> {
    command_frame("PONG", &[context])
}

/// Return the bytes of a message.
#[must_use]
pub fn message(frames: &[&[u8]]) -> Bytes {
    let mut out = Vec::with_capacity(frames.iter().map(|frame| HEAD_MAX + frame.len()).sum());
    for (at, frame) in frames.iter().enumerate() {
        push_frame(&mut out, if at + 1 < frames.len() { MORE } else { 0 }, frame);
    }
    out.into()
}

fn push_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(short) => out.extend_from_slice(&[flags, short]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// The topics that a subscriber wants. One that it asks for twice it must cancel twice (specification 29).
#[derive(Debug, Default)]
pub struct Subscriptions(Vec<(Box<[u8]>, u32)>);

impl Subscriptions {
    /// Add a topic.
    ///
    /// # Errors
    /// There are [`SUBSCRIPTIONS_MAX`] others.
    pub fn add(&mut self, topic: &[u8]) -> Result<(), Invalid> {
        if let Some((_, times)) = self.0.iter_mut().find(|(known, _)| **known == *topic) {
            *times = times.saturating_add(1);
        } else if self.0.len() == SUBSCRIPTIONS_MAX {
            return invalid(format!("more than {SUBSCRIPTIONS_MAX} subscriptions"));
        } else {
            self.0.push((topic.into(), 1));
        }
        Ok(())
    }

    /// Remove a topic. One that is not there is no error.
    pub fn cancel(&mut self, topic: &[u8]) {
        if let Some(at) = self.0.iter().position(|(known, _)| **known == *topic) {
            match self.0[at].1 {
                1 => _ = self.0.swap_remove(at),
                _ => self.0[at].1 -= 1,
            }
        }
    }

    /// Return whether a message with this topic is wanted.
    #[must_use]
    pub fn matches(&self, topic: &[u8]) -> bool {
        self.0.iter().any(|(known, _)| topic.starts_with(known))
    }
}

#[cfg(test)]
mod tests;
