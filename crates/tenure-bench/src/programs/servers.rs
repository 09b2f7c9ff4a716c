//! Servers: redis and PostgreSQL.

#![allow(unsafe_code, reason = "asks for the user")]

use super::place::{installed, prepare, Place};
use super::program::Program;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// `nobody`, for a server that refuses root.
const NOBODY: u32 = 65534;

/// redis on a socket, so that no port collides, and its clients.
fn redis(place: &Place, options: &[&str], load: &[&[&str]]) -> Result<Program, String> {
    let server = installed("redis-server")?;
    let (cli, benchmark) = (installed("redis-cli")?, installed("redis-benchmark")?);
    let socket: OsString = place.dir().join("redis.socket").into();
    let mut words = vec![server];
    words.extend(["--port", "0", "--save", "", "--appendonly", "no", "--dir"].map(Into::into));
    words.extend([place.dir().into(), "--unixsocket".into(), socket.clone()]);
    words.extend(options.iter().map(OsString::from));
    let client = |program: &OsString, arguments: &[&str]| {
        let mut client = vec![program.clone(), "-s".into(), socket.clone()];
        client.extend(arguments.iter().map(OsString::from));
        client
    };
    let mut clients = vec![client(&cli, &["ping"])];
    for arguments in load {
        // Options go to the benchmark, commands to the other client.
        let program = if arguments[0].starts_with('-') { &benchmark } else { &cli };
        clients.push(client(program, arguments));
    }
    clients.push(client(&cli, &["shutdown", "nosave"]));
    // Its log has process numbers and times.
    Ok(Program { words, clients, varies: true, ..Program::default() })
}

pub(super) fn redis_flush(place: &Place, smoke: bool) -> Result<Program, String> {
    let count = if smoke { "100" } else { "1500" };
    let load = ["-n", count, "-d", "300000", "-c", "4", "-r", "400", "-t", "set,get", "-q"];
    redis(place, &[], &[&load, &["flushall"], &load, &["flushall"]])
}

pub(super) fn redis_evictions(place: &Place, smoke: bool) -> Result<Program, String> {
    let count = if smoke { "100" } else { "3000" };
    let load = ["-n", count, "-d", "200000", "-c", "4", "-r", "1000", "-t", "set", "-q"];
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    redis(place, &options, &[&load])
}

/// `initdb` and `postgres` of one version.
fn postgres() -> Result<(PathBuf, PathBuf), String> {
    let mut places: Vec<PathBuf> = installed("postgres")
        .ok()
        .and_then(|path| fs::canonicalize(path).ok())
        .and_then(|path| path.parent().map(Into::into))
        .into_iter()
        .collect();
    if let Ok(config) = installed("pg_config") {
        places.extend(
            prepare(Command::new(config).arg("--bindir")).ok().map(|dir| dir.trim().into()),
        );
    }
    places
        .iter()
        .map(|dir| (dir.join("initdb"), dir.join("postgres")))
        .find(|(init, server)| init.exists() && server.exists())
        .ok_or_else(|| "no initdb and postgres here".into())
}

/// One backend by itself: PostgreSQL without its other processes.
pub(super) fn postgres_sort(place: &Place, smoke: bool) -> Result<Program, String> {
    let (init, server) = postgres()?;
    // SAFETY: returns this process's own user, and cannot fail.
    let user = (unsafe { libc::geteuid() } == 0).then_some(NOBODY);
    let data = place.dir().join("postgres");
    fs::create_dir(&data).map_err(|error| error.to_string())?;
    let mut command = Command::new(init);
    command.args(["-A", "trust", "-U", "bench", "--no-sync", "-D"]).arg(&data);
    command.current_dir(place.dir());
    if let Some(user) = user {
        std::os::unix::fs::chown(&data, Some(user), Some(user))
            .map_err(|error| error.to_string())?;
        command.uid(user).gid(user);
    }
    prepare(&mut command)?;
    let rows = if smoke { 5_000 } else { 800_000 };
    let query = format!(
        "select max(a) from (select md5(i::text) a from generate_series(1,{rows}) i order by a offset {}) x;\n",
        rows / 2
    );
    let mut words: Vec<OsString> = vec![server.into(), "--single".into(), "-D".into(), data.into()];
    let settings =
        ["-c", "fsync=off", "-c", "work_mem=256MB", "-c", "shared_buffers=16MB", "postgres"];
    words.extend(settings.map(OsString::from));
    Ok(Program { words, input: Some(query), user, ..Program::default() })
}
