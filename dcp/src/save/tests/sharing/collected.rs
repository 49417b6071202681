//! Garbage: what a live checkpoint refers to is kept, and let go of after it.

use super::*;
use crate::{
    Format, Source,
    commit::{Tag, Untag},
    engine::{RunOptions, run as copy},
    formats::{
        OpenOptions,
        native::{NativeSink, SinkOptions, open_root},
    },
    ops::prepare::{Request, prepare},
};

/// Keeps the newest of the run, and collects the rest.
fn gc(root: &Root) {
    retire(root, &run(), None, NonZeroUsize::MIN, LogOptions::default()).unwrap();
    for _ in 0..2 {
        collect(root, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    }
}

/// The folders of steps.
fn steps(root: &Root) -> BTreeSet<String> {
    let dirs = root.list_dir(None).unwrap().dirs;
    dirs.iter().map(ToString::to_string).filter(|dir| dir.starts_with("step-")).collect()
}

#[test]
fn garbage_collection_keeps_what_a_live_checkpoint_refers_to_and_lets_go_of_it_after() {
    let (_folder, root) = folder();
    let mut wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    for step in 2..=4 {
        change(&mut wholes[1], 0);
        saved(&root, &wholes, &sharing(&root, &wholes, "1x1x2", step));
    }
    gc(&root);
    assert_holds(&newest(&root), &wholes);
    let needed = directories(&root).len();
    assert_eq!(steps(&root).len(), needed);
    assert!(
        steps(&root).iter().any(|dir| dir.starts_with("step-00000001")) && needed < 4,
        "{:?}",
        steps(&root)
    );
    wholes.iter_mut().for_each(|whole| whole.bytes.iter_mut().for_each(|byte| *byte ^= 1));
    saved(&root, &wholes, &plan(&wholes, "1x1x1", 5));
    gc(&root);
    assert_eq!(steps(&root).len(), 1);
    assert_holds(&newest(&root), &wholes);
}

#[test]
fn a_reshard_into_the_same_root_needs_no_other_folder_and_leaves_those_that_another_still_refers_to() {
    let (_folder, root) = folder();
    let mut wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "4x1x2", 1));
    change(&mut wholes[1], 0);
    saved(&root, &wholes, &sharing(&root, &wholes, "2x1x1", 2));
    let before = newest(&root);
    assert_eq!(directories(&root).len(), 2);
    let source = open_root(&Stores::new(), &root, None, OpenOptions::new()).unwrap();
    let request = Request { to: Some("1x1x4".parse().unwrap()), ..Request::new(Format::Native) };
    let plan = prepare(source.catalog(), &request).unwrap().copy;
    let mut sink = NativeSink::new(root.clone(), SinkOptions::new(run()));
    let (_, report) =
        copy(&source, &mut sink, &plan, &RunOptions::default(), &Silent, &Cancel::new()).unwrap();
    assert_eq!(report.proven, wholes.len());
    assert_eq!(fingerprints(&newest(&root)), fingerprints(&before));
    assert_eq!(directories(&root).len(), 1);
    assert_holds(&newest(&root), &wholes);

    let shares = before.commit().unwrap().seq;
    append(&root, Action::Tag(Tag { name: "kept".parse().unwrap(), checkpoint: shares }));
    gc(&root);
    assert_eq!(steps(&root).len(), 3, "the tagged one, the one that it refers to, the newest");
    for revision in ["tag:kept", "latest"] {
        assert_holds(&Loader::open(&root, &revision.parse().unwrap()).unwrap(), &wholes);
    }
    append(&root, Action::Untag(Untag { name: "kept".parse().unwrap() }));
    gc(&root);
    assert_eq!(steps(&root), directories(&root).iter().map(ToString::to_string).collect());
    assert_holds(&newest(&root), &wholes);
    // What was resharded can be shared like any other.
    let (done, session) = saved(&root, &wholes, &sharing(&root, &wholes, "3x2x1", 3));
    assert_eq!((found(&done), session.findings()), (bytes(&wholes), Vec::new()));
    assert_holds(&newest(&root), &wholes);
}
