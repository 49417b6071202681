//! `faults`: damages a store in one place at a time, and asks whether the product sees it, says where, and never hands out a wrong
//! byte.
//!
//! ```text
//!  ground (saved, converted) ─ one fault ─► verify of the checkpoints concerned, audit of the log ─► found? named?
//!                                      └──► load of every checkpoint ─► right, refused, or wrong
//!  truth: the blob's own header says which elements were hit
//! ```
//!
//! A fault is *found* when an error is told; *named* when every object that it changed is told by its path and, where bytes of tensors
//! were hit, the FQN and a range that holds the elements hit. Parts don't belong to a committed checkpoint: a fault there is
//! *irrelevant*, which is proven: nothing is told, and everything loads as it was. The loss of the last record is no damage that
//! anything could tell from a log that was shorter: what it named is *sealed* then, and nothing calls it committed.
//!
//! The proof is repeated without each of the product's checks, and must fail then; without the hashes of blocks also by loads that
//! hand out wrong bytes.

mod evidence;
mod ground;
mod kinds;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use dcp::commit::Log;
use dcp::load::Loader;
use dcp::ops::standing::{Standing, judge};
use dcp::ops::verify::VerifyOptions;
use dcp::store::Stores;
use serde::Serialize;

use self::evidence::{CHECKS, Check, Evidence, gather, load_blind, patience};
use self::ground::{Ground, KINDS, Kind};
use self::kinds::{Change, FAULTS, Fault, apply, undo};
use crate::chance::Chance;
use crate::proof::{Proof, Size};
use crate::training::{self, Load, Outcome, compare, load, location, log_options};

pub(crate) use self::ground::files;

/// Draws before a fault that changes nothing is given up.
const DRAWS: u32 = 40;

/// What was tried, and what came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Faults {
    wanted: u64,
    faults: u64,
    found: u64,
    named: u64,
    irrelevant: u64,
    sealed_without_record: u64,
    elements_compared: u64,
    loads: u64,
    loads_refused: u64,
    loads_wrong: u64,
    /// Checkpoints that were refused although the fault lay elsewhere.
    collateral: u64,
    table: BTreeMap<Fault, BTreeMap<Kind, Row>>,
    /// What comes of it without a check of the product.
    without: BTreeMap<Check, Without>,
    /// What went wrong, the first of it.
    misses: Vec<String>,
}

/// One kind of fault on one kind of object.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Row {
    faults: u64,
    found: u64,
    named: u64,
    irrelevant: u64,
    sealed: u64,
}

/// The proof without a check.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Without {
    faults: u64,
    missed: u64,
    loads_wrong: u64,
}

impl Proof for Faults {
    const NAME: &'static str = "faults";

    fn bad(&self) -> Vec<String> {
        let mut bad = self.misses.clone();
        let told = self.found + self.irrelevant + self.sealed_without_record;
        if self.faults < self.wanted || self.wanted == 0 {
            bad.push(format!("{} of {} faults were tried", self.faults, self.wanted));
        }
        if told != self.faults || self.named != self.found {
            bad.push(format!("of {} faults {told} were told, {} named", self.faults, self.named));
        }
        if self.loads_wrong + self.collateral > 0 {
            bad.push(format!(
                "{} loads were wrong, {} refused for nothing",
                self.loads_wrong, self.collateral
            ));
        }
        if self.sealed_without_record == 0 || self.elements_compared == 0 || self.loads_refused == 0 {
            bad.push("something was never tried".to_owned());
        }
        let blind = |(check, it): (&Check, &Without)| {
            let loads = *check != Check::BlockHash || it.loads_wrong > 0;
            (it.missed == 0 || !loads).then(|| format!("it holds without the check {check:?} as well"))
        };
        bad.extend(self.without.iter().filter_map(blind));
        if self.without.len() != CHECKS.len() {
            bad.push("it was not repeated without each check".to_owned());
        }
        bad
    }
}

/// Tries them.
pub(crate) fn run(size: Size) -> Outcome<Faults> {
    let scale = size.pick(4, 16);
    let saved = Ground::saved(scale)?;
    let grounds = [Ground::converted(&saved)?, saved];
    let mut figures = Faults { wanted: size.pick(360, 10_000), ..Faults::default() };
    let mut chance = Chance::new(size.seed, 1);
    let cells: Vec<(Fault, Kind)> =
        FAULTS.iter().flat_map(|fault| KINDS.iter().map(|kind| (*fault, *kind))).collect();
    let (mut round, mut last) = (0, Vec::new());
    while figures.faults < figures.wanted {
        let Some((fault, kind)) = cells.get(round % cells.len()) else { break };
        round += 1;
        // Two of three on the root that was saved: it has more to be mistaken for.
        let Some(ground) = grounds.get(usize::from(chance.below(3) > 0)) else { break };
        if let Some(changes) = draw(ground, *fault, *kind, &mut chance) {
            figures.one(ground, *fault, *kind, &changes)?;
        }
        if round > 1_000_000 {
            return Err("nearly no fault changes anything".into());
        }
    }
    for ground in &grounds {
        last.extend(lost_records(ground));
    }
    for (ground, fault, changes) in &last {
        figures.one(ground, *fault, Kind::Record, changes)?;
    }
    for check in CHECKS {
        let without = without(&grounds, check, size, &mut chance)?;
        figures.without.insert(check, without);
    }
    table(&figures);
    Ok(figures)
}

/// The loss of each root's last record, whatever chance has drawn.
fn lost_records(ground: &Ground) -> Vec<(&Ground, Fault, Vec<Change>)> {
    let Some(record) = ground.last_record() else { return Vec::new() };
    let gone = || Change {
        path: record.path.clone(),
        object: ground.objects.iter().position(|it| it.path == record.path),
        before: Some(record.bytes.clone()),
        after: None,
    };
    vec![(ground, Fault::Missing, vec![gone()])]
}

fn draw(ground: &Ground, fault: Fault, kind: Kind, chance: &mut Chance) -> Option<Vec<Change>> {
    let all = ground.objects.iter().enumerate();
    let of_kind: Vec<usize> = all.filter(|(_, it)| it.kind == kind).map(|(at, _)| at).collect();
    (0..DRAWS).find_map(|_| fault.of(ground, *chance.of(&of_kind)?, chance))
}

/// The checkpoints that changes concern: those whose folders they lie in, or all where the log is concerned.
fn suspects(ground: &Ground, changes: &[Change]) -> BTreeSet<usize> {
    let objects = changes.iter().filter_map(|it| ground.objects.get(it.object?));
    let of: Vec<Option<usize>> = objects.map(|object| object.of).collect();
    if of.contains(&None) { (0..ground.saved.len()).collect() } else { of.into_iter().flatten().collect() }
}

/// Whether all that became of a record is that the last one is no longer there.
fn is_lost_record(ground: &Ground, changes: &[Change]) -> bool {
    let last = ground.last_record().map(|record| record.path.as_str());
    let new_record = |it: &Change| it.object.is_none() && it.path.ends_with(".json");
    changes.first().is_some_and(|it| Some(it.path.as_str()) == last && it.after.is_none())
        && !changes.iter().any(new_record)
}

impl Faults {
    fn one(&mut self, ground: &Ground, fault: Fault, kind: Kind, changes: &[Change]) -> Outcome<()> {
        let suspects = suspects(ground, changes);
        apply(ground, changes)?;
        let evidence = gather(ground, &suspects, None);
        let lost = is_lost_record(ground, changes).then(|| is_sealed(ground));
        let loads = loads(ground);
        undo(ground, changes)?;
        let evidence = evidence?;
        self.faults += 1;
        let row = self.table.entry(fault).or_default().entry(kind).or_default();
        row.faults += 1;
        let paths: Vec<&str> = changes.iter().map(|it| it.path.as_str()).collect();
        let what = format!("{} {fault:?} {kind:?} of {}", ground.name, paths.join(" and "));
        let mut missed = Vec::new();
        match (lost, kind) {
            (Some(sealed), _) => {
                row.sealed += 1;
                self.sealed_without_record += 1;
                missed.extend(sealed?.map(|why| format!("its record is lost: {why}")));
            }
            (None, Kind::Part) if evidence.is_empty() => {
                row.irrelevant += 1;
                self.irrelevant += 1;
                if loads.iter().any(|it| it.1 != Load::Right) {
                    missed.push("it matters to a load".to_owned());
                }
            }
            _ if evidence.is_empty() => missed.push("not found".to_owned()),
            _ => {
                row.found += 1;
                self.found += 1;
                let (unnamed, elements) = unnamed(ground, changes, &evidence)?;
                self.elements_compared += elements;
                if unnamed.is_empty() {
                    row.named += 1;
                    self.named += 1;
                }
                missed.extend(unnamed.into_iter().map(|it| format!("not named: {it}")));
            }
        }
        for (at, outcome) in loads {
            self.loads += 1;
            match outcome {
                Load::Right => {}
                Load::Refused(why) => {
                    self.loads_refused += 1;
                    if at.is_some_and(|at| !suspects.contains(&at)) {
                        self.collateral += 1;
                        missed.push(format!("checkpoint {at:?} was refused: {why}"));
                    }
                }
                Load::Wrong(tensor) => {
                    self.loads_wrong += 1;
                    missed.push(format!("loaded wrong: {tensor}"));
                }
            }
        }
        for miss in missed {
            if self.misses.len() < 20 {
                let told: Vec<&str> = evidence.iter().take(3).map(|it| it.text.as_str()).collect();
                self.misses.push(format!("{what}: {miss} (told: {told:?})"));
            }
        }
        Ok(())
    }
}

/// What is not named of what changes touched, and how many elements were looked for.
fn unnamed(ground: &Ground, changes: &[Change], evidence: &[Evidence]) -> Outcome<(Vec<String>, u64)> {
    let (mut unnamed, mut elements) = (Vec::new(), 0);
    for change in changes {
        let Some(object) = change.object.and_then(|at| ground.objects.get(at)) else { continue };
        let name = match object.of {
            Some(_) => object.path.split_once('/').map_or(object.path.as_str(), |(_, rest)| rest),
            None => object.path.as_str(),
        };
        if !evidence.iter().any(|it| it.text.contains(name)) {
            unnamed.push(object.path.clone());
        }
        if object.kind != Kind::Data {
            continue;
        }
        for element in truth::touched(change)? {
            elements += 1;
            let told = |it: &&Evidence| {
                it.tensor.as_ref() == Some(&element.tensor)
                    && it.range.as_deref().is_some_and(|range| truth::holds(range, &element.index))
            };
            if !evidence.iter().any(|it| told(&it)) {
                unnamed.push(format!("{} {:?}", element.tensor, element.index));
            }
        }
    }
    Ok((unnamed, elements))
}

/// What each checkpoint loads as, and the newest one, whichever that is.
fn loads(ground: &Ground) -> Vec<(Option<usize>, Load)> {
    let each = ground.saved.iter().enumerate();
    let mut loads: Vec<_> =
        each.map(|(at, saved)| (Some(at), load(&ground.root, saved.seq, saved.step))).collect();
    // A log with a hole is waited for by whoever opens it: it is refused, only later.
    let whole = Log::open_with(&ground.root, log_options(2)).map_err(|error| error.to_string());
    let newest = training::run().map_err(|error| error.to_string()).and_then(|run| {
        whole?;
        let loader = Loader::newest(&ground.root, &run).map_err(|error| error.to_string())?;
        let step = loader.commit().map_err(|error| error.to_string())?.step;
        Ok((loader, step))
    });
    loads.push((
        None,
        match newest {
            Ok((loader, step)) if ground.saved.iter().any(|saved| saved.step == step) => {
                compare(&loader, step)
            }
            Ok((_, step)) => Load::Wrong(format!("a step {step} that nobody saved")),
            Err(why) => Load::Refused(why),
        },
    ));
    loads
}

/// Whether the newest checkpoint's folder is sealed, its root what it is without that record; else what it is said to be.
fn is_sealed(ground: &Ground) -> Outcome<Option<String>> {
    let newest = ground.saved.last().ok_or("a root without checkpoints")?;
    let options = VerifyOptions { threads: NonZeroUsize::MIN, ..VerifyOptions::default() };
    let word = |place: &str| judge(&Stores::new(), place, None, patience(), &options).map(|it| it.standing);
    let step = word(location(&ground.file(&newest.dir))?)?;
    let root = word(location(&ground.folder)?)?;
    let wanted = if ground.saved.len() > 1 { Standing::Committed } else { Standing::Incomplete };
    let right = step == Standing::Sealed && root == wanted;
    Ok((!right).then(|| format!("its folder is {step}, its root {root}")))
}

/// The proof without a check: faults that this check is there for.
fn without(grounds: &[Ground], check: Check, size: Size, chance: &mut Chance) -> Outcome<Without> {
    let (fault, kind) = match check {
        Check::TableRoot => (Fault::BitFlip, Kind::Table),
        Check::ManifestDigest => (Fault::BitFlip, Kind::Manifest),
        Check::RecordBytes => (Fault::BitFlip, Kind::Record),
        Check::Chain => (Fault::SwappedFiles, Kind::Record),
        Check::Size => (Fault::Extended, Kind::Data),
        Check::Presence => (Fault::Missing, Kind::Data),
        _ => (Fault::BitFlip, Kind::Data),
    };
    let (mut figures, ground) = (Without::default(), grounds.last().ok_or("no root")?);
    for _ in 0..size.pick(6, 100) {
        let Some(changes) = draw(ground, fault, kind, chance) else { continue };
        let suspects = suspects(ground, &changes);
        apply(ground, &changes)?;
        let evidence = gather(ground, &suspects, Some(check));
        if check == Check::BlockHash {
            let blind = suspects.iter().filter_map(|at| ground.saved.get(*at));
            let wrong = blind.filter(|saved| matches!(load_blind(ground, saved), Load::Wrong(_)));
            figures.loads_wrong += wrong.count() as u64;
        }
        undo(ground, &changes)?;
        figures.faults += 1;
        figures.missed += u64::from(evidence?.is_empty());
    }
    Ok(figures)
}

/// The table, for people.
fn table(figures: &Faults) {
    eprintln!(
        "{:<16} {:<9} {:>6} {:>6} {:>6} {:>10} {:>6}",
        "fault", "object", "tried", "found", "named", "irrelevant", "sealed"
    );
    for (fault, rows) in &figures.table {
        for (kind, row) in rows {
            eprintln!(
                "{:<16} {:<9} {:>6} {:>6} {:>6} {:>10} {:>6}",
                format!("{fault:?}"),
                format!("{kind:?}"),
                row.faults,
                row.found,
                row.named,
                row.irrelevant,
                row.sealed
            );
        }
    }
    for (check, it) in &figures.without {
        eprintln!(
            "without {:<16} {:>4} faults, {:>4} missed, {:>4} loads wrong",
            format!("{check:?}"),
            it.faults,
            it.missed,
            it.loads_wrong
        );
    }
}
