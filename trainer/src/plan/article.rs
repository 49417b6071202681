//! The articles' round figures: 16 bytes a parameter, and the state and traffic of a rank, once as one of them counts
//! (which forgets the pipeline) and once as it is, so that a reader can find both numbers again.

use serde::Serialize;

use super::Cut;

/// Bytes of a parameter's training state: a 16-bit copy (2), its gradient (2), the f32 master (4), Adam's two moments (8).
pub const ARTICLE_BYTES: f64 = 16.0;

/// The state of so many parameters.
#[must_use]
pub fn state_bytes(params: f64) -> f64 {
    ARTICLE_BYTES * params
}

/// Fewest cards whose memories together hold so many bytes.
#[must_use]
pub fn cards_at_least(bytes: f64, memory: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a ratio of sizes; saturates"
    )]
    let cards = (bytes / memory).ceil().max(1.0) as u64;
    cards
}

/// State and traffic of one rank in the articles' units: 16 B, 2-byte weights and gradients, one gather per use and step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Article {
    /// Over how many ranks the state is taken to be spread.
    pub ways: u64,
    /// Bytes of state.
    pub state: f64,
    /// Bytes a step where weights stay gathered (DDP, `SHARD_GRAD_OP`): 2·M·(N−1)/N.
    pub traffic_twice: f64,
    /// Bytes a step where they are gathered again on the way back (`FULL_SHARD`): 3·M·(N−1)/N.
    pub traffic_thrice: f64,
}

impl Article {
    /// As it is: data, pipeline and tensor ranks all divide.
    #[must_use]
    pub fn right(params: f64, cut: &Cut) -> Self {
        Self::over(params, cut.dp, cut.pp * cut.tp)
    }

    /// As the fourth article's third section counts: the pipeline is forgotten.
    #[must_use]
    pub fn without_pipeline(params: f64, cut: &Cut) -> Self {
        Self::over(params, cut.dp, cut.tp)
    }

    fn over(params: f64, dp: u64, slices: u64) -> Self {
        let slice = 2.0 * params / slices as f64;
        let n = (dp as f64 - 1.0) / dp as f64;
        Self {
            ways: dp * slices,
            state: state_bytes(params) / (dp * slices) as f64,
            traffic_twice: 2.0 * slice * n,
            traffic_thrice: 3.0 * slice * n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Cut, Order, Strategy},
        *,
    };

    fn cut(dp: u64, pp: u64, tp: u64) -> Cut {
        Cut { dp, pp, tp, shard: dp, strategy: Strategy::FullShard, order: Order::DpPpTp }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.005 * b
    }

    #[test]
    fn sixteen_bytes_a_parameter_give_the_articles_states_and_cards() {
        for (params, bytes) in [(7e9, 112e9), (13e9, 208e9), (70e9, 1.12e12)] {
            assert!(near(state_bytes(params), bytes));
        }
        assert_eq!(
            (cards_at_least(112e9, 80e9), cards_at_least(1.12e12, 80e9), cards_at_least(1.0, 80e9)),
            (2, 14, 1)
        );
    }

    #[test]
    fn the_70b_example_comes_out_as_printed_and_as_it_is() {
        let (wrong, right) =
            (Article::without_pipeline(70e9, &cut(4, 2, 8)), Article::right(70e9, &cut(4, 2, 8)));
        assert_eq!((wrong.ways, right.ways), (32, 64));
        assert!(near(wrong.state, 35e9) && near(wrong.traffic_twice, 26.25e9));
        assert!(
            near(right.state, 17.5e9)
                && near(right.traffic_twice, 13.125e9)
                && near(right.traffic_thrice, 19.69e9)
        );
    }

    #[test]
    fn the_7b_examples_come_out() {
        let sixty_four = Article::right(7e9, &cut(64, 1, 1));
        assert!(near(sixty_four.traffic_twice, 27.56e9));
        // At 3 GB/s, which the article takes for 25 GbE.
        assert!(near(sixty_four.traffic_twice / 3e9, 9.2));
        let eight = Article::right(7e9, &cut(8, 1, 1));
        assert!(near(eight.state, 14e9) && near(eight.traffic_twice, 24.5e9));
    }
}
