//! `[domains.events]`: the sockets of a domain's KV events, and their subscribers.

use super::{Config, Domain};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Maximum spaces of a domain with a stream: each has two sockets.
pub const STREAMS_MAX: u16 = 16;
/// Maximum port of the first space.
const PORT_MAX: u16 = u16::MAX - STREAMS_MAX + 1;
/// Maximum user ids: each has a share of the connections of a socket.
const UIDS_MAX: usize = 64;
/// Maximum bytes of a path: those of `sun_path` (unix(7)) without the final zero.
const PATH_MAX: usize = 107;
/// Why two addresses may collide although they differ.
const EACH: &str = "each has 16 addresses, one for each space: choose other paths, or ports that are 16 apart";

/// `[domains.events]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Where routers subscribe. Each further space has an address of its own: [`Address::of_space`].
    #[serde(default = "publish")]
    pub publish: Address,
    /// Where routers ask for batches that they missed; further addresses as for `publish`.
    #[serde(default = "replay")]
    pub replay: Address,
    /// User ids that get events at Unix sockets.
    #[serde(default)]
    pub uids: Vec<u32>,
    /// Permission bits of Unix sockets; by default 0660.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// File with the token that routers send over TCP, as the password of PLAIN.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Every client that reaches the TCP ports gets events.
    #[serde(default)]
    pub anyone: bool,
    /// The first frame of each message; `{space}` is the name of the space.
    #[serde(default)]
    pub topic: String,
    /// Directory for the tokens of blocks. No other relay and no other domain may use it.
    #[serde(default = "tokens_dir")]
    pub tokens_dir: PathBuf,
    /// Maximum MiB of memory for tokens; the file may have twice as many.
    #[serde(default = "tokens_mib")]
    pub tokens_mib: u64,
}

fn publish() -> Address {
    Address::Ipc("/run/kvtide-relay/events-publish".into())
}

fn replay() -> Address {
    Address::Ipc("/run/kvtide-relay/events-replay".into())
}

fn tokens_dir() -> PathBuf {
    "/var/lib/kvtide-relay".into()
}

fn tokens_mib() -> u64 {
    256
}

/// Permission bits, in octal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mode(pub u32);

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Mode, String> {
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777 && text.len() == 4);
        mode.map(Mode).ok_or_else(|| format!("{text:?}: expected an octal string from \"0000\" to \"0777\""))
    }
}

/// An address of ZeroMQ: `ipc://PATH` or `tcp://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    /// A Unix socket.
    Ipc(PathBuf),
    /// A TCP port.
    Tcp {
        /// Name or address; one of IPv6 in brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("ipc://") {
            // Names without a path (`ipc://@name`) have neither owner nor mode.
            return match path.starts_with('/') && !path.ends_with('/') {
                true if path.len() + "-16".len() <= PATH_MAX => Ok(Address::Ipc(path.into())),
                true => Err(format!("{text:?}: the path has more than {} bytes", PATH_MAX - "-16".len())),
                false => Err(format!("{text:?}: expected an absolute path: ipc:///PATH")),
            };
        }
        let parts = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        let port = parts.and_then(|(_, port)| port.parse().ok());
        match (parts, port) {
            (Some(("*", _)), _) => Err(format!("{text:?}: expected 0.0.0.0 or [::] for all addresses")),
            (Some((host, _)), Some(port @ 1..)) if !host.is_empty() => Ok(Address::Tcp { host: host.into(), port }),
            _ => Err(format!("{text:?} is no address; expected ipc:///PATH or tcp://HOST:PORT")),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Address::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

impl Address {
    /// Return the address for the space with this index: that of the second one ends in `-2`, or has the next port.
    #[must_use]
    pub fn of_space(&self, index: u16) -> Address {
        match self {
            Address::Ipc(path) if index > 0 => Address::Ipc(format!("{}-{}", path.display(), index + 1).into()),
            Address::Ipc(path) => Address::Ipc(path.clone()),
            Address::Tcp { host, port } => Address::Tcp { host: host.clone(), port: port.saturating_add(index) },
        }
    }

    /// Return whether other machines may reach it.
    fn is_remote(&self) -> bool {
        let Address::Tcp { host, .. } = self else { return false };
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
    }
}

impl Events {
    /// Return why the keys do not fit together, with the key.
    fn wrong(&self) -> Option<String> {
        let is_ipc = |address: &Address| matches!(address, Address::Ipc(_));
        let ipc = is_ipc(&self.publish);
        Some(match self {
            _ if ipc != is_ipc(&self.replay) => "publish and replay: expected both ipc:// or both tcp://".to_owned(),
            Events { token_file: Some(_), .. } if ipc => {
                "token_file is for tcp://; at a Unix socket list the user ids of the routers in uids".to_owned()
            }
            Events { anyone: true, .. } if ipc => {
                "anyone is for tcp://; at a Unix socket list the user ids of the routers in uids".to_owned()
            }
            Events { uids, .. } if ipc && uids.is_empty() => {
                "expected uids, the user ids of the routers: without them no router gets events".to_owned()
            }
            Events { uids, .. } if uids.len() > UIDS_MAX => {
                format!("uids has {} user ids, the maximum is {UIDS_MAX}", uids.len())
            }
            Events { uids, .. } if !ipc && !uids.is_empty() => {
                "uids is for ipc://; over TCP set token_file, or anyone = true".to_owned()
            }
            Events { mode: Some(_), .. } if !ipc => "mode is for ipc://; a TCP port has none".to_owned(),
            Events { token_file: Some(_), anyone: true, .. } => {
                "expected either token_file or anyone = true".to_owned()
            }
            Events { token_file: None, anyone: false, .. } if !ipc => {
                "events have the tokens of prompts, and every user of the machine reaches a TCP port: set token_file, use ipc:// with uids, \
                 or set anyone = true"
                    .to_owned()
            }
            Events { publish: Address::Tcp { port, .. }, .. } | Events { replay: Address::Tcp { port, .. }, .. }
                if *port > PORT_MAX =>
            {
                format!("port {port}: the 16 spaces of a domain have ports one after the other, so the first is {PORT_MAX} at most")
            }
            Events { tokens_mib: 0 | 1_048_577.., .. } => {
                format!("tokens_mib = {}: expected 1 to 1048576", self.tokens_mib)
            }
            _ => return None,
        })
    }

    /// Return the addresses that spaces may get: of `publish` and of `replay`.
    fn addresses(&self) -> [HashSet<Address>; 2] {
        [&self.publish, &self.replay].map(|address| (0..STREAMS_MAX).map(|index| address.of_space(index)).collect())
    }
}

/// Return why the tables of the domains cannot be used, alone or together.
pub(super) fn check(domains: &[Domain]) -> Result<(), String> {
    let (mut dirs, mut addresses): (HashMap<&Path, &str>, HashMap<Address, &str>) = Default::default();
    for Domain { name, line, events, .. } in domains {
        let Some(events) = events else { continue };
        let wrong = |why: String| Err(format!("line {line}: domain {name:?}: [domains.events]: {why}"));
        if let Some(why) = events.wrong() {
            return wrong(why);
        }
        if let Some(other) = dirs.insert(&events.tokens_dir, name) {
            let dir = events.tokens_dir.display();
            return wrong(format!("tokens_dir {dir} is that of domain {other:?}; each needs one of its own"));
        }
        let [publish, replay] = events.addresses();
        if let Some(address) = publish.intersection(&replay).next() {
            return wrong(format!("publish and replay would both have {address}; {EACH}"));
        }
        for address in publish.into_iter().chain(replay) {
            if let Some(other) = addresses.insert(address.clone(), name) {
                return wrong(format!("{address} is also an address of domain {other:?}; {EACH}"));
            }
        }
    }
    Ok(())
}

impl Config {
    /// Return a warning if clients other than the named users get events.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for Domain { name, line, events, .. } in &self.domains {
            let Some(events) = events else { continue };
            let mut warn = |why: &str| {
                let address = &events.publish;
                warnings.push(format!("line {line}: domain {name:?}: [domains.events]: {why} at {address}"));
            };
            if events.anyone {
                warn("anyone = true: every user and program that reaches the port gets the tokens of prompts");
            }
            if events.publish.is_remote() || events.replay.is_remote() {
                warn("tokens of prompts, and the token of routers, cross the network without encryption");
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests;
