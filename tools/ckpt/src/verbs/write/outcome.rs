//! [`Outcome`]: what was written, where, and what proves it.

use dcp::engine::{Ending, Report, Share};
use dcp::ops::prepare::Prepared;
use dcp::rank_state::ObjectCounts;
use dcp::{Committed, Format};
use serde::Serialize;

use super::Opened;
use super::job::{Job, Verb};
use super::proof::Proven;
use super::target::Target;
use crate::output::{
    Render,
    style::{self, harmless},
    units,
};

/// What became of a writing verb.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    #[serde(skip)]
    verb: Verb,
    source: String,
    source_format: &'static str,
    /// As the next command takes it.
    pub(super) target: String,
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    /// Mesh that the target is laid out for, where its format keeps shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<String>,
    meshes_read: Vec<String>,
    placement: String,
    bytes: u64,
    files: usize,
    /// Which of several workers this was: `1/4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// Id of the plan: workers of one plan have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    /// Files of other workers that are not finished: as long as there are some, nothing is committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_files: Option<usize>,
    tensors: usize,
    /// Tensors for which the source records a fingerprint to compare with: for what is stacked or taken apart, of all that it is made of.
    fingerprints_recorded: usize,
    /// What became of non-tensor values.
    objects: ObjectCounts,
    /// Tensors that were stacked or taken apart.
    restacked: usize,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verified: Option<Proven>,
    pub(super) report: Report,
}

impl Outcome {
    pub(super) fn new(
        job: &Job<'_>,
        opened: &Opened,
        target: &Target,
        prepared: &Prepared,
        (share, ending): (Share, Ending),
        report: Report,
    ) -> Self {
        let catalog = opened.source.catalog();
        let (sequence, bytes, files, missing_files) = match ending {
            Ending::Committed(Committed { sequence, bytes, files, .. }) => (sequence, bytes, files, None),
            Ending::Waiting { missing } => (None, report.bytes_written, report.files, Some(missing)),
        };
        let place = match sequence {
            Some(sequence) => format!("{}@seq:{sequence}", target.location),
            None => target.location.clone(),
        };
        let recorded = |tensor: usize| {
            let own = catalog.tensors.get(tensor).is_some_and(|it| it.fingerprint.is_some());
            own || catalog.lineage.is_proven(tensor)
        };
        let sources = || prepared.copy.sources.iter();
        Self {
            verb: job.verb,
            source: opened.location.clone(),
            source_format: catalog.format.name(),
            target: place,
            format: job.format.name(),
            step: prepared.copy.spec.step,
            sequence,
            mesh: keeps_shards(job.format).then(|| prepared.plan.to.to_string()),
            meshes_read: job.meshes_read(),
            placement: prepared.named.origin.clone(),
            bytes,
            files,
            worker: (!share.is_whole()).then(|| share.to_string()),
            plan: (!share.is_whole()).then(|| prepared.plan.attempt.clone()),
            missing_files,
            tensors: prepared.copy.spec.tensors.len(),
            fingerprints_recorded: sources().filter(|it| recorded(it.tensor)).count(),
            restacked: sources().filter(|it| catalog.lineage.of(it.tensor).is_some()).count(),
            objects: prepared.objects,
            notes: prepared.notes.clone(),
            verified: None,
            report,
        }
    }

    /// Whether the target is there, and not only this worker's share of it.
    pub(super) const fn is_committed(&self) -> bool {
        self.missing_files.is_none()
    }

    fn proof(&self) -> String {
        if !self.is_committed() {
            return "whoever commits compares all fingerprints with the source's".to_owned();
        }
        let Report { proven, bytes_verified, bytes_read, .. } = &self.report;
        if self.is_finished_before() {
            return "every file was finished, and proven, by an earlier run of this command".to_owned();
        }
        let read = units::bytes(*bytes_read);
        let checked = match bytes_verified {
            0 => format!("no checksum covers the {read} read"),
            bytes if bytes == bytes_read => format!("all {read} read against checksums"),
            bytes => format!("{} of {read} read against checksums", units::bytes(*bytes)),
        };
        match self.fingerprints_recorded {
            0 => format!("{checked}; the source records no fingerprints, the copy's are computed"),
            recorded => {
                let members = match self.restacked {
                    0 => "",
                    _ => ", of what was stacked or taken apart in the source's own tensors",
                };
                format!("fingerprints {proven}/{recorded} equal to the source's{members}; {checked}")
            }
        }
    }

    /// Whether nothing was left to copy.
    fn is_finished_before(&self) -> bool {
        self.report.skipped_files > 0 && self.report.skipped_files == self.report.files
    }

    const fn word(&self) -> &'static str {
        if self.is_committed() { "written" } else { "partial" }
    }

    /// What a worker says of the others.
    fn others(&self) -> String {
        match self.missing_files {
            None => ", all files are there: committed".to_owned(),
            Some(missing) => format!(
                " of plan {}, done; {} of other workers not there yet: the last to finish commits",
                self.plan.as_deref().unwrap_or_default(),
                units::many(missing, "file")
            ),
        }
    }

    fn pace(&self) -> String {
        let Report { bytes_written, seconds, skipped_files, .. } = &self.report;
        let rate = units::bytes(units::rate(*bytes_written, *seconds));
        let resumed = match skipped_files {
            0 => String::new(),
            skipped => format!(", {} finished before", units::many(*skipped, "file")),
        };
        format!(
            "{} in {}, {seconds:.2} s, {rate}/s{resumed}",
            units::bytes(self.bytes),
            units::many(self.files, "file")
        )
    }
}

/// Whether a target of the format is cut by its mesh.
pub(super) const fn keeps_shards(format: Format) -> bool {
    matches!(format, Format::Native | Format::TorchDcp)
}

/// By name.
pub(super) fn counts(objects: &ObjectCounts) -> [(&'static str, usize); 5] {
    let ObjectCounts { kept, split, merged, rewritten, dropped } = *objects;
    [("kept", kept), ("split", split), ("merged", merged), ("rewritten", rewritten), ("left out", dropped)]
}

/// `12 kept, 4 merged`; nothing where there are none.
pub(super) fn values(objects: &ObjectCounts) -> Option<String> {
    let some = counts(objects).into_iter().filter(|(_, count)| *count > 0);
    let text = some.map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ");
    (!text.is_empty()).then(|| format!("{text}, of {} that are no tensors", objects.total()))
}

impl Render for Outcome {
    fn schema(&self) -> &'static str {
        self.verb.schema()
    }

    fn human(&self, _width: Option<usize>) -> String {
        let mut text = format!("{:11}{} ({})\n", "from", harmless(&self.source), self.source_format);
        let step = self.step.map(|step| format!(", step {step}")).unwrap_or_default();
        let (word, target) = (style::word(self.word()), harmless(&self.target));
        text += &format!("{word}{:4}{target} ({}{step})\n", "", self.format);
        text += &self
            .worker
            .iter()
            .map(|it| format!("{:11}{it}{}\n", "worker", self.others()))
            .collect::<String>();
        for read in &self.meshes_read {
            text += &format!("{:11}{read}\n", "mesh");
        }
        if self.mesh.is_some() {
            text += &format!("{:11}{}\n", "placement", self.placement);
        }
        text += &format!("{:11}{}, {}\n", "size", units::many(self.tensors, "tensor"), self.pace());
        text += &values(&self.objects).map(|values| format!("{:11}{values}\n", "values")).unwrap_or_default();
        text += &format!("{:11}{}\n", "proof", self.proof());
        if let Some(proven) = &self.verified {
            text += &format!(
                "{:11}{} of {} tensors equal when read back\n",
                "verified", proven.tensors, self.tensors
            );
        }
        text + &self.notes.iter().map(|note| format!("{:11}{}\n", "note", harmless(note))).collect::<String>()
    }

    fn plain(&self) -> String {
        let mut text = format!("{}\t{}\t{}\n", self.word(), harmless(&self.target), self.format);
        text += &self.worker.iter().map(|it| format!("worker\t{it}\n")).collect::<String>();
        text += &self.plan.iter().map(|it| format!("plan\t{it}\n")).collect::<String>();
        text += &self.missing_files.iter().map(|it| format!("missing_files\t{it}\n")).collect::<String>();
        text += &self.meshes_read.iter().map(|read| format!("mesh\t{read}\n")).collect::<String>();
        let Report { seconds, proven, .. } = &self.report;
        text += &format!("tensors\t{}\nbytes\t{}\nfiles\t{}\n", self.tensors, self.bytes, self.files);
        text += &format!("seconds\t{seconds:.3}\nfingerprints\t{proven}\t{}\n", self.fingerprints_recorded);
        text +=
            &format!("values\t{}\n", counts(&self.objects).map(|(_, count)| count.to_string()).join("\t"));
        text += &self.verified.iter().map(|it| format!("verified\t{}\n", it.tensors)).collect::<String>();
        text + &self.notes.iter().map(|note| format!("note\t{}\n", harmless(note))).collect::<String>()
    }

    fn quiet(&self) -> String {
        harmless(&self.target) + "\n"
    }
}
