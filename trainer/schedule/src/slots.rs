//! [`SlotTable`]: a schedule drawn in time slots, as articles and papers print it. What a cell needs must be finished in
//! an *earlier* slot: two dependent cells in one slot are as wrong as two in the wrong order.

use std::{collections::HashMap, fmt};

use super::{Action, Placement, ScheduleError, Table, progress::Fact, validate};

/// Cells in slots; `None` is an idle slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotTable {
    /// Where stages lie.
    pub placement: Placement,
    /// Microbatches.
    pub microbatches: usize,
    /// One row per rank.
    pub ranks: Vec<Vec<Option<Action>>>,
}

/// A cell that comes before what it needs is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFault {
    /// The rank.
    pub rank: usize,
    /// The slot, from 1, as tables print them.
    pub slot: usize,
    /// The cell.
    pub cell: Action,
    /// What it needs.
    pub needs: String,
    /// The slot of that.
    pub needs_slot: usize,
}

impl SlotTable {
    /// Reads one line per rank; cells are separated by blanks, `.` is an idle slot.
    ///
    /// # Errors
    /// A cell that is no action.
    pub fn parse(text: &str, placement: Placement, microbatches: usize) -> Result<Self, ScheduleError> {
        let cell = |cell: &str| if cell == "." { Ok(None) } else { cell.parse().map(Some) };
        let rows = text.lines().filter(|line| !line.trim().is_empty());
        let ranks = rows.map(|row| row.split_whitespace().map(cell).collect()).collect::<Result<_, _>>()?;
        Ok(Self { placement, microbatches, ranks })
    }

    /// The order of the cells, without their times.
    #[must_use]
    pub fn table(&self) -> Table {
        let ranks = self.ranks.iter().map(|row| row.iter().copied().flatten().collect()).collect();
        Table { placement: self.placement.clone(), microbatches: self.microbatches, ranks }
    }

    /// Checks the order as [`validate()`] does, then that every cell is in a later slot than all that it needs.
    ///
    /// # Errors
    /// What [`validate()`] refuses; all cells that come too early.
    pub fn validate(&self) -> Result<(), ScheduleError> {
        validate(&self.table())?;
        let given: HashMap<Fact, usize> =
            self.cells().flat_map(|(_, slot, cell)| Fact::given_by(cell).map(move |it| (it, slot))).collect();
        let faults: Vec<_> =
            self.cells().flat_map(|(rank, slot, cell)| self.early(&given, rank, slot, cell)).collect();
        if faults.is_empty() { Ok(()) } else { Err(ScheduleError::Slots(faults)) }
    }

    fn cells(&self) -> impl Iterator<Item = (usize, usize, Action)> {
        self.ranks.iter().enumerate().flat_map(|(rank, row)| {
            (1..).zip(row).filter_map(move |(slot, cell)| Some((rank, slot, (*cell)?)))
        })
    }

    fn early(&self, given: &HashMap<Fact, usize>, rank: usize, slot: usize, cell: Action) -> Vec<SlotFault> {
        let needed = Fact::needed_by(cell, self.placement.stages()).into_iter();
        let late = needed.filter_map(|fact| {
            let needs_slot = *given.get(&fact).filter(|given| **given >= slot)?;
            Some(SlotFault { rank, slot, cell, needs: fact.to_string(), needs_slot })
        });
        late.collect()
    }
}

impl fmt::Display for SlotFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, slot, cell, needs, needs_slot } = self;
        write!(f, "rank {rank}, slot {slot}, cell {cell} needs {needs}, which is in slot {needs_slot}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fill-drain on 4 ranks, 4 microbatches, 14 slots, as the article prints it: the first rank's backwards stand in
    /// the same slots as the second's, which they need.
    const PRINTED: &str = "
        0F0 0F1 0F2 0F3 .   .   .   .   .   0B0 0B1 0B2 0B3 .
        .   1F0 1F1 1F2 1F3 .   .   .   .   1B0 1B1 1B2 1B3 .
        .   .   2F0 2F1 2F2 2F3 .   .   2B0 2B1 2B2 2B3 .   .
        .   .   .   3F0 3F1 3F2 3F3 3B0 3B1 3B2 3B3 .   .   .";
    const CORRECTED: &str = "
        0F0 0F1 0F2 0F3 .   .   .   .   .   .   0B0 0B1 0B2 0B3
        .   1F0 1F1 1F2 1F3 .   .   .   .   1B0 1B1 1B2 1B3 .
        .   .   2F0 2F1 2F2 2F3 .   .   2B0 2B1 2B2 2B3 .   .
        .   .   .   3F0 3F1 3F2 3F3 3B0 3B1 3B2 3B3 .   .   .";

    fn fill_drain(text: &str) -> SlotTable {
        SlotTable::parse(text, Placement::looped(4, 4).unwrap(), 4).unwrap()
    }

    #[test]
    fn the_printed_fill_drain_table_breaks_four_dependencies() {
        let ScheduleError::Slots(faults) = fill_drain(PRINTED).validate().unwrap_err() else { panic!() };
        assert_eq!(faults.len(), 4);
        for (index, fault) in faults.iter().enumerate() {
            assert_eq!((fault.rank, fault.slot, fault.needs_slot), (0, 10 + index, 10 + index));
        }
        let text = ScheduleError::Slots(faults).to_string();
        assert!(text.contains("rank 0, slot 10, cell 0B0 needs 1B0 or 1I0, which is in slot 10"), "{text}");
    }

    #[test]
    fn the_corrected_fill_drain_table_is_accepted_and_takes_14_slots() {
        let table = fill_drain(CORRECTED);
        table.validate().unwrap();
        assert!(table.ranks.iter().all(|row| row.len() == 2 * (4 + 4 - 1)));
    }

    #[test]
    fn a_wrong_order_is_refused_before_slots_are_looked_at() {
        let table = fill_drain(&CORRECTED.replace("3F3 3B0", "3B0 3F3").replace("3F0", "3F4"));
        assert!(table.validate().unwrap_err().to_string().starts_with("rank 3, step 0, cell 3F4"));
    }
}
