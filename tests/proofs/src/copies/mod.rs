//! `copies`: copies of a store, stopped anywhere. Tools that know nothing of it copy object by object, in an order of their own; what
//! they leave is *committed*, *sealed*, *incomplete* or *mixed* (or *damaged*, where a tool had made room for a file that it did not
//! fill), and never opened as more than it is.
//!
//! ```text
//!  scene (a root; two roots; an older copy; two states; a step) × order (cp, tar, rsync, sorted, random …)
//!     after each file, and in the middle of it ─► judge(root), judge(root@seq:n), judge(root/step-…), load of each checkpoint
//!                                             └─► oracle: from the objects that are there
//! ```
//!
//! Head hints are objects like others: where they lie among them, a reader may see less of what is wrong with a log, and never believes
//! more than what is there ([`hinted`]).
//!
//! It shows that it can fail: one object of each kind is taken away or changed, and the oracle is not told.

mod hinted;
mod oracle;
mod order;
mod place;
mod scene;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::Command;
use std::time::{Duration, SystemTime};

use dcp::ErrorKind;
use dcp::commit::{Log, Retry, Seq};
use dcp::formats::OpenOptions;
use dcp::ops::standing::{Standing, judge};
use dcp::ops::verify::VerifyOptions;
use serde::Serialize;

use self::order::{Manner, Order, lay_out, orders};
use self::place::Place;
use self::scene::{Scene, State, scenes};
use crate::chance::Chance;
use crate::faults::files;
use crate::proof::{Proof, Size};
use crate::training::{Load, Outcome, load, location, log_options, scratch};

/// What was tried, and what came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Copies {
    scenes: BTreeMap<&'static str, Scenes>,
    orders: u64,
    states: u64,
    /// Of those, stopped in the middle of a file.
    within: u64,
    /// Of those, where head hints lay among the objects.
    hinted: u64,
    verdicts: BTreeMap<&'static str, u64>,
    loads_right: u64,
    loads_refused: u64,
    /// Copies by real tools, from end to end, with other times of modification.
    tools: Vec<String>,
    tools_missing: Vec<String>,
    lies: u64,
    lies_caught: u64,
    misses: u64,
    first_misses: Vec<String>,
}

/// Of one scene.
#[derive(Debug, Default, Clone, Serialize)]
struct Scenes {
    orders: u64,
    states: u64,
}

impl Proof for Copies {
    const NAME: &'static str = "copies";

    fn bad(&self) -> Vec<String> {
        let mut bad = self.first_misses.clone();
        if self.misses > 0 {
            bad.push(format!("{} of {} states were taken for something else", self.misses, self.states));
        }
        for word in
            [Standing::Committed, Standing::Sealed, Standing::Incomplete, Standing::Damaged, Standing::Mixed]
        {
            if !self.verdicts.contains_key(word.word()) {
                bad.push(format!("no state was {word}"));
            }
        }
        if self.lies == 0 || self.lies_caught != self.lies {
            bad.push(format!("{} of {} lies were caught", self.lies_caught, self.lies));
        }
        if self.loads_right == 0
            || self.loads_refused == 0
            || self.within == 0
            || self.hinted == 0
            || self.tools.is_empty()
        {
            bad.push("something was never tried".to_owned());
        }
        bad
    }
}

/// Tries them.
pub(crate) fn run(size: Size) -> Outcome<Copies> {
    let (mut copies, mut chance) = (Copies::default(), Chance::new(size.seed, 2));
    let scenes = scenes()?;
    for scene in &scenes {
        let orders = orders(&scene.copied, size.pick(2, 200), &mut chance)?;
        for order in &orders {
            copies.copy(scene, order, size, &mut chance)?;
        }
    }
    if let Some(plain) = scenes.first() {
        copies.by_tools(plain)?;
        copies.lie(plain, &mut chance)?;
    }
    if let Some(hinted) = scenes.iter().find(|scene| scene.hinted) {
        copies.lie(hinted, &mut chance)?;
    }
    Ok(copies)
}

impl Copies {
    /// One copy, looked at after each file and in the middle of some.
    fn copy(&mut self, scene: &Scene, order: &Order, size: Size, chance: &mut Chance) -> Outcome<()> {
        let mut place = match order.manner {
            Manner::AtOnce => Place::bucket(&scene.there)?,
            _ => Place::folder(&scene.there)?,
        };
        self.orders += 1;
        self.scenes.entry(scene.name).or_default().orders += 1;
        for path in &order.paths {
            let Some(bytes) = scene.copied.get(path) else { continue };
            if scene.keeps && place.state.contains_key(path) {
                continue;
            }
            if order.manner != Manner::AtOnce && chance.below(size.pick(3, 1)) == 0 {
                self.within += 1;
                begin(&mut place, order.manner, path, bytes, chance)?;
                self.look(scene, order, &place)?;
                if order.manner == Manner::Beside {
                    place.remove(&beside(path))?;
                }
            }
            place.put(path, bytes)?;
            self.look(scene, order, &place)?;
        }
        Ok(())
    }

    /// Compares what is said of a place with what the oracle says.
    fn look(&mut self, scene: &Scene, order: &Order, place: &Place) -> Outcome<()> {
        self.states += 1;
        self.scenes.entry(scene.name).or_default().states += 1;
        if scene.hinted {
            self.hinted += 1;
            let misses = hinted::misses(scene, place, &place.state)?;
            misses.iter().for_each(|what| self.miss(scene, order, place, what));
            return Ok(());
        }
        for (what, said, wanted) in said(scene, place, &place.state)? {
            self.verdicts
                .entry(wanted.map_or("nothing", Standing::word))
                .and_modify(|count| *count += 1)
                .or_insert(1);
            if said != wanted {
                self.miss(scene, order, place, &format!("{what} is {wanted:?}, it is said to be {said:?}"));
            }
        }
        if scene.is_step {
            return Ok(());
        }
        let root = place.root()?;
        let logged = Log::open_with(&root, log_options(1)).is_ok();
        match oracle::log(&place.state) {
            oracle::Log::Wrong(standing) if logged => {
                self.miss(scene, order, place, &format!("its log is {standing}, and is opened"));
            }
            oracle::Log::Whole(live) => {
                for (number, (_, manifest)) in live {
                    let Some(bundle) = oracle::bundle(scene, &manifest) else { continue };
                    let whole = oracle::checkpoint(&place.state, bundle, Standing::Committed);
                    let loaded = load(&root, Seq::new(number)?, bundle.step);
                    self.loads_right += u64::from(loaded == Load::Right);
                    self.loads_refused += u64::from(matches!(loaded, Load::Refused(_)));
                    let right = match whole {
                        Standing::Committed => loaded == Load::Right,
                        _ => !matches!(loaded, Load::Wrong(_)),
                    };
                    if !right {
                        self.miss(
                            scene,
                            order,
                            place,
                            &format!("record {number} is {whole} and loads as {loaded:?}"),
                        );
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn miss(&mut self, scene: &Scene, order: &Order, place: &Place, what: &str) {
        self.misses += 1;
        if self.first_misses.len() < 10 {
            let there: Vec<&str> = place.state.keys().map(String::as_str).collect();
            self.first_misses.push(format!(
                "{}, {}: {what}; there are {}",
                scene.name,
                order.name,
                there.join(" ")
            ));
        }
    }

    /// Whole copies by the tools themselves; times of modification are theirs.
    fn by_tools(&mut self, scene: &Scene) -> Outcome<()> {
        for tool in ["cp", "tar", "rsync"] {
            let scratch = scratch()?;
            let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
            lay_out(&from, &scene.copied)?;
            std::fs::create_dir(&to)?;
            let (source, target) = (location(&from)?, location(&to)?);
            let script = match tool {
                "cp" => format!("cp -r '{source}/.' '{target}'"),
                "tar" => format!("tar -C '{source}' -cf - . | tar -C '{target}' -xf -"),
                _ => format!("rsync -r '{source}/' '{target}'"),
            };
            let there = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
            if !there.is_ok_and(|it| it.status.success()) {
                self.tools_missing.push(tool.to_owned());
                continue;
            }
            if !Command::new("sh").args(["-c", &script]).status()?.success() {
                return Err(format!("{tool} failed").into());
            }
            let hours = SystemTime::now() - Duration::from_secs(7 * 3600);
            for path in files(&to)?.keys() {
                std::fs::File::options().write(true).open(to.join(path))?.set_modified(hours)?;
            }
            let found = judge(&dcp::store::Stores::new(), target, None, patience(), &options())?.standing;
            if found == Standing::Committed {
                self.tools.push(tool.to_owned());
            } else {
                self.misses += 1;
                self.first_misses.push(format!("a whole copy by {tool} is said to be {found}"));
            }
        }
        Ok(())
    }

    /// Takes away, or changes, one object of each kind, and does not tell the oracle.
    fn lie(&mut self, scene: &Scene, chance: &mut Chance) -> Outcome<()> {
        let newest = scene.bundles.last().ok_or("no checkpoint")?;
        let first = |part: &str| newest.objects.keys().find(|path| path.contains(part)).cloned();
        let record = Some("commits/00000000000000000002.json".to_owned());
        for path in [first("/data/r"), first("/data/objects"), first("/blocks/"), first("/manifest-"), record]
        {
            let path = path.ok_or("a kind of object that is not there")?;
            for gone in [true, false] {
                let mut place = Place::folder(&scene.copied)?;
                let told = place.state.clone();
                let mut bytes = told.get(&path).ok_or("an object that is not there")?.clone();
                if gone {
                    place.remove(&path)?;
                } else {
                    let at = chance.index(bytes.len());
                    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1);
                    place.put(&path, &bytes)?;
                }
                self.lies += 1;
                let caught = match scene.hinted {
                    true => !hinted::misses(scene, &place, &told)?.is_empty(),
                    false => said(scene, &place, &told)?.iter().any(|it| it.1 != it.2),
                };
                self.lies_caught += u64::from(caught);
            }
        }
        Ok(())
    }
}

type Said = (String, Option<Standing>, Option<Standing>);

/// What is said of everything that can be opened at a place, and what must be, of the objects in `state`.
fn said(scene: &Scene, place: &Place, state: &State) -> Outcome<Vec<Said>> {
    let word = |location: &str, revision: Option<&str>| match judge(
        &place.stores,
        location,
        revision,
        patience(),
        &options(),
    ) {
        Ok(judged) => Ok(Some(judged.standing)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let visible: State = state
        .iter()
        .filter(|(path, _)| !is_beside(path))
        .map(|(path, bytes)| (path.clone(), bytes.clone()))
        .collect();
    if scene.is_step {
        return Ok(vec![("it".to_owned(), word(&place.location, None)?, oracle::step(&visible, scene, ""))]);
    }
    let mut all = vec![("the root".to_owned(), word(&place.location, None)?, oracle::root(state, scene))];
    if let oracle::Log::Whole(live) = oracle::log(&visible) {
        for (number, (_, manifest)) in live {
            let bundle = oracle::bundle(scene, &manifest);
            let wanted = bundle
                .map_or(Standing::Incomplete, |it| oracle::checkpoint(&visible, it, Standing::Committed));
            let revision = format!("seq:{number}");
            all.push((revision.clone(), word(&place.location, Some(&revision))?, Some(wanted)));
        }
    }
    let mut dirs: Vec<&str> = state.keys().filter_map(|path| path.split('/').next()).collect();
    dirs.retain(|dir| dir.starts_with("step-"));
    dirs.dedup();
    for dir in dirs {
        let said = word(&format!("{}/{dir}", place.location), None)?;
        all.push((dir.to_owned(), said, oracle::step(&visible, scene, dir)));
    }
    Ok(all)
}

fn options() -> VerifyOptions {
    VerifyOptions { threads: NonZeroUsize::MIN, ..VerifyOptions::default() }
}

/// What is not there will not come.
fn patience() -> OpenOptions {
    OpenOptions::new().retry(Retry { tries: 1, ..Retry::default() })
}

/// Leaves a file as a tool that is stopped in the middle of it does.
fn begin(place: &mut Place, manner: Manner, path: &str, bytes: &[u8], chance: &mut Chance) -> Outcome<()> {
    let at = chance.index(bytes.len());
    let mut torn = bytes.get(..at).unwrap_or_default().to_vec();
    // Some tools make room first.
    if chance.below(4) == 0 {
        torn.resize(bytes.len(), 0);
    }
    let name = if manner == Manner::Beside { beside(path) } else { path.to_owned() };
    place.put(&name, &torn)
}

/// rsync's name for a file that it has not finished.
fn beside(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((folder, name)) => format!("{folder}/.{name}.k3J9xQ"),
        None => format!(".{path}.k3J9xQ"),
    }
}

fn is_beside(path: &str) -> bool {
    path.ends_with(".k3J9xQ")
}
