//! Who may read and who may act over HTTP, as seen by both processes. [`Wants::Read`] is of the daemon only.
//!
//! | client | read: status, history, search of names | act: whatever changes something, or reveals whether a block is cached |
//! | --- | --- | --- |
//! | socket of this machine's tools | all; of several tenants root and the process's user | root and the process's user |
//! | loopback address | all; of several tenants with the operator's token | with the operator's token |
//! | another machine | with the operator's token | with the operator's token |
//!
//! Metrics and health are open to all.

use crate::listener::Client;
use axum::http::{HeaderMap, StatusCode, header};
use kvtide_wire::hello::Token;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use subtle::ConstantTimeEq;

/// A refusal: status and text.
pub type Refused = (StatusCode, String);

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Names and figures.
    Read,
    /// A change, or whether a block is cached.
    Act,
}

/// The rules. Clones share them.
#[derive(Clone)]
pub struct Access {
    rules: Arc<Mutex<Rules>>,
    /// The answer to an action over an address while no token is configured.
    missing: &'static str,
}

/// What a reload may change.
#[derive(Clone, Copy)]
struct Rules {
    /// Hash of the operator's token; the token does not stay in memory.
    token: Option<[u8; 32]>,
    /// There are several tenants, who must not see each other's names.
    several: bool,
}

/// Omit the hash.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Access({})", if self.rules().token.is_some() { "token" } else { "no token" })
    }
}

impl Access {
    /// Make the rules for one tenant, or for `several`, with the operator's token, if there is one. `missing` answers what needs the token
    /// while there is none; it says what to set.
    #[must_use]
    pub fn new(token: Option<&Token>, several: bool, missing: &'static str) -> Access {
        let token = token.map(|token| Sha256::digest(token.secret()).into());
        Access { rules: Arc::new(Mutex::new(Rules { token, several })), missing }
    }

    /// Take the rules of `read`, which a reload has read, in all clones.
    pub fn renew(&self, read: &Access) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = read.rules();
    }

    fn rules(&self) -> Rules {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuse a request from this machine that a web page of another site may have caused a browser to send: its name, which its owner
    /// let point to this machine, is in `Host`. Accepted are addresses, names without a dot, and this machine's own name.
    pub fn check_host(client: Client, headers: &HeaderMap) -> Result<(), Refused> {
        if client != (Client::Address { loopback: true }) {
            return Ok(());
        }
        let Some(host) = headers.get(header::HOST) else { return Ok(()) };
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        if host.to_str().is_ok_and(|host| is_own(host, own.trim_end())) {
            return Ok(());
        }
        let text =
            format!("the host {host:?} is not this machine: use http://127.0.0.1, localhost, or this machine's name");
        Err((StatusCode::MISDIRECTED_REQUEST, text))
    }

    /// Check a request. An error is the status and the text to answer.
    pub fn check(&self, client: Client, headers: &HeaderMap, wants: Wants) -> Result<(), Refused> {
        let us = rustix::process::geteuid().as_raw();
        let Rules { token, several } = self.rules();
        match client {
            Client::User { .. } | Client::Address { loopback: true } if wants == Wants::Read && !several => {
                return Ok(());
            }
            Client::User { uid } if uid == 0 || uid == us => return Ok(()),
            Client::User { uid } => {
                let text =
                    format!("uid {uid} is no operator: run the command as root or as uid {us}, the daemon's user");
                return Err((StatusCode::FORBIDDEN, text));
            }
            Client::Address { .. } => {}
        }
        let Some(known) = token else {
            return Err((StatusCode::FORBIDDEN, self.missing.to_owned()));
        };
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let Some(shown) = shown else {
            let text = "the operator's token is needed: send the header Authorization: Bearer TOKEN";
            return Err((StatusCode::UNAUTHORIZED, text.to_owned()));
        };
        let hash: [u8; 32] = Sha256::digest(shown.trim_ascii()).into();
        match bool::from(hash.ct_eq(&known)) {
            true => Ok(()),
            false => Err((StatusCode::UNAUTHORIZED, "this is not the operator's token ([http] token_file)".to_owned())),
        }
    }
}

/// Return true if the value of a `Host` header names this machine, whose name is `own`.
fn is_own(host: &str, own: &str) -> bool {
    let authority = host.parse::<axum::http::uri::Authority>();
    let Ok(name) = authority.map(|authority| authority.host().trim_end_matches('.').to_ascii_lowercase()) else {
        return false;
    };
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    // Not `own` with a suffix: the owner of the domain `example` can point `own.example` at this machine.
    is_address || !name.contains('.') || name.ends_with(".localhost") || name == own.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn status((token, several): (bool, bool), client: Client, header: Option<&str>, wants: Wants) -> u16 {
        let token = token.then(|| Token::new(SECRET.as_bytes()).unwrap());
        let access = Access::new(token.as_ref(), several, "set it");
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        access.check(client, &headers, wants).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_request_for_another_host_is_refused_on_loopback() {
        for (host, good) in [
            ("localhost:9417", true),
            ("127.0.0.1:9417", true),
            ("[::1]:9417", true),
            ("10.0.0.7", true),
            ("kvtide", true),
            ("gpu7.example.org:9417", false),
            ("GPU7:9417", true),
            ("evil.example", false),
            ("evil.example.:9417", false),
            ("gpu7evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_own(host, "gpu7"), good, "{host:?}");
        }
        assert!(is_own("gpu7.example.org:9417", "GPU7.example.org") && !is_own("evil.example", ""));
        assert!(!is_own("localhost.evil.example", "localhost"));
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("evil.example"));
        let refused = |client| Access::check_host(client, &headers).is_err();
        assert!(refused(Client::Address { loopback: true }));
        assert!(!refused(Client::Address { loopback: false }) && !refused(Client::User { uid: 0 }));
    }

    #[test]
    fn who_may_read_and_who_may_act() {
        use Wants::{Act, Read};
        let us = rustix::process::geteuid().as_raw();
        let (us, other) = (Client::User { uid: us }, Client::User { uid: us + 4711 });
        let (here, away) = (Client::Address { loopback: true }, Client::Address { loopback: false });
        let (good, bad) = (format!("Bearer {SECRET}"), format!("Bearer {SECRET}0"));
        let (good, bad) = (Some(good.as_str()), Some(bad.as_str()));
        for (token, client, header, read, act) in [
            (false, us, None, 200, 200),
            (false, other, None, 200, 403),
            (true, other, good, 200, 403),
            (false, here, None, 200, 403),
            (true, here, None, 200, 401),
            (true, here, bad, 200, 401),
            (true, here, Some(SECRET), 200, 401),
            (true, here, good, 200, 200),
            (false, away, None, 403, 403),
            (true, away, None, 401, 401),
            (true, away, bad, 401, 401),
            (true, away, good, 200, 200),
        ] {
            let one = (token, false);
            let found = (status(one, client, header, Read), status(one, client, header, Act));
            assert_eq!(found, (read, act), "token {token}, {client:?}, {header:?}");
            // Names of several tenants are told to operators alone.
            let several = (token, true);
            let found = (status(several, client, header, Read), status(several, client, header, Act));
            assert_eq!(found, (act, act), "several tenants, token {token}, {client:?}, {header:?}");
        }
    }
}
