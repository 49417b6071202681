//! A group of threads: what each member gives is put down, and all take it when everyone's is there.

use std::sync::{Arc, Barrier, Mutex};

use tch::Tensor;

use crate::{
    Result,
    transport::{Group, Purpose},
};

type Slots = Mutex<Vec<Option<(String, Vec<Tensor>, Vec<u8>)>>>;

struct Threads {
    index: usize,
    size: usize,
    shared: Arc<(Barrier, Slots)>,
}

impl Threads {
    fn meet(&self, purpose: &Purpose, tensors: Vec<Tensor>, bytes: &[u8]) -> Vec<(Vec<Tensor>, Vec<u8>)> {
        let (barrier, slots) = &*self.shared;
        slots.lock().unwrap()[self.index] = Some((purpose.to_string(), tensors, bytes.to_vec()));
        barrier.wait();
        let all = slots.lock().unwrap();
        let taken = all.iter().map(|slot| {
            let (theirs, tensors, bytes) = slot.as_ref().unwrap();
            assert_eq!(*theirs, purpose.to_string(), "all members do the same");
            (tensors.iter().map(Tensor::copy).collect(), bytes.clone())
        });
        let taken = taken.collect();
        drop(all);
        barrier.wait();
        // What was given is not held any longer: tests count what a rank holds.
        slots.lock().unwrap()[self.index] = None;
        taken
    }
}

impl Group for Threads {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        assert!(mine.is_contiguous());
        let all = self.meet(purpose, vec![mine.copy()], &[]);
        let all: Vec<Tensor> = all.into_iter().map(|(mut tensors, _)| tensors.remove(0)).collect();
        assert_eq!(all.iter().map(Tensor::size).collect::<Vec<_>>(), shapes);
        Ok(all)
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, _shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        let all = self.meet(purpose, parts, &[]);
        Ok(all.into_iter().map(|(mut tensors, _)| tensors.remove(self.index)).collect())
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        let all = self.meet(purpose, vec![mine], &[]);
        Ok(all.into_iter().map(|(mut tensors, _)| tensors.remove(0)).reduce(|a, b| a + b).unwrap())
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.meet(purpose, vec![], mine).into_iter().map(|(_, bytes)| bytes).collect())
    }
}

/// Runs `f` as each of `size` ranks, in threads; what they give, in order.
pub(super) fn ranks<T: Send>(size: usize, f: impl Fn(std::rc::Rc<dyn Group>) -> T + Sync) -> Vec<T> {
    let shared = Arc::new((Barrier::new(size), Mutex::new((0..size).map(|_| None).collect::<Vec<_>>())));
    let f = &f;
    std::thread::scope(|scope| {
        let spawn = |index| {
            let shared = shared.clone();
            scope.spawn(move || {
                tch::set_num_threads(1);
                f(std::rc::Rc::new(Threads { index, size, shared }))
            })
        };
        let threads: Vec<_> = (0..size).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
