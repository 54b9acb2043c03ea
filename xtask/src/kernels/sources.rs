//! The kernel sources and the committed PTX.

use crate::run::{Error, root};
use std::path::{Path, PathBuf};

/// One `kernels/cuda/NAME.cu`, which becomes `kernels/ptx/NAME.ptx`.
#[derive(Debug)]
pub struct Source {
    /// Name of the file without extension.
    pub name: String,
    /// Path of the source.
    pub path: PathBuf,
}

/// Return the folder of sources and headers.
pub fn folder() -> PathBuf {
    root().join("kernels/cuda")
}

fn ptx_folder() -> PathBuf {
    root().join("kernels/ptx")
}

/// Return the sources, largest first (they take longest); only the named ones if any are named.
pub fn list(only: &[String]) -> Result<Vec<Source>, Error> {
    let mut found: Vec<(u64, Source)> = files(&folder(), "cu")?
        .into_iter()
        .map(|(name, path)| (path.metadata().map_or(0, |m| m.len()), Source { name, path }))
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
    let names: Vec<String> = found.iter().map(|(_, s)| s.name.clone()).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
        return Err(Error::Usage(format!("no source kernels/cuda/{unknown}.cu; there are {}", names.join(", "))));
    }
    let sources: Vec<Source> =
        found.into_iter().map(|(_, s)| s).filter(|s| only.is_empty() || only.contains(&s.name)).collect();
    if sources.is_empty() {
        return Err(Error::Usage(format!("{} contains no kernel source", folder().display())));
    }
    Ok(sources)
}

/// Find PTX files without a source: remove them when writing, otherwise report them.
pub fn strays(sources: &[Source], write: bool) -> Result<Vec<String>, Error> {
    let mut complaints = vec![];
    for (name, path) in files(&ptx_folder(), "ptx")? {
        if sources.iter().any(|s| s.name == name) {
            continue;
        }
        if write {
            std::fs::remove_file(&path).map_err(|e| Error::Start(format!("remove {}", path.display()), e))?;
        } else {
            complaints.push(format!("kernels/ptx/{name}.ptx has no source: run cargo xtask kernels --write"));
        }
    }
    Ok(complaints)
}

impl Source {
    fn ptx_path(&self) -> PathBuf {
        ptx_folder().join(format!("{}.ptx", self.name))
    }

    /// Write the text to the committed file. Never reports a problem; it has the signature of [`Source::drift`].
    pub fn write_ptx(&self, text: &str) -> Result<Option<String>, Error> {
        let path = self.ptx_path();
        std::fs::create_dir_all(ptx_folder()).map_err(|e| Error::Start(format!("create {}", path.display()), e))?;
        std::fs::write(&path, text).map_err(|e| Error::Start(format!("write {}", path.display()), e))?;
        Ok(None)
    }

    /// Return the difference from the committed text, if there is one.
    pub fn drift(&self, text: &str) -> Option<String> {
        let name = &self.name;
        let committed = match std::fs::read_to_string(self.ptx_path()) {
            Ok(committed) => committed,
            Err(e) => return Some(format!("kernels/ptx/{name}.ptx: {e}: run cargo xtask kernels --write")),
        };
        let line = committed.lines().zip(text.lines()).position(|(a, b)| a != b);
        let line = line.unwrap_or(committed.lines().count().min(text.lines().count())) + 1;
        (committed != text).then(|| {
            format!(
                "kernels/ptx/{name}.ptx is not what kernels/cuda/{name}.cu gives, from line {line} on: \
                 run cargo xtask kernels --write"
            )
        })
    }
}

/// Return names and paths of the files in a folder with an extension, sorted by name.
fn files(folder: &Path, ending: &str) -> Result<Vec<(String, PathBuf)>, Error> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(Error::Start(format!("list {}", folder.display()), e)),
    };
    let mut found: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .filter_map(|path| Some((path.file_stem()?.to_str()?.to_string(), path)))
        .collect();
    found.sort();
    Ok(found)
}
