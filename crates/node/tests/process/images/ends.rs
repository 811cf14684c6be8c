//! Imports and exports that end before their end.

use super::*;
use crate::support::nbd::Client;
use crate::support::tools::{first_difference, wait_at_most, wait_for};
use crate::support::{PATIENCE, Weight, shared, turn};
use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

/// An import from a pipe that gets some of its image, and waits for more.
fn half(c: &Cluster, volume: &str, more: &[&str], image: &[u8]) -> (Child, ChildStdin) {
    let mut cmd = c.freebs();
    cmd.args(["volume", "import", volume, "-"]).args(more);
    let mut child = cmd.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(image).expect("it reads");
    (child, input)
}

/// The text that an import ended with.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let status = wait_at_most(&mut child, PATIENCE).expect("it ends");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().expect("a pipe"), &mut said).expect("text");
    (status.code(), said)
}

fn tell(child: &Child, signal: i32) {
    // SAFETY: it takes two numbers; the process is our own child, and was not waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Waits until the first bytes of a volume are those of the image: the import has written something.
fn wait_attached(c: &Cluster, volume: &str) {
    wait_for("the import's attachment", || {
        let out = c.cli(&["volume", "show", volume, "--json"]);
        let v: Value = serde_json::from_slice(&out.stdout).ok()?;
        v["attached"].as_str().is_some_and(|a| a.starts_with("import-on-")).then_some(())
    });
}

#[test]
fn an_import_that_is_killed_leaves_a_name_that_says_so() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let image = noise(5, 6 << 20);
    let (mut child, input) = half(&c, "dies", &["--size", "8M"], &image[..3 << 20]);
    wait_attached(&c, "dies.importing");
    assert_eq!(volumes(&c, "dies"), ["dies.importing"]);
    assert!(Client::connect(&c.place, "dies", true).is_err(), "there is no such volume yet");
    assert!(Client::connect(&c.place, "dies.importing", true).is_err(), "and the import has this one");
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    drop(input);
    assert_eq!(volumes(&c, "dies"), ["dies.importing"]);
    let file = c.dir().join("dies.img");
    std::fs::write(&file, &image).expect("room");
    let again = ["volume", "import", "dies", text(&file)];
    refused(
        &c.cli(&again),
        &["'dies.importing' has a part of an image", "was interrupted", "--force", "volume delete"],
    );
    assert_eq!(volumes(&c, "dies"), ["dies.importing"]);
    // Begun anew in the same volume, and its size stays.
    let imported = import(&c, "dies", &file, &["--force"]);
    assert_eq!(imported["size"], 8 << 20);
    assert_eq!(volumes(&c, "dies"), ["dies"]);
    let back = c.dir().join("dies.back");
    export(&c, "dies", &back, &[]);
    assert_eq!(first_difference(&file, &back, image.len() as u64), None);
    assert!(std::fs::read(&back).expect("it is there")[image.len()..].iter().all(|b| *b == 0));
    c.verify("dies");
}

#[test]
fn an_import_that_is_stopped_takes_its_new_volume_away() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (child, input) = half(&c, "stops", &["--size", "8M"], &noise(6, 2 << 20));
        wait_attached(&c, "stops.importing");
        tell(&child, signal);
        let (code, said) = ended(child);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the import was stopped; the volume 'stops' was not made"), "{said}");
        assert_eq!(volumes(&c, "stops"), Vec::<String>::new());
        drop(input);
    }
}

/// A volume that was there has a part of the image: it keeps a name that says so.
#[test]
fn an_import_into_a_volume_that_is_there_keeps_it_under_another_name() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("8M", &[]);
    let (child, input) = half(&c, &own, &[], &noise(8, 2 << 20));
    let left = format!("{own}.importing");
    wait_attached(&c, &left);
    tell(&child, libc::SIGTERM);
    let (code, said) = ended(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("the volume is called '{left}'")) && said.contains("--force"), "{said}");
    drop(input);
    assert_eq!(volumes(&c, &own), [left.as_str()]);
    // Both names: whoever made a new one meanwhile decides.
    c.json(&["volume", "create", &own, "--size", "8M"]);
    let image = raw(c.dir().join("both.img"), MIB, &[(0, 4096)]);
    let import = ["volume", "import", &own, text(&image), "--force"];
    refused(&c.cli(&import), &["there are both", "volume delete"]);
    c.json(&["volume", "delete", &left]);
    assert!(c.cli(&import).status.success());
}

/// An export is killed while it writes, and nothing of it is left beside the file's place.
#[test]
fn an_export_that_is_killed_leaves_no_file() {
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    let image = raw(c.dir().join("killed.img"), 96 * MIB, &[(0, 96 << 20)]);
    import(&c, "killed", &image, &[]);
    let dir = c.dir().join("killed");
    std::fs::create_dir(&dir).expect("a directory");
    let mut caught = 0;
    for (i, format) in ["raw", "raw", "qcow2", "qcow2"].repeat(50).into_iter().enumerate() {
        let file = dir.join("out");
        let mut cmd = c.freebs();
        cmd.args(["volume", "export", "killed", text(&file), "--format", format, "--force"]);
        let mut child = cmd.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        // Until some of it lies in the file system.
        while !has_written(&child, &dir) && child.try_wait().expect("our own child").is_none() {
            std::thread::yield_now();
        }
        let signal = if i % 2 == 0 { libc::SIGKILL } else { libc::SIGTERM };
        tell(&child, signal);
        let (code, said) = ended(child);
        if code == Some(0) {
            std::fs::remove_file(&file).expect("it was done before the signal came");
            continue;
        }
        if said.contains("attached by export-on-") {
            // The one before was killed, and its leases have not ended.
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        caught += 1;
        assert!(
            signal == libc::SIGKILL || said.contains("the export was stopped; no file was made"),
            "{code:?} {said}"
        );
        let left: Vec<_> = std::fs::read_dir(&dir).expect("it is there").map(|e| e.expect("readable").path()).collect();
        assert!(left.is_empty(), "{left:?}");
        if caught == 4 {
            break;
        }
    }
    assert_eq!(caught, 4, "exports were done before they could be killed");
    let back = dir.join("out");
    wait_for("the end of its leases", || {
        c.cli(&["volume", "export", "killed", text(&back)]).status.success().then_some(())
    });
    assert_eq!(first_difference(&image, &back, 96 * MIB), None);
}

/// True if a process has a file open below `dir`, named or not, that has bytes.
fn has_written(child: &Child, dir: &Path) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    fds.map(|fd| fd.path()).any(|fd| {
        std::fs::read_link(&fd).is_ok_and(|to| to.starts_with(dir)) && std::fs::metadata(&fd).is_ok_and(|m| m.len() > 0)
    })
}
