//! Reading a token file.

use super::failed_io;
use crate::error::Error;
use crate::hello::{TOKEN_BYTES_MAX, Token};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::string::{String, ToString};
use zeroize::Zeroizing;

/// Maximum bytes read from a file: the longest token, white space around it, and one more.
const FILE_BYTES_MAX: usize = TOKEN_BYTES_MAX + 512;

/// Permission bits that a token file must not have: any for others, write for the group. Reading by the group is allowed: a service
/// that does not run as root reads root's files through its group.
const FORBIDDEN_MODE: u32 = 0o027;

/// Reason why a token file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Unreadable(io::Error),
    /// Others have access to it, or it has no valid token.
    #[error("{0}")]
    Refused(String),
}

/// Read a token file, if only root, the process's user and the file's group can read or write it.
///
/// # Errors
/// See [`Unusable`].
pub fn read_file(path: &Path) -> Result<Token, Unusable> {
    read(&mut open(path)?, path).map_err(|error| Unusable::Refused(error.to_string()))
}

/// Open a file with a secret, if only root, the process's user and the file's group can read or write it.
///
/// # Errors
/// See [`Unusable`].
pub fn open(path: &Path) -> Result<File, Unusable> {
    // Check the opened file, since the path may name another file by now. NONBLOCK: opening a FIFO must not block the process.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| Unusable::Unreadable(errno.into()))?);
    let found = file.metadata().map_err(Unusable::Unreadable)?;
    if !found.is_file() {
        return Err(Unusable::Refused("not a regular file".into()));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != 0 && found.uid() != us {
        let owner = found.uid();
        let why = std::format!("owned by uid {owner}; must be owned by root or the user of this process ({us})");
        return Err(Unusable::Refused(why));
    }
    if found.mode() & FORBIDDEN_MODE != 0 {
        let (mode, path) = (found.mode() & 0o777, path.display());
        let why = std::format!(
            "mode {mode:04o} gives access to other users or write access to the group. Run: chmod 0640 {path}"
        );
        return Err(Unusable::Refused(why));
    }
    Ok(file)
}

/// Read an open token file. The buffer is overwritten before this returns.
pub fn read(file: &mut File, path: &Path) -> Result<Token, Error> {
    let mut content = Zeroizing::new([0u8; FILE_BYTES_MAX]);
    let mut len = 0;
    while len < content.len() {
        match file.read(&mut content[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed_io("read a token file", path.display(), &error)),
        }
    }
    if len == content.len() {
        let (found, expected) = (std::format!("{len} bytes and more"), std::format!("less than {FILE_BYTES_MAX}"));
        return Err(Error::Message { message: "token file", field: "length", found, expected });
    }
    Token::new(&content[..len])
}
