//! A relay's view of which spaces are open.

use super::{
    Error, Result, attach,
    options::{bounded, deadline},
};
use kvtide_wire::{
    Error as WireError,
    hello::{FromWatched, MESSAGE_MAX, RelayState, SpaceOpened, Watch as Message},
    os::socket::Socket,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A change of the spaces that a relay can attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpaceChange {
    /// A space is open.
    Opened(SpaceOpened),
    /// The space with this number has closed.
    Closed(u32),
}

/// A connection that receives from the daemon the changes of the list of open spaces of a relay's domain.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    socket: Socket,
}

impl Watch {
    /// Connect to the daemon at `path`; return the spaces that are open too. `token_file`: the token of a relay; without one this
    /// process's uid decides.
    ///
    /// # Errors
    /// [`Error::Refused`] (`Permission`, `Limit`), [`Error::System`] (`Daemon`: there is none, or it does not answer in time).
    pub fn connect(path: &Path, token_file: Option<&Path>, timeout: Duration) -> Result<(Watch, Vec<SpaceOpened>)> {
        let token = token_file.map(attach::token).transpose()?;
        let failed = |error| attach::not_connected(path, "ask for open spaces at", error);
        let until = deadline(timeout);
        let socket = Socket::connect(path).map_err(failed)?;
        // A daemon that refuses a connection closes it; the refusal can still be read.
        let sent = socket.send(&Message { token }.encode(), &[]);
        let watch = Watch { path: path.into(), socket };
        let mut open = Vec::new();
        loop {
            match watch.receive(until.saturating_duration_since(Instant::now())) {
                Ok(FromWatched::Opened(space)) => open.push(space),
                Ok(FromWatched::Watching) => return Ok((watch, open)),
                Ok(FromWatched::Closed(closed)) => open.retain(|open| open.space != closed.space),
                Ok(FromWatched::Refused(status, text)) => {
                    return Err(Error::Refused { socket: path.into(), status, text });
                }
                Err(error) => return Err(failed(sent.err().unwrap_or(error))),
            }
        }
    }

    /// Wait at most `timeout` for the next change.
    ///
    /// # Errors
    /// `Daemon`: the connection is over; connect again.
    pub fn next(&self, timeout: Duration) -> Result<Option<SpaceChange>> {
        match self.receive(bounded(timeout)) {
            Ok(FromWatched::Opened(space)) => Ok(Some(SpaceChange::Opened(space))),
            Ok(FromWatched::Closed(closed)) => Ok(Some(SpaceChange::Closed(closed.space))),
            Err(WireError::TimedOut { .. }) => Ok(None),
            Ok(FromWatched::Watching) => Ok(None),
            Ok(FromWatched::Refused(status, text)) => Err(Error::Refused { socket: self.path.clone(), status, text }),
            Err(error) => Err(attach::not_connected(&self.path, "hear of spaces from", error)),
        }
    }

    /// Tell the daemon the state of this relay, for its status: at most once a second. It does not wait.
    ///
    /// # Errors
    /// `Daemon`: the connection is over, or the daemon does not read; connect again.
    pub fn tell(&self, state: &RelayState) -> Result<()> {
        let sent = self.socket.send(&state.encode(), &[]);
        sent.map_err(|error| attach::not_connected(&self.path, "tell the relay's state to", error))
    }

    fn receive(&self, timeout: Duration) -> std::result::Result<FromWatched, WireError> {
        let mut buffer = vec![0; MESSAGE_MAX];
        let (len, _) = self.socket.receive_within(&mut buffer, 0, timeout)?;
        FromWatched::decode(&buffer[..len])
    }
}

/// Readable when a change can be read.
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
