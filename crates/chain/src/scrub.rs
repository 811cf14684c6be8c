//! When the worker's scrub reads: its share each time, pass after pass, with a rest between them.

use crate::event::{ControlPort, Note, NoteKind};
use crate::timing;
use crate::worker::Worker;
use freebs_format::wire::Message;
use freebs_io::{Clock, Device, Outbox};
use freebs_lsvd::Scrubber;

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// Reads the log again and again. What readers have met in between is looked at without waiting for the next pass.
    pub(crate) async fn run_scrub(self, bytes: u64) {
        let mut scrubber = Scrubber::new(self.0.engine.clone());
        let share = (bytes / (1000 / timing::SCRUB_STEP.as_millis() as u64)).max(1);
        let (mut begun, mut rests) = (self.0.clock.now(), false);
        loop {
            tokio::time::sleep(timing::SCRUB_STEP).await;
            if rests && !scrubber.is_reading() && self.0.clock.now().since(begun) >= timing::SCRUB_PASS_EVERY {
                (begun, rests) = (self.0.clock.now(), false);
            }
            let done = match rests {
                true if !self.0.engine.has_suspects() && !scrubber.is_reading() => continue,
                true => scrubber.look_at_suspects(share).await,
                false => scrubber.step(share).await,
            };
            match done {
                Ok(step) => rests |= step.pass_complete,
                Err(e) => {
                    let text = format!("log: the scrub has ended: {e}");
                    return (self.0.notes)(&Note::new(NoteKind::Ended, None, text));
                }
            }
        }
    }
}
