//! `[daemon]` and `[http]`.

use crate::config::ConfigError;
use crate::config::raw::{RawDaemon, RawHttp};
use crate::config::size::ByteSize;
use crate::config::sourced::File;
use crate::config::{Daemon, Http, Overrides, defaults};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

pub(super) fn daemon(file: File<'_>, raw: RawDaemon, overrides: &Overrides) -> Result<Daemon, ConfigError> {
    let dir = file.field("daemon.dir", raw.dir, PathBuf::from(defaults::DIR)).or_flag("--dir", overrides.dir.clone());
    let default_socket = if dir.is_default() { PathBuf::from(defaults::SOCKET) } else { dir.value.join("kvtide.sock") };
    let socket = file.field("daemon.socket", raw.socket, default_socket).or_flag("--socket", overrides.socket.clone());
    if socket.value.as_os_str().as_bytes().len() > defaults::SOCKET_PATH_BYTES_MAX {
        return Err(file.value(&socket, format_args!("a path of at most {} bytes", defaults::SOCKET_PATH_BYTES_MAX)));
    }
    let mode = file.field("daemon.socket_mode", raw.socket_mode, defaults::SOCKET_MODE.to_owned());
    let socket_mode = u32::from_str_radix(&mode.value, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| file.value(&mode, "an octal string from \"0000\" to \"0777\""))?;
    let log = file.field("daemon.log", raw.log, defaults::LOG.to_owned());
    if let Err(error) = log.value.parse::<EnvFilter>() {
        return Err(file.value(
            &log,
            format_args!("a level or directives such as \"info\" or \"warn,kvtide_daemon=debug\" ({error})"),
        ));
    }
    let spin_us = file.field("daemon.spin_us", raw.spin_us, defaults::SPIN_US);
    let drain_ms = file.field("daemon.drain_ms", raw.drain_ms, defaults::DRAIN_MS);
    let handshake_ms = file.field("daemon.handshake_ms", raw.handshake_ms, defaults::HANDSHAKE_MS);
    let recorder = file.field("daemon.recorder", raw.recorder, ByteSize(defaults::RECORDER));
    Ok(Daemon {
        socket: socket.value,
        socket_mode,
        dir: dir.value,
        log: log.value,
        spin: Duration::from_micros(file.in_range(&spin_us, &defaults::SPIN_US_RANGE)?),
        drain: Duration::from_millis(file.in_range(&drain_ms, &defaults::DRAIN_MS_RANGE)?),
        recorder_bytes: file.in_range(&recorder.map(|size| size.0), &defaults::RECORDER_RANGE)?,
        handshake: Duration::from_millis(file.in_range(&handshake_ms, &defaults::HANDSHAKE_MS_RANGE)?),
    })
}

pub(super) fn http(file: File<'_>, raw: RawHttp, overrides: &Overrides) -> Result<Http, ConfigError> {
    let listen = file
        .field("http.listen", raw.listen, defaults::HTTP_LISTEN.to_owned())
        .or_flag("--http", overrides.http.clone());
    if listen.value.is_empty() {
        return Ok(Http { listen: None });
    }
    match listen.value.parse::<SocketAddr>() {
        Ok(address) => Ok(Http { listen: Some(address) }),
        Err(_) => Err(file.value(
            &listen,
            "an address and a port such as \"127.0.0.1:9417\" or \"[::1]:9417\", or \"\" to disable HTTP",
        )),
    }
}
