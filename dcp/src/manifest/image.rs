//! SQLite images: built in memory, and opened read-only after everything around the rows was found as expected.
//!
//! A crafted database can attack its reader through its schema (views, triggers, expressions) or its pages. So the
//! header is checked before SQLite sees the bytes, the schema's text before any other statement runs, and the pages by
//! SQLite's own check before any row is believed.

use rusqlite::{Connection, MAIN_DB, OpenFlags, config::DbConfig, limits::Limit};

use super::{
    ManifestError,
    model::LARGE,
    schema::{APPLICATION_ID, MANIFEST_VERSION, PAGE_SIZE, TABLES},
};
use crate::{cores, digest::Sha256Digest};

type Result<T> = std::result::Result<T, ManifestError>;

const HEADER_LEN: usize = 100;

/// An empty database with the tables of the format, in a transaction.
pub(super) fn create() -> Result<Connection> {
    let db = in_memory()?;
    let (id, version) = (APPLICATION_ID, MANIFEST_VERSION.0);
    db.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_SIZE}; PRAGMA application_id = {id}; PRAGMA user_version = {version}; BEGIN"
    ))?;
    TABLES.iter().try_for_each(|(_, statement)| db.execute_batch(statement))?;
    Ok(db)
}

/// Bytes that the image of a database begun with [`create`] has.
pub(super) fn size(db: &Connection) -> Result<u64> {
    let pages: i64 = db.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    Ok(u64::try_from(pages).unwrap_or(0).saturating_mul(u64::from(PAGE_SIZE)))
}

/// The image of a database begun with [`create`], and its digest.
pub(super) fn finish(mut db: Connection) -> Result<(Vec<u8>, Sha256Digest)> {
    db.execute_batch("COMMIT")?;
    let image = db.serialize(MAIN_DB)?;
    // A manifest may be large: it is hashed while it is copied.
    let bytes: &[u8] = &image;
    let both = if bytes.len() < LARGE {
        Ok((Sha256Digest::of(bytes), bytes.to_vec()))
    } else {
        cores::both(|| Sha256Digest::of(bytes), || bytes.to_vec())
    };
    let (digest, copy) = both.map_err(|error| ManifestError::Image(error.to_string()))?;
    Ok((copy, digest))
}

/// Opens an image that came from anywhere.
pub(super) fn open(image: &[u8]) -> Result<Connection> {
    check_header(image)?;
    let mut db = in_memory()?;
    // Pages are looked at where they lie in memory, not copied into a cache one by one.
    db.execute_batch(&format!("PRAGMA mmap_size = {}", image.len()))?;
    db.deserialize_read_exact(MAIN_DB, image, image.len(), true)?;
    check_schema(&db)?;
    db.execute_batch("PRAGMA query_only = ON; PRAGMA cell_size_check = ON")?;
    let verdict: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(db) } else { Err(ManifestError::Image(verdict)) }
}

fn in_memory() -> Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_in_memory_with_flags(flags)?;
    for (setting, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DML, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DDL, false),
    ] {
        db.set_db_config(setting, on)?;
    }
    db.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    db.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, 64 << 10)?;
    db.set_limit(Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1)?;
    Ok(db)
}

/// Everything in the first 100 bytes that a manifest has in common with every other.
fn check_header(image: &[u8]) -> Result<()> {
    let refuse = |why: String| Err(ManifestError::Image(why));
    let Some((header, _)) = image.split_first_chunk::<HEADER_LEN>() else {
        return refuse(format!("{} bytes are no SQLite image", image.len()));
    };
    let number = |at: usize, len: usize| {
        header.iter().skip(at).take(len).fold(0_u64, |n, &byte| n << 8 | u64::from(byte))
    };
    if !header.starts_with(b"SQLite format 3\0") {
        return refuse("it doesn't begin as an SQLite image does".to_owned());
    }
    if number(68, 4) != u64::from(APPLICATION_ID) {
        return refuse(format!("an SQLite database of another application ({:#010x})", number(68, 4)));
    }
    if number(60, 4) != u64::from(MANIFEST_VERSION.0) {
        return Err(ManifestError::Version(u32::try_from(number(60, 4)).unwrap_or(u32::MAX)));
    }
    // Offset, length, expected value, and what it is (SQLite's file format, section 1.3).
    for (at, len, expected, what) in [
        (16, 2, u64::from(PAGE_SIZE), "page size"),
        (18, 2, 0x0101, "journal mode"),
        (20, 1, 0, "reserved space"),
        (36, 4, 0, "free pages"),
        (44, 4, 4, "schema format"),
        (52, 4, 0, "auto-vacuum"),
        (56, 4, 1, "text encoding"),
    ] {
        if number(at, len) != expected {
            return refuse(format!("{what} {} where {expected} is expected", number(at, len)));
        }
    }
    let expected = number(28, 4) * u64::from(PAGE_SIZE);
    if expected != image.len() as u64 {
        return refuse(format!("{} bytes where its header says {expected}", image.len()));
    }
    Ok(())
}

/// Bytes of a whole image, as its beginning says, if it begins as one.
pub(crate) fn image_len(image: &[u8]) -> Option<u64> {
    let pages = image.get(28..32).filter(|_| image.starts_with(b"SQLite format 3\0"));
    match pages {
        Some(pages) => {
            let pages = pages.iter().fold(0_u64, |n, &byte| n << 8 | u64::from(byte));
            pages.checked_mul(u64::from(PAGE_SIZE))
        }
        // What ends before it can say how long it is has been cut, wherever.
        None => (image.len() < 32).then_some(u64::from(PAGE_SIZE)),
    }
}

fn check_schema(db: &Connection) -> Result<()> {
    let mut statement = db.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid")?;
    let mut rows = statement.query([])?;
    let mut expected = TABLES.iter();
    while let Some(row) = rows.next()? {
        let (kind, name, table): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let sql: Option<String> = row.get(3)?;
        let Some((wanted, text)) = expected.next() else {
            return Err(ManifestError::Schema(format!("{kind} {name:?} isn't part of the format")));
        };
        if kind != "table" || name != *wanted || table != *wanted || sql.as_deref() != Some(*text) {
            return Err(ManifestError::Schema(format!(
                "{kind} {name:?} where table {wanted:?} is expected, or another text"
            )));
        }
    }
    match expected.next() {
        None => Ok(()),
        Some((missing, _)) => Err(ManifestError::Schema(format!("table {missing:?} is missing"))),
    }
}
