//! `e2e packages`: the packages of `cargo xtask package`, installed as users do.

use super::{deb, folder, glibc, only, scratch};
use crate::quickstart::deploy::{self, Checks};
use crate::quickstart::machine::{Machine, inside};
use crate::quickstart::terminal::Terminal;
use crate::run::{Error, output, run};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Instant;

/// A case: its name, and what it does.
type Case = (&'static str, fn() -> Result<Value, Error>);
const CASES: [Case; 2] = [("wheel", wheel), ("deb", debian)];

/// Run the cases, or the named one; print a line for each, and fail if one failed.
pub fn run_cases(words: &[&str]) -> Result<(), Error> {
    let (mut as_json, mut name) = (false, None);
    let mut rest = words.iter();
    while let Some(&word) = rest.next() {
        match word {
            "--json" => as_json = true,
            "--case" => name = rest.next().copied(),
            _ => return Err(Error::Usage(format!("e2e packages takes --json and --case NAME, not {word:?}"))),
        }
    }
    let names = CASES.map(|(name, _)| name);
    if let Some(unknown) = name.filter(|name| !names.contains(name)) {
        return Err(Error::Usage(format!("no case {unknown:?}; there are {}", names.join(", "))));
    }
    let (mut results, mut failed) = (Vec::new(), 0);
    for (case, check) in CASES.iter().filter(|(case, _)| name.is_none_or(|name| name == *case)) {
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
    let scripts = super::PROGRAMS.map(|program| place.join("bin").join(program));
    Ok(json!({"bytes": bytes, "tried": tried.trim(), "glibc": format!("2.{}", glibc(&scripts)?)}))
}

/// Install the .deb in a machine with a real systemd: the service runs at once, an engine of the group attaches, an upgrade keeps the
/// blocks, and removing and purging leave what they should.
fn debian() -> Result<Value, Error> {
    deploy::build()?;
    let package = only(&folder(), ".deb")?;
    let next = deb(Some("0.1.0+next"))?;
    let machine = Machine::boot()?;
    let mut bash = machine.command("bash");
    bash.args(["--noprofile", "--norc"]);
    let mut terminal = Terminal::start(bash)?;
    let mut checks = Checks::new(&mut terminal);
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
    let disk = "printf '[[tiers.nvme.disks]]\\ndir = \"/var/lib/kvtide/nvme0\"\\ncapacity = \"1GiB\"\\nreserve_free = 0\\n' >> \
        /etc/kvtide/kvtided.toml && systemctl restart kvtided";
    checks.expect("a disk", disk, ("", 0))?;
    checks.expect("an engine of the group stores", &engine("store"), ("stored 64", 0))?;
    checks.expect("upgrade", &format!("dpkg --install {}", inside(&next)), ("", 0))?;
    checks.expect("the new version runs", "systemctl is-active kvtided && dpkg -s kvtide", ("0.1.0+next", 0))?;
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
