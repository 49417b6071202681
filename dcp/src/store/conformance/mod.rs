//! What every store must do, one function per behaviour.
//!
//! Each works on a fresh root, names what it expects by assertion, and returns what failed otherwise. [`all`] runs them one after the other: first
//! what single objects do ([`objects`]), then blobs ([`blobs`]), then what happens when many want the same or there are many
//! ([`crowds`]), and at last whole checkpoints ([`checkpoints`]). A store of somebody else's proves itself by the same suite.

use std::error::Error;

use super::error::StoreError;
use super::name::{ObjectPath, object_path};
use super::root::Root;

pub mod blobs;
pub mod checkpoints;
pub mod crowds;
pub mod objects;

/// The outcome of one behaviour.
pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A behaviour, with its name.
pub type Behaviour = (&'static str, fn(&Root) -> Outcome);

/// All behaviours.
pub const BEHAVIOURS: &[Behaviour] = &[
    ("a name is created once", objects::a_name_is_created_once),
    ("a missing object is not found", objects::a_missing_object_is_not_found),
    ("the same bytes are put twice, others never", objects::the_same_bytes_are_put_twice),
    ("ranges are exact or refused", objects::ranges_are_exact_or_refused),
    ("an empty object is an object", objects::an_empty_object_is_an_object),
    ("listings are sorted and end at segments", objects::listings_are_sorted),
    ("a listing shows what lies right below", objects::a_listing_shows_what_lies_right_below),
    ("a deleted object is gone", objects::a_deleted_object_is_gone),
    ("a second delete does no harm", objects::a_second_delete_does_no_harm),
    ("odd names are names", objects::odd_names_are_names),
    ("times and tags tell what changed", objects::times_and_tags_tell_what_changed),
    ("a copy may be told to keep what is there", objects::a_copy_may_keep_what_is_there),
    ("names with tricks are refused", objects::names_with_tricks_are_refused),
    ("the probe passes and leaves nothing", objects::the_probe_passes),
    ("a blob appears when it is finished", blobs::a_blob_appears_when_it_is_finished),
    ("a blob is never finished with a gap", blobs::a_blob_is_never_finished_with_a_gap),
    ("no byte of a blob is written twice", blobs::no_byte_of_a_blob_is_written_twice),
    ("a dropped blob leaves nothing", blobs::a_dropped_blob_leaves_nothing),
    ("a finished blob takes no name that is taken", blobs::a_blob_takes_no_name_that_is_taken),
    ("an upload in parts appears at its end", blobs::an_upload_in_parts_appears_at_its_end),
    (
        "a blob of many parts is written by many threads",
        blobs::a_blob_of_many_parts_is_written_by_many_threads,
    ),
    ("of many creates of one name one succeeds", crowds::of_many_creates_one_succeeds),
    ("more than a page is listed, and deleted", crowds::more_than_a_page_is_listed_and_deleted),
    (
        "records of many writers are neither lost nor doubled",
        checkpoints::records_are_neither_lost_nor_doubled,
    ),
    (
        "what four writers save is loaded, and goes when it is collected",
        checkpoints::what_is_saved_is_loaded_and_goes,
    ),
];

/// Runs all behaviours, each on a root that `fresh` makes.
///
/// # Errors
/// The first that fails, by name.
pub fn all(fresh: impl Fn() -> Root) -> Outcome {
    BEHAVIOURS.iter().try_for_each(|(name, behaviour)| {
        behaviour(&fresh()).map_err(|error| format!("{name}: {}", chain(&*error)).into())
    })
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}

fn at(name: &str) -> Result<ObjectPath, StoreError> {
    object_path(name)
}

fn names(root: &Root, prefix: Option<&str>) -> Result<Vec<String>, StoreError> {
    let prefix = prefix.map(at).transpose()?;
    Ok(root.list(prefix.as_ref())?.into_iter().map(|info| info.path.to_string()).collect())
}
