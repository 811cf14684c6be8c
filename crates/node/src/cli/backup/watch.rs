//! The clock of a backup: how far it is, how fast it may be, and when it says that it is alive.

use super::super::image::progress::Progress;
use super::super::output::Output;
use crate::timing;
use freebs_backup::Watch;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Somebody who looks on.
pub struct Watcher<'a> {
    progress: Progress,
    output: &'a Output,
    /// Bytes a second, and when the next ones may be moved.
    rate: Option<u64>,
    next: Cell<Instant>,
    told: Cell<Instant>,
}

impl<'a> Watcher<'a> {
    /// `of`: bytes of the disk. `lines`: progress also where there is no terminal.
    pub fn start(label: String, of: u64, rate: Option<u64>, lines: bool, output: &'a Output) -> Self {
        let now = Cell::new(Instant::now());
        Self { progress: Progress::start(label, of, lines, output), output, rate, next: now.clone(), told: now }
    }

    /// Bytes of data that were moved, and the time that it took.
    pub fn so_far(&self) -> (u64, Duration) {
        self.progress.so_far()
    }
}

impl Watch for Watcher<'_> {
    fn reached(&self, at: u64) {
        self.progress.reached(at);
    }

    fn moved(&self, bytes: u64) {
        self.progress.moved(bytes);
    }

    fn note(&self, text: &str) {
        self.output.note(text);
    }

    async fn pace(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let begin = self.next.get().max(Instant::now());
        self.next.set(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
        tokio::time::sleep_until(begin.into()).await;
    }

    fn is_due(&self) -> bool {
        let is_due = self.told.get().elapsed() >= timing::BACKUP_ALIVE_EVERY;
        if is_due {
            self.told.set(Instant::now());
        }
        is_due
    }
}
