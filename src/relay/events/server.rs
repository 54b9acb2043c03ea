//! The sockets of KV events: access, and bounds on connections, idle time and queues.
//!
//! | bound | why |
//! | --- | --- |
//! | a user id that is not named is refused at the accept, a wrong token at the handshake | strangers take no place |
//! | places of a socket, and a share of them for each user id | one user does not keep others out |
//! | time of a handshake, bytes of a frame, subscriptions | a peer's claims reserve nothing (`zmtp`) |
//! | bytes that wait for a subscriber | what does not fit is dropped; the subscriber finds the gap and asks for a replay |
//! | time of a replay, TCP keepalive | a peer that is gone or hangs is noticed |

use super::publisher::Stream;
use super::zmtp::{self, Asked, Invalid, Mechanism, Role, Session, Subscriptions};
use super::{Counters, add};
use crate::config::{self, Address};
use crate::error::Error;
use crate::places::{self, Places, Quiet, Waiting};
use bytes::{Buf, Bytes};
use kvtide_wire::hello::Token;
use kvtide_wire::os::socket;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// Connections of a socket that may ask. A router has one at each socket, so this is the number of routers.
const CONNECTIONS_MAX: usize = 64;
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Bytes of batches that wait for a subscriber: a quarter of what a replay can bring.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Bytes of memory of a batch in a queue besides its own, rounded up.
const BATCH_BYTES: usize = 64;
/// Maximum time of a replay: a router that does not read must not keep its batches in memory.
const REPLAY_MAX: Duration = Duration::from_secs(10);
/// Maximum time of the attempt to send a refusal or the end of the handshake.
const ANSWER: Duration = Duration::from_secs(1);
/// TCP: time without a sign of life until the kernel asks for one, between two questions, and their number (tcp(7)). The batch of an idle
/// second is one, so these are for replays.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);
/// TCP: time without an acknowledgement after which a connection is closed (TCP_USER_TIMEOUT).
const UNTAKEN: Duration = Duration::from_secs(60);
/// Pause after a failed accept: descriptors may be used up.
const PAUSE: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Access rule of a domain's sockets.
pub enum Access {
    /// These users, at Unix sockets.
    Uids(Vec<u32>),
    /// Clients with the token, over TCP.
    Token(Token),
    /// Every client that reaches the TCP port.
    Anyone,
}

impl Access {
    /// Read the token, if one is configured.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn new(settings: &config::Events) -> Result<Access, Error> {
        let Some(path) = &settings.token_file else {
            return Ok(if settings.anyone { Access::Anyone } else { Access::Uids(settings.uids.clone()) });
        };
        let token = config::read_token(path)?;
        if token.secret().len() > zmtp::PASSWORD_MAX {
            let (found, most) = (token.secret().len(), zmtp::PASSWORD_MAX);
            let why =
                format!("{found} bytes; as a password of ZeroMQ it has {most} at most. Make one: openssl rand -hex 32");
            return Err(Error::Token { path: path.clone(), why });
        }
        Ok(Access::Token(token))
    }

    fn mechanism(&self) -> Mechanism {
        match self {
            Access::Token(_) => Mechanism::Plain,
            Access::Uids(_) | Access::Anyone => Mechanism::Null,
        }
    }

    /// Return whether a client may connect at all.
    fn admits(&self, client: Client) -> bool {
        match (self, client) {
            (Access::Uids(uids), Client::User(uid)) => uids.contains(&uid),
            (Access::Uids(_), Client::Address(_)) => false,
            (Access::Token(_) | Access::Anyone, _) => true,
        }
    }

    /// Return whether a password is right; the comparison takes the same time for all of its length.
    fn knows(&self, password: &[u8]) -> bool {
        matches!(self, Access::Token(token) if Token::new(password).is_ok_and(|shown| shown == *token))
    }

    /// Return the maximum places of one user: all users have a share.
    fn share(&self) -> usize {
        match self {
            Access::Uids(uids) => (CONNECTIONS_MAX / uids.len().max(1)).max(1),
            Access::Token(_) | Access::Anyone => CONNECTIONS_MAX,
        }
    }
}

/// The other side of a connection, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    User(u32),
    Address(IpAddr),
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Client::User(uid) => write!(f, "uid {uid}"),
            Client::Address(address) => write!(f, "{address}"),
        }
    }
}

/// By which right a client has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Right {
    Uid(u32),
    Tcp,
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A bound socket.
pub enum Listening {
    /// A Unix socket.
    Unix {
        /// Accepts.
        listener: UnixListener,
        /// Removes the path in the end.
        _path: socket::Listener,
    },
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listening {
    /// Bind an address.
    ///
    /// # Errors
    /// It is taken, or others could replace the socket.
    pub async fn bind(address: &Address, mode: u32) -> io::Result<Listening> {
        match address {
            Address::Ipc(path) => {
                places::check_directory(path)?;
                let bound = socket::Listener::bind_stream(path, mode).map_err(io::Error::other)?;
                let listener = std::os::unix::net::UnixListener::from(bound.as_fd().try_clone_to_owned()?);
                Ok(Listening::Unix { listener: UnixListener::from_std(listener)?, _path: bound })
            }
            Address::Tcp { host, port } => Ok(Listening::Tcp(TcpListener::bind(format!("{host}:{port}")).await?)),
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Io>, Client)> {
        match self {
            Listening::Unix { listener, .. } => {
                let stream = listener.accept().await?.0;
                let uid = stream.peer_cred()?.uid();
                Ok((Box::new(stream), Client::User(uid)))
            }
            Listening::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                watch(&stream)?;
                Ok((Box::new(stream), Client::Address(from.ip().to_canonical())))
            }
        }
    }
}

/// Have the kernel close the connection of a client that is gone without a word.
fn watch(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, count)?;
    sockopt::set_tcp_user_timeout(stream, UNTAKEN.as_millis() as u32)?;
    Ok(())
}

/// The subscribers of a stream.
#[derive(Default)]
pub struct Subscribers(Mutex<HashMap<u64, Arc<Subscriber>>>);

/// A subscriber, between the publisher and the task of its connection.
#[derive(Default)]
struct Subscriber {
    inner: Mutex<Inbox>,
    wake: Notify,
}

#[derive(Default)]
struct Inbox {
    topics: Subscriptions,
    batches: VecDeque<Bytes>,
    bytes: usize,
}

impl Subscribers {
    /// Queue a message for all subscribers of its topic. Return the number of subscribers whose queue is full.
    pub fn publish(&self, topic: &[u8], message: &Bytes) -> usize {
        lock(&self.0).values().filter(|subscriber| !subscriber.push(topic, message)).count()
    }

    fn join(&self) -> Joined<'_> {
        let mut all = lock(&self.0);
        let number = (0..).find(|number| !all.contains_key(number)).unwrap_or(u64::MAX);
        let subscriber = Arc::new(Subscriber::default());
        all.insert(number, Arc::clone(&subscriber));
        Joined { all: self, number, subscriber }
    }
}

impl Subscriber {
    /// Queue a message if its topic is wanted. Return false if there is no room.
    fn push(&self, topic: &[u8], message: &Bytes) -> bool {
        let mut inbox = lock(&self.inner);
        if !inbox.topics.matches(topic) {
            return true;
        }
        let bytes = message.len() + BATCH_BYTES;
        if inbox.bytes > 0 && inbox.bytes + bytes > QUEUE_BYTES_MAX {
            return false;
        }
        inbox.bytes += bytes;
        inbox.batches.push_back(message.clone());
        self.wake.notify_one();
        true
    }

    fn pop(&self) -> Option<Bytes> {
        let mut inbox = lock(&self.inner);
        let message = inbox.batches.pop_front()?;
        inbox.bytes -= message.len() + BATCH_BYTES;
        Some(message)
    }
}

/// A subscriber in the list, until this is dropped.
struct Joined<'a> {
    all: &'a Subscribers,
    number: u64,
    subscriber: Arc<Subscriber>,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        lock(&self.all.0).remove(&self.number);
    }
}

/// Why a connection ends.
enum End {
    /// The client closed it, or it was cut.
    Closed,
    /// The client may not connect, or breaks a rule.
    Refused(String),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Closed
    }
}

impl From<Invalid> for End {
    fn from(why: Invalid) -> End {
        End::Refused(why.to_string())
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, End> {
    Err(End::Refused(why.into()))
}

/// One socket of a stream.
pub struct Server {
    /// Its address, for messages.
    address: String,
    role: Role,
    stream: Arc<Stream>,
    access: Arc<Access>,
    counters: Arc<Counters>,
    waiting: Waiting<Client>,
    places: Places<Right>,
    quiet: Quiet,
}

impl Server {
    /// Return a socket's server.
    pub fn new(address: &Address, role: Role, stream: &Arc<Stream>, access: &Arc<Access>) -> Server {
        let (stream, access) = (Arc::clone(stream), Arc::clone(access));
        let counters = Arc::clone(stream.counters());
        let (waiting, places, quiet) = Default::default();
        Server { address: address.to_string(), role, stream, access, counters, waiting, places, quiet }
    }

    /// Serve until the runtime ends.
    pub async fn run(self, listener: Listening) {
        let server = Arc::new(self);
        loop {
            match listener.accept().await {
                Ok((io, client)) if server.access.admits(client) => {
                    tokio::spawn(Arc::clone(&server).serve(io, client));
                }
                Ok((_, client)) => server.log(client, "it is not one of uids in [domains.events]"),
                Err(error) => {
                    if server.quiet.may_log() {
                        tracing::warn!("KV events at {}: a connection was not accepted: {error}", server.address);
                    }
                    // PACE: until descriptors are free again.
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Count a refusal. Log it, unless another one was logged just now.
    fn log(&self, client: Client, why: &str) {
        add(&self.counters.refused, 1);
        if self.quiet.may_log() {
            tracing::warn!("KV events at {}: {client} refused: {why}", self.address);
        }
    }

    async fn serve(self: Arc<Self>, io: Box<dyn Io>, client: Client) {
        let (reader, writer) = tokio::io::split(io);
        let session = Session::new(self.role, self.access.mechanism());
        let mut connection = Connection { reader, writer, session, until: None };
        let Err(End::Refused(why)) = self.talk(&mut connection, client).await else { return };
        self.log(client, &why);
        if !connection.session.is_open() {
            let _ = timeout(ANSWER, connection.writer.write_all(&zmtp::error(&why))).await;
        }
    }

    /// Talk with a client until it closes the connection. It takes a place only once it has shown that it may ask.
    async fn talk(&self, connection: &mut Connection, client: Client) -> Result<(), End> {
        {
            let (_waits, gives_way) = self.waiting.enter(client);
            tokio::select! {
                biased;
                done = timeout(HANDSHAKE, self.handshake(connection)) => match done {
                    Ok(done) => done?,
                    Err(_) => return refused(format!("no handshake within {HANDSHAKE:?}")),
                },
                _ = gives_way => return refused("other connections need the place; end the handshake at once"),
            }
        }
        let right = match client {
            Client::User(uid) => Right::Uid(uid),
            Client::Address(_) => Right::Tcp,
        };
        let share = self.access.share();
        let Some(_place) = self.places.take(right, share, CONNECTIONS_MAX) else {
            return refused(format!("{CONNECTIONS_MAX} connections, or {share} of this user, are the maximum"));
        };
        connection.send(&zmtp::ready(self.role)).await?;
        connection.session.open();
        match self.role {
            Role::Publish => self.publish(connection).await,
            Role::Replay => self.replay(connection).await,
        }
    }

    /// Authenticate a client.
    async fn handshake(&self, connection: &mut Connection) -> Result<(), End> {
        connection.send(&zmtp::greeting(self.access.mechanism())).await?;
        loop {
            let is_right = match connection.session.next()? {
                None => {
                    connection.read().await?;
                    continue;
                }
                Some(Asked::Password(password)) => self.access.knows(password),
                Some(_) => return Ok(()),
            };
            connection.session.forget();
            if !is_right {
                return refused("wrong token; the password must be the token of token_file in [domains.events]");
            }
            connection.send(&zmtp::welcome()).await?;
        }
    }

    /// Send a subscriber the messages of its topics.
    async fn publish(&self, connection: &mut Connection) -> Result<(), End> {
        let joined = self.stream.subscribers.join();
        let subscriber = &joined.subscriber;
        // The message being sent, and the answer to the last PING; earlier PINGs need none.
        let (mut out, mut pong) = (Bytes::new(), None);
        loop {
            while let Some(asked) = connection.session.next()? {
                match asked {
                    Asked::Subscribe(topic) => lock(&subscriber.inner).topics.add(topic)?,
                    Asked::Cancel(topic) => lock(&subscriber.inner).topics.cancel(topic),
                    Asked::Ping { ttl, context } => {
                        pong = Some(Bytes::from(zmtp::pong(context)));
                        connection.until = until(ttl);
                    }
                    Asked::Password(_) | Asked::Ready | Asked::Replay(_) => {}
                }
            }
            if out.is_empty() {
                out = pong.take().or_else(|| subscriber.pop()).unwrap_or_default();
            }
            let Connection { reader, writer, session, until } = &mut *connection;
            tokio::select! {
                read = read(reader, session, until) => read?,
                wrote = writer.write(&out), if !out.is_empty() => match wrote? {
                    0 => return Ok(()),
                    bytes => out.advance(bytes),
                },
                () = subscriber.wake.notified(), if out.is_empty() => {}
            }
        }
    }

    /// Answer a router's requests, one after the other.
    async fn replay(&self, connection: &mut Connection) -> Result<(), End> {
        loop {
            let first = match connection.session.next()? {
                None => {
                    connection.read().await?;
                    continue;
                }
                Some(Asked::Replay(first)) => first,
                Some(Asked::Ping { ttl, context }) => {
                    let pong = zmtp::pong(context);
                    connection.until = until(ttl);
                    if timeout(ANSWER, connection.send(&pong)).await.is_err() {
                        return refused("it does not read its answers");
                    }
                    continue;
                }
                Some(_) => continue,
            };
            let answers = async {
                for message in self.stream.replay(first) {
                    connection.send(&message).await?;
                    add(&self.counters.replayed, 1);
                }
                connection.send(&super::publisher::end()).await
            };
            match timeout(REPLAY_MAX, answers).await {
                Ok(sent) => sent?,
                Err(_) => return refused(format!("a replay took longer than {REPLAY_MAX:?}")),
            }
        }
    }
}

struct Connection {
    reader: ReadHalf<Box<dyn Io>>,
    writer: WriteHalf<Box<dyn Io>>,
    session: Session,
    /// When the client is gone if nothing comes, and the time that it gave for that.
    until: Option<(Instant, Duration)>,
}

impl Connection {
    async fn read(&mut self) -> Result<(), End> {
        read(&mut self.reader, &mut self.session, &mut self.until).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        Ok(self.writer.write_all(bytes).await?)
    }
}

/// Wait for more bytes. The end of the connection is an error.
async fn read(
    reader: &mut ReadHalf<Box<dyn Io>>,
    session: &mut Session,
    until: &mut Option<(Instant, Duration)>,
) -> Result<(), End> {
    let reading = reader.read(session.room());
    let bytes = match *until {
        None => reading.await?,
        Some((at, _)) => match timeout_at(at, reading).await {
            Ok(read) => read?,
            Err(_) => return Err(End::Closed),
        },
    };
    if bytes == 0 {
        return Err(End::Closed);
    }
    session.filled(bytes);
    if let Some((at, ttl)) = until {
        *at = Instant::now() + *ttl;
    }
    Ok(())
}

/// Return when a client is gone that gave a time in tenths of a second.
fn until(ttl: u16) -> Option<(Instant, Duration)> {
    let ttl = Duration::from_millis(100 * u64::from(ttl));
    (!ttl.is_zero()).then(|| (Instant::now() + ttl, ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_that_does_not_read_keeps_a_bounded_part_and_delays_nobody() {
        let all = Subscribers::default();
        let (slow, fast, other) = (all.join(), all.join(), all.join());
        for joined in [&slow, &fast] {
            lock(&joined.subscriber.inner).topics.add(b"kv").unwrap();
        }
        lock(&other.subscriber.inner).topics.add(b"other").unwrap();
        let message = Bytes::from(vec![0; 1 << 20]);
        let mut lost = 0;
        for _ in 0..20 {
            lost += all.publish(b"kv@a", &message);
            assert_eq!(fast.subscriber.pop(), Some(message.clone()));
        }
        assert_eq!(lost, 5, "15 fit, with what each needs besides its bytes");
        assert_eq!(lock(&slow.subscriber.inner).batches.len(), 15);
        assert_eq!(lock(&other.subscriber.inner).batches.len(), 0, "it has other topics");
        while slow.subscriber.pop().is_some() {}
        assert_eq!(lock(&slow.subscriber.inner).bytes, 0);
        assert_eq!(all.publish(b"kv@a", &message), 0);
        // One that is larger than the bound is not lost for ever.
        slow.subscriber.pop();
        assert_eq!(all.publish(b"kv", &Bytes::from(vec![0; QUEUE_BYTES_MAX + 1])), 1, "the other one has a batch");
        drop((slow, fast, other));
        assert!(lock(&all.0).is_empty());
    }

    #[tokio::test]
    async fn the_kernel_ends_connections_of_peers_that_are_gone() {
        use rustix::net::sockopt;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_peer, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let stream = accepted.unwrap().0;
        watch(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let keepalive =
            (sockopt::tcp_keepidle(&stream), sockopt::tcp_keepintvl(&stream), sockopt::tcp_keepcnt(&stream));
        assert_eq!((keepalive.0.unwrap(), keepalive.1.unwrap(), keepalive.2.unwrap()), KEEPALIVE);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 60_000);
    }

    #[test]
    fn each_user_has_a_share_of_the_places() {
        for (uids, share) in [(1, 64), (2, 32), (3, 21), (64, 1)] {
            assert_eq!(Access::Uids((0..uids).collect()).share(), share);
        }
        let access = Access::Uids(vec![7]);
        assert!(access.admits(Client::User(7)) && !access.admits(Client::User(8)));
        assert!(!access.admits(Client::Address([127, 0, 0, 1].into())) && !access.knows(b""));
    }
}
