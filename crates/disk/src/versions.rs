//! Versions that are kept: snapshots, the retention window, and reading at them.
//!
//! A snapshot is a version number. To take one is an update without blocks, which pins the version that it has itself;
//! so it costs the same whatever the size of the disk, and survives a crash as any other update does.

use crate::ahead::runs;
use crate::blocks::Sink;
use crate::disk::{Disk, filling};
use crate::inside::Inside;
use crate::shared::Step;
use freebs_format::PinUpdate;
use freebs_lsvd::HistoryState;
use freebs_types::{Error, Result, SnapshotId, Version, limits};

impl Disk {
    /// Takes a snapshot: the content at this moment, with everything that was written before the call, can be read at
    /// the version that comes back until that is dropped. Returns when it is durable. At most 2,048 at a time.
    pub fn snapshot(&self) -> Result<Version> {
        self.pin(|_, history| match history.pins.len() {
            n if n >= limits::SHARD_PINS_MAX => {
                Err(Error::no_space(format!("the disk has {n} snapshots, which is all it can have; drop one")))
            }
            _ => Ok(PinUpdate::Snapshot(SnapshotId(0))),
        })
    }

    /// Drops a snapshot, and returns when that is durable; its space comes back with cleaning. `NotFound` if there is
    /// none of this version.
    pub fn drop_snapshot(&self, version: Version) -> Result<()> {
        self.pin(|_, history| match history.pins.iter().any(|p| p.version == version) {
            true => Ok(PinUpdate::Release(version)),
            false => Err(Error::not_found(format!("there is no snapshot of version {version}"))),
        })?;
        Ok(())
    }

    /// The versions of all snapshots, lowest first.
    pub fn snapshots(&self) -> Result<Vec<Version>> {
        Ok(self.history()?.pins.iter().map(|p| p.version).collect())
    }

    /// Snapshots, retention window, and what they cost, as of what is durable.
    pub fn history(&self) -> Result<HistoryState> {
        let mut g = self.shared().lock();
        history(g.inside()?)
    }

    /// Keeps every version from `from` on, or from now on if that is higher than what is still there; a later call
    /// moves the window up and gives back what falls out of it. Returns when that is durable.
    pub fn retain_from(&self, from: Version) -> Result<()> {
        self.pin(|_, _| Ok(PinUpdate::Retain(from)))?;
        Ok(())
    }

    /// Where the window has to begin so that it keeps no more than so many versions and so many bytes of superseded
    /// data: what to call `retain_from` with, if anything. For a window of some time, remember `version` now and then.
    pub fn retain_hint(&self, versions: u64, bytes: u64) -> Result<Option<Version>> {
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        inside.engine.retain_from(inside.shard(), versions, bytes)
    }

    /// Keeps no versions any more, but for snapshots.
    pub fn retain_none(&self) -> Result<()> {
        // Version 0 names the window itself.
        self.pin(|_, _| Ok(PinUpdate::Release(Version(0))))?;
        Ok(())
    }

    /// Orders an update about versions and waits for it; `which` gives it, or says why it may not be.
    fn pin(&self, which: impl Fn(&Inside, &HistoryState) -> Result<PinUpdate>) -> Result<Version> {
        self.before_change()?;
        let mut mine = None;
        self.shared().drive(self.shared().lock(), |inside| {
            if let Some(version) = mine {
                return Step::Durable(version, Version(version));
            }
            let fit = inside.alive().and_then(|()| filling(inside)).and_then(|()| inside.check_space(0));
            match fit {
                Err(e) => return Step::Done(Err(e)),
                Ok(fit) if !fit || !inside.has_room() => {
                    inside.wanted = inside.wanted.max(inside.head.version());
                    return Step::Change;
                }
                Ok(_) => {}
            }
            let version = match history(inside).and_then(|h| which(inside, &h)) {
                Ok(pin) => inside.order_pin(pin, true),
                Err(e) => return Step::Done(Err(e)),
            };
            mine = Some(version);
            Step::Durable(version, Version(version))
        })
    }

    /// Reads a piece of at most `limits::READ_BLOCKS_MAX` blocks at a version before the present one.
    pub(crate) fn read_old(&self, mut sink: Sink<'_>, version: u64) -> Result<()> {
        let range = sink.span.blocks();
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        inside.alive()?;
        filling(inside)?;
        let shard = inside.shard();
        let at = Version(version);
        let out = self.shared().run(g, move |engine| async move { engine.read_at(shard, at, range).await })??;
        for (lba, blocks, data) in runs(range, &out) {
            match data {
                Some(d) => sink.put(lba, &d),
                None => sink.zero(lba, blocks),
            }
        }
        Ok(())
    }
}

fn history(inside: &Inside) -> Result<HistoryState> {
    inside.engine.history(inside.shard())
}
