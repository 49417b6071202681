//! Copies with head hints among their objects: stale ones, torn ones, some of another root, some that came before the records that they
//! tell of. A hint may spare a reader the log. Whatever it says, a place is not taken for more than it is, no load gives wrong bytes, and
//! whoever asks for proof is refused where the log is not whole.

use dcp::ErrorKind;
use dcp::commit::Log;
use dcp::ops::standing::{Standing, judge};

use super::oracle;
use super::place::Place;
use super::scene::{Scene, State};
use super::{options, patience};
use crate::training::{Load, Outcome, load, log_options};

/// What is not as it must be of a place with the objects in `state`.
pub(super) fn misses(scene: &Scene, place: &Place, state: &State) -> Outcome<Vec<String>> {
    let mut misses = Vec::new();
    let cut = oracle::is_cut(state);
    let log = oracle::log(state);
    let wanted = match oracle::root(state, scene) {
        None | Some(Standing::Committed) if cut => Some(Standing::Incomplete),
        wanted => wanted,
    };
    let said = match judge(&place.stores, &place.location, None, patience(), &options()) {
        Ok(judged) => Some(judged.standing),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let fits = match wanted {
        None | Some(Standing::Committed | Standing::Sealed) => said == wanted,
        // An audit tells all that is wrong with a log, a reader without a hint the first of it.
        Some(_) => said > Some(Standing::Sealed),
    };
    if !fits {
        misses.push(format!("the root is {wanted:?}, it is said to be {said:?}"));
    }
    let root = place.root()?;
    let whole = !cut && !matches!(log, oracle::Log::Wrong(_));
    let mut opened = match Log::open_with(&root, log_options(1)) {
        Ok(opened) => opened,
        Err(error) => {
            misses.extend(whole.then(|| format!("its log is whole, and is not opened: {error}")));
            return Ok(misses);
        }
    };
    for (seq, checkpoint) in opened.state().checkpoints.clone() {
        let manifest = checkpoint.manifest.path(&checkpoint.attempt);
        let Some(bundle) = oracle::bundle(scene, manifest.as_ref()) else {
            misses.push(format!("checkpoint {seq} is told of, and nobody saved {manifest}"));
            continue;
        };
        let right = match load(&root, seq, bundle.step) {
            Load::Wrong(_) => false,
            Load::Refused(_) => {
                !whole || oracle::checkpoint(state, bundle, Standing::Committed) != Standing::Committed
            }
            Load::Right => true,
        };
        if !right {
            misses.push(format!("checkpoint {seq} is not loaded as it is there"));
        }
    }
    match opened.prove() {
        Ok(()) if !whole => misses.push(format!("its log is {log:?}, and was proven")),
        Err(error) if whole => misses.push(format!("its log is whole, and was not proven: {error}")),
        _ => {}
    }
    if let (oracle::Log::Whole(live), true) = (&log, whole) {
        let found: Vec<u64> = opened.state().checkpoints.keys().map(|seq| seq.get()).collect();
        if found != live.keys().copied().collect::<Vec<_>>() {
            misses.push(format!("checkpoints {found:?} exist, the log says {:?}", live.keys()));
        }
    }
    Ok(misses)
}
