//! What people are told of a checkpoint beside its catalog: which record committed it, and what proves its bytes.

use std::{collections::BTreeSet, fmt};

use serde::Serialize;

use crate::{
    Catalog, Location,
    commit::{Checkpoint, Commit, Label, Metrics, Record, Seq, State},
    digest::Sha256Digest,
};

/// The record that committed a checkpoint, and what later ones said of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommitFacts {
    /// Its number.
    pub seq: Seq,
    /// When, in milliseconds since 1970, by its writer's clock.
    pub time_ms: u64,
    /// The program that wrote it.
    pub writer: String,
    /// The run.
    pub run: Label,
    /// The training step that the record says.
    pub step: u64,
    /// The checkpoint that it goes on from.
    pub parent: Option<Seq>,
    /// The manifest's digest.
    pub manifest: Sha256Digest,
    /// What its saver measured.
    #[serde(skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
    /// Its names.
    pub tags: Vec<Label>,
    /// Whether it is protected.
    pub pinned: bool,
    /// The record that last said that it is whole.
    pub verified: Option<Seq>,
}

impl CommitFacts {
    pub(super) fn of(seq: Seq, checkpoint: &Checkpoint, record: &Record, state: &State) -> Self {
        let tags =
            state.tags.iter().filter(|(_, tagged)| **tagged == seq).map(|(tag, _)| tag.clone()).collect();
        Self {
            seq,
            time_ms: record.time_ms,
            writer: record.writer.clone(),
            run: checkpoint.run.clone(),
            step: checkpoint.step,
            parent: checkpoint.parent,
            manifest: checkpoint.manifest.sha256,
            metrics: checkpoint.metrics.clone(),
            tags,
            pinned: checkpoint.pinned,
            verified: checkpoint.verified,
        }
    }

    /// What the record alone tells.
    pub(super) fn of_record(record: &Record, commit: &Commit) -> Self {
        Self {
            seq: record.seq,
            time_ms: record.time_ms,
            writer: record.writer.clone(),
            run: record.run.clone(),
            step: commit.step,
            parent: record.parent,
            manifest: commit.manifest.sha256,
            metrics: commit.metrics.clone(),
            tags: Vec::new(),
            pinned: false,
            verified: None,
        }
    }
}

/// `seq 42, 2026-11-29T21:03:07Z, run main, manifest 9f3a61c2, tag best`.
impl fmt::Display for CommitFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.manifest.to_string();
        let short = digest.get(..8).unwrap_or(&digest);
        write!(f, "seq {}, {}, run {}, manifest {short}", self.seq, utc(self.time_ms), self.run)?;
        self.tags.iter().try_for_each(|tag| write!(f, ", tag {tag}"))?;
        if self.pinned {
            f.write_str(", pinned")?;
        }
        self.verified.map_or(Ok(()), |seq| write!(f, ", verified by record {seq}"))
    }
}

/// What proves the bytes of a checkpoint, in one sentence.
pub(super) fn integrity(catalog: &Catalog) -> String {
    let (tensors, files) = (catalog.tensors.len(), catalog.files.len());
    let printed = catalog.tensors.iter().filter(|chunks| chunks.fingerprint.is_some()).count();
    let hashed = catalog.files.iter().filter(|file| file.blocks.is_some()).count();
    let foreign =
        catalog.files.iter().filter(|file| matches!(file.location, Location::External { .. })).count();
    let seal = if foreign > 0 { format!("; {foreign} files lie outside, untouched") } else { String::new() };
    let shared: Vec<&str> = catalog
        .files
        .iter()
        .filter(|file| file.location == Location::InRoot)
        .filter_map(|file| file.path.split('/').next())
        .collect();
    let folders = shared.iter().collect::<BTreeSet<_>>().len();
    let shared = match shared.len() {
        0 => String::new(),
        count => format!("; {count} files are shared with {folders} other folders of the root"),
    };
    format!(
        "SHA-256 of every block of {hashed} of {files} files, rooted in the manifest; fingerprints of {printed} of {tensors} tensors{seal}{shared}"
    )
}

/// Milliseconds since 1970 as RFC 3339 has them, to the second, in UTC.
#[must_use]
pub fn utc(time_ms: u64) -> String {
    let (days, second) = (time_ms / 1000 / 86_400, time_ms / 1000 % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The Gregorian date so many days after 1970-01-01. Years are counted from March, so that the leap day is the last of
/// one; 146,097 days are 400 years.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_dates() {
        for (seconds, text) in [
            (0_u64, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_986_187, "2026-11-29T21:03:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1000), text);
        }
    }
}
