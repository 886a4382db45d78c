//! Connections and the statements that run on them.

use std::{ops::ControlFlow, path::Path};

use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension, hooks::Wal, params_from_iter, wal::CheckpointMode};

use crate::{
    contract::{Direction, KeyRange, Visit},
    error::{Damage, Error, Result},
};

use super::{fault, row};

/// Size of the WAL above which a commit checkpoints it: bounds the disk use and the recovery time.
const WAL_BYTES_MAX: u64 = 64 << 20;

/// The kv table is the keyspace. The flush table has one row, which every flush changes.
const SCHEMA: &str = "
    CREATE TABLE kv(k BLOB PRIMARY KEY NOT NULL, v BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE flush(id INTEGER PRIMARY KEY CHECK (id = 1), count INTEGER NOT NULL);
    INSERT INTO flush VALUES (1, 0);
";

const GET: &str = "SELECT v FROM kv WHERE k = ?1";
pub(super) const PUT: &str =
    "INSERT INTO kv(k, v) VALUES (?1, ?2) ON CONFLICT(k) DO UPDATE SET v = excluded.v";
pub(super) const DELETE: &str = "DELETE FROM kv WHERE k = ?1";
pub(super) const COUNT_FLUSH: &str = "UPDATE flush SET count = count + 1";
/// Touches the file, which is what pins a read transaction's view.
const PIN: &str = "SELECT count FROM flush";

/// Statements that each connection keeps compiled: all of the above and the eight scans.
const STATEMENTS_CACHED: usize = 24;

/// Opens the writer; with `create` in `flags` also a new, empty file.
pub(super) fn writer(file: &Path, flags: OpenFlags, cache_bytes: usize) -> Result<Connection> {
    let mut connection = open(file, flags | OpenFlags::SQLITE_OPEN_READ_WRITE, cache_bytes / 2)?;
    let mode = configure(&mut connection).map_err(|error| fault("configure", file, error))?;
    if mode != "wal" {
        // SQLite keeps the old mode where the file system or the file itself does not allow the new one.
        let source = std::io::Error::other("SQLite cannot keep a WAL there");
        return Err(Error::io("configure", file, source));
    }
    Ok(connection)
}

/// Returns the journal mode.
fn configure(connection: &mut Connection) -> rusqlite::Result<String> {
    let mode = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let page_bytes: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    connection.wal_hook(Some(move |wal: &mut Wal, pages: std::ffi::c_int| {
        let bytes = u64::try_from(pages).unwrap_or_default() * u64::from(page_bytes);
        // Passive: it never waits for readers, and does as much as they allow.
        if bytes > WAL_BYTES_MAX { wal.checkpoint_v2(CheckpointMode::PASSIVE).map(|_| ()) } else { Ok(()) }
    }))?;
    Ok(mode)
}

/// Opens a connection that cannot write.
pub(super) fn reader(file: &Path, cache_bytes: usize) -> Result<Connection> {
    open(file, OpenFlags::SQLITE_OPEN_READ_ONLY, cache_bytes / 8)
}

fn open(file: &Path, flags: OpenFlags, cache_bytes: usize) -> Result<Connection> {
    // The types already keep two threads out of one connection.
    let connection = Connection::open_with_flags(file, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|error| fault("open", file, error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // A negative size is in KiB.
    let cache_kib = i64::try_from(cache_bytes / 1024).unwrap_or(i64::MAX).max(64);
    connection
        .pragma_update(None, "cache_size", -cache_kib)
        .map_err(|error| fault("configure", file, error))?;
    Ok(connection)
}

pub(super) fn create_schema(connection: &Connection, file: &Path) -> Result<()> {
    connection.execute_batch(SCHEMA).map_err(|error| fault("create the tables of", file, error))
}

/// Begins a read transaction and pins its view: `BEGIN` alone pins nothing.
pub(super) fn pin(connection: &Connection, file: &Path) -> Result<()> {
    let pinned = connection.prepare_cached("BEGIN").and_then(|mut begin| begin.execute([])).and_then(|_| {
        let mut pin = connection.prepare_cached(PIN)?;
        pin.query_row([], |row| row.get::<_, i64>(0))
    });
    pinned.map(|_| ()).map_err(|error| fault("take a snapshot of", file, error))
}

/// Ends a read transaction.
pub(super) fn unpin(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("ROLLBACK")?.execute([]).map(|_| ())
}

pub(super) fn get(connection: &Connection, file: &Path, key: &[u8]) -> Result<Option<Bytes>> {
    let stored = connection.prepare_cached(GET).and_then(|mut get| {
        get.query_row([key], |row| {
            let stored = row.get_ref(0)?.as_blob()?;
            Ok(row::decode(file, key, stored).map(Bytes::copy_from_slice))
        })
        .optional()
    });
    stored.map_err(|error| fault("read", file, error))?.transpose()
}

pub(super) fn scan(
    connection: &Connection,
    file: &Path,
    range: &KeyRange,
    direction: Direction,
    visit: Visit<'_>,
) -> Result<()> {
    let failed = |error| fault("read", file, error);
    let bounds = range.lower.iter().chain(&range.upper).map(|bound| bound.as_ref());
    let mut statement = connection.prepare_cached(scan_statement(range, direction)).map_err(failed)?;
    let mut rows = statement.query(params_from_iter(bounds)).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let key = row.get_ref(0).map_err(failed)?.as_blob().map_err(|_| wrong_type(file))?;
        let stored = row.get_ref(1).map_err(failed)?.as_blob().map_err(|_| wrong_type(file))?;
        if let ControlFlow::Break(()) = visit(key, row::decode(file, key, stored)?) {
            break;
        }
    }
    Ok(())
}

fn wrong_type(file: &Path) -> Error {
    Error::Corruption { damage: Damage::Structure("SQLite"), path: file.to_path_buf(), source: None }
}

fn scan_statement(range: &KeyRange, direction: Direction) -> &'static str {
    use Direction::{Ascending, Descending};
    match (&range.lower, &range.upper, direction) {
        (None, None, Ascending) => "SELECT k, v FROM kv ORDER BY k",
        (None, None, Descending) => "SELECT k, v FROM kv ORDER BY k DESC",
        (Some(_), None, Ascending) => "SELECT k, v FROM kv WHERE k >= ?1 ORDER BY k",
        (Some(_), None, Descending) => "SELECT k, v FROM kv WHERE k >= ?1 ORDER BY k DESC",
        (None, Some(_), Ascending) => "SELECT k, v FROM kv WHERE k < ?1 ORDER BY k",
        (None, Some(_), Descending) => "SELECT k, v FROM kv WHERE k < ?1 ORDER BY k DESC",
        (Some(_), Some(_), Ascending) => "SELECT k, v FROM kv WHERE k >= ?1 AND k < ?2 ORDER BY k",
        (Some(_), Some(_), Descending) => "SELECT k, v FROM kv WHERE k >= ?1 AND k < ?2 ORDER BY k DESC",
    }
}

/// Lets SQLite check the structure of the whole file; its first complaint is the error.
pub(super) fn check_integrity(connection: &Connection, file: &Path) -> Result<()> {
    let answer: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| fault("check", file, error))?;
    if answer == "ok" {
        return Ok(());
    }
    let source = Some(answer.into());
    Err(Error::Corruption { damage: Damage::Structure("SQLite"), path: file.to_path_buf(), source })
}
