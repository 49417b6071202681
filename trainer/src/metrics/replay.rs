//! [`replay`]: the records of one rank's file in order, with what a crash cut left out and what is no record refused.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use super::Record;
use crate::{Error, ErrorKind, Result};

/// Gives every record to `each`, with whether it begins an incarnation: what was recorded of later steps is void then.
///
/// # Errors
/// `NotFound` or `Io` for a file that can't be read, `Corrupt` for a line that no crash can have cut.
pub fn replay(path: &Path, each: &mut dyn FnMut(Record, bool)) -> Result<()> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| Error::from(error).at(&shown))?;
    let mut suspect = None;
    for (index, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(|error| Error::from(error).at(&shown))?;
        if line.is_empty() {
            continue;
        }
        let record = serde_json::from_slice::<Record>(&line);
        let begins = record.as_ref().is_ok_and(|record| record.name == "incarnation");
        // Only a line that the next incarnation's first follows can have been cut.
        if let Some(error) = suspect.take().filter(|_| !begins) {
            return Err(error);
        }
        match record {
            Ok(record) => each(record, begins),
            Err(error) => {
                let said = format!("{shown}:{} is no record of a metric: {error}", index + 1);
                suspect = Some(Error::new(ErrorKind::Corrupt, said).caused_by(error));
            }
        }
    }
    Ok(())
}
