//! A minimal HTTP client: one request with limits on time and size.

use crate::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to ask a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Path, with its query.
    pub path: &'a str,
    /// Body of an action; `None`: a question.
    pub body: Option<&'a str>,
    /// The operator's token.
    pub token: Option<&'a str>,
}

impl<'a> From<&'a str> for Ask<'a> {
    fn from(path: &'a str) -> Ask<'a> {
        Ask { path, body: None, token: None }
    }
}

/// Path of the daemon's full status.
pub const STATUS: &str = "/v1/status";
/// Time limit of a request; longer than the daemon waits for its health monitor.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response: the status of a thousand spaces takes a few megabytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Where a daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port of `[http] listen`.
    Tcp(String),
    /// The HTTP socket beside the attach socket.
    Unix(PathBuf),
}

impl Address {
    /// The daemon that engines attach to at `socket`.
    #[must_use]
    pub fn of_socket(socket: &Path) -> Address {
        Address::Unix(super::socket_beside(socket))
    }

    /// Return the body of a response with status 200.
    ///
    /// # Errors
    /// No server listens at the address, or the response is not one of a kvtide daemon.
    pub fn get(&self, path: &str) -> Result<String, Error> {
        first(std::slice::from_ref(self), path).map(|(_, body)| body)
    }

    /// Connect within the time limit.
    fn connect(&self, until: Deadline) -> io::Result<Box<dyn Stream>> {
        match self {
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path)?)),
            Address::Tcp(address) => {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for candidate in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&candidate, until.left()?) {
                        Ok(stream) => return Ok(Box::new(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Return the first of the addresses at which a server listens, and the body of its response with status 200.
///
/// # Errors
/// No server listens at any of them, this user may not connect, or the response is not one of a kvtide daemon.
pub fn first<'a>(addresses: &[Address], ask: impl Into<Ask<'a>>) -> Result<(Address, String), Error> {
    let ask = ask.into();
    let (mut tried, mut denied) = (Vec::new(), None);
    for address in addresses {
        let until = Deadline(Instant::now() + TIMEOUT);
        let stream = match address.connect(until) {
            Ok(stream) => stream,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied && denied.is_none() {
                    denied = Some(address.to_string());
                }
                tried.push(format!("{address}: {error}"));
                continue;
            }
        };
        match exchange(stream, address, ask, until) {
            Ok(answer) => return body(address, ask.path, answer).map(|body| (address.clone(), body)),
            Err(error) => tried.push(format!("{address}: {error}")),
        }
        // An action may have been done: it is not asked of another daemon.
        if ask.body.is_some() {
            break;
        }
    }
    let tried = tried.join("; ");
    Err(match denied {
        Some(socket) => Error::Denied { socket, tried },
        None => Error::NoDaemon { tried },
    })
}

/// Return the body of a response, if it has status 200.
fn body(address: &Address, path: &str, answer: Vec<u8>) -> Result<String, Error> {
    let other = |what: String| Error::NotADaemon { address: address.to_string(), what };
    let answer = String::from_utf8(answer).map_err(|_| other("not text".into()))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| other("not HTTP".into()))?;
    let code = head.split(' ').nth(1).unwrap_or_default();
    match (head.starts_with("HTTP/1."), code) {
        (true, "200") => Ok(body.to_owned()),
        (true, code) if refusal(body).is_some() => Err(Error::Refused {
            address: address.to_string(),
            code: code.to_owned(),
            why: refusal(body).unwrap_or_default(),
        }),
        (true, code) => Err(other(format!("{code} to {path}: {}", body.trim()))),
        (false, _) => Err(other("not HTTP".into())),
    }
}

/// Return why the daemon refused a request: `error` of its answer.
fn refusal(body: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Refusal {
        error: String,
    }
    serde_json::from_str(body).ok().map(|Refusal { error }| error)
}

/// Time at which a request must be done.
#[derive(Clone, Copy, Debug)]
struct Deadline(Instant);

impl Deadline {
    fn left(self) -> io::Result<Duration> {
        match self.0.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(left),
        }
    }
}

/// A stream whose reads and writes have a time limit.
trait Stream: Read + Write {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

fn exchange(mut stream: Box<dyn Stream>, address: &Address, ask: Ask<'_>, until: Deadline) -> io::Result<Vec<u8>> {
    let host = match address {
        Address::Tcp(address) => address,
        Address::Unix(_) => "localhost",
    };
    stream.limit(until.left()?)?;
    let Ask { path, body, token } = ask;
    let method = if body.is_some() { "POST" } else { "GET" };
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    if let Some(token) = token {
        head += &format!("Authorization: Bearer {token}\r\n");
    }
    if let Some(body) = body {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n{}", body.unwrap_or_default()).as_bytes())?;
    let mut answer = Vec::new();
    while (answer.len() as u64) < ANSWER_BYTES_MAX {
        stream.limit(until.left()?)?;
        let mut chunk = [0; 16 << 10];
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Return the client's result for `answer`.
    fn told(answer: &'static str) -> Result<String, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let len = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request[..len].to_vec()).unwrap()
        });
        let told = Address::Tcp(address).get(STATUS);
        assert!(server.join().unwrap().starts_with("GET /v1/status HTTP/1.1\r\n"));
        told
    }

    #[test]
    fn only_a_whole_good_answer_is_one() {
        assert_eq!(told("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap(), "{}");
        for (answer, what) in [
            ("HTTP/1.1 503 Service Unavailable\r\n\r\nbusy\n", "503 to /v1/status: busy"),
            ("SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
            ("SSH-2.0\r\n\r\n", "not HTTP"),
            ("", "not HTTP"),
        ] {
            let error = told(answer).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn nobody_there_is_said_with_what_to_do() {
        // Bound and closed again: no server listens there.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let nowhere = Address::of_socket(Path::new("/nowhere/kvtide.sock"));
        let error = first(&[nowhere, Address::Tcp(address.clone())], STATUS).unwrap_err().to_string();
        for part in ["/nowhere/kvtide.sock.http: No such file", &address, "refused", "--http", "KVTIDE_SOCKET"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
