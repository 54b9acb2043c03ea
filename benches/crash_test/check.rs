//! Reading back after a kill: every chain that ends with a stored block is mapped and read, and every byte compared.

use super::content::{Book, Chain, Found, Id};
use super::error::CrashError;
use super::plan::{Plan, THREADS};
use super::session::{Hand, TIMEOUT, WrongPage, attach};
use kvtide_client::{Client, Error};
use kvtide_wire::status::Status;
use std::collections::HashSet;
use std::path::Path;

/// Results of reading back.
#[derive(Debug, Default)]
pub struct Checked {
    /// Blocks reported stored since the last kill that were found and correct.
    pub recovered: u64,
    /// Blocks found after an earlier kill that were found again and correct.
    pub again: u64,
    /// Blocks not reported stored that were found and correct: parents in the chains.
    pub more: u64,
    /// Blocks reported stored that were not found or could not be read.
    pub missing: u64,
    /// Errors of the reads.
    pub unreadable: Vec<String>,
    /// Pages with bytes that do not match their hash.
    pub wrong: Vec<WrongPage>,
}

impl Checked {
    fn add(&mut self, other: Checked) {
        self.recovered += other.recovered;
        self.again += other.again;
        self.more += other.more;
        self.missing += other.missing;
        self.unreadable.extend(other.unreadable);
        self.wrong.extend(other.wrong);
    }
}

/// Read back all blocks recorded as stored.
pub fn everything(plan: &Plan, socket: &Path, book: &Book) -> Result<Checked, CrashError> {
    let failed = |source| CrashError::Client { tried: "attach to the restarted daemon", source };
    let client = attach(plan, socket).map_err(failed)?;
    let chains = book.stored();
    let mut all = Checked::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (client, chains) = (&client, chains.iter().skip(index.into()).step_by(THREADS.into()));
                scope.spawn(move || read_back(client, index, book, chains))
            })
            .collect();
        for thread in threads {
            all.add(thread.join().map_err(|_| CrashError::Thread("reads blocks back"))??);
        }
        Ok(all)
    })
}

fn read_back<'a>(
    client: &Client,
    index: u16,
    book: &Book,
    chains: impl Iterator<Item = &'a Chain>,
) -> Result<Checked, CrashError> {
    let failed = |tried| move |source| CrashError::Client { tried, source };
    let mut hand = Hand::new(client, index).map_err(failed("open a channel and a lane"))?;
    let (mut checked, mut seen) = (Checked::default(), HashSet::new());
    for chain in chains {
        let seq = hand.channel.create_seq().map_err(failed("create a sequence"))?;
        let found = hand.channel.attach_prefix(seq, &chain.hashes, TIMEOUT).map_err(failed("map stored blocks"))?;
        let there = &chain.hashes[..found.min(chain.hashes.len())];
        // Prefixes shared by chains are read with each chain, but compared only once.
        match hand.read(seq, there, None, |at| !seen.contains(&chain.ids[at])) {
            Ok(()) => {
                let fresh = chain.ids[..there.len()].iter().filter(|id| seen.insert(**id));
                fresh.for_each(|id| checked.found(book.found(*id)));
                checked.miss(book, &chain.ids[there.len()..]);
            }
            Err(error) if is_loss(&error) => {
                checked.unreadable.push(error.to_string());
                checked.miss(book, &chain.ids);
            }
            Err(source) => return Err(CrashError::Client { tried: "read stored blocks", source }),
        }
        hand.channel.drop_seq(seq).map_err(failed("drop a sequence"))?;
    }
    checked.wrong = hand.wrong;
    Ok(checked)
}

/// Return true if a read failed because content is missing, and not because the daemon does not answer.
fn is_loss(error: &Error) -> bool {
    matches!(error.status(), Status::Lost | Status::Io | Status::Corrupt | Status::NotFound)
}

impl Checked {
    fn found(&mut self, found: Found) {
        match found {
            Found::Recovered => self.recovered += 1,
            Found::Again => self.again += 1,
            Found::More => self.more += 1,
        }
    }

    fn miss(&mut self, book: &Book, ids: &[Id]) {
        self.missing += ids.iter().filter(|id| book.missing(**id)).count() as u64;
    }
}
