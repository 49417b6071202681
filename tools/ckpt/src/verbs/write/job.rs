//! [`Job`]: what the options of a writing verb come to.

use dcp::codec::Codecs;
use dcp::engine::Share;
use dcp::ops::prepare::{Names, Part, Request, Select};
use dcp::ops::restack::RestackRequest;
use dcp::rank_state::RankScheme;
use dcp::{Error, Format, Result};
use fqn::Dtype;
use reshard::Mesh;

use super::target::Target as Place;
use super::worker::{self, Worker};
use super::{Context, Opened, run_options};
use crate::cli::{self, Naming, Writing};
use crate::target::Target;
use crate::verbs::{facts, pattern};

/// What to write from what.
pub(super) struct Job<'a> {
    /// The verb, as the schema of its result is called.
    pub(super) verb: Verb,
    pub(super) source: &'a Target,
    /// Target; the source's own root where `None`.
    pub(super) target: Option<&'a str>,
    pub(super) format: Format,
    pub(super) from: Option<&'a str>,
    pub(super) to: Option<&'a str>,
    stage_split: Option<&'a str>,
    pub(super) max_shard_size: Option<u64>,
    pub(super) step: Option<u64>,
    codec: Option<&'a Codecs>,
    pub(super) worker: Option<Worker>,
    pub(super) naming: &'a Naming,
    pub(super) writing: &'a Writing,
}

/// Which of the writing verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Convert,
    Reshard,
    Export,
}

impl Verb {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Convert => "convert",
            Self::Reshard => "reshard",
            Self::Export => "export",
        }
    }

    pub(super) const fn schema(self) -> &'static str {
        match self {
            Self::Convert => "ckpt.convert/1",
            Self::Reshard => "ckpt.reshard/1",
            Self::Export => "ckpt.export/1",
        }
    }
}

/// A mesh that the user wrote, and how it was read.
fn mesh(text: Option<&str>) -> Result<Option<Mesh>> {
    let read = |text: &str| {
        text.parse::<Mesh>().map_err(|e| {
            Error::incompatible(format!("mesh {text:?}: {e}"))
                .caused_by(e)
                .hint("`ckpt help meshes` shows how meshes are written")
        })
    };
    text.map(read).transpose()
}

const fn format(format: cli::TargetFormat) -> Format {
    match format {
        cli::TargetFormat::Native => Format::Native,
        cli::TargetFormat::TorchDcp => Format::TorchDcp,
        cli::TargetFormat::Hf => Format::Hf,
        cli::TargetFormat::Safetensors => Format::Safetensors,
        cli::TargetFormat::Pt => Format::Pt,
    }
}

impl<'a> Job<'a> {
    pub(super) fn convert(args: &'a cli::Convert) -> Self {
        Self {
            verb: Verb::Convert,
            source: &args.source,
            target: Some(&args.target),
            format: format(args.target_format),
            from: args.from.as_deref(),
            to: args.to.as_deref(),
            stage_split: args.stage_split.as_deref(),
            max_shard_size: args.max_shard_size,
            step: args.step,
            codec: args.codec.as_ref(),
            worker: args.worker,
            naming: &args.naming,
            writing: &args.writing,
        }
    }

    pub(super) fn reshard(args: &'a cli::Reshard) -> Self {
        Self {
            verb: Verb::Reshard,
            source: &args.source,
            target: args.target.as_deref(),
            format: Format::Native,
            from: args.from.as_deref(),
            to: Some(&args.to),
            stage_split: args.stage_split.as_deref(),
            max_shard_size: None,
            step: None,
            codec: args.codec.as_ref(),
            worker: args.worker,
            naming: &args.naming,
            writing: &args.writing,
        }
    }

    pub(super) fn export(args: &'a cli::Export) -> Self {
        Self {
            verb: Verb::Export,
            source: &args.source,
            target: Some(&args.target),
            format: format(args.target_format),
            from: None,
            to: None,
            stage_split: None,
            max_shard_size: args.max_shard_size,
            step: None,
            codec: None,
            worker: None,
            naming: &args.naming,
            writing: &args.writing,
        }
    }

    /// What to ask of the source.
    ///
    /// # Errors
    /// `Incompatible` for a mesh, a split, a dtype or a glob that is none.
    pub(super) fn request(&self, context: &Context<'_>, opened: &Opened, target: &Place) -> Result<Request> {
        let glob = pattern(self.source.glob.as_deref())?;
        let split = self.stage_split.map(str::parse).transpose();
        let split =
            split.map_err(|e: reshard::StageError| Error::incompatible(format!("--stage-split: {e}")))?;
        let catalog = opened.source.catalog();
        let naming = facts::naming(self.naming, catalog)?;
        Ok(Request {
            extra: facts::to_keep(self.naming, &naming.facts, catalog)?,
            select: Select { part: self.part(), glob },
            from: mesh(self.from)?,
            to: mesh(self.to)?,
            split,
            naming,
            names: self.names(),
            cast: self.cast()?,
            step: self.step,
            drop_per_rank: self.writing.drop_per_rank,
            rank_state: self.rank_state()?,
            codecs: self.codec.cloned().unwrap_or_default(),
            stamp: opened.source.stamp()?,
            target: self.target_text(target),
            run: run_options(context, opened, target),
            ..Request::new(self.format)
        })
    }

    fn rank_state(&self) -> Result<RankScheme> {
        RankScheme::from_flags(&self.writing.rank_state).map_err(|error| {
            Error::incompatible(format!("--rank-state: {error}"))
                .caused_by(error)
                .hint("`ckpt help rank-state` shows how such rules are written")
        })
    }

    /// What a stopped run of this command must have in common with this one. A native root has its attempts within, however it is spelled.
    fn target_text(&self, target: &Place) -> String {
        match self.format {
            Format::Native => String::new(),
            _ => format!("{} {:?}", target.location, self.max_shard_size),
        }
    }

    /// The files that this process writes: all, where no share of them was asked for.
    ///
    /// # Errors
    /// `Incompatible` for a share that can't be known, or of what one process has to write.
    pub(super) fn share(&self, opened: &Opened) -> Result<Share> {
        let Some(worker) = self.worker else { return Ok(Share::WHOLE) };
        worker::can_share(self, opened)?;
        worker.share(|name| std::env::var(name).ok())
    }

    const fn part(&self) -> Part {
        match self.writing.only {
            cli::Part::All => Part::All,
            cli::Part::Model => Part::Model,
            cli::Part::Optimizer => Part::Optimizer,
        }
    }

    /// What shall be stacked, and taken apart.
    pub(super) fn restack(&self) -> RestackRequest {
        let Writing { stack, unstack, .. } = self.writing;
        RestackRequest { stack: stack.clone(), unstack: unstack.clone() }
    }

    /// A Hugging Face folder is for `transformers`, which knows its own names only.
    fn names(&self) -> Names {
        match &self.writing.names {
            Some(dialect) => Names::Dialect(dialect.clone()),
            None if self.format == Format::Hf => Names::Preferred("hf".to_owned()),
            None => Names::Keep,
        }
    }

    fn cast(&self) -> Result<Option<Dtype>> {
        let Some(name) = self.writing.dtype.as_deref() else { return Ok(None) };
        let found = name.parse().ok().or_else(|| Dtype::from_torch_name(name.trim_start_matches("torch.")));
        match found.filter(|dtype: &Dtype| dtype.is_float()) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(Error::incompatible(format!("--dtype {name}: model tensors are not cast to it"))
                .hint("bf16, f16, f32 and f64 are written")),
        }
    }

    /// How meshes that were given as text were read: `4x2x8 read as dp=4 pp=2 tp=8`.
    pub(super) fn meshes_read(&self) -> Vec<String> {
        let texts = [self.from, self.to].into_iter().flatten();
        let read = texts.filter_map(|text| Some(format!("{text} read as {}", text.parse::<Mesh>().ok()?)));
        let mut read: Vec<String> = read.collect();
        read.dedup();
        read
    }
}
