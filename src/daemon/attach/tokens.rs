//! Tenant tokens: they assign a peer to a domain when its uid cannot. In containers the uid is often 65534 for all peers.
//!
//! Only hashes of tokens stay in memory. Neither the answer, the log nor the response time shows which file a token was compared
//! with or how much of it matched.

use crate::config::Domain;
use crate::error::Error;
use kvtide_wire::hello::Token;
use kvtide_wire::os::token::Unusable;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Hashes of the tokens of all domains.
#[derive(Default)]
pub(crate) struct Tokens {
    known: Vec<Known>,
}

struct Known {
    domain: u32,
    relay: bool,
    hash: [u8; 32],
    file: PathBuf,
}

impl Tokens {
    /// Read the token files of all domains.
    pub fn load(domains: &[Domain]) -> Result<Tokens, Error> {
        let mut tokens = Tokens::default();
        for (domain, settings) in (0..).zip(domains) {
            let engines = settings.tokens.iter().map(|file| (file, false));
            for (file, relay) in engines.chain(settings.relay_tokens.iter().map(|file| (file, true))) {
                tokens.add(domain, relay, file)?;
            }
        }
        Ok(tokens)
    }

    fn add(&mut self, domain: u32, relay: bool, file: &Path) -> Result<(), Error> {
        let hash = hash(&read(file)?);
        if let Some(other) = self.known.iter().find(|known| known.hash == hash) {
            let why = format!("same token as {}; give each file its own token", other.file.display());
            return Err(refused(file, why));
        }
        self.known.push(Known { domain, relay, hash, file: file.into() });
        Ok(())
    }

    /// Return true if no token is configured for any domain.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Return the index of the domain that a token belongs to. A relay's token serves no engine, and an engine's no relay.
    pub fn domain_of(&self, token: &Token, relay: bool) -> Option<usize> {
        let shown = hash(token);
        let (mut found, mut domain) = (Choice::from(0), 0u32);
        for known in &self.known {
            let equal = known.hash.ct_eq(&shown) & Choice::from(u8::from(known.relay == relay));
            domain.conditional_assign(&known.domain, equal);
            found |= equal;
        }
        bool::from(found).then_some(domain as usize)
    }
}

/// Omit the hashes: the daemon's debug output may be read by people without access to its memory.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.known.len())
    }
}

fn hash(token: &Token) -> [u8; 32] {
    Sha256::digest(token.secret()).into()
}

/// Read a token file, if only root, the daemon's user and the file's group can read or write it.
pub(crate) fn read(path: &Path) -> Result<Token, Error> {
    kvtide_wire::os::token::read_file(path).map_err(|error| match error {
        Unusable::Unreadable(source) => Error::File { action: "read the token file", path: path.into(), source },
        Unusable::Refused(why) => refused(path, why),
    })
}

fn refused(path: &Path, why: String) -> Error {
    Error::Token { path: path.into(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new() -> Dir {
            Dir(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    fn domain(name: &str, tokens: Vec<PathBuf>) -> Domain {
        let (uids, relay_uids, relay_tokens, relay_socket) = Default::default();
        Domain {
            name: name.into(),
            uids,
            tokens,
            relay_uids,
            relay_tokens,
            relay_socket,
            host_bytes: 1,
            nvme_bytes: 0,
            sessions_max: 1,
            has_whole_host: false,
            has_whole_nvme: false,
        }
    }

    fn token(secret: &str) -> Token {
        Token::new(secret.as_bytes()).unwrap()
    }

    #[test]
    fn a_token_leads_to_its_domain_and_every_other_to_none() {
        let dir = Dir::new();
        let others = [format!("1{}", &SECRET[1..]), format!("{}x", &SECRET[..31])];
        let a = vec![dir.file("a", SECRET, 0o600), dir.file("a2", &format!(" {}\n", others[0]), 0o440)];
        let b = vec![dir.file("b", &others[1], 0o640)];
        let relay = "relay-relay-relay-relay-relay-relay";
        let b = Domain { relay_tokens: vec![dir.file("relay", relay, 0o600)], ..domain("b", b) };
        let tokens = Tokens::load(&[domain("a", a), domain("none", vec![]), b]).unwrap();
        let of = |secret: &str| [false, true].map(|relay| tokens.domain_of(&token(secret), relay));
        assert_eq!(of(SECRET), [Some(0), None]);
        assert_eq!(of(&others[0]), [Some(0), None]);
        assert_eq!(of(&others[1]), [Some(2), None]);
        assert_eq!(of(relay), [None, Some(2)], "a relay is no engine");
        for wrong in [format!("{SECRET}0"), format!("{}y", &SECRET[..31]), "x".repeat(512)] {
            assert_eq!(of(&wrong), [None, None]);
        }
        assert_eq!(Tokens::default().domain_of(&token(SECRET), false), None);
    }

    #[test]
    fn one_token_in_two_files_names_both() {
        let dir = Dir::new();
        let (a, b) = (dir.file("a", SECRET, 0o600), dir.file("b", &format!("{SECRET}\n"), 0o600));
        let error =
            Tokens::load(&[domain("a", vec![a.clone()]), domain("b", vec![b.clone()])]).unwrap_err().to_string();
        assert!(error.contains(&*a.to_string_lossy()) && error.contains(&*b.to_string_lossy()), "{error}");
        assert!(!error.contains("0123"), "{error}");
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_none_is_refused_with_what_is_wrong() {
        let dir = Dir::new();
        let refused = |path: &Path| read(path).unwrap_err().to_string();
        for mode in [0o604, 0o644, 0o602, 0o660, 0o601, 0o777] {
            let error = refused(&dir.file("open", SECRET, mode));
            assert!(error.contains(&format!("mode {mode:04o} gives")) && error.contains("0640"), "{error}");
        }
        for mode in [0o400, 0o600, 0o640, 0o440, 0o700] {
            assert_eq!(read(&dir.file("closed", SECRET, mode)).unwrap(), token(SECRET), "{mode:o}");
        }
        let error = refused(&dir.file("short", "password\n", 0o600));
        assert!(error.contains("length is 8, expected 32 to 512") && !error.contains("password"), "{error}");
        let error = refused(&dir.file("long", &"x".repeat(5000), 0o600));
        assert!(error.contains("length is 1024 bytes and more"), "{error}");
        assert!(refused(dir.0.path()).contains("not a regular file"));
        let fifo = dir.0.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(refused(&fifo).contains("not a regular file"), "opening must not wait for a writer");
        let link = dir.0.path().join("link");
        symlink(dir.file("target", SECRET, 0o644), &link).unwrap();
        assert!(refused(&link).contains("mode 0644 gives"), "the target of the link is checked");
        assert!(refused(&dir.0.path().join("none")).contains("cannot read the token file"));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let dir = Dir::new();
        let path = dir.file("theirs", SECRET, 0o600);
        if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
            eprintln!("SKIPPED a_file_of_another_user_is_refused: needs root to change the owner of a file");
            return;
        }
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("owned by uid 12345"), "{error}");
    }
}
