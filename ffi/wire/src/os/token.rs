//! Reading a token file.

use super::failed_io;
use crate::error::Error;
use crate::hello::{TOKEN_BYTES_MAX, Token};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use zeroize::Zeroizing;

/// Maximum bytes read from a file: the longest token, white space around it, and one more.
const FILE_BYTES_MAX: usize = TOKEN_BYTES_MAX + 512;

/// Read an open token file. The buffer is overwritten before this returns.
pub fn read(file: &mut File, path: &Path) -> Result<Token, Error> {
    let mut content = Zeroizing::new([0u8; FILE_BYTES_MAX]);
    let mut len = 0;
    while len < content.len() {
        match file.read(&mut content[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed_io("read a token file", path.display(), &error)),
        }
    }
    if len == content.len() {
        let (found, expected) = (std::format!("{len} bytes and more"), std::format!("less than {FILE_BYTES_MAX}"));
        return Err(Error::Message { message: "token file", field: "length", found, expected });
    }
    Token::new(&content[..len])
}
