//! The relay's configuration: one TOML file. configs/relay.toml describes each key.

mod events;

pub use events::{Address, Events, Mode, STREAMS_MAX};

use crate::error::Error;
use crate::name::SharedKey;
use kvtide_wire::hello::Token;
use kvtide_wire::os::token::Unusable;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum domains: the daemon lets 16 relays watch.
const DOMAINS_MAX: usize = 16;
/// Maximum bytes of a file with a shared key.
const KEY_BYTES_MAX: u64 = 4096;
/// Permission bits that a file with a secret must not have: any for others, write for the group.
const FORBIDDEN_MODE: u32 = 0o027;

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The daemon.
    #[serde(default)]
    pub daemon: Daemon,
    /// The domains of the daemon that this relay serves.
    pub domains: Vec<Domain>,
    /// Where blocks are kept.
    pub store: Store,
    /// Rules for copies to the store.
    #[serde(default)]
    pub copy_out: CopyOut,
    /// HTTP: metrics, recalls, tokens.
    #[serde(default)]
    pub http: Http,
    /// Traces of engines' questions.
    #[serde(default)]
    pub tracing: Tracing,
}

/// `[daemon]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Socket of the daemon.
    pub socket: PathBuf,
}

impl Default for Daemon {
    fn default() -> Daemon {
        Daemon { socket: "/run/kvtide/kvtide.sock".into() }
    }
}

/// One of `[[domains]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Its name. Relays that share have the same.
    pub name: String,
    /// File with the key that all relays which share have in common: 64 hexadecimal digits.
    pub shared_key_file: PathBuf,
    /// Encrypt blocks in the store.
    #[serde(default = "yes")]
    pub encrypt: bool,
    /// File with the token of a relay of this domain; without one the relay's uid decides.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// The socket where its engines ask; none without this table.
    #[serde(default)]
    pub adapters: Option<Adapters>,
    /// KV events for routers; off without this table.
    #[serde(default)]
    pub events: Option<Events>,
    /// Its line in the file.
    #[serde(skip)]
    pub line: usize,
}

/// `[store]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// `s3://`, `gs://`, `az://`, `file://`, `redis://` or `rediss://`.
    pub url: String,
    /// Options of an object store, such as `aws_endpoint`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The URL is that of a node of a Valkey or Redis cluster.
    #[serde(default)]
    pub cluster: bool,
    /// Seconds after which Valkey or Redis deletes a run that was not read. Object stores have their own rules for that.
    #[serde(default = "week")]
    pub ttl_s: u64,
    /// Maximum milliseconds of one request.
    #[serde(default = "two_seconds")]
    pub deadline_ms: u64,
    /// Maximum MiB of all requests and answers at a time.
    #[serde(default = "in_flight")]
    pub in_flight_mib: u32,
    /// Maximum KiB of the blocks in an object; by default 4,096 for Valkey and Redis and 8,192 for object stores.
    #[serde(default)]
    pub object_kib: Option<u32>,
}

/// `[copy_out]`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CopyOut {
    /// When a prefix is copied to the store.
    pub when: When,
    /// Maximum bytes that are written to the store in a day.
    pub bytes_per_day: Option<u64>,
    /// Maximum requests to the store in a day to copy runs there.
    pub requests_per_day: Option<u64>,
}

/// When a prefix is copied to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// When it is used for the second time: computed once, then found by another request.
    #[default]
    SecondUse,
    /// When it is stored.
    Stored,
    /// Never: this relay only brings blocks in.
    Never,
}

/// `[domains.adapters]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapters {
    /// Where it listens: `relay_socket` of the daemon's domain.
    #[serde(default = "adapters_socket")]
    pub socket: PathBuf,
    /// User ids of engines that may ask.
    #[serde(default)]
    pub uids: Vec<u32>,
    /// Token files: an engine with such a token may ask, whatever its uid.
    #[serde(default)]
    pub tokens: Vec<PathBuf>,
}

fn adapters_socket() -> PathBuf {
    "/run/kvtide-relay/relay.sock".into()
}

/// `[http]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address. Metrics and health need no authentication.
    pub listen: SocketAddr,
    /// File with the operator's token, which recalls and notes need; without one they are refused.
    pub token_file: Option<PathBuf>,
}

impl Default for Http {
    fn default() -> Http {
        Http { listen: SocketAddr::from(([127, 0, 0, 1], 9418)), token_file: None }
    }
}

/// `[tracing]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Base URL of an OpenTelemetry collector; empty for none.
    endpoint: String,
}

impl Tracing {
    /// Return the endpoint, if there is one.
    pub fn endpoint(&self) -> Option<&str> {
        Some(self.endpoint.as_str()).filter(|endpoint| !endpoint.is_empty())
    }
}

/// Read a token file, if only root, this user and the file's group can read or write it.
pub(crate) fn read_token(path: &Path) -> Result<Token, Error> {
    kvtide_wire::os::token::read_file(path).map_err(|error| Error::Token { path: path.into(), why: error.to_string() })
}

fn yes() -> bool {
    true
}

fn week() -> u64 {
    7 * 24 * 3600
}

fn two_seconds() -> u64 {
    2000
}

fn in_flight() -> u32 {
    256
}

impl Config {
    /// Read a file.
    ///
    /// # Errors
    /// It cannot be read, it has a secret and others have access to it, or a key or value is wrong; the message names the line.
    pub fn read(path: &Path) -> Result<Config, Error> {
        let failed = |source| Error::File { action: "read the configuration", path: path.into(), source };
        let mut file = std::fs::File::open(path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let config = Config::parse(path, &text)?;
        let found = file.metadata().map_err(failed)?;
        let (mode, owner) = (found.mode() & 0o777, found.uid());
        if let (Some(key), false) = (config.store.secret(), [0, rustix::process::geteuid().as_raw()].contains(&owner)) {
            let why =
                format!("{key} is a secret, and the file is owned by uid {owner}: it must be root or the relay's user");
            return Err(Error::Config { path: path.into(), why });
        }
        if let (Some(key), true) = (config.store.secret(), mode & FORBIDDEN_MODE != 0) {
            let why = format!(
                "{key} is a secret, and mode {mode:04o} gives access to others. Run: chmod 0640 {}",
                path.display()
            );
            return Err(Error::Config { path: path.into(), why });
        }
        Ok(config)
    }

    /// Parse the text of a file.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, Error> {
        let wrong = |why: String| Error::Config { path: path.into(), why };
        let mut config: Config = toml::from_str(text).map_err(|error| wrong(described(text, &error)))?;
        let bounds = [
            ("store.ttl_s", config.store.ttl_s, 60..=366 * 24 * 3600),
            ("store.deadline_ms", config.store.deadline_ms, 10..=60_000),
            ("store.in_flight_mib", config.store.in_flight_mib.into(), 1..=65_536),
            ("store.object_kib", config.store.object_kib.unwrap_or(64).into(), 64..=65_536),
            ("copy_out.bytes_per_day", config.copy_out.bytes_per_day.unwrap_or(1 << 20), 1 << 20..=1 << 60),
            ("copy_out.requests_per_day", config.copy_out.requests_per_day.unwrap_or(24), 24..=1 << 40),
        ];
        let collector = config.tracing.endpoint().map_or(Ok(()), kvtide_trace::check_url);
        collector.map_err(|expected| wrong(format!("tracing.endpoint: expected {expected}")))?;
        for (key, value, bounds) in bounds {
            if !bounds.contains(&value) {
                return Err(wrong(format!("{key} = {value}: expected {} to {}", bounds.start(), bounds.end())));
            }
        }
        let tables: Tables = toml::from_str(text).map_err(|error| wrong(described(text, &error)))?;
        for (domain, table) in config.domains.iter_mut().zip(&tables.domains) {
            domain.line = text[..table.span().start].matches('\n').count() + 1;
        }
        check_domains(&config.domains).map_err(wrong)?;
        events::check(&config.domains).map_err(wrong)?;
        Ok(config)
    }

    /// Read the shared keys of all domains of the file at `path`.
    ///
    /// # Errors
    /// One cannot be used, or two domains have the same: their blocks must not be readable with one key.
    pub fn shared_keys(&self, path: &Path) -> Result<Vec<SharedKey>, Error> {
        let mut keys: Vec<SharedKey> = Vec::new();
        for domain in &self.domains {
            let key = domain.shared_key()?;
            if let Some(same) = keys.iter().position(|known| *known == key) {
                let (line, name, other) = (domain.line, &domain.name, &self.domains[same].name);
                let why = format!(
                    "line {line}: domain {name:?} has the shared key of domain {other:?}; make one for each: openssl rand -hex 32"
                );
                return Err(Error::Config { path: path.into(), why });
            }
            keys.push(key);
        }
        Ok(keys)
    }
}

/// Return the text of an error with its line. It quotes neither the line nor a string of a wrong type: they can have a secret.
fn described(text: &str, error: &toml::de::Error) -> String {
    let line = text[..error.span().map_or(0, |span| span.start)].matches('\n').count() + 1;
    let message = error.message();
    let message = match (message.split_once("string \""), message.rsplit_once("\", expected ")) {
        (Some((before, _)), Some((_, expected))) => format!("{before}string, expected {expected}"),
        _ => message.to_owned(),
    };
    format!("line {line}: {message}")
}

/// The places of the domains in the file.
#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    domains: Vec<toml::Spanned<serde::de::IgnoredAny>>,
}

fn check_domains(domains: &[Domain]) -> Result<(), String> {
    if domains.is_empty() || domains.len() > DOMAINS_MAX {
        return Err(format!("domains: {} of them, expected 1 to {DOMAINS_MAX}", domains.len()));
    }
    for (at, domain) in domains.iter().enumerate() {
        let (line, name) = (domain.line, &domain.name);
        if name.is_empty() {
            return Err(format!("line {line}: domains.name: expected the name of one of the daemon's domains"));
        }
        if domain.adapters.as_ref().is_some_and(|adapters| adapters.uids.is_empty() && adapters.tokens.is_empty()) {
            let expected = "expected uids or tokens: without them no engine may ask";
            return Err(format!("line {line}: domain {name:?}: [domains.adapters]: {expected}"));
        }
        let Some(other) =
            domains[..at].iter().find(|other| other.name == *name || other.token_file == domain.token_file)
        else {
            continue;
        };
        return Err(match (&domain.token_file, other.name == *name) {
            (_, true) => format!("line {line}: a second domain {name:?}; each has a name of its own"),
            (Some(file), _) => {
                format!(
                    "line {line}: domain {name:?} has the token file of domain {:?}, {}",
                    other.name,
                    file.display()
                )
            }
            (None, _) => format!(
                "line {line}: domain {name:?} has no token_file, and neither has domain {:?}; the user id can stand for one domain only",
                other.name
            ),
        });
    }
    Ok(())
}

impl Domain {
    /// Read the shared key.
    ///
    /// # Errors
    /// It cannot be read, others have access to it, or it is no key.
    pub fn shared_key(&self) -> Result<SharedKey, Error> {
        let path = &self.shared_key_file;
        let failed = |source| Error::File { action: "read the shared key", path: path.clone(), source };
        let refused = |why: String| Error::Key { path: path.clone(), why };
        let mut file = kvtide_wire::os::token::open(path).map_err(|error| match error {
            Unusable::Unreadable(source) => failed(source),
            Unusable::Refused(why) => refused(why),
        })?;
        let mut text = String::new();
        (&mut file).take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let digits = text.trim().as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let bytes: Option<Vec<u8>> =
            digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
        let key = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let why =
            "expected 64 hexadecimal digits. Make a key, and give it to all relays that share: openssl rand -hex 32";
        key.map(SharedKey::new).ok_or_else(|| refused(why.into()))
    }
}

impl Store {
    /// Return whether it is Valkey or Redis.
    #[must_use]
    pub fn is_valkey(&self) -> bool {
        self.url.starts_with("redis://") || self.url.starts_with("rediss://")
    }

    /// Return a key with a secret, if there is one: a URL with a password, or credentials.
    fn secret(&self) -> Option<String> {
        let has_password = |url: &str| url::Url::parse(url).is_ok_and(|url| url.password().is_some());
        // Names of the crate `object_store`; aws_access_key_id, which is no secret, does not come without one.
        let is_secret = |key: &str| {
            ["secret", "token", "key", "sas", "password", "credential"].iter().any(|part| key.contains(part))
        };
        if has_password(&self.url) {
            return Some("store.url".into());
        }
        let secret =
            self.options.iter().find(|(key, value)| is_secret(&key.to_ascii_lowercase()) || has_password(value));
        secret.map(|(key, _)| format!("store.options.{key}"))
    }

    /// Return the maximum bytes of the blocks in an object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        let default = if self.is_valkey() { 4 << 10 } else { 8 << 10 };
        u64::from(self.object_kib.unwrap_or(default)) << 10
    }

    /// Return the maximum time of one request.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("relay.toml"), text).map_err(|error| error.to_string())
    }

    const LEAST: &str = "[[domains]]\nname = \"a\"\nshared_key_file = \"/k\"\n[store]\nurl = \"redis://h\"\n";

    /// The example lists all keys, with their defaults.
    #[test]
    fn the_example_has_every_key_with_its_default() {
        let text = include_str!("../../configs/relay.toml");
        let mut example = parse(text).unwrap();
        example.domains.iter_mut().for_each(|domain| domain.line = 1);
        let least = parse(&LEAST.replace("\"a\"", "\"default\"").replace("/k", "/etc/kvtide/relay.key")).unwrap();
        let least = Config { store: Store { url: example.store.url.clone(), ..least.store }, ..least };
        assert_eq!(format!("{example:?}"), format!("{least:?}"));
        // Every field is a key of the file, if only in a comment.
        for key in format!("{example:#?}")
            .lines()
            .filter_map(|line| line.trim().split_once(": ").map(|(key, _)| key.to_owned()))
            .filter(|key| key != "line")
        {
            assert!(
                text.contains(&format!("{key} = "))
                    || text.contains(&format!("[{key}]"))
                    || text.contains(&format!(".{key}]")),
                "{key}"
            );
        }
        let all = text.lines().map(|line| {
            line.strip_prefix("# ").filter(|line| line.contains(" = ") || line.starts_with('[')).unwrap_or(line)
        });
        assert!(parse(&all.collect::<Vec<_>>().join("\n")).is_ok(), "also with the keys in comments");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let config = parse(LEAST).unwrap();
        assert_eq!((config.copy_out.when, config.store.object_bytes()), (When::SecondUse, 4 << 20));
        assert!(config.domains[0].encrypt, "encryption is on by default");
        for (text, parts) in [
            (format!("{LEAST}ttl = 3\n"), vec!["relay.toml", "line 6", "ttl"]),
            (format!("{LEAST}[copy_out]\nwhen = \"often\"\n"), vec!["line 7", "often", "second_use"]),
            (format!("{LEAST}ttl_s = 1\n"), vec!["store.ttl_s = 1", "expected 60"]),
            (format!("{LEAST}[copy_out]\nbytes_per_day = 7\n"), vec!["copy_out.bytes_per_day = 7", "expected 1048576"]),
            (format!("{LEAST}[copy_out]\nrequests_per_day = 0\n"), vec!["copy_out.requests_per_day = 0"]),
            ("[store]\nurl = \"s3://b\"\n".into(), vec!["missing field `domains`"]),
            (format!("{LEAST}[tracing]\nendpoint = \"https://h\"\n"), vec!["tracing.endpoint", "a URL with http"]),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
    }

    /// Messages go to a log, which more people read than the file.
    #[test]
    fn no_message_has_a_secret() {
        let options = format!("{LEAST}[store.options]\n");
        for (text, line) in [
            (LEAST.replace("\"redis://h\"", "\"redis://:hush@h"), 5),
            (LEAST.replace("\"redis://h\"", "[\"redis://:hush@h\"]"), 5),
            (LEAST.replace("[store]\nurl", "store"), 4),
            (format!("{options}aws_secret_access_key = hush\n"), 7),
            (format!("{options}aws_secret_access_key = \"hush\n"), 7),
            (format!("{options}aws_secret_access_key = 'hush' x\n"), 7),
            (format!("{options}aws_secret_access_key = \"hush\"\naws_secret_access_key = \"hush\""), 8),
            (format!("{options}aws_secret_access_key = [\"hush\"]\n"), 7),
            (format!("{LEAST}options = \"hush\"\n"), 6),
            (format!("{LEAST}ttl_s = \"hu\\\"sh hush\"\n"), 6),
            (format!("{LEAST}cluster = \"hush\"\n"), 6),
        ] {
            let error = parse(&text.replace("store = \"redis://h\"", "store = \"redis://:hush@h\"")).unwrap_err();
            assert!(!error.contains("hush") && !error.contains("sh\""), "{error}");
            assert!(error.contains(&format!("line {line}: ")), "line {line}: {error}");
        }
    }

    #[test]
    fn a_file_with_a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("relay.toml");
        let read = |text: &str, mode: u32| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            Config::read(&file).map(drop).map_err(|error| error.to_string())
        };
        let option = |option: &str| format!("{LEAST}[store.options]\n{option}\n");
        for (text, key) in [
            (LEAST.replace("redis://h", "redis://:hush@h"), "store.url"),
            (LEAST.replace("redis://h", "rediss://user:hush@h"), "store.url"),
            (option("aws_secret_access_key = \"hush\""), "store.options.aws_secret_access_key"),
            (option("azure_storage_sas_token = \"hush\""), "store.options.azure_storage_sas_token"),
            (option("proxy_url = \"http://user:hush@proxy\""), "store.options.proxy_url"),
        ] {
            for mode in [0o644, 0o660, 0o604] {
                let error = read(&text, mode).unwrap_err();
                assert!(error.contains(&format!("{key} is a secret, and mode {mode:04o}")), "{error}");
                assert!(error.contains("chmod 0640") && !error.contains("hush"), "{error}");
            }
            assert_eq!(read(&text, 0o640), Ok(()));
        }
        assert_eq!(read(LEAST, 0o644), Ok(()));
        assert_eq!(read(&option("aws_endpoint = \"http://h:9000\""), 0o644), Ok(()));
    }

    #[test]
    fn domains_that_could_not_be_told_apart_are_refused_with_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let key = |name: &str, digit: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, digit.repeat(64)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        let (one, same, other) = (key("one", "1"), key("same", "1"), key("other", "2"));
        let domain = |name: &str, key: &str, rest: &str| {
            format!("[[domains]]\nname = \"{name}\"\nshared_key_file = \"{key}\"\n{rest}\n")
        };
        let with = |second: &str| {
            let text = format!("[store]\nurl = \"redis://h\"\n{}{second}", domain("a", &one, ""));
            parse(&text)
                .and_then(|config| config.shared_keys(Path::new("relay.toml")).map_err(|error| error.to_string()))
        };
        let token = "token_file = \"/t\"";
        assert_eq!(with(&domain("b", &other, token)).unwrap().len(), 2);
        for (second, part) in [
            (domain("b", &same, token), "has the shared key of domain \"a\""),
            (domain("a", &other, token), "a second domain \"a\""),
            (domain("b", &other, ""), "has no token_file, and neither has domain \"a\""),
            (domain("", &other, token), "expected the name"),
        ] {
            let error = with(&second).err().unwrap();
            assert!(error.contains("relay.toml: line 7: ") && error.contains(part), "{part}: {error}");
        }
        let third = format!("{}{}", domain("b", &other, token), domain("c", &key("third", "3"), token));
        assert!(with(&third).err().unwrap().contains("line 11: domain \"c\" has the token file of domain \"b\", /t"));
        assert!(
            with(&(0..16).map(|i| domain(&i.to_string(), "/k", &format!("token_file = \"/{i}\""))).collect::<String>())
                .err()
                .unwrap()
                .contains("17 of them")
        );
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = |text: &str, mode: u32| {
            let path = dir.path().join(format!("{mode:o}"));
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Domain {
                name: "a".into(),
                shared_key_file: path,
                encrypt: true,
                token_file: None,
                adapters: None,
                events: None,
                line: 1,
            }
        };
        let digits = "0123456789abcdef".repeat(4);
        assert!(file(&format!("{digits}\n"), 0o640).shared_key().is_ok());
        let error = |domain: Domain| domain.shared_key().err().unwrap().to_string();
        assert!(error(file(&digits, 0o644)).contains("chmod 0640"));
        for wrong in ["", "0123", &digits[1..], &format!("{digits}0"), &digits.replace('0', "g")] {
            let error = error(file(wrong, 0o600));
            assert!(error.contains("openssl rand -hex 32") && !error.contains("0123"), "{error}");
        }
        let none = Domain { shared_key_file: dir.path().join("none"), ..file(&digits, 0o600) };
        assert!(error(none).contains("read the shared key"));
    }
}
