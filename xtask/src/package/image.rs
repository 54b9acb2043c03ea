//! The container image: an OCI archive, made from the .deb and the few Debian packages that the programs need. It needs root,
//! mmdebstrap and buildah; no registry of images.

use super::{failed, folder, only, remove, scratch};
use crate::machine::RELEASE;
use crate::run::{Error, output, root, run};
use std::path::PathBuf;
use std::process::Command;

/// Debian packages of which the image has files (configs/packages/image). They are unpacked, not installed.
const PACKAGES: &str = "base-files,ca-certificates,libc6,libgcc-s1";

/// Make the image from the .deb.
pub fn make() -> Result<PathBuf, Error> {
    let deb = only(&folder(), ".deb")?;
    let place = scratch("image")?;
    let [debian, content, storage] = ["debian", "root", "storage"].map(|name| place.join(name));
    let mut unpack = Command::new("mmdebstrap");
    unpack.args(["--quiet", "--variant=extract", &format!("--include={PACKAGES}"), RELEASE]).arg(&debian);
    run(&mut unpack)?;
    run(Command::new(root().join("configs/packages/image")).arg(&debian).arg(deb).arg(&content))?;
    let buildah = |words: &[&str]| {
        let mut command = Command::new("buildah");
        // A storage of its own, which goes with the folder.
        command.arg("--root").arg(&storage).arg("--runroot").arg(storage.join("run"));
        command.args(["--storage-driver", "vfs"]).args(words);
        command
    };
    let container = output(&mut buildah(&["from", "scratch"]))?.trim().to_owned();
    // A folder would lose its owners.
    let tar = place.join("root.tar");
    run(Command::new("tar")
        .arg("-C")
        .arg(&content)
        .args(["--sort=name", "--mtime=@0", "--numeric-owner", "-cf"])
        .arg(&tar)
        .arg("."))?;
    run(buildah(&["add", "--quiet", &container]).arg(&tar).arg("/"))?;
    let version = env!("CARGO_PKG_VERSION");
    run(&mut buildah(&[
        "config",
        "--user=900:900",
        "--workingdir=/",
        "--entrypoint=[\"/usr/bin/kvtided\"]",
        "--cmd=--config /etc/kvtide/kvtided.toml",
        "--stop-signal=SIGTERM",
        "--label=org.opencontainers.image.title=kvtide",
        "--label=org.opencontainers.image.licenses=Apache-2.0",
        concat!("--label=org.opencontainers.image.source=", env!("CARGO_PKG_REPOSITORY")),
        concat!("--label=org.opencontainers.image.version=", env!("CARGO_PKG_VERSION")),
        &container,
    ]))?;
    remove(ENDING)?;
    let image = folder().join(format!("kvtide-{version}{ENDING}"));
    let archive = format!("oci-archive:{}:kvtide:{version}", image.display());
    // The time is that of no build, so that equal contents give an equal image.
    run(&mut buildah(&[
        "commit",
        "--quiet",
        "--rm",
        "--format=oci",
        "--timestamp=0",
        "--disable-compression=false",
        &container,
        &archive,
    ]))?;
    std::fs::remove_dir_all(&place).map_err(failed("remove", &place))?;
    Ok(image)
}

/// End of the archive's name.
pub const ENDING: &str = ".oci.tar";
