//! A state machine test of the log: random steps on real roots, in memory and in a folder, against a reference that shares no code with it.
//!
//! Two handles live on through all steps, so that each is often behind; others are opened for one step. After each step all handles, and one
//! that is opened afresh, must have the state of the reference, and every checkpoint that exists its bytes.

mod reference;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dcp::commit::{
    Action, CommitError, Condemn, DirName, Epoch, Label, Log, LogOptions, ManifestRef, Pin, Retire, Retry,
    Seq, Tag, Untag, Verified, Void,
};
use dcp::digest::Sha256Digest;
use dcp::store::{LocalStore, ObjectPath, Root, SeededNonces, object_path};
use futures::executor::block_on;
use object_store::{ObjectStoreExt, memory::InMemory};
use proptest::test_runner::Config;
use proptest_state_machine::{StateMachineTest, prop_state_machine};

use reference::{Answer, HANDLES, Move, Reference};

/// A root, and the handles on it.
#[derive(Debug)]
struct Store {
    handles: Vec<Log>,
    /// A hint that was kept.
    hint: Option<Bytes>,
    /// Handles that were opened so far: each has nonces of its own.
    opened: u64,
    root: Root,
    _folder: Option<tempfile::TempDir>,
}

fn dir(number: u8) -> DirName {
    format!("step-{number}").parse().unwrap()
}

fn run(number: u8) -> Label {
    format!("run-{number}").parse().unwrap()
}

fn tag(number: u8) -> Label {
    format!("tag-{number}").parse().unwrap()
}

fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

fn data(number: u8) -> (ObjectPath, Bytes) {
    (object_path(&format!("{}/data", dir(number))).unwrap(), Bytes::from(format!("bytes of {number}")))
}

fn hint() -> ObjectPath {
    ObjectPath::from("commits/head")
}

impl Store {
    fn new(root: Root, folder: Option<tempfile::TempDir>) -> Self {
        let mut store = Self { handles: Vec::new(), hint: None, opened: 0, root, _folder: folder };
        store.handles = (0..HANDLES).map(|_| store.open()).collect();
        store
    }

    fn open(&mut self) -> Log {
        self.opened += 1;
        let options = LogOptions {
            nonces: Arc::new(SeededNonces::new(self.opened)),
            retry: Retry { tries: 2, first: Duration::ZERO, longest: Duration::ZERO },
            hint_every: Some(Duration::ZERO),
            ..LogOptions::default()
        };
        Log::open_with(&self.root, options).unwrap()
    }

    fn on<T>(&mut self, handle: usize, act: impl FnOnce(&mut Log) -> T) -> T {
        match self.handles.get_mut(handle) {
            Some(log) => act(log),
            None => act(&mut self.open()),
        }
    }

    fn append(
        &mut self,
        handle: usize,
        of: u8,
        action: Action,
        epoch: Option<u64>,
        parent: Option<u64>,
    ) -> Answer {
        self.on(handle, |log| {
            let mut draft = log.draft(&run(of), action).unwrap().after(parent.map(seq));
            if let Some(epoch) = epoch {
                draft = draft.in_epoch(epoch);
            }
            match log.append(&draft) {
                Ok(committed) if committed.before => Answer::Before(committed.seq.get()),
                Ok(committed) => Answer::Landed(committed.seq.get()),
                Err(CommitError::Rejected { void }) => Answer::Refused(match void {
                    Void::Fenced { .. } => "fenced",
                    Void::Condemned { .. } => "condemned",
                    Void::Forked { .. } => "forked",
                    Void::NoCheckpoint(_) => "no checkpoint",
                    Void::NoTag(_) => "no tag",
                    Void::Held(_) => "held",
                    Void::NewestVerified(_) => "newest verified",
                    Void::InUse { .. } => "in use",
                    other => panic!("{other}"),
                }),
                Err(error) => panic!("{error}"),
            }
        })
    }

    fn write(&self, number: u8) {
        let (path, bytes) = data(number);
        self.root.put_same(&path, bytes).unwrap();
    }

    fn commit(&mut self, handle: usize, step: &Move) -> Answer {
        let Move::Commit { run: of, dir: number, also, epoch, parent, step, .. } = *step else {
            unreachable!()
        };
        self.write(number);
        let (attempt, manifest) =
            (dir(number), ManifestRef { sha256: Sha256Digest::from_bytes([number; 32]), size: 1 });
        let directories = also.map(dir).into_iter().chain([attempt.clone()]);
        let commit = crate::values::commit(step, &attempt, manifest, directories);
        self.append(handle, of, Action::Commit(commit), epoch, parent)
    }

    fn put_hint(&self, bytes: Bytes) {
        block_on(self.root.object_store().put(&hint(), bytes.into())).unwrap();
    }

    fn apply(&mut self, step: &Move) -> Vec<Answer> {
        let one = match *step {
            Move::Write { dir } => {
                self.write(dir);
                Answer::Nothing
            }
            Move::Commit { handle, .. } => self.commit(handle, step),
            Move::CommitTwice { run, dir } => {
                let again =
                    Move::Commit { handle: 0, run, dir, also: None, epoch: None, parent: None, step: 0 };
                // The first worker is gone once it has appended; the second is a handle that knows nothing of it.
                return vec![self.commit(HANDLES, &again), self.commit(0, &again)];
            }
            Move::Epoch { handle, run } => self.append(handle, run, Action::Epoch(Epoch {}), None, None),
            Move::Tag { handle, name, checkpoint } => {
                let action = Action::Tag(Tag { name: tag(name), checkpoint: seq(checkpoint) });
                self.append(handle, 0, action, None, None)
            }
            Move::Untag { handle, name } => {
                self.append(handle, 0, Action::Untag(Untag { name: tag(name) }), None, None)
            }
            Move::Pin { handle, checkpoint, held } => {
                let action = Action::Pin(Pin { checkpoint: seq(checkpoint), held });
                self.append(handle, 0, action, None, None)
            }
            Move::Verified { handle, checkpoint, whole } => {
                let action = Action::Verified(Verified { checkpoint: seq(checkpoint), whole });
                self.append(handle, 0, action, None, None)
            }
            Move::Retire { handle, checkpoint } => {
                let action = Action::Retire(Retire { checkpoint: seq(checkpoint) });
                self.append(handle, 0, action, None, None)
            }
            Move::Condemn { handle, dir: number } => {
                let action = Action::Condemn(Condemn { directories: [dir(number)].into() });
                self.append(handle, 0, action, None, None)
            }
            Move::Delete { dir: number } => {
                let mut log = self.open();
                log.prove().unwrap();
                if log.state().condemned.contains_key(&dir(number)) {
                    self.root.delete_all(&ObjectPath::from(dir(number).as_str())).unwrap();
                }
                Answer::Nothing
            }
            Move::Reopen { handle } => {
                let log = self.open();
                if let Some(slot) = self.handles.get_mut(handle) {
                    *slot = log;
                }
                Answer::Nothing
            }
            Move::HintLost => {
                drop(self.root.delete(&hint()));
                Answer::Nothing
            }
            Move::HintDamaged => {
                self.put_hint(Bytes::from_static(b"CKPTHEAD and nothing more"));
                Answer::Nothing
            }
            Move::HintKept => {
                self.hint = self.root.get_opt(&hint()).unwrap();
                Answer::Nothing
            }
            Move::HintOld => {
                if let Some(bytes) = self.hint.clone() {
                    self.put_hint(bytes);
                }
                Answer::Nothing
            }
        };
        vec![one]
    }

    fn check(&self, log: &Log, wanted: &Reference) {
        let state = log.state();
        assert_eq!(log.head().map_or(0, Seq::get), wanted.head);
        let live: Vec<_> = state.checkpoints.keys().map(|seq| seq.get()).collect();
        assert_eq!(live, wanted.live.keys().copied().collect::<Vec<_>>());
        for (number, kept) in &wanted.live {
            let checkpoint = &state.checkpoints[&seq(*number)];
            let needs: BTreeSet<DirName> = kept.needs.iter().map(|it| dir(*it)).collect();
            let found = (&checkpoint.run, &checkpoint.attempt, checkpoint.step, &checkpoint.directories);
            assert_eq!(found, (&run(kept.run), &dir(kept.dir), kept.step, &needs));
            assert_eq!((checkpoint.pinned, checkpoint.verified.is_some()), (kept.pinned, kept.verified));
        }
        let named = |dirs: &BTreeSet<u8>| dirs.iter().map(|it| dir(*it)).collect::<BTreeSet<_>>();
        assert_eq!(state.retired.keys().cloned().collect::<BTreeSet<_>>(), named(&wanted.retired));
        assert_eq!(state.condemned.keys().cloned().collect::<BTreeSet<_>>(), named(&wanted.condemned));
        let tags: Vec<_> =
            wanted.tags.iter().map(|(name, checkpoint)| (tag(*name), seq(*checkpoint))).collect();
        assert_eq!(state.tags.clone().into_iter().collect::<Vec<_>>(), tags);
        for (of, (epoch, tip)) in &wanted.runs {
            assert_eq!(state.epoch(&run(*of)), *epoch);
            assert_eq!(state.runs.get(&run(*of)).and_then(|line| line.tip).map(Seq::get), *tip);
            let line: Vec<_> = state.line(&run(*of)).map(|(seq, _)| seq.get()).collect();
            assert_eq!(line, wanted.line(*of));
        }
    }

    fn check_all(&mut self, wanted: &Reference) {
        let fresh = self.open();
        self.check(&fresh, wanted);
        for at in 0..self.handles.len() {
            self.handles[at].refresh().unwrap();
            self.check(&self.handles[at], wanted);
        }
        for kept in wanted.live.values() {
            let (path, bytes) = data(kept.dir);
            assert_eq!(self.root.get(&path).unwrap(), bytes);
        }
    }
}

#[derive(Debug)]
struct Stores(Vec<Store>);

impl StateMachineTest for Stores {
    type SystemUnderTest = Self;
    type Reference = Reference;

    fn init_test(_: &Reference) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let local = Root::from_local(LocalStore::open(folder.path()).unwrap());
        let memory = Root::from_store(Arc::new(InMemory::new()), "memory");
        Self(vec![Store::new(memory, None), Store::new(local, Some(folder))])
    }

    fn apply(mut stores: Self, wanted: &Reference, step: Move) -> Self {
        for store in &mut stores.0 {
            assert_eq!(store.apply(&step), wanted.answers, "{step:?}");
            // Not after every step: handles have to be behind now and then.
            if wanted.head.is_multiple_of(3) {
                store.check_all(wanted);
            }
        }
        stores
    }

    fn teardown(mut stores: Self, wanted: Reference) {
        for store in &mut stores.0 {
            store.check_all(&wanted);
            let audit = store.open().audit().unwrap();
            assert!(audit.findings.is_empty() && audit.voids.is_empty(), "{audit:?}");
        }
    }
}

prop_state_machine! {
    #![proptest_config(Config { cases: 48, max_shrink_iters: 2_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_root_is_what_the_rules_say_after_any_steps(sequential 1..90 => Stores);
}
