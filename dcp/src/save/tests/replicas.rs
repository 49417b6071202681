//! Ranks that hold the same box hand in its fingerprint: what has drifted apart is named, and makes no checkpoint.

use super::*;

#[test]
fn replicas_that_drifted_apart_are_named_and_make_no_checkpoint() {
    let (root, wholes) = (memory(), wholes());
    let of = |replicas| SavePlan::new(spec(&wholes, "2x2x2", 5).comparing(replicas)).unwrap();
    let plan = of(Replicas::ALL);
    let held: usize = (0..8).map(|rank| plan.replicas_of(rank).count()).sum();
    assert!(held > 20, "{held}");
    assert_eq!(of(Replicas::Off).replicas_of(3).count(), 0);
    let some: usize = (0..40)
        .map(|step| {
            let mut spec = spec(&wholes, "2x2x2", step);
            spec.replicas = Replicas::OneIn(4.try_into().unwrap());
            let plan = SavePlan::new(spec).unwrap();
            (0..8).map(|rank| plan.replicas_of(rank).count()).sum::<usize>()
        })
        .sum();
    assert!((held * 7..held * 13).contains(&some), "{some} of {}", held * 40);

    for drift in [false, true] {
        let spec = spec(&wholes, "2x2x2", 5).comparing(Replicas::ALL).salted(drift.to_string());
        let plan = SavePlan::new(spec).unwrap();
        let session = session(&root, &plan);
        let apart = plan.replicas_of(7).last().unwrap();
        for rank in 0..8 {
            let writer = session.writer(rank).unwrap();
            for (tensor, region) in plan.boxes_of(rank) {
                writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
            }
            for (tensor, region) in plan.replicas_of(rank).skip(1) {
                let mut bytes = wholes[tensor].region(&region);
                bytes[0] ^= u8::from(drift && rank == 7 && (tensor, &region) == (apart.0, &apart.1));
                writer.hold(tensor, &region, &bytes).unwrap();
                refused(writer.hold(tensor, &region, &bytes), ErrorKind::Incompatible, &["handed in before"]);
            }
            assert_eq!(session.missing().unwrap(), (rank..8).collect());
            if let Some((tensor, region)) = plan.replicas_of(rank).next() {
                if rank == 3 {
                    let name = wholes[tensor].entry.id().to_string();
                    refused(
                        writer.finish(),
                        ErrorKind::Incompatible,
                        &[&name, "a replica, was not handed in"],
                    );
                    hand_in(&session, &wholes, rank);
                    continue;
                }
                writer.hold(tensor, &region, &wholes[tensor].region(&region)).unwrap();
            }
            writer.finish().unwrap();
        }
        if drift {
            let name = format!("{}{} of rank 7", wholes[apart.0].entry.id(), apart.1);
            refused(session.commit(), ErrorKind::Corrupt, &["drifted apart", &name]);
        } else {
            session.commit().unwrap();
        }
    }
    assert_eq!(Log::open(&root).unwrap().head().map(crate::commit::Seq::get), Some(1));
}

/// Writes and hands in all that a rank has.
fn hand_in(session: &Session, wholes: &[Whole], rank: u32) {
    let (writer, plan) = (session.writer(rank).unwrap(), session.plan());
    for (tensor, region) in plan.boxes_of(rank) {
        writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
    }
    for (tensor, region) in plan.replicas_of(rank) {
        writer.hold(tensor, &region, &wholes[tensor].region(&region)).unwrap();
    }
    writer.finish().unwrap();
}
