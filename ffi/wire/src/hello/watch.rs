//! Watch: a relay asks for the list of open spaces and for its changes.

use super::attach::{check_geometry, read_planes, write_planes};
use super::codec::{Reader, Writer, within};
use super::{Hello, Kind, NAME_BYTES_MAX, Token};
use crate::error::Error;
use crate::geometry::Plane;
use crate::status::Status;
use alloc::string::String;
use alloc::vec::Vec;
use zeroize::Zeroizing;

/// Request of a relay, the first message of its connection. The daemon refuses it by a [`super::Welcome`], or answers it by a
/// [`SpaceOpened`] for each open space of the domain, then [`Watching`], then by each change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Token that proves the relay's domain; without one its uid decides.
    pub token: Option<Token>,
}

/// A space that a relay can attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceOpened {
    /// Number of the space in this run of the daemon.
    pub space: u32,
    /// Name, for humans. The other fields identify the space: a relay attaches with these.
    pub name: String,
    /// Fingerprint of the model.
    pub fingerprint: [u8; 32],
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Planes, in the order of a [`Hello`].
    pub planes: Vec<Plane>,
    /// Number of shards.
    pub shards: u16,
}

/// End of the list of open spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watching;

/// The space has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceClosed {
    /// Its number.
    pub space: u32,
}

/// Maximum bytes of the text of a [`RelayState`].
pub const RELAY_TEXT_BYTES_MAX: usize = 512;

/// State of a relay that watches, for the daemon's status. The daemon keeps the last one while the connection lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayState {
    /// Time since when it is so, by the relay's clock: seconds since 1970.
    pub since_s: u64,
    /// The state, for humans: 1 to [`RELAY_TEXT_BYTES_MAX`] bytes, no control characters.
    pub text: String,
}

/// A decoded message of the daemon to a relay that watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromWatched {
    /// The request was refused; the last message.
    Refused(Status, String),
    /// A space is open.
    Opened(SpaceOpened),
    /// End of the list of open spaces.
    Watching,
    /// A space has closed.
    Closed(SpaceClosed),
}

impl FromWatched {
    /// Decode one datagram.
    ///
    /// # Errors
    /// It is none of these messages, or a field is out of its bounds.
    pub fn decode(bytes: &[u8]) -> Result<FromWatched, Error> {
        let (kind, mut reader) = Reader::open(bytes, "message")?;
        let message = match kind {
            k if k == Kind::Welcome as u32 => {
                let super::Welcome { status, text, .. } = super::Welcome::read(&mut reader)?;
                if status == Status::Ok {
                    return Err(super::codec::wrong("welcome", "status", 0, "a refusal"));
                }
                FromWatched::Refused(status, text)
            }
            k if k == Kind::SpaceOpened as u32 => FromWatched::Opened(SpaceOpened::read(&mut reader)?),
            k if k == Kind::Watching as u32 => FromWatched::Watching,
            k if k == Kind::SpaceClosed as u32 => FromWatched::Closed(SpaceClosed { space: reader.u32("space")? }),
            k => {
                return Err(super::codec::wrong("message", "kind", k, "2 or 8 to 10 (daemon to a relay that watches)"));
            }
        };
        reader.end()?;
        Ok(message)
    }
}

impl Watch {
    /// Return the datagram. It contains the token.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut w = Writer::open(Kind::Watch);
        Token::write(self.token.as_ref(), &mut w);
        Zeroizing::new(w.finish())
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Watch, Error> {
        Ok(Watch { token: Token::read(r)? })
    }
}

impl RelayState {
    /// Return the datagram. Control characters are replaced, and a long text is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let clean: String =
            self.text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        let mut w = Writer::open(Kind::RelayState);
        w.u64(self.since_s).text_up_to(&clean, RELAY_TEXT_BYTES_MAX);
        w.finish()
    }

    /// Decode a message that a relay sends after its request.
    ///
    /// # Errors
    /// It is another message, or a field is out of its bounds.
    pub fn decode(bytes: &[u8]) -> Result<RelayState, Error> {
        const WHAT: &str = "relay state";
        let (kind, mut reader) = Reader::open(bytes, WHAT)?;
        if kind != Kind::RelayState as u32 {
            return Err(super::codec::wrong(WHAT, "kind", kind, "11"));
        }
        let since_s = reader.u64("since_s")?;
        let text = reader.text_up_to("text", RELAY_TEXT_BYTES_MAX)?;
        reader.end()?;
        if text.is_empty() || text.chars().any(char::is_control) {
            let expected = "1 to 512 bytes without control characters";
            return Err(super::codec::wrong(WHAT, "text", text.escape_debug(), expected));
        }
        Ok(RelayState { since_s, text })
    }
}

impl SpaceOpened {
    /// Return the space that an engine's Hello describes.
    #[must_use]
    pub fn of(space: u32, hello: &Hello) -> SpaceOpened {
        let Hello { fingerprint, page_tokens, shards, .. } = *hello;
        SpaceOpened { space, name: hello.name.clone(), fingerprint, page_tokens, planes: hello.planes.clone(), shards }
    }

    /// Return the datagram.
    ///
    /// # Errors
    /// A field is out of its bounds.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        check_geometry("space", self.page_tokens, &self.planes, self.shards)?;
        within("space", "length of the name", self.name.len() as u64, 1, NAME_BYTES_MAX as u64)?;
        let mut w = Writer::open(Kind::SpaceOpened);
        w.u32(self.space).raw(&self.fingerprint).u32(self.page_tokens).u16(self.shards).u16(self.planes.len() as u16);
        write_planes(&mut w, &self.planes);
        w.text(&self.name);
        Ok(w.finish())
    }

    fn read(r: &mut Reader<'_>) -> Result<SpaceOpened, Error> {
        let space = r.u32("space")?;
        let fingerprint = r.array("fingerprint")?;
        let (page_tokens, shards, planes) = (r.u32("page_tokens")?, r.u16("shards")?, r.u16("planes")?);
        let planes = read_planes(r, planes)?;
        let name = r.text("space name")?;
        check_geometry("space", page_tokens, &planes, shards)?;
        within("space", "length of the name", name.len() as u64, 1, NAME_BYTES_MAX as u64)?;
        Ok(SpaceOpened { space, name, fingerprint, page_tokens, planes, shards })
    }
}

impl Watching {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Writer::open(Kind::Watching).finish()
    }
}

impl SpaceClosed {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::SpaceClosed);
        w.u32(self.space);
        w.finish()
    }
}
