//! What must be refused, and the words: each says where, what is wrong and what would be right, so that someone who has
//! never seen the file's maker can mend it. The first list are files, in each of which torch's own validator finds nothing
//! wrong, or only while it lowers them; the second one are names and numbers.

use schedule::{
    Gather, Shape,
    csv::{self, Options},
    generate, named,
};

struct File {
    what: &'static str,
    text: &'static str,
    microbatches: Option<usize>,
    says: &'static str,
}

const fn file(what: &'static str, text: &'static str, says: &'static str) -> File {
    File { what, text, microbatches: None, says }
}

const FILES: &[File] = &[
    file(
        "a forward twice",
        "0F0,0F0,0B0",
        "row 1, column 2: rank 0, step 1, cell 0F0: it was there already, at step 0",
    ),
    file(
        "a backward twice",
        "0F0,0B0,0B0",
        "row 1, column 3: rank 0, step 2, cell 0B0: it was there already, at step 1",
    ),
    File {
        what: "a microbatch out of range",
        text: "0F0,0F7,0B0,0B7",
        microbatches: Some(2),
        says: "row 1, column 2: rank 0, step 1, cell 0F7: there are only 2 microbatches",
    },
    file(
        "a microbatch left out",
        "0F0,0F2,0B0,0B2",
        "rank 0, step 4 (the end of its row): cell 0F1 is missing",
    ),
    file(
        "a whole and a split backward of one microbatch",
        "0F0,0B0,0I0,0W0",
        "row 1, column 3: rank 0, step 2, cell 0I0: 0B0 at step 1 is there too: a microbatch has B, or I and W",
    ),
    file(
        "a weight gradient without its input gradient",
        "0F0,0F1,0I0,0W0,0W1",
        "row 1, column 5: rank 0, step 4, cell 0W1: it needs 0I1, which is not before it on this rank",
    ),
    file(
        "an input gradient without its weight gradient",
        "0F0,0I0",
        "rank 0, step 2 (the end of its row): cell 0W0 is missing",
    ),
    file(
        "junk after a cell",
        "0F0junk,0B0",
        "row 1 (rank 0), column 1, cell \"0F0junk\": it is no action: it names none of the actions",
    ),
    file(
        "no microbatch",
        "0F,0B0",
        "row 1 (rank 0), column 1, cell \"0F\": it is no action: it needs the number of a microbatch at its end",
    ),
    file(
        "backwards before the next stage's",
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
        "deadlock: rank 0, step 1, cell 0B0 waits for 1B0 or 1I0 of rank 1, which is at 1F1; rank 1, step 1, cell 1F1 waits \
         for 0F1 of rank 0, which is at 0B0; in a circle: rank 0 → 1 → 0",
    ),
    file(
        "microbatches of one stage that the other hasn't",
        "0F0,0F1,0B0,0B1\n1F0,1F2,1B0,1B2",
        "rank 0, step 4 (the end of its row): cell 0F2 is missing",
    ),
    File {
        what: "the last rank's microbatches counted from 1, as torch prints 1F1B",
        text: "0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1",
        microbatches: Some(2),
        says: "row 2, column 2: rank 1, step 1, cell 1B0: it needs 1F0, which is not before it on this rank",
    },
    file(
        "a stage on two ranks",
        "0F0,0B0\n1F0,1B0,0F1",
        "row 2 (rank 1), column 3, cell \"0F1\": stage 0 is on rank 0 already: 0F0 (row 1, column 1)",
    ),
    file(
        "a composite whose parts need each other",
        "0F0,(1F0;1B0)OVERLAP_F_B,0B0",
        "row 1, column 2: rank 0, step 1, cell (1F0;1B0)OVERLAP_F_B: its part 1B0: it needs 1F0, which is not before it on \
         this rank",
    ),
    file(
        "a composite that takes a microbatch again",
        "0F0,1F0,(0F0;1B0)OVERLAP_F_B,0B0",
        "row 1, column 3: rank 0, step 2, cell (0F0;1B0)OVERLAP_F_B: its part 0F0: it was there already, at step 0",
    ),
    file(
        "messages in another order than the other side has them",
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n\
         1RECV_F1,1F1,1RECV_F0,1F0,1B0,1SEND_B0,1B1,1SEND_B1,1REDUCE_GRAD",
        "row 1, column 2: rank 0, step 1, cell 0SEND_F0: as exchange 0 with rank 1 it needs 1RECV_F0 on the other side, \
         which has 1RECV_F1 (step 0)",
    ),
    file(
        "three ranks, each of which waits for the one before it, though each pair agrees",
        "3RECV_F0,0F0,0SEND_F0,3F0,3SEND_F0,3RECV_B0,3B0,3SEND_B0,3REDUCE_GRAD,0RECV_B0,0B0,0REDUCE_GRAD\n\
         1RECV_F0,1F0,1SEND_F0,4RECV_F0,4F0,4SEND_F0,4RECV_B0,4B0,4SEND_B0,4REDUCE_GRAD,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD\n\
         2RECV_F0,2F0,2SEND_F0,5RECV_F0,5F0,5B0,5SEND_B0,5REDUCE_GRAD,2RECV_B0,2B0,2SEND_B0,2REDUCE_GRAD",
        "deadlock: rank 0, step 0, cell 3RECV_F0 waits for 2SEND_F0 of rank 2, which is at 2RECV_F0; rank 1, step 0, cell \
         1RECV_F0 waits for 0SEND_F0 of rank 0, which is at 3RECV_F0; rank 2, step 0, cell 2RECV_F0 waits for 1SEND_F0 of \
         rank 1, which is at 1RECV_F0; in a circle: rank 0 → 2 → 1 → 0",
    ),
    file(
        "weights that are never gathered again",
        "0UNSHARD,0F0,0RESHARD,0B0,0REDUCE_GRAD",
        "row 1, column 4: rank 0, step 3, cell 0B0: the weights of stage 0 are not gathered here: between 0UNSHARD and \
         0RESHARD they are",
    ),
    file(
        "gradients that are reduced too early",
        "0F0,0F1,0B0,0REDUCE_GRAD,0B1",
        "row 1, column 4: rank 0, step 3, cell 0REDUCE_GRAD: it needs 0B1, which is not before it on this rank",
    ),
];

#[test]
fn every_file_of_the_corpus_is_refused_in_these_words() {
    for File { what, text, microbatches, says } in FILES {
        let options = Options { microbatches: *microbatches, ..Options::default() };
        let program = csv::read(text, &options).and_then(|it| it.program(Gather::PerPart));
        assert_eq!(program.map(|_| ()).unwrap_err().to_string(), *says, "{what}");
    }
}

/// Name, stages, ranks, microbatches, words.
const NUMBERS: &[(&str, [usize; 3], &str)] = &[
    (
        "Interleaved1F1B",
        [3, 3, 8],
        "schedule Interleaved1F1B needs at least 2 stages on each rank, the same number on all: 3 stages can be scheduled so \
         on 1 ranks, not on 3; for 1 stage on each rank take 1F1B",
    ),
    (
        "Interleaved1F1B",
        [8, 4, 9],
        "schedule Interleaved1F1B takes microbatches in rounds: 9 on 4 ranks make 2 rounds, and 9 is no multiple of 2; the \
         nearest that fit: 8 or 10 microbatches",
    ),
    (
        "InterleavedZeroBubble",
        [4, 2, 5],
        "schedule InterleavedZeroBubble takes microbatches in rounds: 5 on 2 ranks make 2 rounds, and 5 is no multiple of 2; \
         the nearest that fit: 4 or 6 microbatches",
    ),
    (
        "DualPipeV",
        [8, 4, 7],
        "schedule DualPipeV needs a microbatch for each stage: there are 8 stages and 7 microbatches; the nearest that fit: 8 \
         microbatches",
    ),
    (
        "ZBVZeroBubble",
        [12, 4, 8],
        "schedule ZBVZeroBubble needs exactly 2 stages on each rank, the same number on all: 12 stages can be scheduled so on \
         6 ranks, not on 4",
    ),
    (
        "1F1B",
        [8, 4, 8],
        "schedule 1F1B needs exactly 1 stage on each rank, the same number on all: 8 stages can be scheduled so on 8 ranks, \
         not on 4",
    ),
    ("GPipe", [4, 4, 0], "schedule GPipe: 4 stages, 4 ranks and 0 microbatches; none can be 0"),
];

#[test]
fn numbers_that_a_schedule_can_t_have_are_refused_in_these_words() {
    for (name, [stages, ranks, microbatches], says) in NUMBERS {
        let shape = Shape { stages: *stages, ranks: *ranks, microbatches: *microbatches };
        let refused = generate(named(name).unwrap(), shape).unwrap_err();
        assert_eq!(refused.to_string(), *says);
    }
}

#[test]
fn a_name_that_is_not_known_gets_the_nearest_and_all() {
    assert_eq!(
        named("zero bubbles").unwrap_err().to_string(),
        "no schedule is called \"zero bubbles\"; the nearest is ZBH1, known are GPipe, 1F1B, LoopedBFS, LoopedBFSReversed, \
         Interleaved1F1B, ZBH1, ZBH2, InterleavedZeroBubble, ZBVZeroBubble, VMin, VHalf, DualPipeV"
    );
}
