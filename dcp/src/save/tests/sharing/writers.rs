//! Saves that share and are stopped, taken over, or made by two at once.

use super::*;

#[test]
fn replicas_are_compared_with_what_was_found_too() {
    for drift in [false, true] {
        let (root, wholes) = (memory(), wholes());
        saved(&root, &wholes, &plan(&wholes, "2x1x2", 1));
        let shared = spec(&wholes, "2x1x2", 2).sharing(base(&root)).comparing(Replicas::ALL);
        let plan = SavePlan::new(shared).unwrap();
        let session = Session::open(&root, &plan, SaveOptions::default()).unwrap();
        for rank in 0..4 {
            let writer = session.writer(rank).unwrap();
            for (tensor, region) in plan.boxes_of(rank) {
                writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
            }
            for (nth, (tensor, region)) in plan.replicas_of(rank).enumerate() {
                let mut bytes = wholes[tensor].region(&region);
                bytes[0] ^= u8::from(drift && rank == 3 && nth == 0);
                writer.hold(tensor, &region, &bytes).unwrap();
            }
            writer.finish().unwrap();
        }
        if drift {
            refused(session.commit(), ErrorKind::Corrupt, &["drifted apart"]);
        } else {
            session.commit().unwrap();
            assert_holds(&newest(&root), &wholes);
        }
    }
}

#[test]
fn a_stopped_save_goes_on_and_a_second_writer_must_have_the_same_bytes() {
    let (_folder, root) = folder();
    let mut wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    change(&mut wholes[1], 5);
    let plan = sharing(&root, &wholes, "2x1x2", 2);
    let session = || Session::open(&root, &plan, SaveOptions::default()).unwrap();
    let done = write_rank(&session(), &wholes, 0).unwrap();
    assert!(done.shared > 0 && done.kept == 0);
    let before = root.list(None).unwrap();
    // Another process takes the rank over, having lost all it knew.
    let again = write_rank(&session(), &wholes, 0).unwrap();
    assert!(again.kept > 0 && again.shared == 0);
    assert_eq!(root.list(None).unwrap(), before, "what is there is not written again");
    // Two at once, the second slower: it wrote the same, and the first counts.
    let late = session();
    let writers = [late.writer(1).unwrap(), session().writer(1).unwrap()];
    for writer in writers {
        for (tensor, region) in plan.boxes_of(1) {
            writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
        }
        writer.finish().unwrap();
    }
    let writer = late.writer(1).unwrap();
    let (tensor, region) = plan.boxes_of(1).find(|(at, _)| wholes[*at].entry.shape.rank() == 2).unwrap();
    let mut other = wholes[tensor].region(region);
    other[0] ^= 1;
    refused(writer.put(tensor, region, &other), ErrorKind::Conflict, &["with other bytes"]);
    refused(writer.put(tensor, region, &other), ErrorKind::Incompatible, &["put before"]);
    refused(writer.finish(), ErrorKind::Incompatible, &["was not written"]);
    for rank in [2, 3] {
        write_rank(&late, &wholes, rank).unwrap();
    }
    late.commit().unwrap();
    assert_holds(&newest(&root), &wholes);
}

#[test]
fn two_writers_of_one_rank_that_disagree_are_found_out_by_the_second() {
    let (root, wholes) = (memory(), wholes());
    saved(&root, &wholes, &plan(&wholes, "1x1x1", 1));
    let plan = sharing(&root, &wholes, "1x1x1", 2);
    let session = || Session::open(&root, &plan, SaveOptions::default()).unwrap();
    let (one, two) = (session(), session());
    let (first, second) = (one.writer(0).unwrap(), two.writer(0).unwrap());
    let boxes: Vec<_> = plan.boxes_of(0).collect();
    for (tensor, region) in &boxes {
        first.put(*tensor, region, &wholes[*tensor].region(region)).unwrap();
    }
    first.finish().unwrap();
    let mut outcome = Ok(());
    for (tensor, region) in &boxes {
        let mut bytes = wholes[*tensor].region(region);
        bytes[0] ^= 1;
        outcome = outcome.and(second.put(*tensor, region, &bytes));
    }
    refused(outcome, ErrorKind::Conflict, &["with other bytes"]);
    refused(second.finish(), ErrorKind::Io, &["an earlier write of it failed"]);
    one.commit().unwrap();
    let loader = newest(&root);
    let findings = loader.check(Level::Full).unwrap();
    assert!(
        findings.iter().all(|it| it.code == FindingCode::OrphanFile),
        "the second's files are left: {findings:?}"
    );
    let whole = Region::whole(&wholes[1].entry.shape).unwrap();
    let read = loader.reader().read_vec(&wholes[1].entry.id(), &whole).unwrap();
    assert_eq!(read, wholes[1].bytes);
}

#[test]
fn many_threads_put_large_and_small_boxes_of_one_group() {
    let root = memory();
    let mut wholes: Vec<Whole> = (0..40)
        .map(|at| placed(Whole::new(&format!("t{at}"), Dtype::U8, &[1000, 100 + at]), "dp:0"))
        .collect();
    wholes.push(placed(Whole::new("large", Dtype::F32, &[2300, 2000]), "dp:0"));
    saved(&root, &wholes, &plan(&wholes, "dp=1", 1));
    for whole in wholes.iter_mut().step_by(2) {
        change(whole, 7);
    }
    let plan = sharing(&root, &wholes, "dp=1", 2);
    let session = Session::open(&root, &plan, SaveOptions::default()).unwrap();
    let writer = session.writer(0).unwrap();
    let boxes: Vec<(usize, Region)> = plan.boxes_of(0).map(|(at, region)| (at, region.clone())).collect();
    std::thread::scope(|scope| {
        for part in boxes.chunks(6) {
            let (writer, wholes) = (&writer, &wholes);
            scope.spawn(move || {
                part.iter()
                    .for_each(|(at, region)| writer.put(*at, region, &wholes[*at].region(region)).unwrap());
            });
        }
    });
    let done = writer.finish().unwrap();
    assert_eq!((done.shared, done.files), (20, 2), "one blob of the large box, one of the small ones");
    session.commit().unwrap();
    assert_holds(&newest(&root), &wholes);
}
