//! How far a copy is: on a terminal a line that changes, if asked for lines, else nothing.

use super::super::output::Output;
use crate::timing;
use freebs_control::rules::format_size;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes a second, from the newest steps.
#[derive(Debug, Default)]
struct Rate {
    /// When, since the start, and how many bytes were done then.
    steps: VecDeque<(Duration, u64)>,
}

impl Rate {
    fn note(&mut self, now: Duration, done: u64) {
        self.steps.push_back((now, done));
        // One that is older stays, so that there are always two.
        while self.steps.len() > 2 && self.steps[1].0 + timing::RATE_OF < now {
            self.steps.pop_front();
        }
    }

    /// `None` while nothing is known.
    fn per_second(&self) -> Option<f64> {
        let ((then, before), (now, done)) = (self.steps.front()?, self.steps.back()?);
        let seconds = now.saturating_sub(*then).as_secs_f64();
        (seconds > 0.0).then(|| done.saturating_sub(*before) as f64 / seconds)
    }

    /// Seconds until `total` bytes are done, if it goes on like this.
    fn seconds_left(&self, total: u64) -> Option<u64> {
        let (_, done) = self.steps.back()?;
        let rate = self.per_second().filter(|r| *r >= 1.0)?;
        Some((total.saturating_sub(*done) as f64 / rate).ceil() as u64)
    }
}

/// The line of a moment, for programs.
#[derive(Serialize)]
struct Line {
    progress: At,
}

#[derive(Serialize)]
struct At {
    /// Bytes of the disk that are done, holes included.
    bytes: u64,
    of: u64,
    /// Bytes of data among them.
    data: u64,
    bytes_per_second: Option<u64>,
    seconds_left: Option<u64>,
}

struct Shared {
    label: String,
    of: u64,
    begun: Instant,
    done: Cell<u64>,
    data: Cell<u64>,
    rate: RefCell<Rate>,
}

impl Shared {
    fn at(&self) -> At {
        let mut rate = self.rate.borrow_mut();
        rate.note(self.begun.elapsed(), self.done.get());
        At {
            bytes: self.done.get(),
            of: self.of,
            data: self.data.get(),
            bytes_per_second: rate.per_second().map(|r| r as u64),
            seconds_left: rate.seconds_left(self.of),
        }
    }
}

fn sentence(label: &str, at: &At) -> String {
    let percent = (u128::from(at.bytes) * 100).checked_div(u128::from(at.of)).unwrap_or(0);
    let rate = at.bytes_per_second.map(|r| format!(", {}/s", format_size(r))).unwrap_or_default();
    let left = at.seconds_left.filter(|_| at.bytes > 0).map(|s| format!(", {} left", span(s))).unwrap_or_default();
    format!("{label}: {percent}% of {}, {} of data{rate}{left}", format_size(at.of), format_size(at.data))
}

/// A time for people: `5s`, `2m 5s`, `1h 3m`.
fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m {s}s"),
        (h, m, _) => format!("{h}h {m}m"),
    }
}

/// A copy that is under way.
pub struct Progress {
    shared: Rc<Shared>,
    task: Option<tokio::task::JoinHandle<()>>,
    on_terminal: bool,
}

impl Progress {
    /// Begins to tell, if there is somebody to tell. `of`: bytes of the disk. `lines`: also where there is no terminal.
    pub fn start(label: String, of: u64, lines: bool, output: &Output) -> Self {
        let (done, data, rate) = Default::default();
        let shared = Rc::new(Shared { label, of, begun: Instant::now(), done, data, rate });
        let on_terminal = std::io::stderr().is_terminal() && !(lines && output.json);
        let (told, json) = (shared.clone(), output.json);
        let task = (lines || on_terminal).then(|| {
            tokio::task::spawn_local(async move {
                loop {
                    let every = if on_terminal { timing::PROGRESS_EVERY } else { timing::PROGRESS_LINE_EVERY };
                    tokio::time::sleep(every).await;
                    tell(&told, on_terminal, json);
                }
            })
        });
        Self { shared, task, on_terminal }
    }

    /// Bytes of the disk before this one are done.
    pub fn reached(&self, at: u64) {
        self.shared.done.set(at);
    }

    /// So many bytes of data more were moved.
    pub fn moved(&self, bytes: u64) {
        self.shared.data.set(self.shared.data.get() + bytes);
    }

    /// Bytes of data that were moved, and the time that it took.
    pub fn so_far(&self) -> (u64, Duration) {
        (self.shared.data.get(), self.shared.begun.elapsed())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            if self.on_terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        }
    }
}

fn tell(shared: &Shared, on_terminal: bool, json: bool) {
    let at = shared.at();
    if on_terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", sentence(&shared.label, &at));
    } else if json {
        Output { json }.show(&Line { progress: at }, |_| String::new());
    } else {
        let _ = writeln!(std::io::stderr(), "{}", sentence(&shared.label, &at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_newest_seconds() {
        let mut rate = Rate::default();
        assert_eq!((rate.per_second(), rate.seconds_left(100)), (None, None));
        let at = Duration::from_secs;
        rate.note(at(0), 0);
        assert_eq!(rate.per_second(), None);
        rate.note(at(1), 1000);
        assert_eq!((rate.per_second(), rate.seconds_left(11_000)), (Some(1000.0), Some(10)));
        // It becomes slower: after a while only that counts.
        for s in 2..=40 {
            rate.note(at(s), 1000 + (s - 1) * 10);
        }
        assert_eq!((rate.per_second(), rate.seconds_left(1490)), (Some(10.0), Some(10)));
        // It stands still: nobody knows when it will be done.
        for s in 41..=60 {
            rate.note(at(s), 1390);
        }
        assert_eq!(rate.seconds_left(2000), None);
    }

    #[test]
    fn a_sentence_says_how_far_it_is() {
        let at = |bytes, left| At {
            bytes,
            of: 10 << 30,
            data: 3 << 20,
            bytes_per_second: Some(85 << 20),
            seconds_left: left,
        };
        let said = sentence("import of data", &at(1 << 30, Some(113)));
        assert_eq!(said, "import of data: 10% of 10G, 3M of data, 85M/s, 1m 53s left");
        assert_eq!(sentence("x", &at(0, Some(5))), "x: 0% of 10G, 3M of data, 85M/s");
        assert_eq!([span(59), span(60), span(7261)], ["59s", "1m 0s", "2h 1m"]);
    }
}
