//! The tables, as text: a manifest has exactly these, in this order, spelled so. `FORMAT.md` explains each column.

/// `(major, minor)` of the manifests that are written. A reader refuses another major version; a later minor version
/// only adds keys to `meta`.
pub const MANIFEST_VERSION: (u32, u32) = (1, 0);

/// Features that a manifest may require of its reader and that this one knows.
pub const UNDERSTOOD_FEATURES: &[&str] = &[CODED_BLOCKS];

/// The feature of manifests some of whose files have compressed blocks.
pub(super) const CODED_BLOCKS: &str = "coded-blocks";

/// The key of `meta` that tells how many bytes such files decode to, and by which rules they were compressed; only with the feature.
pub(super) const CODED_KEY: &str = "coded";

/// `PRAGMA application_id`: "CKPT".
pub(super) const APPLICATION_ID: u32 = 0x434b_5054;

/// Bytes of a page.
pub(super) const PAGE_SIZE: u32 = 4096;

/// `(table, statement)` in order of creation.
pub(super) const TABLES: [(&str, &str); 6] = [
    ("meta", "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"),
    (
        "mesh",
        "CREATE TABLE mesh (position INTEGER PRIMARY KEY, axis TEXT NOT NULL, extent INTEGER NOT NULL) STRICT",
    ),
    (
        "files",
        "CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL, location TEXT NOT NULL, size INTEGER NOT NULL, \
         base TEXT, etag TEXT, mtime_ns INTEGER, blocks TEXT, blocks_root TEXT) STRICT",
    ),
    (
        "tensors",
        "CREATE TABLE tensors (id INTEGER PRIMARY KEY, fqn TEXT NOT NULL, role TEXT NOT NULL, dtype TEXT NOT NULL, \
         shape TEXT NOT NULL, placement TEXT, layer INTEGER, expert INTEGER, tie TEXT, fusion TEXT, padded_rows INTEGER, \
         fingerprint TEXT, chunks BLOB NOT NULL) STRICT",
    ),
    (
        "aliases",
        "CREATE TABLE aliases (tensor INTEGER NOT NULL, position INTEGER NOT NULL, format TEXT NOT NULL, \
         key TEXT NOT NULL, path TEXT, PRIMARY KEY (tensor, position)) STRICT, WITHOUT ROWID",
    ),
    (
        "objects",
        "CREATE TABLE objects (id INTEGER PRIMARY KEY, key TEXT NOT NULL, path TEXT NOT NULL, encoding TEXT NOT NULL, \
         reshard TEXT NOT NULL, preview TEXT, bytes BLOB, file INTEGER, start INTEGER, length INTEGER) STRICT",
    ),
];
