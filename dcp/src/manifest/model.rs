//! What a manifest says beyond the catalog, and its name.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Catalog, FileId, Format, Result, cores, digest::Sha256Digest};

/// Largest object whose bytes lie in the manifest itself: 64 KiB. Larger ones lie in a file.
pub const INLINE_OBJECT_LIMIT: usize = 64 << 10;

/// From this size on a manifest is hashed and read at once.
pub(super) const LARGE: usize = 4 << 20;

/// The catalog of one checkpoint, and what is known of how it came to be.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Tensors, files, objects. Objects that lie in a file have no bytes here: whoever serves the files fills them in.
    pub catalog: Catalog,
    /// Where each object's bytes are; parallel to the catalog's objects.
    pub objects: Vec<ObjectPlace>,
    /// The program that wrote it.
    pub writer: Writer,
    /// The checkpoint that it was made from, where there was one.
    pub origin: Option<Origin>,
    /// Facts of later minor versions, kept so that a copy loses nothing.
    pub later: serde_json::Map<String, serde_json::Value>,
}

/// Where the bytes of an object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectPlace {
    /// In the manifest: at most [`INLINE_OBJECT_LIMIT`] bytes.
    Inline,
    /// In a file.
    File {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// The program that wrote a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Its name.
    pub program: String,
    /// Its version.
    pub version: String,
}

/// The checkpoint that another was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its format.
    pub format: Format,
    /// The variant that was found.
    pub variant: String,
    /// Where it was, as the user named it.
    pub place: String,
}

/// A manifest as an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedManifest {
    /// The SQLite image.
    pub bytes: Bytes,
    /// Its SHA-256.
    pub digest: Sha256Digest,
}

impl Writer {
    /// This build.
    #[must_use]
    pub fn this() -> Self {
        Self { program: "ckpt".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl Manifest {
    /// A manifest of a catalog whose objects all lie in it.
    #[must_use]
    pub fn new(catalog: Catalog) -> Self {
        let objects = vec![ObjectPlace::Inline; catalog.objects.len()];
        Self { catalog, objects, writer: Writer::this(), origin: None, later: serde_json::Map::new() }
    }

    /// The manifest as an object. Equal manifests give equal bytes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] for a catalog that breaks its invariants, [`crate::ErrorKind::Incompatible`] for
    /// numbers above 2⁶³ − 1, names that no reader would take, objects too large to be inline, and rows that would take more memory
    /// than a reader allows.
    pub fn encode(&self) -> Result<EncodedManifest> {
        self.catalog.check()?;
        let (bytes, digest) = super::write::image_of(self)?;
        Ok(EncodedManifest { bytes: bytes.into(), digest })
    }

    /// The image of it, unchecked: also what [`Self::encode`] refuses since no reader would take it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn image(&self) -> Result<Vec<u8>> {
        Ok(super::write::any_image_of(self)?)
    }

    /// Reads the manifest that `expected` names.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] for other bytes, and as [`Self::decode_unnamed`].
    pub fn decode(bytes: &[u8], expected: &Sha256Digest) -> Result<Self> {
        // Nothing of a manifest is believed before its digest is; a large one is read meanwhile, as what may be anything.
        let (found, manifest) = if bytes.len() < LARGE {
            (Sha256Digest::of(bytes), None)
        } else {
            cores::both(|| Sha256Digest::of(bytes), || Some(Self::decode_unnamed(bytes)))?
        };
        if found != *expected {
            return Err(super::ManifestError::Digest { expected: *expected, found }.into());
        }
        manifest.unwrap_or_else(|| Self::decode_unnamed(bytes))
    }

    /// Reads a manifest of which nothing is known but its bytes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] for anything but a manifest, [`crate::ErrorKind::Unsupported`] for one of a later
    /// version or with features that this build doesn't know.
    pub fn decode_unnamed(bytes: &[u8]) -> Result<Self> {
        let manifest = super::read::manifest_of(bytes)?;
        manifest.catalog.check()?;
        Ok(manifest)
    }
}

impl EncodedManifest {
    /// Its name in the step's folder.
    #[must_use]
    pub fn name(&self) -> String {
        manifest_name(&self.digest)
    }
}

/// The name of the manifest with this digest, in its step's folder.
#[must_use]
pub fn manifest_name(digest: &Sha256Digest) -> String {
    format!("manifest-{digest}.sqlite")
}

/// The digest in the name of a manifest; `None` for any other name.
#[must_use]
pub fn manifest_digest(name: &str) -> Option<Sha256Digest> {
    name.strip_prefix("manifest-")?.strip_suffix(".sqlite")?.parse().ok()
}
