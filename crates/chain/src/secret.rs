//! Secrets of views, as a replica knows them (design note 17): a member gives its slice with its promise, and who opens
//! the next view puts the secret together, to make the token that continues the chain.
//!
//! Invariants: no slice is given before the promise is durable (V2); a secret counts only if the token that it gives
//! hides to the `hid` of the frame that is to be followed; a guess, only if the view frame names its hash.

use crate::event::{Mutant, Opened};
use crate::head::view_secret;
use crate::open::Phase;
use crate::replica::{Ctx, OpenView, Replica};
use freebs_format::wire::{FrameName, Given, SealAnswer};
use freebs_format::{Frame, ViewBody, ViewSecret, hide, token};
use freebs_secrets::{SliceName, join, open, share};
use freebs_types::{Hash32, HostPublic, NodeId, SealedSlice, Slice, ViewNumber};
use std::collections::BTreeMap;

/// Secrets that are remembered: of the view that is followed, and of pending ones that follow it.
const KNOWN_MAX: usize = 4;

/// Secrets in clear: of views that this node opened since it started, and those that newer views published.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<ViewNumber, Hash32>);

impl Known {
    /// Views before `pred` are followed already; of pending ones behind it the newest are kept.
    pub fn remember(&mut self, pred: ViewNumber, view: ViewNumber, secret: Hash32) {
        self.0.retain(|v, _| *v >= pred);
        self.0.insert(view, secret);
        if let Some(oldest) = self.0.keys().copied().find(|v| *v > pred).filter(|_| self.0.len() > KNOWN_MAX) {
            self.0.remove(&oldest);
        }
    }
}

/// What the head of a pending view has been given.
pub(crate) type Gathered = BTreeMap<NodeId, Given>;

impl OpenView {
    /// The secret of the view before this one, which its frame published.
    pub fn published(&self) -> Option<(ViewNumber, Hash32)> {
        // Who had only the token could not say it.
        let known = self.body.shared.as_ref().filter(|s| s.pred_secret != Hash32::default());
        known.map(|s| (self.body.pred, s.pred_secret))
    }

    /// A member's slice as the frame has it.
    fn sealed_for(&self, node: NodeId) -> Option<(HostPublic, SealedSlice)> {
        let shared = self.body.shared.as_ref()?;
        let at = self.body.members.iter().position(|m| m.node == node)?;
        Some((shared.point, *shared.slices.get(at)?))
    }
}

impl Replica {
    /// The views whose frames are known here, the newest first.
    pub fn open_views(&self) -> impl Iterator<Item = &OpenView> {
        self.view.iter().chain(self.before.iter().rev())
    }

    fn view_of(&self, number: ViewNumber) -> Option<&OpenView> {
        self.open_views().find(|v| v.number == number)
    }

    /// What this member gives of the secret of `pred`, whose next view it has promised. `sent` is its sealed slice as
    /// the asker has it, for a log that lacks the view frame.
    pub fn give(&self, ctx: &Ctx<'_>, pred: ViewNumber, sent: Option<(HostPublic, SealedSlice)>) -> Given {
        let published = self.open_views().filter_map(OpenView::published).find(|(of, _)| *of == pred);
        if let Some(secret) = published.map(|(_, s)| s).or_else(|| self.known.0.get(&pred).copied()) {
            return Given::Secret(secret);
        }
        // Of a view without slices its head alone has the secret, also when it is not the head any more.
        let derived = view_secret(&ctx.config.node_secret, self.id, pred);
        let last = self.seal_answer(pred, pred).last;
        let last = self.tail.get(&last.sequence).filter(|t| t.name == last && last.view == pred && t.token.is_none());
        if last.is_some_and(|t| hide(&token(&derived, &t.parent, &t.digest)) == t.name.hid) {
            return Given::Secret(derived);
        }
        let node = ctx.config.me.node;
        let name = SliceName { cluster: ctx.config.cluster, shard: self.id, view: pred, node };
        let own = self.view_of(pred).and_then(|v| v.sealed_for(node));
        let slice = own.or(sent).and_then(|(point, sealed)| open(&ctx.config.host_key, &name, &point, &sealed));
        slice.map_or(Given::Nothing, Given::Slice)
    }

    /// The same for who asks. A log that lacks the frame does not say whether the view had slices, and this node was its head:
    /// if nothing else is there, the secret that this node would have derived is given. Who asks sees whether it is the one.
    pub fn give_or_guess(&self, ctx: &Ctx<'_>, pred: ViewNumber, sent: Option<(HostPublic, SealedSlice)>) -> Given {
        // Of a view to come nobody learns it beforehand.
        let is_known = self.info.as_ref().is_some_and(|i| pred <= i.active.max(i.known));
        match self.give(ctx, pred, sent) {
            Given::Nothing if sent.is_none() && self.view_of(pred).is_none() && is_known => {
                Given::Secret(view_secret(&ctx.config.node_secret, self.id, pred))
            }
            given => given,
        }
    }

    /// A member's gift, if it counts: a secret of a log that lacks the view frame has to be the one that the frame
    /// names.
    pub fn counted(&self, answer: &SealAnswer) -> Given {
        let names = |s: &Hash32| self.view_of(answer.pred).is_some_and(|v| hide(s) == v.body.secret_hash);
        match answer.given {
            Given::Secret(s) if !answer.has_pred && !names(&s) => Given::Nothing,
            given => given,
        }
    }

    /// What a member is sent with the question for its promise.
    pub fn slice_for(&self, pred: ViewNumber, node: NodeId) -> Option<(HostPublic, SealedSlice)> {
        self.view_of(pred)?.sealed_for(node)
    }

    /// The secret of the view that `seal` belongs to, and the token of that frame. `None` without enough slices.
    pub fn continuation(&self, ctx: &Ctx<'_>, seal: FrameName, gathered: &Gathered) -> Option<(Hash32, Hash32)> {
        if seal.sequence.0 == 0 {
            // Everybody may begin.
            return Some((Hash32::default(), Hash32::default()));
        }
        if seal.view.0 == 0 {
            // So may everybody whose log reaches the fork.
            let token = self.tail.get(&seal.sequence).filter(|t| t.name == seal)?.token?;
            return Some((Hash32::default(), token));
        }
        let last = self.tail.get(&seal.sequence).filter(|t| t.name.hid == seal.hid)?;
        let view = self.view_of(seal.view);
        let token_by = |s: &Hash32| last.token.unwrap_or_else(|| token(s, &last.parent, &last.digest));
        let is_right = |s: &Hash32| {
            hide(&token_by(s)) == seal.hid && view.is_none_or(|v| hide(s) == v.body.secret_hash || last.token.is_none())
        };
        // Of a frame that is given up the token is known from the one behind it, and fits whatever the secret is.
        let can_tell = last.token.is_none() || view.is_some();
        if ctx.mutant(Mutant::SecretMadeUp) && view.is_some_and(|v| v.body.shared.is_some()) {
            return Some((Hash32([1; 32]), token_by(&Hash32([1; 32]))));
        }
        let own = self.give(ctx, seal.view, None);
        let given = || gathered.values().chain(Some(&own));
        let whole = given().filter_map(|g| if let Given::Secret(s) = g { Some(*s) } else { None });
        let derived = view_secret(&ctx.config.node_secret, self.id, seal.view);
        let joined = || {
            let slices: Vec<Slice> =
                given().filter_map(|g| if let Given::Slice(s) = g { Some(*s) } else { None }).collect();
            let threshold = view?.body.shared.as_ref()?.threshold;
            join(usize::from(threshold), &slices, is_right)
        };
        let secret = whole.chain(Some(derived).filter(|_| can_tell)).find(is_right).or_else(joined);
        let secret = secret.or_else(|| last.token.map(|_| Hash32::default()));
        secret.map(|s| (s, token_by(&s)))
    }

    /// The secret of a view that this node opens, and what its frame says of it. If not all members have named a host
    /// key the secret is derived, and only this node can follow the view.
    pub fn make_secret(
        &self,
        ctx: &Ctx<'_>,
        opened: &Opened,
        seed: &Hash32,
        pred_secret: Hash32,
    ) -> (Hash32, Option<Box<ViewSecret>>) {
        let threshold = opened.members.len() + 1 - usize::from(opened.quorum).clamp(1, opened.members.len());
        let keys = opened.members.iter().map(|n| opened.keys.get(n).map(|k| (*n, *k)));
        let keys = keys.collect::<Option<Vec<_>>>().filter(|_| !ctx.knows_secrets());
        let cluster = ctx.config.cluster;
        let made = keys.and_then(|keys| share(seed, cluster, (self.id, opened.view), threshold, &keys));
        let Some(made) = made else {
            return (view_secret(&ctx.config.node_secret, self.id, opened.view), None);
        };
        let threshold = u8::try_from(threshold).unwrap_or(u8::MAX);
        let shared = ViewSecret { threshold, point: made.point, pred_secret, slices: made.slices };
        (made.secret, Some(Box::new(shared)))
    }

    /// Whether a view frame behind the last frame publishes the secret that the last frame was made with.
    pub fn published_fits(&self, frame: &Frame, body: &ViewBody) -> bool {
        let Some(shared) = &body.shared else { return true };
        let Some(last) = self.tail.get(&self.last.sequence) else { return true };
        // Its head may not have known it: see `continuation`.
        let is_unknown = shared.pred_secret == Hash32::default();
        match last.token {
            _ if self.is_empty_log() => is_unknown,
            Some(_) => true,
            // Where only the beginning of a branch has told of the last frame, nobody can tell.
            None if is_unknown || !last.has_origin() => true,
            None => token(&shared.pred_secret, &last.parent, &last.digest) == frame.header().parent_token(),
        }
    }

    /// Without enough slices this node can't extend the chain, and says so.
    pub fn lacks_slices(&mut self, ctx: &mut Ctx<'_>, opened: &Opened) {
        let shared = self.view_of(opened.pred).and_then(|v| v.body.shared.as_ref());
        let (threshold, pred) = (shared.map_or(0, |s| usize::from(s.threshold)), opened.pred);
        let own = self.give(ctx, pred, None);
        let is_slice = |g: &Given| matches!(g, Given::Slice(_));
        let Some(h) = self.head.as_mut() else { return };
        h.gathered.insert(ctx.config.me.node, own);
        let count = h.gathered.values().filter(|g| is_slice(g)).count();
        if h.slices_told != Some((opened.view, count)) {
            h.slices_told = Some((opened.view, count));
            let why = match threshold {
                0 => "only the node that was its head knows its secret".to_string(),
                n => format!("{count} of {n} slices of its secret are here"),
            };
            ctx.out.note(format!("shard {}: view {pred} can't be followed: {why}", self.id));
        }
        if matches!(h.phase, Phase::Fetching { .. }) {
            // The members are asked again, now with their slices.
            (h.phase, h.at) = (Phase::Closed, ctx.now);
        }
    }
}
