//! The tokens that make a peer a tenant's, whoever its uid says it is: in a container that is often 65534 for everybody.
//!
//! Only their hashes stay in memory. Which file a token was compared with, and how far it agreed, nobody learns: not from the
//! answer, not from the log, not from the time it took.

use crate::config::Domain;
use crate::error::Error;
use kvtide_wire::hello::Token;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Permission bits that a token file must not have: any for others, writing for its group. (The group may read: a service that is
/// not root reads root's files by its group.)
const FORBIDDEN_MODE: u32 = 0o027;

/// Hashes of all domains' tokens.
#[derive(Default)]
pub(crate) struct Tokens {
    known: Vec<Known>,
}

struct Known {
    domain: u32,
    hash: [u8; 32],
    file: PathBuf,
}

impl Tokens {
    /// Reads the files of all domains.
    pub fn load(domains: &[Domain]) -> Result<Tokens, Error> {
        let mut tokens = Tokens::default();
        for (domain, file) in (0..).zip(domains).flat_map(|(i, domain)| domain.tokens.iter().map(move |file| (i, file)))
        {
            let hash = hash(&read(file)?);
            if let Some(other) = tokens.known.iter().find(|known| known.hash == hash) {
                return Err(refused(file, format!("it holds the same token as {}", other.file.display())));
            }
            tokens.known.push(Known { domain, hash, file: file.clone() });
        }
        Ok(tokens)
    }

    /// The index of the domain that a token belongs to.
    pub fn domain_of(&self, token: &Token) -> Option<usize> {
        let shown = hash(token);
        let (mut found, mut domain) = (Choice::from(0), 0u32);
        for known in &self.known {
            let equal = known.hash.ct_eq(&shown);
            domain.conditional_assign(&known.domain, equal);
            found |= equal;
        }
        bool::from(found).then_some(domain as usize)
    }
}

/// Names no hash: a dump of the daemon's state is for more eyes than its memory.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.known.len())
    }
}

fn hash(token: &Token) -> [u8; 32] {
    Sha256::digest(token.secret()).into()
}

/// Reads one token file, if nobody but root, the daemon's user and the file's group can have read or written it.
pub(crate) fn read(path: &Path) -> Result<Token, Error> {
    let failed = |source: io::Error| Error::File { action: "read a token file", path: path.into(), source };
    // What was opened is checked, not what the path names by then. A FIFO must not block the daemon.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(refused(path, "it is no regular file".into()));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != 0 && found.uid() != us {
        let owner = found.uid();
        return Err(refused(path, format!("it belongs to uid {owner}, not to root or to the daemon's user ({us})")));
    }
    if found.mode() & FORBIDDEN_MODE != 0 {
        let mode = found.mode() & 0o777;
        return Err(refused(
            path,
            format!("its mode is {mode:04o}: others may use it, or its group may write it; at most 0640 is safe"),
        ));
    }
    kvtide_wire::os::token::read(&mut file, path).map_err(|error| refused(path, error.to_string()))
}

fn refused(path: &Path, why: String) -> Error {
    Error::Token { path: path.into(), why }
}
