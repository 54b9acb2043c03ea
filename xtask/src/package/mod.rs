//! Packages of a release, in `target/dist`: the Python wheel with the programs in it, a .deb, an .rpm, a container image, debug
//! information, bills of materials, and SHA256SUMS of all.

pub mod check;
mod containers;
mod image;
pub mod kubernetes;
pub mod release;
mod rpm;
pub mod upgrade;

use crate::python::{self, venv};
use crate::run::{Error, cargo, output, root, run, target};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What adds the programs to the wheel and a soname to the library.
const TOOLS: &str = include_str!("tools.txt");
/// Tools of cargo that make packages, with their versions.
const DEB: [&str; 2] = ["cargo-deb", "3.8.0"];
const MATERIALS: [&str; 2] = ["cargo-cyclonedx", "0.5.9"];
/// The programs in the wheel. The tool is the daemon, too: `kvtided` is a script, as a second copy would be a sixth of the wheel.
const WHEEL_PROGRAMS: [&str; 2] = ["kvtide", "kvtide-relay"];
const LIBRARY: &str = "libkvtide.so";
/// End of the name of the archive of debug information.
const DEBUG: &str = "-debug.tar.xz";
/// What has debug information in a file of its own.
const STRIPPED: [&str; 4] = ["kvtided", "kvtide", "kvtide-relay", LIBRARY];

/// Make packages: the named ones, or all.
pub fn make(words: &[&str]) -> Result<(), Error> {
    const ALL: [&str; 6] = ["wheel", "deb", "rpm", "image", "debug", "sbom"];
    if let Some(unknown) = words.iter().find(|word| !ALL.contains(word)) {
        return Err(Error::Usage(format!("package takes names of {}, not {unknown:?}", ALL.join(", "))));
    }
    let wanted = |name: &str| words.is_empty() || words.contains(&name);
    if wanted("image") && !wanted("deb") {
        only(&folder(), ".deb")?; // before a long build: the image is made from it
    }
    build()?;
    if wanted("wheel") {
        wheel()?;
    }
    if wanted("deb") {
        deb(None)?;
    }
    if wanted("rpm") {
        rpm::make()?;
    }
    if wanted("image") {
        image::make()?;
    }
    if wanted("debug") {
        debug_files()?;
    }
    if wanted("sbom") {
        materials()?;
    }
    sums()
}

/// Return the folder of the packages, which is also cargo's for the profile.
pub fn folder() -> PathBuf {
    target().join("dist")
}

/// Build what is shipped.
fn build() -> Result<(), Error> {
    let own = |packages: &[&str]| {
        let mut build = cargo();
        build.args(["build", "--profile", "dist", "--locked"]);
        packages.iter().for_each(|package| {
            build.args(["-p", package]);
        });
        run(&mut build)
    };
    own(&["kvtide-capi", "kvtide"])?;
    // On its own: a dependency of the relay turns features on that the others do not need.
    own(&["kvtide-relay"])?;
    STRIPPED.iter().try_for_each(|name| strip(name))
}

/// Move the debug information and symbols of a program or library to a file beside it, whose name it keeps. Cargo has another copy.
fn strip(name: &str) -> Result<(), Error> {
    let [built, debug, stripped] = ["", ".debug", ".stripped"].map(|ending| folder().join(format!("{name}{ending}")));
    let objcopy =
        |options: &[&str], from: &Path, to: &Path| run(Command::new("objcopy").args(options).args([from, to]));
    if !has_debug_information(&built)? {
        return Ok(()); // since the last time
    }
    objcopy(&["--only-keep-debug"], &built, &debug)?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    objcopy(&["--strip-all", &link], &built, &stripped)?;
    fs::rename(&stripped, &built).map_err(failed("rename", &stripped))
}

fn has_debug_information(program: &Path) -> Result<bool, Error> {
    let sections = output(Command::new("readelf").args(["--section-headers", "--wide"]).arg(program))?;
    Ok([".debug_line", ".symtab"].iter().any(|section| sections.contains(section)))
}

/// Pack the files that `strip` made.
fn debug_files() -> Result<(), Error> {
    remove(DEBUG)?;
    let archive = folder().join(format!("kvtide-{}{DEBUG}", env!("CARGO_PKG_VERSION")));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xz", "--owner=0", "--group=0", "--mtime=@315532800", "--file"]).arg(archive);
    run(tar.arg("--directory").arg(folder()).args(STRIPPED.map(|name| format!("{name}.debug"))))
}

fn failed(doing: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let doing = format!("{doing} {}", path.display());
    move |e| Error::Start(doing, e)
}

/// Return an empty folder below target/package.
fn scratch(name: &str) -> Result<PathBuf, Error> {
    let folder = target().join("package").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed("remove", &folder))?;
    }
    fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to).map(|_| ()).map_err(failed("copy", from))
}

/// Return the only entry of a folder whose name ends like this.
pub fn only(folder: &Path, ending: &str) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).map_err(failed("list", folder))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    match &paths[..] {
        [path] => Ok(path.clone()),
        _ => Err(Error::Check(format!(
            "{} has {} entries *{ending}, not one; cargo xtask package makes it",
            folder.display(),
            paths.len()
        ))),
    }
}

/// Remove earlier packages of a kind.
fn remove(ending: &str) -> Result<(), Error> {
    let folder = folder();
    for entry in fs::read_dir(&folder).map_err(failed("list", &folder))?.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().ends_with(ending) {
            fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Make the wheel that is shipped.
fn wheel() -> Result<PathBuf, Error> {
    let built = python::shipped_wheel()?;
    remove(".whl")?;
    pack(&built, &folder(), &folder())
}

/// Make a wheel of the programs of the release build, which is there.
pub fn unshipped_wheel() -> Result<PathBuf, Error> {
    pack(&python::wheel()?, &target().join("release"), &scratch("unshipped")?)
}

/// Make a wheel in the folder `to`: one of the Python package, with the programs in the folder `from` as its scripts, and the library
/// with its headers.
fn pack(built: &Path, from: &Path, to: &Path) -> Result<PathBuf, Error> {
    let tool = tools()?;
    let place = scratch("wheel")?;
    run(tool.module("wheel").arg("unpack").arg(built).arg("--dest").arg(&place))?;
    let content = only(&place, "")?;
    let name = content.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let scripts = content.join(format!("{name}.data/scripts"));
    let [library, include] = ["kvtide/lib", "kvtide/include"].map(|folder| content.join(folder));
    for folder in [&scripts, &library, &include] {
        fs::create_dir_all(folder).map_err(failed("create", folder))?;
    }
    let mut files = WHEEL_PROGRAMS.map(|program| scripts.join(program)).to_vec();
    let daemon = scripts.join("kvtided");
    fs::write(&daemon, "#!/bin/sh\nexec \"${0%/*}/kvtide\" daemon \"$@\"\n").map_err(failed("write", &daemon))?;
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).map_err(failed("make executable", &daemon))?;
    files.push(library.join(LIBRARY));
    for file in &files {
        copy(&from.join(file.file_name().unwrap_or_default()), file)?;
    }
    for header in ["kvtide.h", "kvtide_cuda.h", "kvtide_paged.h"] {
        copy(&root().join("ffi/include").join(header), &include.join(header))?;
    }
    run(tool.module("wheel").arg("pack").arg(&content).arg("--dest-dir").arg(to))?;
    let packed = only(to, ".whl")?;
    // The tag names the oldest glibc on which everything in it runs; the Python module alone may need an older one.
    files.push(only(&content.join("kvtide"), ".abi3.so")?);
    let tag = format!("manylinux_2_{}_{}", glibc(&files)?, std::env::consts::ARCH);
    run(tool.module("wheel").args(["tags", "--remove", "--platform-tag", &tag]).arg(&packed))?;
    only(to, ".whl")
}

/// Return the second number of the newest glibc that files need.
fn glibc(files: &[PathBuf]) -> Result<u32, Error> {
    let symbols = output(Command::new("objdump").arg("-T").args(files))?;
    let versions = symbols.split("GLIBC_2.").skip(1);
    let newest = versions.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).max();
    newest.ok_or_else(|| Error::Check("objdump shows no versions of glibc".to_owned()))
}

/// Write manual pages, completions, licences, the library and the file of pkg-config to target/package/share, where the packages' lists of
/// files find them.
fn share() -> Result<(), Error> {
    let place = scratch("share")?;
    let [man, completions] = ["man", "completions"].map(|name| place.join(name));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).map_err(failed("create", folder))?;
    }
    let program = |name: &str| Command::new(folder().join(name));
    run(program("kvtide").args(["man", "--dir"]).arg(&man))?;
    run(program("kvtide-relay").arg("--man").arg(&man))?;
    for shell in ["bash", "zsh", "fish"] {
        let text = output(program("kvtide").args(["completions", shell]))?;
        let path = completions.join(format!("kvtide.{shell}"));
        fs::write(&path, text).map_err(failed("write", &path))?;
    }
    let (version, path) = (env!("CARGO_PKG_VERSION"), place.join("kvtide.pc"));
    let module = format!(
        "Name: kvtide\nDescription: C interface of kvtide, for inference engines\nVersion: {version}\nLibs: -lkvtide\n"
    );
    fs::write(&path, module).map_err(failed("write", &path))?;
    licenses(&place.join("licenses.txt"))?;
    library(&place.join("lib"))
}

/// Write the library with a soname, so that programs ask for the ABI that they were linked with, and the file that `-lkvtide` finds.
fn library(place: &Path) -> Result<(), Error> {
    fs::create_dir_all(place).map_err(failed("create", place))?;
    let name = format!("{LIBRARY}.{}", release::abi()?);
    let (path, link) = (place.join(&name), place.join(LIBRARY));
    copy(&folder().join(LIBRARY), &path)?;
    run(Command::new(tools()?.binary("patchelf")).args(["--set-soname", &name]).arg(path))?;
    // A script of the linker, as glibc has: packages for rpm cannot have links.
    fs::write(&link, format!("INPUT({name})\n")).map_err(failed("write", &link))
}

/// Return the environment with the Python tools.
fn tools() -> Result<venv::Python, Error> {
    venv::environment("package", TOOLS, "")
}

/// Write the licences of all crates that are linked in, by crate, from their own files.
fn licenses(path: &Path) -> Result<(), Error> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}|{l}"]);
    for package in ["kvtide", "kvtide-capi", "kvtide-relay"] {
        tree.args(["-p", package]);
    }
    let listed = output(&mut tree)?;
    let mut crates: Vec<(&str, &str)> = listed.lines().filter_map(|line| line.split_once('|')).collect();
    crates.retain(|(name, _)| !name.contains(" (/")); // not ours
    crates.sort_unstable();
    crates.dedup();
    let sources = sources()?;
    let mut text = String::from(
        "kvtide contains these crates. Each is followed by its licence and the texts that it comes with.\n",
    );
    for (crate_, license) in crates {
        let folder = crate_.split(" (").next().unwrap_or_default().replacen(" v", "-", 1);
        text.push_str(&format!("\n==== {crate_}: {}\n", license.trim_end_matches(" (*)")));
        let Some(folder) = sources.iter().map(|source| source.join(&folder)).find(|folder| folder.is_dir()) else {
            return Err(Error::Check(format!("the source of {crate_} is not in cargo's registry")));
        };
        let entries = fs::read_dir(&folder).map_err(failed("list", &folder))?;
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let is_license = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            path.is_file() && ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|start| name.starts_with(start))
        };
        for file in files.into_iter().filter(is_license) {
            let bytes = fs::read(&file).map_err(failed("read", &file))?;
            text.push_str(&format!("\n{}\n", String::from_utf8_lossy(&bytes)));
        }
    }
    fs::write(path, text).map_err(failed("write", path))
}

/// Return the folders of unpacked crates.
fn sources() -> Result<Vec<PathBuf>, Error> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let folder = home.unwrap_or_default().join("registry/src");
    let entries = fs::read_dir(&folder).map_err(failed("list", &folder))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// Install a tool of cargo once below target/tools, and return a command that runs it.
fn tool([name, version]: [&str; 2]) -> Result<Command, Error> {
    let place = target().join("tools").join(format!("{name}-{version}"));
    let program = place.join("bin").join(name);
    if !program.exists() {
        let mut install = cargo();
        install.args(["install", "--quiet", "--locked", name, "--version", version, "--root"]).arg(&place);
        run(install.env("CARGO_TARGET_DIR", target().join("tools/build")))?;
        let built = target().join("tools/build");
        fs::remove_dir_all(&built).map_err(failed("remove", &built))?;
    }
    let mut command = Command::new(program);
    command.current_dir(root());
    Ok(command)
}

/// Make the .deb from what is built, with another version if given. Its list of files is in Cargo.toml.
pub fn deb(version: Option<&str>) -> Result<PathBuf, Error> {
    share()?;
    let mut deb = tool(DEB)?;
    deb.args(["--no-build", "--no-strip", "--locked", "--profile", "dist", "--quiet", "--output"]);
    let place = match version {
        Some(version) => scratch("deb").map(|place| (place, vec!["--deb-version", version])),
        None => remove(".deb").map(|()| (folder(), Vec::new())),
    };
    let (place, version) = place?;
    run(deb.arg(&place).args(version))?;
    only(&place, ".deb")
}

/// Write the bill of materials of each program, in the format CycloneDX.
fn materials() -> Result<(), Error> {
    let mut command = tool(MATERIALS)?;
    command.args(["cyclonedx", "--format", "json", "--override-filename", "bom.cdx", "--no-build-deps"]);
    run(command.env("SOURCE_DATE_EPOCH", "315532800"))?;
    // It writes one beside each package's Cargo.toml.
    for (package, name) in [(".", "kvtide"), ("src/relay", "kvtide-relay"), ("ffi/capi", "libkvtide")] {
        let made = root().join(package).join("bom.cdx.json");
        let text = fs::read_to_string(&made).map_err(failed("read", &made))?;
        // It names our packages by their folders on this machine.
        let (path, text) = (folder().join(format!("{name}.cdx.json")), text.replace(&root().display().to_string(), ""));
        fs::write(&path, text).map_err(failed("write", &path))?;
    }
    let listed = output(Command::new("git").args(["ls-files", "--others", "-z"]).current_dir(root()))?;
    for path in listed.split('\0').filter(|path| path.ends_with("bom.cdx.json")) {
        fs::remove_file(root().join(path)).map_err(failed("remove", Path::new(path)))?;
    }
    Ok(())
}

/// Write the checksums of all packages that are there, and print them.
fn sums() -> Result<(), Error> {
    let folder = folder();
    let entries = fs::read_dir(&folder).map_err(failed("list", &folder))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_package(name))
        .collect();
    names.sort();
    let sums = output(Command::new("sha256sum").args(&names).current_dir(&folder))?;
    let path = folder.join("SHA256SUMS");
    fs::write(&path, &sums).map_err(failed("write", &path))?;
    for name in &names {
        let bytes = fs::metadata(folder.join(name)).map_err(failed("read", &folder.join(name)))?.len();
        println!("{:6.1} MB  {}", bytes as f64 / 1e6, folder.join(name).display());
    }
    Ok(())
}

fn is_package(name: &str) -> bool {
    [".whl", ".deb", ".rpm", image::ENDING, DEBUG, ".cdx.json"].iter().any(|ending| name.ends_with(ending))
}
