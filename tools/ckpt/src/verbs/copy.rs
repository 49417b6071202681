//! `ckpt copy`: copies checkpoints of a native store into a root, so that they need no folder but their own.

use dcp::commit::{Log, Seq};
use dcp::engine::RunOptions;
use dcp::formats::{OpenOptions, detect, native};
use dcp::ops::copy::{CopyOptions, CopyPlan, CopyReport, copy, plan};
use dcp::store::{Root, Stores, local_path};
use dcp::{Error, ErrorKind, Format, Place, Result};
use serde::Serialize;

use super::{Context, root, verify, write};
use crate::output::{
    self, Render,
    style::{self, harmless},
    units,
};
use crate::target::Target;
use crate::{cli, exit};

/// What was copied, or would be.
#[derive(Debug, Serialize)]
struct Copied {
    /// The root.
    target: String,
    dry_run: bool,
    copies: Vec<One>,
}

/// One checkpoint.
#[derive(Debug, Serialize)]
struct One {
    source: String,
    /// As the next command takes it; none where nothing was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    plan: CopyPlan,
    /// Why it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<Done>,
}

#[derive(Debug, Serialize)]
struct Done {
    sequence: u64,
    /// Whether this very copy was there before.
    before: bool,
    /// Bytes and files of the copy, metadata included.
    bytes: u64,
    files: usize,
    bytes_copied: u64,
    files_kept: usize,
    tensors: usize,
    proven: usize,
    seconds: f64,
}

/// Copies the sources, one after another.
pub(super) fn run(context: &Context<'_>, args: &cli::Copy) -> Result<exit::Code> {
    let of_option = |option: &str, text: &Option<String>| {
        let read = |text: &str| root::label(text).map_err(|error| error.at(format!("{option} {text}")));
        text.as_deref().map(read).transpose()
    };
    let (run, tag) = (of_option("--run", &args.run)?, of_option("--tag", &args.tag)?);
    let sources = sources(args)?;
    if tag.is_some() && sources.len() > 1 {
        let text = format!("--tag names one checkpoint, and {} are copied", sources.len());
        return Err(Error::incompatible(text).hint("copy the one that gets the name by itself"));
    }
    write::root_is_free(&args.target)?;
    let root = target(args)?;
    let (mut copies, mut warnings) = (Vec::with_capacity(sources.len()), Vec::new());
    for source in &sources {
        let options = CopyOptions {
            run: run.clone(),
            tag: tag.clone(),
            leave_forgotten: args.all,
            place: source.location.clone(),
            log: root::options(),
        };
        match one(context, args, source, &root, &options) {
            Ok(one) => copies.push(one),
            Err(_) if args.all && is_gone(source) => {
                warnings.push(format!("{source} was forgotten in the meantime, and is left out"));
            }
            Err(error) if copies.is_empty() => return Err(error),
            Err(error) => return Err(error.at(format!("{} of {} are done", copies.len(), sources.len()))),
        }
    }
    let copied = Copied { target: args.target.clone(), dry_run: args.dry_run, copies };
    output::show(context, &args.target, &warnings, &copied)?;
    Ok(exit::DONE)
}

fn one(
    context: &Context<'_>,
    args: &cli::Copy,
    target: &Target,
    root: &Root,
    options: &CopyOptions,
) -> Result<One> {
    let source = open(target)?;
    let seq = source.commit().map(|commit| format!("@seq:{}", commit.seq)).unwrap_or_default();
    let name = format!("{}{seq}", target.location);
    if args.dry_run {
        let plan = plan(&source, root, options).place(&name)?;
        let skipped = skipped(args, &plan);
        return Ok(One { source: name, target: None, plan, skipped, done: None });
    }
    let run = RunOptions {
        max_memory: context.global.max_memory,
        gathered: write::gathered(&args.target, context.global.max_memory),
        threads: verify::threads(context, &[&source]),
        ..RunOptions::default()
    };
    let report = copy(&source, root, options, &run, &*context.progress, &context.cancel).place(&name);
    let report = report.map_err(|error| match error.kind() {
        ErrorKind::Cancelled => error.hint("run the same command again: it goes on with what is finished"),
        _ => error,
    })?;
    let CopyReport { plan, committed, files_kept, bytes_copied, proven, seconds, fingerprints } = report;
    let Some(sequence) = committed.sequence else {
        let skipped = skipped(args, &plan);
        return Ok(One { source: name, target: None, plan, skipped, done: None });
    };
    let done = Done {
        sequence,
        before: plan.before.is_some(),
        bytes: committed.bytes,
        files: committed.files,
        bytes_copied,
        files_kept,
        tensors: fingerprints.len(),
        proven,
        seconds,
    };
    let target = Some(format!("{}@seq:{sequence}", args.target));
    Ok(One { source: name, target, plan, skipped: None, done: Some(done) })
}

/// Why --all leaves it out.
fn skipped(args: &cli::Copy, plan: &CopyPlan) -> Option<String> {
    let record = plan.forgotten.filter(|_| args.all)?;
    Some(format!("it was copied before, by record {record}, and forgotten in the target"))
}

/// Whether a checkpoint that --all means is no longer there.
fn is_gone(source: &Target) -> bool {
    let number = source.revision.as_deref().and_then(|it| it.strip_prefix("seq:"));
    let seq = number.and_then(|it| it.parse::<u64>().ok()).and_then(|it| Seq::new(it).ok());
    let log = Root::open(&source.location, &Stores::new()).ok().and_then(|root| Log::open(&root).ok());
    log.zip(seq).is_some_and(|(log, seq)| !log.state().checkpoints.contains_key(&seq))
}

/// Opens a checkpoint of a native store; anything else is not copied but converted.
fn open(target: &Target) -> Result<native::NativeSource> {
    if let Some(glob) = &target.glob {
        return Err(Error::incompatible(format!("{target}: a checkpoint is copied whole, not #{glob}"))
            .hint("`ckpt convert` writes a part of one"));
    }
    if let Some(path) = local_path(&target.location)
        && let Ok(found) = detect(&path)
        && found.format != Format::Native
    {
        let text = format!("{target}: is {}, and only a native store is copied", found.format.name());
        return Err(Error::incompatible(text).hint("`ckpt convert` writes it into a native root"));
    }
    native::open_in(&Stores::new(), &target.location, target.revision.as_deref(), OpenOptions::new())
}

/// The checkpoints that are meant.
fn sources(args: &cli::Copy) -> Result<Vec<Target>> {
    if !args.all {
        return Ok(args.sources.clone());
    }
    let mut sources = Vec::new();
    for target in &args.sources {
        if target.revision.is_some() {
            return Err(Error::incompatible(format!("{target}: --all copies every checkpoint of a root"))
                .hint("leave the revision out, or --all"));
        }
        let root = Root::open(&target.location, &Stores::new())?;
        let log = Log::open(&root).place(&target.location)?;
        let each = log.state().checkpoints.keys();
        sources.extend(each.map(|seq| Target { revision: Some(format!("seq:{seq}")), ..target.clone() }));
    }
    if sources.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "there is no committed checkpoint to copy"));
    }
    Ok(sources)
}

/// The root: made where there is none, but for a plan.
fn target(args: &cli::Copy) -> Result<Root> {
    let stores = Stores::new();
    if !args.dry_run {
        return Root::create(&args.target, &stores).place(&args.target);
    }
    match Root::open(&args.target, &stores).map_err(Error::from) {
        // Where nothing is, a plan is that for an empty root.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Root::create("memory://empty", &stores)?),
        found => found,
    }
}

impl One {
    fn human(&self) -> String {
        let CopyPlan { run, step, files, bytes, shared_files, shared_bytes, sealed_files, .. } = &self.plan;
        let mut text = format!("{:11}{} (step {step})\n", "from", harmless(&self.source));
        let mut parts = vec![format!("{} in {}", units::bytes(*bytes), units::many(*files, "file"))];
        if *shared_files > 0 {
            parts.push(format!("{} of them shared with other folders", units::bytes(*shared_bytes)));
        }
        if *sealed_files > 0 {
            parts.push(format!("{sealed_files} sealed files"));
        }
        let size = parts.join(", ");
        if let Some(why) = &self.skipped {
            return text + &format!("{} {why}\n", style::word("left out"));
        }
        let (Some(target), Some(done)) = (&self.target, &self.done) else {
            let word = if self.plan.before.is_some() { "copied before:" } else { "would copy" };
            return text + &format!("{word} {size}, to run {run}\n");
        };
        let before = if done.before { " before " } else { "     " };
        text += &format!("{}{before}{} (run {run})\n", style::word("copied"), harmless(target));
        if done.before {
            return text;
        }
        let kept = match done.files_kept {
            0 => String::new(),
            kept => format!(", {} finished before", units::many(kept, "file")),
        };
        let rate = units::bytes(units::rate(done.bytes_copied, done.seconds));
        text += &format!("{:11}{size}; {:.2} s, {rate}/s{kept}\n", "size", done.seconds);
        text + &format!(
            "{:11}every block by its SHA-256; fingerprints of {} of {} equal\n",
            "proof",
            done.proven,
            units::many(done.tensors, "tensor")
        )
    }

    fn plain(&self) -> String {
        let word = match &self.done {
            None if self.skipped.is_some() => "skipped",
            None => "plan",
            Some(done) if done.before => "before",
            Some(_) => "copied",
        };
        let (source, target) = (harmless(&self.source), harmless(self.target.as_deref().unwrap_or_default()));
        let (run, step, bytes) = (&self.plan.run, self.plan.step, self.plan.bytes);
        format!("{word}\t{source}\t{target}\t{run}\t{step}\t{bytes}\n")
    }
}

impl Render for Copied {
    fn schema(&self) -> &'static str {
        "ckpt.copy/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        self.copies.iter().map(One::human).collect::<Vec<_>>().join("\n")
    }

    fn plain(&self) -> String {
        self.copies.iter().map(One::plain).collect()
    }

    fn quiet(&self) -> String {
        self.copies.iter().filter_map(|one| one.target.as_deref()).map(|it| harmless(it) + "\n").collect()
    }
}
