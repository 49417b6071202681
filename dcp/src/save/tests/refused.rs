//! Whoever is missing, late, fenced or different is named; who goes on where another stopped must have the same bytes.

use super::*;

#[test]
fn a_rank_that_has_not_finished_is_named_and_nothing_is_visible_without_it() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "2x1x2", 5);
    let session = session(&root, &plan);
    assert_eq!(session.missing().unwrap(), BTreeSet::from([0, 1, 2, 3]));
    for rank in [0, 2] {
        write_rank(&session, &wholes, rank).unwrap();
    }
    assert_eq!(session.missing().unwrap(), BTreeSet::from([1, 3]));
    refused(session.commit(), ErrorKind::Conflict, &["ranks 1, 3", "no part"]);
    refused(Loader::newest(&root, &run()), ErrorKind::NotFound, &["no checkpoint of run main"]);
    write_rank(&session, &wholes, 1).unwrap();
    refused(session.commit(), ErrorKind::Conflict, &["rank 3"]);
    write_rank(&session, &wholes, 3).unwrap();
    session.commit().unwrap();
    assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
}

#[test]
fn a_box_that_is_missing_given_twice_or_not_the_ranks_own_is_refused_by_name() {
    let (root, wholes) = (memory(), vec![placed(Whole::new("w", Dtype::F32, &[8, 4]), "dp:0")]);
    let session = session(&root, &plan(&wholes, "dp=2", 5));
    let writer = session.writer(1).unwrap();
    let (own, other) = (Region::new(&[4, 0], &[4, 4]).unwrap(), Region::new(&[0, 0], &[4, 4]).unwrap());
    let bytes = wholes[0].region(&own);
    refused(writer.put(0, &own, &bytes[1..]), ErrorKind::Incompatible, &["w[4..8, 0..4]", "63 bytes", "64"]);
    refused(
        writer.put(0, &other, &bytes),
        ErrorKind::Incompatible,
        &["w[0..4, 0..4]", "rank 0 writes this box"],
    );
    let half = Region::new(&[4, 0], &[2, 4]).unwrap();
    refused(writer.put(0, &half, &bytes[..32]), ErrorKind::Incompatible, &["no such box"]);
    refused(writer.put(1, &own, &bytes), ErrorKind::Incompatible, &["tensor 1"]);
    refused(writer.finish(), ErrorKind::Incompatible, &["rank 1", "w[4..8, 0..4] was not written"]);
    assert_eq!(session.missing().unwrap().len(), 2);
    let writer = session.writer(1).unwrap();
    writer.put(0, &own, &bytes).unwrap();
    refused(writer.put(0, &own, &bytes), ErrorKind::Incompatible, &["w[4..8, 0..4]", "put before"]);
    writer.finish().unwrap();
    refused(session.writer(2), ErrorKind::Incompatible, &["rank 2", "2 ranks"]);
}

#[test]
fn a_second_incarnation_fences_the_first_at_the_beginning_and_at_the_end() {
    let (root, wholes, options) = (memory(), wholes(), SaveOptions::default());
    let first = begin_epoch(&root, &run(), &options).unwrap();
    let of = |epoch, step| SavePlan::new(spec(&wholes, "2x1x1", step).in_epoch(epoch)).unwrap();
    save(&root, &wholes, &of(first, 1));
    let late = session(&root, &of(first, 2));
    for rank in 0..2 {
        write_rank(&late, &wholes, rank).unwrap();
    }
    let second = begin_epoch(&root, &run(), &options).unwrap();
    assert_eq!((first, second), (1, 2));
    refused(late.commit(), ErrorKind::Conflict, &["epoch 2", "another incarnation"]);
    refused(Session::open(&root, &of(first, 3), options), ErrorKind::Conflict, &["epoch 2"]);
    let again = of(second, 2);
    assert_ne!(again.digest(), of(first, 2).digest(), "two incarnations never share a folder");
    save(&root, &wholes, &again);
    let line: Vec<u64> = Log::open(&root).unwrap().state().line(&run()).map(|(_, it)| it.step).collect();
    assert_eq!(line, [2, 1], "the second incarnation goes on from the first's newest");
}

#[test]
fn an_incarnation_that_fell_back_goes_on_from_what_it_resumed_from_and_then_from_its_own() {
    let (root, wholes) = (memory(), wholes());
    let saved: Vec<u64> = (1..4).map(|step| save(&root, &wholes, &plan(&wholes, "1x1x1", step))).collect();
    let epoch = begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
    for step in [2, 3] {
        let mut spec = spec(&wholes, "1x1x1", step).in_epoch(epoch);
        spec.parent = Some(crate::commit::Seq::new(saved[0]).unwrap());
        save(&root, &wholes, &SavePlan::new(spec).unwrap());
    }
    let log = Log::open(&root).unwrap();
    let line: Vec<_> = log.state().line(&run()).map(|(seq, it)| (seq.get(), it.step)).collect();
    assert_eq!(line, [(6, 3), (5, 2), (1, 1)]);
}

#[test]
fn the_same_plan_goes_on_where_it_was_stopped_and_only_with_the_same_bytes() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "2x1x2", 5);
    let done = write_rank(&session(&root, &plan), &wholes, 1).unwrap();
    assert_eq!((done.kept, done.files), (0, 1));
    let before = root.list(None).unwrap();
    let again = session(&root, &plan);
    let kept = write_rank(&again, &wholes, 1).unwrap();
    assert_eq!((kept.kept, kept.bytes), (1, done.bytes));
    assert_eq!(root.list(None).unwrap(), before, "what is there is not written again");

    let writer = again.writer(1).unwrap();
    let (tensor, region) = plan.boxes_of(1).next().unwrap();
    let mut other = wholes[tensor].region(region);
    other[0] ^= 1;
    refused(writer.put(tensor, region, &other), ErrorKind::Conflict, &["with other bytes"]);
    for rank in [0, 2, 3] {
        write_rank(&again, &wholes, rank).unwrap();
    }
    again.commit().unwrap();
    assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
    let salted = SavePlan::new(spec(&wholes, "2x1x2", 5).salted("2")).unwrap();
    assert_ne!(session(&root, &salted).attempt(), again.attempt());
}

#[test]
fn two_writers_of_one_rank_agree_or_the_second_is_refused() {
    let wholes = vec![placed(Whole::new("w", Dtype::F32, &[8, 4]), "dp:0")];
    let changed = vec![placed(Whole::new("x", Dtype::F32, &[8, 4]), "dp:0")];
    let plan = plan(&wholes, "dp=2", 5);
    for (second, good) in [(&wholes, true), (&changed, false)] {
        let root = memory();
        let (a, b) = (session(&root, &plan), session(&root, &plan));
        // Both begin before either is done, so neither sees the other's part.
        let (first, other) = (a.writer(0).unwrap(), b.writer(0).unwrap());
        let (tensor, region) = plan.boxes_of(0).next().unwrap();
        first.put(tensor, region, &wholes[0].region(region)).unwrap();
        first.finish().unwrap();
        let put =
            other.put(tensor, region, &second[0].region(region)).and_then(|()| other.finish().map(drop));
        if good {
            put.unwrap();
        } else {
            refused(put, ErrorKind::Conflict, &["with other bytes"]);
        }
    }
}

#[test]
fn a_plan_that_was_committed_and_lost_its_parts_is_not_written_again() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "1x1x1", 5);
    save(&root, &wholes, &plan);
    for object in root.list(None).unwrap().into_iter().filter(|it| it.path.as_ref().contains("/parts/")) {
        root.delete(&object.path).unwrap();
    }
    refused(session(&root, &plan).writer(0), ErrorKind::Conflict, &["committed already, as record 1"]);
}

#[test]
fn tensors_without_a_rule_and_boxes_that_cut_bytes_are_refused_before_anything_is_written() {
    let bare = vec![Whole::new("w", Dtype::F32, &[8])];
    refused(SavePlan::new(spec(&bare, "dp=2", 1)), ErrorKind::Incompatible, &["no placement rule covers w"]);
    let mut packed = Whole::new("p", Dtype::U8, &[2, 3]);
    packed.entry.dtype = Dtype::F4E2M1;
    packed.entry.shape = fqn::Shape::new(&[2, 6]);
    let packed = vec![placed(packed, "dp:1")];
    SavePlan::new(spec(&packed, "dp=3", 1)).unwrap();
    refused(SavePlan::new(spec(&packed, "dp=2", 1)), ErrorKind::Incompatible, &["p: ", "byte boundaries"]);
}
