//! Samples by a global cursor: which ones a step takes, and the tokens of a microbatch.

use std::{ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Corpus, DataError, Order};

/// A sample: which, and in which pass over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sample {
    /// Pass over the data, from 0.
    pub epoch: u64,
    /// Window of the corpus.
    pub index: u64,
}

/// The tokens of one microbatch, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Sequences.
    pub rows: usize,
    /// Tokens of each.
    pub length: usize,
    /// `rows × length` tokens.
    pub tokens: Vec<i64>,
    /// What follows each of them.
    pub targets: Vec<i64>,
}

/// Samples by a global cursor.
#[derive(Debug, Clone)]
pub struct Stream {
    corpus: Arc<Corpus>,
    seq_len: u64,
    seed: u64,
    samples: u64,
}

impl Stream {
    /// Samples of `seq_len` tokens, in the order of `seed`.
    ///
    /// # Errors
    /// `Data` when there is not one sample.
    pub fn new(corpus: Arc<Corpus>, seq_len: u64, seed: u64) -> Result<Self, DataError> {
        let samples = corpus.samples(seq_len)?;
        Ok(Self { corpus, seq_len, seed, samples })
    }

    /// Samples of one pass over the data.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The corpus.
    #[must_use]
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// The samples at global positions `cursor..cursor + count`, over the ends of epochs.
    #[must_use]
    pub fn step_samples(&self, cursor: u64, count: u64) -> Vec<Sample> {
        samples(self.samples, self.seed, cursor..cursor.saturating_add(count))
    }

    /// Microbatch `index` of the step that begins at `cursor`, counted over all replicas: with M microbatches each,
    /// replica `d` takes `d·M..(d + 1)·M`.
    ///
    /// # Errors
    /// `Io` for what can't be read.
    pub fn microbatch(&self, cursor: u64, index: u64, micro_batch: u64) -> Result<Tokens, DataError> {
        let first = cursor.saturating_add(index.saturating_mul(micro_batch));
        self.tokens(&self.step_samples(first, micro_batch))
    }

    /// The tokens of these samples.
    ///
    /// # Errors
    /// `Io` for what can't be read.
    pub fn tokens(&self, samples: &[Sample]) -> Result<Tokens, DataError> {
        // A sample fits into the corpus, so into the address space of a machine that can train on it.
        let length = usize::try_from(self.seq_len).unwrap_or(usize::MAX);
        let mut window = vec![0_u8; length + 1];
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for sample in samples {
            self.corpus.read(sample.index.saturating_mul(self.seq_len), &mut window)?;
            let token = |byte: &u8| i64::from(*byte);
            tokens.extend(window.iter().take(length).map(token));
            targets.extend(window.iter().skip(1).map(token));
        }
        Ok(Tokens { rows: samples.len(), length, tokens, targets })
    }
}

/// The samples at the positions of `range`, of epochs of `len` samples each.
pub(super) fn samples(len: u64, seed: u64, range: Range<u64>) -> Vec<Sample> {
    let mut order: Option<(u64, Order)> = None;
    let sample = |position: u64| {
        let (epoch, index) = (position.checked_div(len)?, position.checked_rem(len)?);
        if order.as_ref().is_none_or(|(of, _)| *of != epoch) {
            order = Some((epoch, Order::new(len, seed, epoch)));
        }
        order.as_ref()?.1.at(index).map(|index| Sample { epoch, index })
    };
    range.map_while(sample).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        folder
    }

    fn stream(files: &[(&str, &[u8])], seq_len: u64) -> Stream {
        let folder = folder(files);
        let corpus = Corpus::open(folder.path()).unwrap();
        // The file that is open stays readable; the others are read before the folder goes.
        std::mem::forget(folder);
        Stream::new(Arc::new(corpus), seq_len, 1).unwrap()
    }

    #[test]
    fn windows_run_over_file_borders_in_order_of_paths() {
        let stream =
            stream(&[("b/2.txt", b"fgh"), ("a.txt", b"abc"), ("b/1.txt", b"de"), (".hidden", b"zz")], 3);
        assert_eq!(stream.samples(), 2);
        let both = stream.tokens(&[Sample { epoch: 0, index: 0 }, Sample { epoch: 0, index: 1 }]).unwrap();
        let text = |tokens: &[i64]| -> String {
            tokens.iter().map(|t| char::from(u8::try_from(*t).unwrap())).collect()
        };
        assert_eq!((text(&both.tokens).as_str(), text(&both.targets).as_str()), ("abcdef", "bcdefg"));
        assert_eq!((both.rows, both.length), (2, 3));
    }

    #[test]
    fn too_little_text_is_refused_with_the_numbers() {
        let folder = folder(&[("a.txt", b"0123456789")]);
        let corpus = Arc::new(Corpus::open(folder.path()).unwrap());
        assert_eq!(Stream::new(Arc::clone(&corpus), 9, 0).unwrap().samples(), 1);
        let error = Stream::new(corpus, 10, 0).unwrap_err().to_string();
        assert!(
            error.contains("10 bytes in 1 files") && error.contains("seq_len=10 needs at least 11"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_not_other_data() {
        let folder = folder(&[("a.txt", &[7; 100])]);
        let stream = Stream::new(Arc::new(Corpus::open(folder.path()).unwrap()), 10, 0).unwrap();
        std::fs::write(folder.path().join("a.txt"), [7; 50]).unwrap();
        let error = stream.tokens(&[Sample { epoch: 0, index: 8 }]).unwrap_err().to_string();
        assert!(error.contains("a.txt") && error.contains("changed"), "{error}");
    }

    #[test]
    fn other_data_is_told_from_the_same_and_what_differs_is_named() {
        let before = folder(&[("a", b"one"), ("b", b"two"), ("c", b"three")]);
        let same = folder(&[("a", b"one"), ("b", b"two"), ("c", b"three"), ("empty", b"")]);
        let after = folder(&[("a", b"one"), ("b", b"TWO"), ("d", b"three")]);
        let describe = |folder: &tempfile::TempDir| Corpus::open(folder.path()).unwrap().describe().unwrap();
        describe(&before).require(&describe(&same)).unwrap();
        let error = describe(&before).require(&describe(&after)).unwrap_err().to_string();
        for word in ["b has other content", "c is gone", "d is new", "11 bytes then, 11 now"] {
            assert!(error.contains(word), "{error}");
        }
    }

    proptest! {
        #[test]
        fn how_a_step_is_shared_out_does_not_change_it(len in 1_u64..200, cursor in 0_u64..5000, dp in 1_u64..5, m in 1_u64..5, micro in 1_u64..4) {
            let whole = samples(len, 9, cursor..cursor + dp * m * micro);
            let shared: Vec<Sample> = (0..dp * m)
                .flat_map(|g| samples(len, 9, cursor + g * micro..cursor + (g + 1) * micro))
                .collect();
            prop_assert_eq!(whole, shared);
        }

        #[test]
        fn every_epoch_has_every_sample_once_whatever_the_batch(len in 1_u64..100, batch in 1_u64..50) {
            let mut taken = Vec::new();
            let mut cursor = 0;
            while cursor < 3 * len {
                taken.extend(samples(len, 4, cursor..cursor + batch));
                cursor += batch;
            }
            for epoch in 0..3 {
                let of: BTreeSet<u64> = taken.iter().filter(|s| s.epoch == epoch).map(|s| s.index).collect();
                prop_assert_eq!(of.len() as u64, len);
                prop_assert_eq!(taken.iter().filter(|s| s.epoch == epoch).count() as u64, len);
            }
        }
    }
}
