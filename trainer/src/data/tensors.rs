//! Tokens as tensors: the one place where data meets libtorch.

use tch::Tensor;

use super::Tokens;
use crate::{Error, Result, model::Batch};

impl Tokens {
    /// The microbatch as a stage sees it: token ids where the first part runs, targets where the head runs.
    ///
    /// # Errors
    /// `Internal` when libtorch refuses.
    pub fn batch(&self, first: bool, last: bool) -> Result<Batch> {
        let size =
            |size: usize| i64::try_from(size).map_err(|_| Error::internal("a microbatch is too large"));
        let (rows, length) = (size(self.rows)?, size(self.length)?);
        let tensor = |ids: &[i64], wanted: bool| -> Result<Option<Tensor>> {
            let ids = wanted.then(|| Tensor::f_from_slice(ids)?.f_reshape([rows, length]));
            Ok(ids.transpose()?)
        };
        Ok(Batch {
            rows,
            length,
            tokens: tensor(&self.tokens, first)?,
            targets: tensor(&self.targets, last)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_gets_what_its_parts_need() {
        let tokens = Tokens { rows: 2, length: 2, tokens: vec![1, 2, 3, 4], targets: vec![2, 5, 4, 6] };
        let batch = tokens.batch(true, false).unwrap();
        let ids = batch.tokens.unwrap();
        assert_eq!((ids.size(), ids.int64_value(&[1, 0])), (vec![2, 2], 3));
        assert!(batch.targets.is_none());
        assert_eq!(tokens.batch(false, true).unwrap().targets.unwrap().int64_value(&[0, 1]), 5);
    }
}
