//! Which daemon a command asks: the flags, then `KVTIDE_SOCKET`, then the defaults.

use super::events::Ended;
use clap::Args;
use kvtide_daemon::config::constants;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::client::{self, Address, Ask};
use kvtide_daemon::status::Snapshot;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Environment variable with the socket of the daemon.
const SOCKET_VARIABLE: &str = "KVTIDE_SOCKET";

/// Environment variable with the operator's token.
const TOKEN_VARIABLE: &str = "KVTIDE_TOKEN";

/// Flags that select a daemon, named as the daemon's own.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
pub struct Which {
    /// Socket of the daemon, as engines name it (default: KVTIDE_SOCKET, then /run/kvtide/kvtide.sock, then HTTP on 127.0.0.1:9417)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory of the daemon: its --dir
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// HTTP address of the daemon, also on another machine; KVTIDE_TOKEN holds the operator's token, where one is needed
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

impl Which {
    /// Return the directory of the daemon, if it was given.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Return the socket at which engines and relays attach.
    pub(super) fn engine_socket(&self) -> Result<PathBuf, Ended> {
        let named = variable(SOCKET_VARIABLE)?.map(PathBuf::from);
        match (&self.socket, &self.dir, &self.http) {
            (Some(socket), ..) => Ok(socket.clone()),
            (_, Some(dir), _) => Ok(dir.join(constants::SOCKET_NAME)),
            (.., Some(_)) => {
                Err(Ended::Usage("events come over the daemon's socket, not over HTTP: use --socket".into()))
            }
            _ => Ok(named.unwrap_or_else(|| Path::new(constants::DIR).join(constants::SOCKET_NAME))),
        }
    }

    /// Return the addresses to try, in this order.
    fn addresses(&self, variable: Option<PathBuf>) -> Vec<Address> {
        match (&self.socket, &self.dir, &self.http, variable) {
            (Some(socket), ..) => vec![Address::of_socket(socket)],
            (_, Some(dir), ..) => vec![Address::of_socket(&dir.join(constants::SOCKET_NAME))],
            (.., Some(http), _) => vec![Address::Tcp(http.clone())],
            (.., Some(socket)) => vec![Address::of_socket(&socket)],
            _ => vec![
                Address::of_socket(&Path::new(constants::DIR).join(constants::SOCKET_NAME)),
                Address::Tcp(constants::HTTP_LISTEN.to_owned()),
            ],
        }
    }

    /// Return the first address at which a daemon answers, its status, and the status as JSON.
    pub(super) fn status(&self) -> Result<(Address, Snapshot, String), Error> {
        let (address, text) = self.ask(client::STATUS, None)?;
        let status = Snapshot::read(&address, &text)?;
        Ok((address, status, text))
    }

    /// Ask the first daemon that answers. `body`: of an action.
    pub(super) fn ask(&self, path: &str, body: Option<&str>) -> Result<(Address, String), Error> {
        let socket = variable(SOCKET_VARIABLE)?.map(PathBuf::from);
        let token = variable(TOKEN_VARIABLE)?.map(|token| token.to_string_lossy().into_owned());
        client::first(&self.addresses(socket), Ask { path, body, token: token.as_deref() })
    }

    /// As [`Which::ask`]; read the answer.
    pub(super) fn read<T: DeserializeOwned>(&self, path: &str, body: Option<&str>) -> Result<T, Error> {
        let (address, text) = self.ask(path, body)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::NotADaemon { address: address.to_string(), what: format!("{path}: {error}") })
    }
}

/// Return the value of an environment variable.
fn variable(name: &'static str) -> Result<Option<OsString>, Error> {
    match std::env::var_os(name) {
        Some(value) if value.is_empty() => Err(Error::EmptyVariable { name }),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_precedes_the_variable_and_that_the_defaults() {
        let which = |socket: Option<&str>, dir: Option<&str>, http: Option<&str>, variable: Option<&str>| {
            let which =
                Which { socket: socket.map(PathBuf::from), dir: dir.map(PathBuf::from), http: http.map(str::to_owned) };
            which.addresses(variable.map(PathBuf::from)).iter().map(Address::to_string).collect::<Vec<_>>()
        };
        assert_eq!(which(Some("/a/s"), None, None, Some("/v")), ["/a/s.http"]);
        assert_eq!(which(None, Some("/d"), None, Some("/v")), ["/d/kvtide.sock.http"]);
        assert_eq!(which(None, None, Some("h:1"), Some("/v")), ["http://h:1"]);
        assert_eq!(which(None, None, None, Some("/v")), ["/v.http"]);
        assert_eq!(which(None, None, None, None), ["/run/kvtide/kvtide.sock.http", "http://127.0.0.1:9417"]);
    }
}
