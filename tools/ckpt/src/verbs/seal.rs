//! `ckpt seal`: gives a foreign checkpoint hashes, fingerprints and a commit, without rewriting a byte of it.

use std::path::Path;

use dcp::commit::{Label, LogOptions};
use dcp::engine::RunOptions;
use dcp::formats::OpenOptions;
use dcp::ops::naming;
use dcp::ops::seal::{SealOptions, SealReport, seal};
use dcp::store::{Root, Stores, local_path};
use dcp::{Error, Format, Place, Result};
use serde::Serialize;

use super::{Context, facts, open, open::Opened, verify, write};
use crate::output::{
    self, Render,
    style::{self, harmless},
    units,
};
use crate::{cli, exit};

/// What was sealed.
#[derive(Debug, Serialize)]
struct Sealed {
    source: String,
    source_format: &'static str,
    /// As the next command takes it.
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    placement: String,
    report: SealReport,
}

/// Seals the target.
pub(super) fn run(context: &Context<'_>, args: &cli::Seal) -> Result<exit::Code> {
    if args.target.glob.is_some() {
        return Err(Error::incompatible(format!(
            "{}: a checkpoint is sealed whole, not by names",
            args.target
        ))
        .hint("leave #GLOB out"));
    }
    let opened = open::open(&args.target, OpenOptions::new())?;
    let catalog = opened.source.catalog();
    if opened.commit.is_some() || catalog.format == Format::Native {
        return Err(Error::incompatible(format!("{}: a native store needs no seal", opened.location))
            .hint("`ckpt verify` compares its hashes"));
    }
    let named = naming::name(&catalog.registry, &facts::naming(&args.naming, catalog)?)?;
    let into =
        args.into.clone().unwrap_or_else(|| format!("{}.sealed", opened.location.trim_end_matches('/')));
    outside(&into, &opened.location)?;
    write::root_is_free(&into)?;
    let options = SealOptions {
        step: args.step,
        registry: Some(named.registry),
        extra: facts::to_keep(&args.naming, &named.facts, catalog)?,
        log: LogOptions { writer: write::writer(), ..LogOptions::default() },
        ..SealOptions::new(
            base(&opened)?,
            write::RUN.parse::<Label>().map_err(|e| Error::internal(e.to_string()))?,
        )
    };
    let run = RunOptions {
        max_memory: context.global.max_memory,
        threads: verify::threads(context, &[&*opened.source]),
        ..RunOptions::default()
    };
    let root = Root::create(&into, &Stores::new()).place(&into)?;
    let report = seal(&*opened.source, &root, &options, &run, &*context.progress, &context.cancel)?;
    let sequence = report.committed.sequence.unwrap_or_default();
    let target = format!("{into}@seq:{sequence}");
    let sealed = Sealed {
        source: opened.location.clone(),
        source_format: catalog.format.name(),
        target,
        step: catalog.step.or(args.step),
        placement: named.origin,
        report,
    };
    output::show(context, &args.target.to_string(), &opened.warnings, &sealed)?;
    Ok(exit::DONE)
}

/// A root inside the checkpoint would make it another one.
fn outside(into: &str, source: &str) -> Result<()> {
    let absolute = |text: &str| local_path(text).and_then(|path| std::path::absolute(path).ok());
    match (absolute(into), absolute(source)) {
        (Some(root), Some(folder)) if root.starts_with(&folder) => Err(Error::incompatible(format!(
            "{into}: lies inside the checkpoint, which a seal leaves untouched"
        ))
        .hint("give --into a place beside it")),
        _ => Ok(()),
    }
}

/// What the paths of its files are relative to: the folder, or that of a single file.
fn base(opened: &Opened) -> Result<String> {
    let path = local_path(&opened.location).filter(|path| path.is_file());
    let Some(file) = path else { return Ok(opened.location.clone()) };
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let text = folder.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::unsupported(format!("{}: the path is not UTF-8", folder.display())))
}

impl Render for Sealed {
    fn schema(&self) -> &'static str {
        "ckpt.seal/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        let SealReport { committed, before, files, bytes_hashed, records, seconds, fingerprints, .. } =
            &self.report;
        let mut text =
            format!("{:11}{} ({}), untouched\n", "from", harmless(&self.source), self.source_format);
        let word = if *before { style::word("sealed") + " before " } else { style::word("sealed") + "     " };
        let step = self.step.map(|step| format!(" (step {step})")).unwrap_or_default();
        text += &format!("{word}{}{step}\n", harmless(&self.target));
        text += &format!("{:11}{}\n", "placement", self.placement);
        text += &format!(
            "{:11}{} of {} hashed in {seconds:.2} s, {}/s; {records} CRC-32 records agree\n",
            "read",
            units::bytes(*bytes_hashed),
            units::many(*files, "file"),
            units::bytes(units::rate(*bytes_hashed, *seconds)),
        );
        text += &format!(
            "{:11}{} in {}\n",
            "wrote",
            units::bytes(committed.bytes),
            units::many(committed.files, "file")
        );
        text + &format!("{:11}fingerprints of {}\n", "proof", units::many(fingerprints.len(), "tensor"))
    }

    fn plain(&self) -> String {
        let report = &self.report;
        format!(
            "sealed\t{}\nfiles\t{}\nbytes\t{}\nfingerprints\t{}\nseconds\t{:.3}\n",
            harmless(&self.target),
            report.files,
            report.bytes_hashed,
            report.fingerprints.len(),
            report.seconds
        )
    }

    fn quiet(&self) -> String {
        harmless(&self.target) + "\n"
    }
}
