//! Reasons on this machine for which the daemon cannot start. The start calls this before it changes anything, and `kvtide config check`, `kvtided --check` and
//! `kvtide doctor` call it too, so all of them say the same.

use super::disks;
use crate::attach::{self, Tokens};
use crate::config::{Config, Disk, KeySource, Machine};
use crate::error::Error;
use crate::host;
use crate::http;
use kvtide_nvme::DiskError;
use kvtide_wire::os::socket::why_open;
use rustix::fs::{Access, access};
use std::fs;
use std::io;
use std::path::Path;

/// An obstacle to the start.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// Its key in the configuration.
    pub key: String,
    /// The error with which the start fails.
    pub error: Error,
    /// It depends on the user or the environment of this process, which may differ from those of the daemon.
    pub is_own: bool,
}

/// Return the obstacles, in the order in which the start meets them. Nothing is created or changed.
pub(crate) fn obstacles(config: &Config, machine: &Machine) -> Vec<Obstacle> {
    let mut all = Vec::new();
    let mut put = |key: &str, result: Result<(), Error>| {
        if let Err(error) = result {
            let is_own = is_own(config, &error);
            all.push(Obstacle { key: key.to_owned(), error, is_own });
        }
    };
    let capacity = machine.holds(&config.tiers.host).map_err(Error::from);
    put("tiers.host.capacity", capacity.and_then(|()| host::check(&config.tiers.host, machine)));
    put("daemon.dir", creatable(&config.daemon.dir, "create the daemon's directory"));
    put("http.listen", config.http.listen.map_or(Ok(()), http::check));
    let collector = config.tracing.endpoint.as_deref().map_or(Ok(()), kvtide_trace::check);
    put("tracing.endpoint", collector.map_err(|error| Error::system("export traces", error)));
    let mut unread = false;
    for domain in &config.domains {
        for (field, files) in [("tokens", &domain.tokens), ("relay_tokens", &domain.relay_tokens)] {
            for file in files {
                let read = attach::read_token(file).map(drop);
                unread |= read.is_err();
                put(&format!("domains[{}].{field}", domain.name), read);
            }
        }
    }
    if !unread {
        // Two files with the same token.
        put("domains", Tokens::load(&config.domains).map(drop));
    }
    put("http.token_file", http::access(config).map(drop));
    let socket = &config.daemon.socket;
    if let Some(dir) = socket.parent().filter(|dir| !dir.as_os_str().is_empty() && *dir != config.daemon.dir) {
        put("daemon.socket", creatable(dir, "create the socket directory"));
    }
    put("daemon.socket", attach::check(socket).and_then(|()| attach::check_path(&http::socket_beside(socket))));
    for obstacle in disks::check(config).into_iter().filter(|obstacle| obstacle.stops) {
        let Some(disk) = config.tiers.nvme.disks.get(obstacle.index) else { continue };
        put(&key_of(obstacle.index, disk, config, &obstacle.error), Err(obstacle.error.into()));
    }
    all
}

/// Return the key that a disk's error is about.
fn key_of(index: usize, disk: &Disk, config: &Config, error: &DiskError) -> String {
    let field = match error {
        DiskError::TooLarge { .. } | DiskError::DeviceTooSmall { .. } | DiskError::Layout { .. } => "capacity",
        DiskError::Keys { .. } => {
            let credential = matches!(config.tiers.nvme.encryption.source(), KeySource::Credential(_));
            return format!("tiers.nvme.encryption.{}", if credential { "name" } else { "path" });
        }
        _ => disk.place().key(),
    };
    format!("tiers.nvme.disks[{index}].{field}")
}

fn is_own(config: &Config, error: &Error) -> bool {
    let denied = |source: &io::Error| matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    match error {
        Error::Disk(DiskError::Owner { .. }) => true,
        Error::Disk(DiskError::Keys { .. }) => {
            let credential = matches!(config.tiers.nvme.encryption.source(), KeySource::Credential(_));
            credential && std::env::var_os("CREDENTIALS_DIRECTORY").is_none()
        }
        // It belongs to another user, perhaps the daemon's.
        Error::File { action: attach::USE_DIR, path, .. } => {
            fs::metadata(path).is_ok_and(|found| why_open(path, &found).is_none())
        }
        Error::Disk(DiskError::Os { source, .. }) | Error::File { source, .. } | Error::Http { source, .. } => {
            denied(source)
        }
        _ => false,
    }
}

/// Check that a directory exists, or that it and its missing parents can be created.
fn creatable(dir: &Path, action: &'static str) -> Result<(), Error> {
    let failed = |source| Error::File { action, path: dir.into(), source };
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(failed(io::Error::from_raw_os_error(libc::EEXIST))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let stands = dir.ancestors().skip(1).find(|dir| dir.exists()).unwrap_or(Path::new("."));
    if !stands.is_dir() && !stands.as_os_str().is_empty() {
        return Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    access(stands, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| failed(errno.into()))
}

#[cfg(test)]
mod tests;
