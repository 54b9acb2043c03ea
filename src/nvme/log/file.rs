//! Storage of the index log in the disk's file: blocking calls on the file description that holds the lock.

use super::super::memory::Aligned;
use super::super::store::room;
use kvtide_format::log::Storage;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Bytes per call. All data goes through one aligned buffer, since direct I/O requires it.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum repetitions of a call that makes no progress.
const TRIES: u32 = 16;
/// Smallest unit of direct I/O.
const UNIT: usize = 4096;

/// The log's part of a file or device.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: Arc<File>,
    chunk: Aligned,
}

impl LogFile {
    /// Use the file description that does the disk's I/O.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(file: &Arc<File>) -> io::Result<LogFile> {
        Ok(LogFile { file: Arc::clone(file), chunk: Aligned::new(CHUNK_BYTES)? })
    }
}

/// Repeat a call until `bytes` are transferred. After a short transfer, continue at the last whole unit.
fn whole(bytes: usize, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> io::Result<()> {
    let (mut done, mut tries) = (0, 0);
    while done < bytes {
        match call(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) if count > bytes - done => return Err(io::ErrorKind::InvalidData.into()),
            Ok(count) => {
                let count = if done + count == bytes { count } else { count / UNIT * UNIT };
                (done, tries) = (done + count, if count == 0 { tries + 1 } else { 0 });
            }
            Err(Errno::INTR | Errno::AGAIN) => tries += 1,
            Err(errno) => return Err(errno.into()),
        }
        if tries >= TRIES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

impl Storage for LogFile {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let LogFile { file, chunk } = self;
        let mut at = offset;
        for part in into.chunks_mut(CHUNK_BYTES) {
            let memory = &mut chunk.slice_mut()[..part.len()];
            whole(part.len(), |done| rustix::io::pread(&**file, &mut memory[done..], at + done as u64))?;
            part.copy_from_slice(memory);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let LogFile { file, chunk } = self;
        let mut at = offset;
        for part in bytes.chunks(CHUNK_BYTES) {
            let memory = &mut chunk.slice_mut()[..part.len()];
            memory.copy_from_slice(part);
            whole(part.len(), |done| rustix::io::pwrite(&**file, &memory[done..], at + done as u64))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // This also flushes the data written by the I/O thread: it is the same file.
        Ok(rustix::fs::fdatasync(&*self.file)?)
    }

    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(room(&self.file, offset, bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_falls_short_goes_on_and_what_stands_still_ends() {
        let asked = RefCell::new(Vec::new());
        let answers = [Ok(5000), Err(Errno::INTR), Ok(100), Ok(4096), Ok(4096)];
        let mut answers = answers.into_iter();
        let call = |done| {
            asked.borrow_mut().push(done);
            answers.next().expect("more calls than answers")
        };
        whole(12288, call).unwrap();
        assert_eq!(*asked.borrow(), [0, 4096, 4096, 4096, 8192]);
        for stuck in [Ok(0), Ok(100), Err(Errno::AGAIN)] {
            assert_eq!(whole(8192, |_| stuck).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        assert_eq!(whole(8192, |_| Err(Errno::IO)).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(whole(8192, |_| Ok(8193)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
