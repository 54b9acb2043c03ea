//! The commands in a document: its fenced blocks whose info string is `sh` and what to do with it.
//!
//! | info string | commands of the block |
//! | --- | --- |
//! | `sh run` | run |
//! | `sh install` | run in an empty environment; left out where everything is installed already |
//! | `sh skip: REASON` | not run |

use crate::run::{Error, root};
use std::process::{Command as Process, Stdio};

/// What the test does with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    Run,
    Install,
    Skip(String),
}

/// A command of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its first line in the document, from 1.
    pub line: usize,
    pub text: String,
    pub mark: Mark,
}

/// A document, or a section of it.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    /// Its path from the root of the repository.
    pub path: &'static str,
    /// The heading of the section, without `#`; `None`: the whole document.
    pub section: Option<&'static str>,
}

impl Document {
    /// Read the commands. A block of a shell that is not marked is an error, so that none is forgotten.
    pub fn commands(&self) -> Result<Vec<Command>, Error> {
        let path = root().join(self.path);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::Start(format!("read {}", path.display()), e))?;
        let found = self.parse(&text)?;
        match found.is_empty() {
            true => Err(Error::Check(format!("{self} has no commands"))),
            false => Ok(found),
        }
    }

    fn parse(&self, text: &str) -> Result<Vec<Command>, Error> {
        let (mut found, mut open) = (Vec::new(), Fence::None);
        let mut inside = self.section.is_none();
        for (line, content) in (1..).zip(text.lines()) {
            match (&mut open, content.strip_prefix("```")) {
                (Fence::None, Some(info)) => open = self.fence(line, info)?,
                (Fence::None, None) => {
                    if let (Some(wanted), Some(heading)) = (self.section, content.strip_prefix("## ")) {
                        inside = heading == wanted;
                    }
                }
                (Fence::Commands(_, pending), Some(_)) => {
                    if let Some(Command { line, text, .. }) = pending {
                        return Err(self.wrong(*line, &format!("the command is incomplete: {text}")));
                    }
                    open = Fence::None;
                }
                (Fence::Other, Some(_)) => open = Fence::None,
                (Fence::Other, None) => {}
                (Fence::Commands(mark, pending), None) => {
                    if pending.is_none() && (content.trim().is_empty() || content.starts_with('#')) {
                        continue;
                    }
                    let command = match pending.take() {
                        Some(begun) => Command { text: format!("{}\n{content}", begun.text), ..begun },
                        None => Command { line, text: content.to_owned(), mark: mark.clone() },
                    };
                    match is_complete(&command.text)? {
                        true if inside => found.push(command),
                        true => {}
                        false => *pending = Some(command),
                    }
                }
            }
        }
        Ok(found)
    }

    fn fence(&self, line: usize, info: &str) -> Result<Fence, Error> {
        let Some(mark) = info.strip_prefix("sh").filter(|rest| rest.is_empty() || rest.starts_with(' ')) else {
            return Ok(Fence::Other);
        };
        let mark = match (mark.trim(), mark.trim().strip_prefix("skip:")) {
            ("run", _) => Mark::Run,
            ("install", _) => Mark::Install,
            (_, Some(why)) if !why.trim().is_empty() => Mark::Skip(why.trim().to_owned()),
            _ => return Err(self.wrong(line, "mark the block as `sh run`, `sh install` or `sh skip: REASON`")),
        };
        Ok(Fence::Commands(mark, None))
    }

    /// Return an error at a line.
    pub fn wrong(&self, line: usize, what: &str) -> Error {
        Error::Check(format!("{}:{line}: {what}", self.path))
    }
}

impl std::fmt::Display for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.section {
            Some(section) => write!(f, "{} (section {section:?})", self.path),
            None => f.write_str(self.path),
        }
    }
}

/// The block that is open.
enum Fence {
    None,
    /// Not of a terminal: output, TOML.
    Other,
    /// Its mark, and the lines of a command that goes on.
    Commands(Mark, Option<Command>),
}

/// Return whether the shell would run the text as it is, or read another line first.
fn is_complete(text: &str) -> Result<bool, Error> {
    if text.ends_with('\\') {
        return Ok(false);
    }
    let mut bash = Process::new("bash");
    bash.args(["-n", "-c", text]).stdin(Stdio::null());
    let checked = bash.output().map_err(|e| Error::Start("bash -n".to_owned(), e))?;
    // A here-document without its end is only a warning.
    Ok(checked.status.success() && checked.stderr.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A page

```sh install
make \\
  all
```

## One

```
output
```

```sh run
# a remark
cat <<END > f &&
text 'of the file
END
  cat f

sleep 9 &
```

## Two

```sh skip: needs a GPU
nvidia-smi
```
";

    fn of(section: Option<&'static str>) -> Vec<(usize, String, Mark)> {
        let commands = Document { path: "page.md", section }.parse(TEXT).unwrap();
        commands.into_iter().map(|Command { line, text, mark }| (line, text, mark)).collect()
    }

    #[test]
    fn commands_are_found_with_their_lines_and_marks() {
        let long = "cat <<END > f &&\ntext 'of the file\nEND\n  cat f".to_owned();
        let one = [(16, long, Mark::Run), (21, "sleep 9 &".to_owned(), Mark::Run)];
        assert_eq!(of(Some("One")), one);
        let all = of(None);
        assert_eq!(all.len(), 4);
        assert_eq!(all[0], (4, "make \\\n  all".to_owned(), Mark::Install));
        assert_eq!(all[3], (27, "nvidia-smi".to_owned(), Mark::Skip("needs a GPU".to_owned())));
    }

    #[test]
    fn what_is_not_marked_or_not_ended_is_an_error_with_its_line() {
        for (text, said) in [
            ("```sh\nls\n```\n", "page.md:1: mark the block"),
            ("```sh skip:\nls\n```\n", "page.md:1: mark the block"),
            ("\n```sh run\nls \\\n```\n", "page.md:3: the command is incomplete"),
        ] {
            let error = Document { path: "page.md", section: None }.parse(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
