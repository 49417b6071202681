//! [`Placement`]: the rank of every stage. Constant over a step; every rank has at least one stage.

use super::ScheduleError;

/// Where stages lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    ranks: usize,
    of_stage: Vec<usize>,
}

impl Placement {
    /// Stage `s` on rank `of_stage[s]`.
    ///
    /// # Errors
    /// A rank that isn't there, or one without a stage.
    pub fn new(ranks: usize, of_stage: Vec<usize>) -> Result<Self, ScheduleError> {
        let refused = |why| Err(ScheduleError::Placement(why));
        if let Some((stage, rank)) = of_stage.iter().enumerate().find(|(_, rank)| **rank >= ranks) {
            return refused(format!(
                "stage {stage} is placed on rank {rank}, but there are only {ranks} ranks"
            ));
        }
        if let Some(idle) = (0..ranks).find(|rank| !of_stage.contains(rank)) {
            return refused(format!("rank {idle} has no stage"));
        }
        if ranks == 0 {
            return refused("there is no rank".to_owned());
        }
        Ok(Self { ranks, of_stage })
    }

    /// Stage `s` on rank `s` mod `ranks`: the next stage is always on the next rank.
    ///
    /// # Errors
    /// Fewer stages than ranks.
    pub fn looped(stages: usize, ranks: usize) -> Result<Self, ScheduleError> {
        Self::new(ranks, (0..stages).map(|stage| stage % ranks.max(1)).collect())
    }

    /// Down the ranks and back again, as often as there are stages: with two on each rank, stages r and 2P − 1 − r lie on
    /// rank r. Where it turns, the next stage is on the same rank.
    ///
    /// # Errors
    /// Fewer stages than ranks.
    pub fn v(stages: usize, ranks: usize) -> Result<Self, ScheduleError> {
        let of = |stage: usize| {
            let (way, at) = (stage / ranks.max(1), stage % ranks.max(1));
            if way.is_multiple_of(2) { at } else { ranks - 1 - at }
        };
        Self::new(ranks, (0..stages).map(of).collect())
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Number of stages.
    #[must_use]
    pub const fn stages(&self) -> usize {
        self.of_stage.len()
    }

    /// Rank of `stage`; `None` for one that isn't there.
    #[must_use]
    pub fn rank_of(&self, stage: usize) -> Option<usize> {
        self.of_stage.get(stage).copied()
    }

    /// Stages on `rank`, ascending.
    #[must_use]
    pub fn stages_of(&self, rank: usize) -> Vec<usize> {
        (0..self.stages()).filter(|stage| self.rank_of(*stage) == Some(rank)).collect()
    }

    /// The rank that `stage`'s outputs go to, where it is another one.
    #[must_use]
    pub fn next_rank(&self, stage: usize) -> Option<usize> {
        self.rank_of(stage + 1).filter(|next| self.rank_of(stage) != Some(*next))
    }

    /// The rank that `stage`'s inputs come from, where it is another one.
    #[must_use]
    pub fn rank_before(&self, stage: usize) -> Option<usize> {
        let before = self.rank_of(stage.checked_sub(1)?)?;
        (self.rank_of(stage) != Some(before)).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_goes_round_the_ranks() {
        let placement = Placement::looped(6, 3).unwrap();
        assert_eq!(placement.stages_of(1), [1, 4]);
        assert_eq!(placement.next_rank(2), Some(0));
        assert_eq!(placement.rank_before(3), Some(2));
        assert_eq!((placement.next_rank(5), placement.rank_before(0)), (None, None));
        assert_eq!(Placement::looped(2, 1).unwrap().next_rank(0), None);
    }

    #[test]
    fn a_v_turns_on_the_last_rank_and_ends_on_the_first_without_a_message() {
        let placement = Placement::v(8, 4).unwrap();
        assert_eq!(placement.stages_of(0), [0, 7]);
        assert_eq!(placement.stages_of(3), [3, 4]);
        assert_eq!((placement.next_rank(3), placement.rank_before(4)), (None, None));
        assert_eq!((placement.next_rank(2), placement.next_rank(4)), (Some(3), Some(2)));
        let twice = Placement::v(6, 2).unwrap();
        assert_eq!((0..6).map(|it| twice.rank_of(it).unwrap()).collect::<Vec<_>>(), [0, 1, 1, 0, 0, 1]);
        assert!(Placement::v(0, 0).is_err() && Placement::v(2, 3).is_err());
    }

    #[test]
    fn ranks_without_a_stage_and_stages_without_a_rank_are_refused() {
        assert!(Placement::looped(2, 3).unwrap_err().to_string().contains("rank 2 has no stage"));
        assert!(
            Placement::new(2, vec![0, 1, 2]).unwrap_err().to_string().contains("stage 2 is placed on rank 2")
        );
        assert!(Placement::looped(0, 0).is_err());
    }
}
