//! `ckpt tag` and `ckpt pin`: names of checkpoints, and protection from being forgotten.

use dcp::commit::{Label, Log, Seq};
use dcp::formats::native::Revision;
use dcp::retention;
use dcp::{Error, ErrorKind, Place, Result};
use serde::Serialize;

use super::{label, open_to_change};
use crate::output::{self, Render, style};
use crate::target::Target;
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct Marked {
    location: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<Label>,
    /// The checkpoint that is concerned.
    seq: Seq,
    /// Whether it has the mark now.
    set: bool,
    /// Whether that is new.
    changed: bool,
    /// The checkpoint that had the tag before.
    before: Option<Seq>,
}

/// Names a checkpoint, or takes the name away.
pub(in crate::verbs) fn tag(context: &Context<'_>, args: &cli::Tag) -> Result<exit::Code> {
    let (mut log, name) = (open_to_change(&args.target)?, label(&args.name)?);
    let location = args.target.location.clone();
    let marked = if args.delete {
        if args.target.revision.is_some() {
            return Err(Error::incompatible(format!(
                "{}: a name is taken away, wherever it is",
                args.target
            ))
            .hint("leave the revision out"));
        }
        let before = retention::untag(&mut log, &name)?;
        let seq = before.ok_or_else(|| no_tag(&log, &name)).place(&location)?;
        Marked { location, tag: Some(name), seq, set: false, changed: true, before }
    } else {
        let seq = meant(&args.target, &log)?;
        let before = retention::tag(&mut log, &name, seq)?;
        Marked { location, tag: Some(name), seq, set: true, changed: before != Some(seq), before }
    };
    output::show(context, &args.target.to_string(), &[], &marked)?;
    Ok(exit::DONE)
}

/// Pins a checkpoint, or releases it.
pub(in crate::verbs) fn pin(context: &Context<'_>, args: &cli::Pin) -> Result<exit::Code> {
    let mut log = open_to_change(&args.target)?;
    let seq = meant(&args.target, &log)?;
    let changed = retention::pin(&mut log, seq, !args.release)?;
    let location = args.target.location.clone();
    let marked = Marked { location, tag: None, seq, set: !args.release, changed, before: None };
    output::show(context, &args.target.to_string(), &[], &marked)?;
    Ok(exit::DONE)
}

fn meant(target: &Target, log: &Log) -> Result<Seq> {
    if target.glob.is_some() {
        return Err(Error::incompatible(format!("{target}: a checkpoint is marked whole, not by names"))
            .hint("leave #GLOB out"));
    }
    let revision: Revision = target.revision.as_deref().unwrap_or("latest").parse()?;
    Ok(revision.resolve(log.state()).place(&target.location)?.0)
}

fn no_tag(log: &Log, name: &Label) -> Error {
    let tags: Vec<&str> = log.state().tags.keys().map(Label::as_str).collect();
    let hint =
        if tags.is_empty() { "there are no tags".to_owned() } else { format!("tags: {}", tags.join(", ")) };
    Error::new(ErrorKind::NotFound, format!("there is no tag {name}")).hint(hint)
}

impl Render for Marked {
    fn schema(&self) -> &'static str {
        if self.tag.is_some() { "ckpt.tag/1" } else { "ckpt.pin/1" }
    }

    fn human(&self, _width: Option<usize>) -> String {
        let target = style::harmless(&format!("{}@seq:{}", self.location, self.seq));
        match (&self.tag, self.set, self.changed) {
            (Some(tag), true, false) => format!("same       {target} is tag {tag} already\n"),
            (Some(tag), true, true) => {
                let from = self.before.map(|seq| format!(", which was seq:{seq}")).unwrap_or_default();
                format!("tagged     {target} as {tag}{from}\n")
            }
            (Some(tag), false, _) => format!("untagged   {target}, which was {tag}\n"),
            (None, true, true) => format!("pinned     {target}\n"),
            (None, false, true) => format!("released   {target}\n"),
            (None, true, false) => format!("same       {target} is pinned already\n"),
            (None, false, false) => format!("same       {target} is not pinned\n"),
        }
    }

    fn plain(&self) -> String {
        let tag = self.tag.as_ref().map(Label::as_str).unwrap_or_default();
        let word = if self.set { "set" } else { "taken" };
        format!("{word}\t{}\t{tag}\t{}\n", self.seq, if self.changed { "changed" } else { "same" })
    }

    fn quiet(&self) -> String {
        style::harmless(&format!("{}@seq:{}", self.location, self.seq)) + "\n"
    }
}
