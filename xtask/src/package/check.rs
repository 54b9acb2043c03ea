//! `e2e packages`: the packages of `cargo xtask package`, installed as users do.

use super::{DEBUG, LIBRARY, STRIPPED, deb, folder, glibc, has_debug_information, only, release, scratch};
use crate::machine::deploy::{self, Checks};
use crate::machine::terminal::Terminal;
use crate::machine::{Machine, inside};
use crate::run::{Error, output, root, run};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Second number of the oldest glibc on which packages run, as the documents say.
pub const GLIBC: u32 = 34;
/// A later version, to which the package is upgraded.
const NEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "+next");
/// A case: its name, and what it does.
pub type Case = (&'static str, fn() -> Result<Value, Error>);
pub const CASES: [Case; 5] = [
    ("wheel", wheel),
    ("deb", debian),
    ("rpm", super::rpm::check),
    ("image", super::containers::check),
    ("debug", debug),
];

/// Run the cases of `e2e COMMAND`, or the named one, after `build`; print a line for each, and fail if one failed.
pub fn run_cases(command: &str, cases: &[Case], build: fn() -> Result<(), Error>, words: &[&str]) -> Result<(), Error> {
    let (mut as_json, mut name) = (false, None);
    let mut rest = words.iter();
    while let Some(&word) = rest.next() {
        match word {
            "--json" => as_json = true,
            "--case" => name = rest.next().copied(),
            _ => return Err(Error::Usage(format!("e2e {command} takes --json and --case NAME, not {word:?}"))),
        }
    }
    let names: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = name.filter(|name| !names.contains(name)) {
        return Err(Error::Usage(format!("no case {unknown:?}; there are {}", names.join(", "))));
    }
    build()?;
    let (mut results, mut failed) = (Vec::new(), 0);
    for (case, check) in cases.iter().filter(|(case, _)| name.is_none_or(|name| name == *case)) {
        let began = Instant::now();
        let checked = check();
        failed += u32::from(checked.is_err());
        let mut line = json!({"name": case, "ok": checked.is_ok(), "seconds": began.elapsed().as_secs()});
        match checked {
            Ok(found) => line["found"] = found,
            Err(error) => line["why"] = error.to_string().into(),
        }
        if !as_json {
            println!("{line}");
        }
        results.push(line);
    }
    if as_json {
        println!("{}", json!({"cases": results}));
    }
    match failed {
        0 => Ok(()),
        _ => Err(Error::Check(format!("{failed} of {} cases failed", results.len()))),
    }
}

/// Install the wheel into an empty environment, start the daemon that is in it, and store and find a block.
fn wheel() -> Result<Value, Error> {
    let wheel = only(&folder(), ".whl")?;
    let place = scratch("installed")?;
    let python = place.join("bin/python");
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-index"]).arg(&wheel))?;
    let script = place.join("try.py");
    fs::write(&script, include_str!("try.py")).map_err(super::failed("write", &script))?;
    let tried = output(Command::new(&python).arg(&script).current_dir(&place).env_remove("KVTIDED"))?;
    let bytes = fs::metadata(&wheel).map_err(super::failed("read", &wheel))?.len();
    let scripts = super::WHEEL_PROGRAMS.map(|program| place.join("bin").join(program));
    let newest = glibc(&scripts)?;
    if newest > GLIBC {
        return Err(Error::Check(format!("the programs need glibc 2.{newest}; the documents say 2.{GLIBC}")));
    }
    Ok(json!({"bytes": bytes, "tried": tried.trim(), "glibc": format!("2.{newest}")}))
}

/// Find lines of the source in the debug information of each program, which names it and has none itself.
fn debug() -> Result<Value, Error> {
    let (archive, place) = (only(&folder(), DEBUG)?, scratch("debug")?);
    run(Command::new("tar").args(["--extract", "--file"]).arg(&archive).arg("--directory").arg(&place))?;
    for name in STRIPPED {
        let (program, file) = (folder().join(name), format!("{name}.debug"));
        let link = output(Command::new("readelf").arg("--string-dump=.gnu_debuglink").arg(&program))?;
        if has_debug_information(&program)? || !link.contains(&file) {
            return Err(Error::Check(format!("{name} is not stripped, or does not name {file}:\n{link}")));
        }
        let symbols = output(Command::new("nm").arg("--defined-only").arg(place.join(&file)))?;
        let ours = symbols.lines().filter(|line| line.contains("kvtide") && line.to_lowercase().contains(" t "));
        let addresses: Vec<&str> = ours.filter_map(|line| line.split(' ').next()).take(100).collect();
        let lines = output(Command::new("addr2line").arg("--exe").arg(place.join(&file)).args(addresses))?;
        if !lines.lines().any(|line| line.contains("/src/") && line.contains(".rs:")) {
            return Err(Error::Check(format!("{file} names no line of the source:\n{lines}")));
        }
    }
    let bytes = fs::metadata(&archive).map_err(super::failed("read", &archive))?.len();
    Ok(json!({"bytes": bytes}))
}

/// Compile the engine with what the .deb has for C, and return it.
fn linked(package: &Path) -> Result<PathBuf, Error> {
    let place = scratch("linked")?;
    run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&place))?;
    let (program, usr) = (place.join("engine"), place.join("usr"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-pthread", "-I"]).arg(usr.join("include")).arg("-L").arg(usr.join("lib"));
    run(cc.arg(root().join("xtask/src/machine/durable.c")).args(["-lkvtide", "-o"]).arg(&program))?;
    let needs = output(Command::new("objdump").arg("-p").arg(&program))?;
    let library = format!("{LIBRARY}.{}", release::abi()?);
    match needs.split_whitespace().any(|word| word == library) {
        true => Ok(program),
        false => Err(Error::Check(format!("a program that is linked with -lkvtide does not need {library}:\n{needs}"))),
    }
}

/// Install the .deb in a machine with a real systemd: the service runs at once, an engine of the group attaches, an upgrade keeps the
/// blocks, and removing and purging leave what they should.
fn debian() -> Result<Value, Error> {
    deploy::build()?;
    let package = only(&folder(), ".deb")?;
    let next = deb(Some(NEXT))?;
    let linked = linked(&package)?;
    let machine = Machine::boot()?;
    let mut bash = machine.command("bash");
    bash.args(["--noprofile", "--norc"]);
    let mut terminal = Terminal::start(bash)?;
    let mut checks = Checks::new(&mut terminal, deploy::LOG);
    let engine = |does: &str| {
        let program = deploy::engine();
        format!(
            "runuser -u infer -- env KVTIDE_TOKEN_FILE=/etc/kvtide/engines.token {program} /run/kvtide/kvtide.sock {does}"
        )
    };
    let found = ("found 64 of 64, 64 equal", 0);
    checks.expect("install", &format!("dpkg --install {}", inside(&package)), ("", 0))?;
    checks.expect("it runs at once", "systemctl is-active kvtided", ("active", 0))?;
    checks.expect("the relay does not", "systemctl is-active kvtide-relay", ("inactive", 3))?;
    checks.expect("the tool finds it", "kvtide status", ("serving", 0))?;
    checks.expect("its configuration is right", "kvtide config check /etc/kvtide/kvtided.toml", ("", 0))?;
    checks.expect("the user of an engine", "useradd --system --groups kvtide infer", ("", 0))?;
    checks.expect(
        "a user outside",
        "useradd --system outsider && runuser -u outsider -- cat /etc/kvtide/engines.token",
        ("denied", 1),
    )?;
    let disk = "printf '[tiers.host]\\ncapacity = \"256MiB\"\\n[[tiers.nvme.disks]]\\n\
        dir = \"/var/lib/kvtide/nvme0\"\\ncapacity = \"1GiB\"\\nreserve_free = 0\\n' >> \
        /etc/kvtide/kvtided.toml && systemctl restart kvtided";
    checks.expect("a disk", disk, ("", 0))?;
    checks.expect("an engine of the group stores", &engine("store"), ("stored 64", 0))?;
    let shared = engine("find").replace(&deploy::engine(), &inside(&linked));
    checks.expect("a program that is linked with the package's library", &shared, found)?;
    let directory = checks.output("stat -c %i /run/kvtide")?;
    checks.expect("upgrade", &format!("dpkg --install {}", inside(&next)), ("", 0))?;
    checks.expect("the new version runs", "systemctl is-active kvtided && dpkg -s kvtide", (NEXT, 0))?;
    checks.expect(
        "containers still see the directory of the socket",
        "stat -c %i /run/kvtide",
        (directory.trim(), 0),
    )?;
    checks.expect("the changed configuration stays", "grep nvme0 /etc/kvtide/kvtided.toml", ("nvme0", 0))?;
    checks.expect("found after the upgrade", &engine("find"), found)?;
    let security = "systemd-analyze security --no-pager kvtided | tail -1 | grep -oE '[0-9]+\\.[0-9]+'";
    let exposure = checks.output(security)?;
    if exposure.trim().parse::<f64>().map_or(true, |level| level > 1.5) {
        return Err(Error::Check(format!("systemd-analyze security: {exposure:?}, not at most 1.5")));
    }
    let bytes = checks.output("dpkg-query --show --showformat='${Installed-Size}' kvtide")?;
    checks.expect(
        "manual pages and completions",
        "ls /usr/share/man/man8/kvtided.8.gz /usr/share/bash-completion/completions/kvtide",
        ("", 0),
    )?;
    checks.expect(
        "remove",
        "dpkg --remove kvtide && ! systemctl is-active kvtided && test -d /var/lib/kvtide/nvme0",
        ("", 0),
    )?;
    checks.expect(
        "install again",
        &format!("dpkg --install {} && systemctl is-active kvtided", inside(&package)),
        ("active", 0),
    )?;
    checks.expect("found again", &engine("find"), found)?;
    checks.expect(
        "purge keeps data",
        "dpkg --purge kvtide && test -d /var/lib/kvtide/nvme0 && ! test -e /etc/kvtide",
        ("", 0),
    )?;
    let purge =
        "dpkg --install PACKAGE && KVTIDE_PURGE_DATA=yes dpkg --purge kvtide && ! test -e /var/lib/kvtide/nvme0";
    checks.expect("purge deletes data if told", &purge.replace("PACKAGE", &inside(&package)), ("", 0))?;
    Ok(json!({"passed": checks.passed, "exposure": exposure.trim(), "installed_kib": bytes.trim()}))
}
