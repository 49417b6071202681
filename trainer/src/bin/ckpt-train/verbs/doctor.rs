//! `ckpt-train doctor`: what a symptom means and what to do; or which symptoms a run shows.

use std::path::{Path, PathBuf};

use clap::Args;
use trainer::{
    Error, ErrorKind, Result,
    doctor::{Finding, Knowledge, examine, lookup, read_scenes},
    metrics::History,
};

use crate::exit;

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ckpt-train doctor                           all symptoms and tables\n  \
    ckpt-train doctor slower with more cards    causes, checks in order, remedies\n  \
    ckpt-train doctor --table strategies        a table to look things up in\n  \
    ckpt-train doctor --run metrics             what a run shows, by its metrics and the scenes of ranks that gave up")]
pub(crate) struct Doctor {
    /// The symptom, in your own words.
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
    /// Look for symptoms in a run: the folder of its metrics.
    #[arg(long, value_name = "METRICS", conflicts_with = "words")]
    run: Option<PathBuf>,
    /// The folder of the run's scenes; the one that its configuration named, if not given.
    #[arg(long, value_name = "FOLDER")]
    dumps: Option<PathBuf>,
    /// Show a table: quick, strategies, layout or troubleshooting.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["words", "run"])]
    table: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Doctor) -> Result<u8> {
    let known = Knowledge::read()?;
    if let Some(name) = &options.table {
        let table = known.table(name)?;
        return super::print(&if options.json { json(table)? } else { table.to_string() });
    }
    if options.run.is_some() || options.dumps.is_some() {
        return diagnose(&known, options);
    }
    if options.words.is_empty() {
        return super::print(&if options.json { json(&known)? } else { contents(&known) });
    }
    let said = options.words.join(" ");
    let found = lookup(&known, &said);
    let Some(best) = found.first() else {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("no symptom is like \"{}\"", exit::harmless(&said)),
        )
        .hint("`ckpt-train doctor` lists all; say what is seen, as in: doctor loss jumps after resume"));
    };
    if options.json {
        return super::print(&json(best.symptom)?);
    }
    let others: Vec<&str> = found.iter().skip(1).take(3).map(|it| it.symptom.id.as_str()).collect();
    let also =
        if others.is_empty() { String::new() } else { format!("\nalso like it: {}\n", others.join(", ")) };
    super::print(&format!("{}{also}", best.symptom))
}

/// All symptoms and tables, by name.
fn contents(known: &Knowledge) -> String {
    let symptoms = known.symptoms.iter().map(|it| format!("  {:<26} {}\n", it.id, it.title));
    let tables = known.tables.iter().map(|it| format!("  {:<26} {}\n", it.id, it.title));
    format!(
        "symptoms: `ckpt-train doctor NAME`, or in your own words\n{}\ntables: `ckpt-train doctor --table NAME`\n{}\n\
         a run: `ckpt-train doctor --run METRICS` looks for symptoms in its metrics and scenes\n",
        symptoms.collect::<String>(),
        tables.collect::<String>()
    )
}

fn diagnose(known: &Knowledge, options: &Doctor) -> Result<u8> {
    let run = options.run.as_deref().map(History::read).transpose()?;
    let own = run.as_ref().and_then(|run| run.fact("run/dumps")).map(PathBuf::from);
    let scenes = match options.dumps.as_deref().or(own.as_deref()) {
        Some(folder) if !folder.as_os_str().is_empty() => read_scenes(folder)?,
        _ => Vec::new(),
    };
    let findings = examine(run.as_ref(), &scenes);
    if options.json {
        super::print(&json(&findings)?)?;
    } else {
        super::print(&told(known, &findings, options.run.as_deref()))?;
    }
    Ok(if findings.is_empty() { exit::DONE.number } else { exit::DIFFERENT.number })
}

fn told(known: &Knowledge, findings: &[Finding], run: Option<&Path>) -> String {
    let of = run.map_or_else(|| "the scenes".to_owned(), |run| run.display().to_string());
    if findings.is_empty() {
        return format!("nothing is out of line in {of}\n");
    }
    let one = |finding: &Finding| {
        let symptom = known.symptom(&finding.symptom);
        let (title, first) =
            symptom.map_or(("", ""), |it| (&it.title, it.checks.first().map_or("", |check| check)));
        format!(
            "{title}  ({})\n  {}\n  first: {first}\n  more:  ckpt-train doctor {}\n",
            finding.symptom,
            exit::harmless(&finding.evidence).replace('\n', "\n  "),
            finding.symptom
        )
    };
    findings.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Error::internal(error.to_string()).caused_by(error))
}
