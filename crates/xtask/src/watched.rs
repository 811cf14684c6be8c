//! A call whose lines are printed as they come, and looked at; one that takes longer than its limit is ended.

use crate::call::Call;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A process that outlives the call may hold its output open; this long it is still read.
const AFTER_THE_END: Duration = Duration::from_secs(5);
/// From the polite signal to the other one.
const KILL_AFTER_SECONDS: u64 = 30;

/// Runs a call, for at most `limit` if there is one (Ctrl-C then leaves it to end by itself), prints both of its outputs, writes them into `log`, and hands every line to `look`.
/// Says how it ended: `Ok` if with status 0.
///
/// # Errors
/// A failure: the status, or why it could not be run or recorded.
pub fn watched(call: &Call, limit: Option<Duration>, log: Option<File>, look: impl FnMut(&str)) -> Result<(), String> {
    watch(call, limit, log, look).unwrap_or_else(|e| Err(e.to_string()))
}

/// The command, ended with its whole process group by `timeout` when `limit` has passed.
fn within(inner: &Command, limit: Option<Duration>) -> Command {
    let mut outer = match limit {
        Some(limit) => {
            let mut outer = Command::new("timeout");
            outer.arg(format!("--kill-after={KILL_AFTER_SECONDS}")).arg(limit.as_secs().max(1).to_string());
            outer.arg(inner.get_program());
            outer
        }
        None => Command::new(inner.get_program()),
    };
    outer.args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
    outer
}

fn watch(
    call: &Call,
    limit: Option<Duration>,
    mut log: Option<File>,
    mut look: impl FnMut(&str),
) -> std::io::Result<Result<(), String>> {
    let mut outer = within(&call.command(), limit);
    let (reader, writer) = std::io::pipe()?;
    outer.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = outer.spawn()?;
    // The ends for writing that this process has go with the command.
    drop(outer);

    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    let mut ended: Option<(std::process::ExitStatus, Instant)> = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => {
                let mut out = std::io::stdout().lock();
                // Whoever reads may go away; the log and the verdict stay.
                let _ = out.write_all(&line).and_then(|()| out.flush());
                if let Some(log) = &mut log {
                    log.write_all(&line)?;
                }
                look(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if ended.is_none() {
            ended = child.try_wait()?.map(|status| (status, Instant::now()));
        }
        if ended.is_some_and(|(_, at)| at.elapsed() > AFTER_THE_END) {
            break;
        }
    }
    let status = match ended {
        Some((status, _)) => status,
        None => child.wait()?,
    };
    Ok(match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) if limit.is_some() => Err(format!("{status}: killed, or its time was up")),
        _ => Err(status.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> (Result<(), String>, Vec<String>) {
        let mut lines = Vec::new();
        let call = Call::new("sh -c").with([script]);
        let done = watched(&call, Some(Duration::from_secs(seconds)), None, |l| lines.push(l.to_owned()));
        (done, lines)
    }

    #[test]
    fn both_outputs_are_read_in_their_order() {
        let (done, lines) = shell("echo a; echo b >&2; printf 'c\\377\\nd'", 60);
        assert_eq!((done, lines.join(" ")), (Ok(()), "a b c\u{fffd} d".to_owned()));
    }

    #[test]
    fn the_status_is_told() {
        assert!(shell("echo a; exit 7", 60).0.is_err());
        assert!(shell("kill -9 $$", 60).0.is_err());
        let call = Call::new("/no/such/program");
        assert!(watched(&call, Some(Duration::from_secs(60)), None, |_| {}).is_err());
        assert!(watched(&call, None, None, |_| {}).is_err());
        assert!(watched(&Call::new("true"), None, None, |_| {}).is_ok());
        assert!(watched(&Call::new("false"), None, None, |_| {}).is_err());
    }

    #[test]
    fn what_hangs_is_ended_and_its_output_is_there() {
        let begun = Instant::now();
        let (done, lines) = shell("echo begun; sleep 600; echo never", 1);
        assert!(done.is_err() && begun.elapsed() < Duration::from_secs(20));
        assert_eq!(lines, ["begun"]);
    }

    #[test]
    fn a_process_that_is_left_behind_holds_up_nothing() {
        let begun = Instant::now();
        let (done, lines) = shell("sleep 30 & echo ended", 60);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!((done, lines), (Ok(()), vec!["ended".to_owned()]));
    }
}
