//! Check that the open file or device is still the one at its path. A deleted or replaced file still works, but a restart cannot
//! find it.

use super::FILE;
use crate::settings::{Place, Settings};
use rustix::fs::{FileType, fstat, lstat, stat};
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// An open store and its path.
#[derive(Debug)]
pub(crate) struct Presence {
    file: Arc<File>,
    path: PathBuf,
    device: bool,
}

/// Reason why a restart would not find the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It is not at its path. Fields: an error number for it, and the event with its remedy.
    Gone(i32, String),
    /// The check itself failed.
    Unknown(Errno),
}

impl Presence {
    /// Create the check for a disk's open file.
    pub fn new(settings: &Settings, file: &Arc<File>) -> Presence {
        let (path, device) = match &settings.place {
            Place::Dir(dir) => (dir.join(FILE), false),
            Place::Device(path) => (path.clone(), true),
        };
        Presence { file: Arc::clone(file), path, device }
    }

    /// Check the path; blocks while the file system does not respond.
    pub fn look(&self) -> Result<(), Absence> {
        let open = fstat(&*self.file).map_err(Absence::Unknown)?;
        // A link to a device is created by the system (`/dev/disk/by-id`); a file was opened without following links.
        let named = if self.device { stat(&self.path) } else { lstat(&self.path) };
        let path = self.path.display();
        match named {
            Ok(named) if self.device => {
                let device = FileType::from_raw_mode(named.st_mode) == FileType::BlockDevice;
                if device && named.st_rdev == open.st_rdev {
                    return Ok(());
                }
                let text =
                    format!("another device is at its path, {path}: put the right one back and restart the daemon");
                Err(Absence::Gone(libc::ESTALE, text))
            }
            Ok(named) if (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino) => Ok(()),
            Ok(_) => {
                let text =
                    format!("another file is at its path, {path}: put the right one back and restart the daemon");
                Err(Absence::Gone(libc::ESTALE, text))
            }
            Err(Errno::NOENT | Errno::NOTDIR) if !self.device && open.st_nlink == 0 => {
                let text =
                    format!("{path} was deleted and its blocks are lost: restart the daemon, which creates a new one");
                Err(Absence::Gone(libc::ENOENT, text))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let text = format!(
                    "{path} is not at its path any more: it was renamed, its file system was unmounted, or another one \
                     was mounted over it; put it back and restart the daemon"
                );
                Err(Absence::Gone(libc::ENOENT, text))
            }
            Err(errno) => Err(Absence::Unknown(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new() -> Dir {
            let dir = Dir(tempfile::tempdir().unwrap());
            fs::create_dir(dir.disk()).unwrap();
            dir
        }

        fn disk(&self) -> PathBuf {
            self.0.path().join("disk")
        }

        /// Open a store in it.
        fn store(&self) -> Presence {
            let place = Place::Dir(self.disk());
            let file = File::create(self.disk().join(FILE)).unwrap();
            Presence::new(&Settings { place, ..Settings::default() }, &Arc::new(file))
        }
    }

    fn gone(presence: &Presence) -> (i32, String) {
        match presence.look() {
            Err(Absence::Gone(errno, why)) => (errno, why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_is_told_from_one_that_is_deleted_renamed_or_replaced() {
        let dir = Dir::new();
        let (presence, away) = (dir.store(), dir.0.path().join("away"));
        assert_eq!(presence.look(), Ok(()));
        fs::rename(dir.disk(), &away).unwrap();
        let (errno, why) = gone(&presence);
        assert!(errno == libc::ENOENT && why.contains("kvtide.store is not at its path any more"), "{why}");
        fs::write(dir.disk(), "a file where the directory was").unwrap();
        assert!(gone(&presence).1.contains("is not at its path any more"));
        fs::remove_file(dir.disk()).unwrap();
        fs::rename(&away, dir.disk()).unwrap();
        assert_eq!(presence.look(), Ok(()), "the file is back");
        fs::copy(dir.disk().join(FILE), dir.0.path().join("copy")).unwrap();
        fs::rename(dir.0.path().join("copy"), dir.disk().join(FILE)).unwrap();
        let (errno, why) = gone(&presence);
        assert!(errno == libc::ESTALE && why.contains("another file is at its path"), "{why}");
        fs::remove_dir_all(dir.disk()).unwrap();
        let (errno, why) = gone(&presence);
        assert!(errno == libc::ENOENT && why.contains("kvtide.store was deleted"), "{why}");
    }

    #[test]
    fn a_store_under_a_mount_is_gone_until_that_is_gone() {
        let dir = Dir::new();
        let presence = dir.store();
        fs::create_dir(dir.0.path().join("other")).unwrap();
        let run =
            |program: &str, args: &[&Path]| Command::new(program).args(args).status().is_ok_and(|it| it.success());
        if !run("mount", &[Path::new("--bind"), &dir.0.path().join("other"), &dir.disk()]) {
            let must = std::env::var_os("KVTIDE_NO_SKIP").is_some();
            assert!(!must, "a_store_under_a_mount_is_gone_until_that_is_gone needs permission to mount");
            eprintln!("SKIPPED a_store_under_a_mount_is_gone_until_that_is_gone: needs permission to mount");
            return;
        }
        let looked = presence.look();
        assert!(run("umount", &[&dir.disk()]));
        assert!(
            matches!(&looked, Err(Absence::Gone(libc::ENOENT, why)) if why.contains("mounted over it")),
            "{looked:?}"
        );
        assert_eq!(presence.look(), Ok(()));
    }

    #[test]
    fn a_device_is_known_by_its_number() {
        let file = Arc::new(File::open("/dev/null").unwrap());
        let of = |path: &str| Presence { file: Arc::clone(&file), path: path.into(), device: true };
        assert!(gone(&of("/dev/zero")).1.contains("another device is at its path, /dev/zero"));
        assert!(gone(&of("/dev/kvtide-is-not-there")).1.contains("is not at its path any more"));
    }
}
