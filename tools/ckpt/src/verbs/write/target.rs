//! [`Target`]: where a checkpoint is written, whether that place is free, and the sink that writes there.

use std::path::{Path, PathBuf};

use dcp::commit::{Label, LogOptions};
use dcp::engine::Share;
use dcp::formats::native::{Earlier, NativeSink, SinkOptions};
use dcp::formats::{hf, safetensors, torch_dcp, torch_pt};
use dcp::manifest::Origin;
use dcp::ops::prepare::Prepared;
use dcp::staging::Staging;
use dcp::store::{Root, StoreError, Stores, local_path};
use dcp::{Error, ErrorKind, Format, Place, Result, Sink};

use super::{Job, Opened, taken};

/// The run that commits of a person at a terminal belong to.
pub(in crate::verbs) const RUN: &str = "main";

/// Where it is written.
pub(super) struct Target {
    /// As the user gave it, or the source's root.
    pub(super) location: String,
    /// Whether it is the source's own root.
    pub(super) in_place: bool,
}

impl Target {
    /// Decides the place and checks that it is free.
    ///
    /// # Errors
    /// `Conflict` where something is there; `Incompatible` for a source that has no root of its own.
    pub(super) fn of(job: &Job<'_>, opened: &Opened) -> Result<Self> {
        let Some(location) = job.target else {
            return Self::in_place(opened);
        };
        if location.is_empty() {
            return Err(Error::incompatible("the target is an empty path"));
        }
        let target = Self { location: location.to_owned(), in_place: same(location, &opened.location) };
        match (job.format, local_path(location)) {
            (Format::Native, _) => root_is_free(location)?,
            (_, Some(path)) => is_free(&path)?,
            (format, None) => {
                return Err(Error::unsupported(format!(
                    "{location}: {} is written to local folders only",
                    format.name()
                ))
                .hint("--as native writes to stores; or copy the folder there afterwards"));
            }
        }
        Ok(target)
    }

    fn in_place(opened: &Opened) -> Result<Self> {
        if opened.commit.is_none() {
            return Err(Error::incompatible(format!(
                "{}: only a native root can be resharded in place",
                opened.location
            ))
            .hint("give a TARGET to write a native store to"));
        }
        Ok(Self { location: opened.location.clone(), in_place: true })
    }

    /// The sink that writes there. Creates a native root where there is none.
    ///
    /// # Errors
    /// What the store says.
    pub(super) fn sink(
        &self,
        job: &Job<'_>,
        opened: &Opened,
        prepared: &Prepared,
        share: Share,
    ) -> Result<Box<dyn Sink>> {
        Ok(match job.format {
            Format::Native => Box::new(self.native(job, opened, share)?),
            Format::TorchDcp => Box::new(torch_dcp::DcpSink::new(&self.path()?, structure(job))),
            Format::Hf => Box::new(hf::HfSink::new(&self.path()?, folder(job, prepared))),
            Format::Safetensors => Box::new(safetensors::SafetensorsSink::new(&self.path()?)),
            Format::Pt => Box::new(torch_pt::PtSink::new(&self.path()?)),
        })
    }

    fn path(&self) -> Result<PathBuf> {
        local_path(&self.location).ok_or_else(|| Error::internal(format!("{} is no path", self.location)))
    }

    /// Checks that a run of the same plan was stopped here. A worker that comes late finds it done by others, and that is what it is for.
    ///
    /// # Errors
    /// `Conflict` where none was, saying what there is instead.
    pub(super) fn must_go_on(
        &self,
        job: &Job<'_>,
        opened: &Opened,
        prepared: &Prepared,
        share: Share,
    ) -> Result<()> {
        let spec = &prepared.copy.spec;
        if job.format != Format::Native {
            let (own, others) = Staging::left(&self.path()?, &spec.plan_digest)?;
            return if own { Ok(()) } else { Err(self.nothing_stopped(&others)) };
        }
        let root = match Root::open(&self.location, &Stores::new()) {
            Err(StoreError::NotFound { .. }) => return Err(self.nothing_stopped(&[])),
            opened => opened.place(&self.location)?,
        };
        match NativeSink::new(root, self.options(job, opened, Share::WHOLE)?).earlier(spec)? {
            Earlier::Stopped => Ok(()),
            Earlier::Committed(_) if share != Share::WHOLE => Ok(()),
            Earlier::Nothing => Err(self.nothing_stopped(&[])),
            Earlier::Committed(seq) => {
                let text = format!("--resume: {}: this command is done, as record {seq}", self.location);
                let hint = format!("nothing was left to do: the checkpoint is {}@seq:{seq}", self.location);
                Err(Error::new(ErrorKind::Conflict, text).hint(hint))
            }
        }
    }

    fn nothing_stopped(&self, others: &[PathBuf]) -> Error {
        let text = format!("--resume: no run of this command was stopped at {}", self.location);
        let hint = match others.first() {
            None => "leave --resume out to begin one".to_owned(),
            Some(other) => format!(
                "{} is of another command, or of another state of the source: give the same source, options and target, or \
                 leave --resume out",
                other.display()
            ),
        };
        Error::new(ErrorKind::Conflict, text).hint(hint)
    }

    fn native(&self, job: &Job<'_>, opened: &Opened, share: Share) -> Result<NativeSink> {
        let root = Root::create(&self.location, &Stores::new()).place(&self.location)?;
        Ok(NativeSink::new(root, self.options(job, opened, share)?))
    }

    fn options(&self, job: &Job<'_>, opened: &Opened, share: Share) -> Result<SinkOptions> {
        let commit = opened.commit.as_ref();
        let run = match commit {
            Some(commit) => commit.run.clone(),
            None => RUN.parse::<Label>().map_err(|e| Error::internal(e.to_string()))?,
        };
        let catalog = opened.source.catalog();
        let mut options = SinkOptions::new(run);
        options.parent = commit.filter(|_| self.in_place).map(|commit| commit.seq);
        options.step = job.step;
        options.share = share;
        // The same state, laid out or written otherwise, is as good as it was.
        options.metrics = commit.map(|commit| commit.metrics.clone()).unwrap_or_default();
        options.origin = Some(Origin {
            format: catalog.format,
            variant: catalog.variant.clone(),
            place: origin(job, opened),
        });
        options.log = LogOptions { writer: writer(), ..LogOptions::default() };
        Ok(options)
    }
}

/// The source as the manifest names it: the same text however it was spelled, since several may write the manifest of one attempt.
fn origin(job: &Job<'_>, opened: &Opened) -> String {
    let real = local_path(&opened.location).and_then(|path| path.canonicalize().ok());
    let mut place = real.map_or_else(|| one_spelling(&opened.location), |path| path.display().to_string());
    if let Some(commit) = &opened.commit {
        place = format!("{place}@seq:{}", commit.seq);
    }
    place + &job.source.glob.iter().map(|glob| format!("#{glob}")).collect::<String>()
}

/// A URL as it is spelled with no slash too many; anything else as it is.
fn one_spelling(location: &str) -> String {
    let Some((scheme, rest)) = location.split_once("://") else { return location.to_owned() };
    let mut parts = rest.split('/');
    let authority = parts.next().unwrap_or_default();
    let path = parts.filter(|part| !part.is_empty()).map(|part| format!("/{part}"));
    format!("{}://{authority}{}", scheme.to_ascii_lowercase(), path.collect::<String>())
}

/// Who writes, as records say.
pub(in crate::verbs) fn writer() -> String {
    concat!("ckpt ", env!("CARGO_PKG_VERSION")).to_owned()
}

fn same(a: &str, b: &str) -> bool {
    let real = |text: &str| local_path(text).and_then(|path| path.canonicalize().ok());
    one_spelling(a) == one_spelling(b) || real(a).is_some_and(|a| Some(a) == real(b))
}

fn is_free(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(taken(&path.display().to_string(), "the target exists")),
        Err(_) => Ok(()),
    }
}

/// A root gains a commit; a place that holds anything else is left alone.
///
/// # Errors
/// `Conflict`, naming what is there.
pub(in crate::verbs) fn root_is_free(location: &str) -> Result<()> {
    let names = match local_path(location) {
        Some(path) => names_in(&path)?,
        None => names_below(location)?,
    };
    let ours = |name: &String| name == "commits" || name.starts_with("step-") || name.starts_with('.');
    match names.into_iter().filter(|name| !ours(name)).min() {
        Some(name) => {
            Err(taken(location, &format!("the target holds {name}, which is no part of a native store")))
        }
        None => Ok(()),
    }
}

fn names_in(path: &Path) -> Result<Vec<String>> {
    let Ok(found) = path.metadata() else { return Ok(Vec::new()) };
    let place = path.display().to_string();
    if !found.is_dir() {
        return Err(taken(&place, "the target is a file, and a native store is a folder"));
    }
    let entries = std::fs::read_dir(path).place(&place)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// In a bucket, or in memory.
fn names_below(location: &str) -> Result<Vec<String>> {
    let root = match Root::open(location, &Stores::new()) {
        Err(StoreError::NotFound { .. }) => return Ok(Vec::new()),
        opened => opened?,
    };
    let listing = root.list_dir(None)?;
    let names = listing.objects.iter().map(|object| &object.path).chain(&listing.dirs);
    Ok(names.map(ToString::to_string).collect())
}

fn structure(job: &Job<'_>) -> torch_dcp::Structure {
    match job.writing.names.as_deref() {
        Some("torchtitan") => torch_dcp::Structure::TorchTitan,
        _ => torch_dcp::Structure::Nested,
    }
}

fn folder(job: &Job<'_>, prepared: &Prepared) -> hf::HfOptions {
    let mut options = hf::HfOptions::new();
    options.max_shard_bytes = job.max_shard_size;
    options.config_folder.clone_from(&job.naming.config);
    options.facts.num_attention_heads = prepared.named.facts.heads;
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_store_is_the_same_however_many_slashes_it_is_spelled_with() {
        for text in ["s3://b/run", "s3://b/run/", "S3://b//run//"] {
            assert_eq!(one_spelling(text), "s3://b/run", "{text}");
            assert!(same(text, "s3://b/run"), "{text}");
        }
        assert_eq!(one_spelling("memory:///a/"), "memory:///a");
        assert_eq!(one_spelling("runs//a/"), "runs//a/");
        assert!(!same("s3://b/run", "s3://c/run"));
    }
}
