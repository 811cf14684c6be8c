//! The reasons, for people, for which a head can't seal: answers that are missing, and answers that do not count (V2, V3, V10).
//!
//! Invariant: nothing is decided here. A seal counts answers in `open`.

use crate::event::{NoteKind, Opened};
use crate::open::Phase;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::wire::SealAnswer;
use freebs_types::{NodeId, ViewNumber};

/// The reason for which an answer does not count, if it does not.
fn not_counted(opened: &Opened, from: NodeId, a: &SealAnswer) -> Option<&'static str> {
    if opened.pred_unseen.contains(&from) {
        return Some(
            "does not count: the rebuild of the control state did not look at it, and its log may be an old one",
        );
    }
    if a.damaged {
        return Some("does not count: its log has lost something, and is being mended from others");
    }
    let has_some = a.has_pred || a.last.view.0 > 0 || opened.pred_learning.contains(&from);
    (!has_some).then_some("does not count: its log is empty, as if its device had been lost")
}

impl Replica {
    /// Once a seal has waited for a while it says what for, and again when that has changed.
    pub(crate) fn tell_what_it_waits_for(&mut self, ctx: &mut Ctx<'_>) {
        let Some(h) = self.head.as_ref().filter(|h| ctx.now.since(h.at) >= timing::WAIT_TOLD) else { return };
        let waits = self.what_a_seal_waits_for(ctx.config.me.node);
        if waits == h.waits {
            return;
        }
        if let Some(text) = &waits {
            ctx.out.tell(NoteKind::Waits, self.id, text);
        }
        self.head.iter_mut().for_each(|h| h.waits.clone_from(&waits));
    }

    fn what_a_seal_waits_for(&self, me: NodeId) -> Option<String> {
        let Phase::Sealing { opened, answers, beyond, floor, .. } = &self.head.as_ref()?.phase else { return None };
        let pred = opened.pred;
        if pred == ViewNumber(0) {
            let what = "it waits: this log lacks the snapshot's version that the clone begins with; a member that has it is to lead";
            return self.lacks_its_fork().then(|| what.to_owned());
        }
        let silent = |n: &NodeId| match answers.get(n) {
            None if beyond.contains(n) => Some("has promised a later view"),
            None => Some("does not answer"),
            Some(_) => None,
        };
        if let Some(n) = self.is_back(me, opened, answers) {
            return Some(format!(
                "it waits: node {n} is back, and has more than those that were named; say `freebs volume recover` again"
            ));
        }
        if opened.forced.as_ref().is_some_and(|f| self.lost_since_told(f)) {
            let lost = self.damage.missing();
            return Some(format!("it waits: {lost} frames are lost by now; say `freebs volume recover` again"));
        }
        if let Some(forced) = &opened.forced {
            let missing = forced.survivors.iter().filter_map(|n| Some(format!("node {n} {}", silent(n)?)));
            let missing: Vec<String> = missing.collect();
            return Some(match missing.is_empty() {
                true => format!("it waits: no sound log of those that are left reaches frame {}", forced.least),
                false => {
                    format!("it waits: to go on by force all that are left have to promise; {}", missing.join("; "))
                }
            });
        }
        let reason = |n: &NodeId| silent(n).or_else(|| not_counted(opened, *n, answers.get(n)?));
        let missing: Vec<String> =
            opened.pred_members.iter().filter_map(|n| Some(format!("node {n} {}", reason(n)?))).collect();
        let (counting, needed) = (opened.pred_members.len() - missing.len(), opened.answers_needed());
        let missing = missing.join("; ");
        if counting < needed {
            return Some(format!(
                "it waits: to leave view {pred}, {needed} answers are needed, and {counting} count; {missing}"
            ));
        }
        Some(format!("it waits: no log that counts has frame {floor} of view {pred}, which was answered; {missing}"))
    }

    /// The last thing that was told, as long as it holds.
    pub(crate) fn waits(&self) -> Option<String> {
        let h = self.head.as_ref().filter(|h| matches!(h.phase, Phase::Sealing { .. }))?;
        h.waits.clone()
    }
}
