//! A minimal HTTP client: one GET request with limits on time and size.

use crate::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Path of the daemon's full status.
pub const STATUS: &str = "/v1/status";
/// Time limit of a request; longer than the daemon waits for its health monitor.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response: the status of a thousand spaces takes a few megabytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Return the body of a response with status 200.
///
/// # Errors
/// No server listens at the address, or the response is not one of a kvtide daemon.
pub fn get(address: &str, path: &str) -> Result<String, Error> {
    let answer = exchange(address, path).map_err(|source| Error::NoDaemon { address: address.into(), source })?;
    let other = |what: String| Error::NotADaemon { address: address.into(), what };
    let answer = String::from_utf8(answer).map_err(|_| other("not text".into()))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| other("not HTTP".into()))?;
    let code = head.split(' ').nth(1).unwrap_or_default();
    match (head.starts_with("HTTP/1."), code) {
        (true, "200") => Ok(body.to_owned()),
        (true, code) => Err(other(format!("{code} to {path}: {}", body.trim()))),
        (false, _) => Err(other("not HTTP".into())),
    }
}

fn exchange(address: &str, path: &str) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + TIMEOUT;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mut connected = None;
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, left()?) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => last = error,
        }
    }
    let mut stream = connected.ok_or(last)?;
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut limited = stream.try_clone()?.take(ANSWER_BYTES_MAX);
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let mut chunk = [0; 16 << 10];
        match limited.read(&mut chunk) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
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
        let told = get(&address, STATUS);
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
        let error = get(&address, STATUS).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("refused") && error.contains("--http"), "{error}");
    }
}
