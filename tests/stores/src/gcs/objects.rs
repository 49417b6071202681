//! What is in a bucket: objects with generations, and uploads that are not complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// A bucket.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) bucket: String,
    pub(super) objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    generation: u64,
}

/// An object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) generation: u64,
    pub(super) modified: SystemTime,
}

impl Object {
    pub(super) fn etag(&self) -> String {
        format!("\"g{}\"", self.generation)
    }
}

#[derive(Debug)]
struct Upload {
    name: String,
    parts: BTreeMap<u32, Vec<u8>>,
}

impl Objects {
    pub(super) fn with_bucket(bucket: &str) -> Self {
        Self { bucket: bucket.to_owned(), objects: BTreeMap::new(), uploads: BTreeMap::new(), generation: 0 }
    }

    /// Puts an object, unless its generation is another than `expected`. A generation of 0 means that there is none.
    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>, expected: Option<u64>) -> Option<Object> {
        let there = self.objects.get(name).map_or(0, |object| object.generation);
        if expected.is_some_and(|expected| expected != there) {
            return None;
        }
        self.generation += 1;
        let object =
            Object { bytes: Arc::new(bytes), generation: self.generation, modified: SystemTime::now() };
        self.objects.insert(name.to_owned(), object.clone());
        Some(object)
    }

    pub(super) fn begin(&mut self, name: &str) -> String {
        self.generation += 1;
        let id = format!("upload-{}", self.generation);
        self.uploads.insert(id.clone(), Upload { name: name.to_owned(), parts: BTreeMap::new() });
        id
    }

    pub(super) fn part(&mut self, id: &str, number: u32, bytes: Vec<u8>) -> Option<String> {
        let etag = format!("\"{id}-{number}-{}\"", bytes.len());
        self.uploads.get_mut(id)?.parts.insert(number, bytes);
        Some(etag)
    }

    /// Makes an object of the first `count` parts; none if one is missing, and the upload stays.
    pub(super) fn complete(&mut self, id: &str, count: u32) -> Option<Object> {
        let upload = self.uploads.get(id)?;
        let parts: Option<Vec<_>> = (1..=count).map(|number| upload.parts.get(&number).cloned()).collect();
        let (parts, upload) = parts.zip(self.uploads.remove(id))?;
        self.put(&upload.name, parts.concat(), None)
    }

    pub(super) fn abort(&mut self, id: &str) -> bool {
        self.uploads.remove(id).is_some()
    }

    pub(super) fn open_uploads(&self) -> usize {
        self.uploads.len()
    }
}
