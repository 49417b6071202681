//! What goes from stage to stage: to one on the same rank by the mail alone, to one on another rank by a message.

use schedule::Action;
use tch::Tensor;

use super::{PipelineRunner, batch};
use crate::{
    Error, Place, Result,
    stage::posted::Letter,
    transport::{Header, Kind},
};

impl PipelineRunner<'_> {
    pub(super) fn take(&mut self, letter: Letter) -> Result<Vec<Tensor>> {
        self.mail.remove(&letter).ok_or_else(|| Error::internal(format!("{letter:?} is not there yet")))
    }

    /// Sends what `from` made for the stage that `action`'s partner is for.
    pub(super) fn send(&mut self, action: &Action, kind: Kind, microbatch: usize) -> Result<()> {
        let (peer, partner) = self.other_side(action)?;
        let tensors = self.take(Letter { stage: partner.stage, kind, microbatch })?;
        let batch = batch(self.batches, microbatch)?;
        let stage = self.stage(action.stage)?;
        let shapes = match kind {
            Kind::Forward => stage.shapes_out(batch),
            Kind::Backward => stage.shapes_in(batch),
        };
        let header = Header {
            step: self.step,
            stage: partner.stage,
            microbatch,
            kind,
            shapes,
            dtype: self.links.params.precision().kind(),
        };
        self.links.transport.send(peer, &header, &tensors)
    }

    pub(super) fn receive(&mut self, action: &Action, kind: Kind, microbatch: usize) -> Result<()> {
        let (peer, _) = self.other_side(action)?;
        let batch = batch(self.batches, microbatch)?;
        let stage = self.stage(action.stage)?;
        let shapes = match kind {
            Kind::Forward => stage.shapes_in(batch),
            Kind::Backward => stage.shapes_out(batch),
        };
        let expected = Header {
            step: self.step,
            stage: action.stage,
            microbatch,
            kind,
            shapes,
            dtype: self.links.params.precision().kind(),
        };
        let letter = Letter { stage: action.stage, kind, microbatch };
        match &mut self.posted {
            Some(posted) => {
                self.links.transport.expect(peer, &expected)?;
                posted.post(peer, letter, expected);
            }
            None => drop(self.mail.insert(letter, self.links.transport.recv(peer, &expected)?)),
        }
        Ok(())
    }

    /// Waits for a message that is due, and for those of its sender before it.
    pub(super) fn collect(&mut self, letter: Letter) -> Result<()> {
        let due = self.posted.as_mut().and_then(|posted| posted.until(letter));
        let Some((peer, due)) = due else { return Ok(()) };
        for (letter, expected) in due {
            let receive = letter.receive();
            self.links.transport.note(&receive);
            self.mail.insert(letter, self.links.transport.recv(peer, &expected).place(receive)?);
        }
        Ok(())
    }

    fn other_side(&self, action: &Action) -> Result<(usize, Action)> {
        let partner = action.partner();
        let rank = partner.and_then(|partner| self.placement.rank_of(partner.stage));
        let peer = rank.and_then(|rank| self.links.peers.get(rank)).copied();
        peer.zip(partner).ok_or_else(|| Error::internal(format!("{action} has no other side")))
    }
}
