//! The demo's prompt.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::model::BOS;

/// The built-in text, described in its README.
const TEXT: &[u8] = include_bytes!("assets/text.txt");

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The file cannot be read.
    #[error("cannot read the text {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The text is shorter than the prompt.
    #[error("the text {} has {found} bytes, but a prompt of {wanted} tokens needs {}", .name, .wanted - 1)]
    Short {
        /// The text.
        name: String,
        /// Its bytes.
        found: usize,
        /// Tokens of the prompt; the first is begin of text.
        wanted: usize,
    },
}

/// Return begin of text and the last bytes of the text in `path`, or of the built-in one, `tokens` in all. Decoding continues at
/// the end of the text.
///
/// # Errors
/// The file cannot be read or is too short.
pub fn prompt(path: Option<&Path>, tokens: usize) -> Result<Vec<u16>, PromptError> {
    let (name, text) = match path {
        None => ("built into the demo".to_owned(), TEXT.to_vec()),
        Some(path) => {
            let text = fs::read(path).map_err(|source| PromptError::Read { path: path.into(), source })?;
            (path.display().to_string(), text)
        }
    };
    let Some(skipped) = (text.len() + 1).checked_sub(tokens) else {
        return Err(PromptError::Short { name, found: text.len(), wanted: tokens });
    };
    Ok(std::iter::once(BOS).chain(text[skipped..].iter().map(|byte| u16::from(*byte))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_short_is_refused_with_both_lengths() {
        assert_eq!(prompt(None, 3584).unwrap().len(), 3584);
        let error = prompt(None, TEXT.len() + 2).unwrap_err().to_string();
        assert!(error.contains(&TEXT.len().to_string()) && error.contains(&(TEXT.len() + 2).to_string()), "{error}");
        assert!(matches!(prompt(Some(Path::new("/no/such/text")), 2), Err(PromptError::Read { .. })));
    }
}
