//! In and out again.

use super::*;
use crate::support::tools::{first_difference, have, say, wait_at_most, wait_for};
use crate::support::{PATIENCE, Weight, shared, turn};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Long data, a single block, a sector, and an odd tail.
const DATA: &[(u64, usize)] = &[(0, 3 << 20), (10 * MIB, 4096), (20 * MIB + 512, 512), (40 * MIB - 1000, 1000)];
const DISK: u64 = 40 * MIB;

#[test]
fn a_raw_image_comes_back_as_it_was() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let image = raw(c.dir().join("plain.img"), DISK, DATA);
    let imported = import(&c, "plain", &image, &["--copies", "2"]);
    assert_eq!((&imported["volume"], &imported["size"]), (&"plain".into(), &DISK.into()), "{imported}");
    assert_eq!((&imported["format"], &imported["file"]), (&"raw".into(), &text(&image).into()));
    assert_eq!(imported["data"], (3 << 20) + 3 * 4096, "blocks with data");
    assert_eq!(volumes(&c, "plain"), ["plain"]);
    assert_eq!(shown(&c, "plain")["copies"], 2);
    c.verify("plain");
    let back = c.dir().join("plain.back");
    let exported = export(&c, "plain", &back, &[]);
    assert_eq!((&exported["format"], &exported["size"]), (&"raw".into(), &DISK.into()), "{exported}");
    assert_eq!(std::fs::metadata(&back).expect("it is there").len(), DISK);
    assert_eq!(first_difference(&image, &back, DISK), None);
    // Nobody has it any more.
    assert_eq!(shown(&c, "plain")["attached"], Value::Null);
    c.client("plain").write(0, &[9; 4096]);
}

/// Standard input and output, of a size that is no multiple of anything.
#[test]
fn a_volume_is_filled_from_a_pipe_and_poured_into_one() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let bytes = noise(7, 5_000_001);
    let file = c.dir().join("piped.img");
    std::fs::write(&file, &bytes).expect("a file");
    let mut cmd = c.freebs();
    cmd.args(["volume", "import", "piped", "-", "--size", "8M"]).stdin(File::open(&file).expect("just written"));
    let out = cmd.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it runs");
    assert!(out.status.success(), "{}", told(&out));
    assert!(told(&out).contains("imported standard input (raw) into piped: 8M"), "{}", told(&out));
    assert!(out.stderr.is_empty(), "quiet where there is no terminal: {}", told(&out));
    let out = c.cli(&["volume", "export", "piped", "-"]);
    assert!(out.status.success() && out.stdout.len() == 8 << 20, "{} bytes: {}", out.stdout.len(), told(&out));
    assert!(out.stdout[..bytes.len()] == bytes[..] && out.stdout[bytes.len()..].iter().all(|b| *b == 0));
}

#[test]
fn images_of_qemu_come_in_and_go_out() {
    if !have(&["qemu-img"]) {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    let image = raw(c.dir().join("q.img"), DISK, DATA);
    let ways = ["", "-c", "-c -o compression_type=zstd", "-o compat=0.10,cluster_size=4k"];
    for (i, how) in ways.iter().enumerate() {
        let name = format!("q{i}");
        let qcow2 = converted(&image, c.dir().join(format!("{name}.in.qcow2")), how);
        let imported = import(&c, &name, &qcow2, &[]);
        assert_eq!((&imported["format"], &imported["size"]), (&"qcow2".into(), &DISK.into()), "{how}: {imported}");
        assert!(imported["data"].as_u64().is_some_and(|n| n < 4 << 20), "{how}: holes were written: {imported}");
        let back = c.dir().join(format!("{name}.back"));
        export(&c, &name, &back, &[]);
        same_disk((&image, "raw"), (&back, "raw"));
    }
    // The name of the file says the format, which qemu-img finds nothing wrong with.
    let back = c.dir().join("q0.qcow2");
    let exported = export(&c, "q0", &back, &[]);
    assert_eq!(exported["format"], "qcow2");
    let checked = run("qemu-img", ["check", "-f", "qcow2", text(&back)]);
    assert!(checked.contains("No errors were found"), "{checked}");
    same_disk((&image, "raw"), (&back, "qcow2"));
    let bytes = std::fs::metadata(&back).expect("it is there").len();
    assert!(bytes < 5 << 20, "holes take room: {bytes} bytes");
    // And once more into a volume.
    import(&c, "q-again", &back, &[]);
    let last = c.dir().join("q-again.img");
    export(&c, "q-again", &last, &["--format", "raw"]);
    assert_eq!(first_difference(&image, &last, DISK), None);
}

#[test]
fn holes_cost_nothing() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let size = 4 << 30;
    let image = raw(c.dir().join("sparse.img"), size, &[(0, 1 << 20), (3 << 30, 1 << 20), (size - 4096, 4096)]);
    let begun = std::time::Instant::now();
    let imported = import(&c, "sparse", &image, &[]);
    let moved = (2 << 20) + 4096;
    assert_eq!(imported["data"], moved);
    for name in ["sparse.back", "sparse.qcow2"] {
        let back = c.dir().join(name);
        let exported = export(&c, "sparse", &back, &[]);
        assert_eq!(exported["data"], moved);
        let on_disk = std::fs::metadata(&back).expect("it is there").blocks() * 512;
        assert!(on_disk < 4 << 20, "{name} takes {on_disk} bytes");
    }
    say(&format!("measured: 4 GiB with 2 MiB of data in, and out twice, in {:.2} s", begun.elapsed().as_secs_f64()));
    assert_eq!(first_difference(&image, &c.dir().join("sparse.back"), 64 * MIB), None);
}

/// A volume that was there: its holes are holes of the image, too, and what lies behind the image is gone.
#[test]
fn a_volume_that_is_there_is_replaced_as_a_whole() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &["--shards", "2"]);
    let image = raw(c.dir().join("again.img"), DISK, DATA);
    // Empty, it may be filled without a word.
    import(&c, &own, &image, &[]);
    let mut client = c.client(&own);
    client.write(30 * MIB, &noise(3, 1 << 20));
    client.write(63 * MIB, &noise(4, 1 << 20));
    client.write(10 * MIB, &[0; 4096]);
    drop(client);
    let before = shown(&c, &own)["id"].clone();
    wait_until_free(&c, &own);
    refused(&c.cli(&["volume", "import", &own, text(&image)]), &["is not empty", "--force"]);
    assert_eq!(c.client(&own).read(63 * MIB, 4096), noise(4, 4096), "what is refused changes nothing");
    wait_until_free(&c, &own);
    import(&c, &own, &image, &["--force"]);
    assert_eq!(shown(&c, &own)["id"], before, "it is the same volume");
    let whole = raw(c.dir().join("whole.img"), 64 * MIB, DATA);
    let back = c.dir().join("again.back");
    export(&c, &own, &back, &[]);
    assert_eq!(first_difference(&whole, &back, 64 * MIB), None);
    c.verify(&own);
}

/// A client that left gives its volume back a moment later.
fn wait_until_free(c: &Cluster, volume: &str) {
    wait_for("the end of the attachment", || shown(c, volume)["attached"].is_null().then_some(()));
}

#[test]
fn progress_is_told_in_lines_to_whoever_asks() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let mut cmd = c.freebs();
    cmd.args(["volume", "import", "told", "-", "--size", "8M", "--progress", "--json"]);
    let mut child = cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, &noise(1, 1 << 20)).expect("it reads");
    // The rest comes when the first line was read, however long that takes.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("a pipe")));
    let first: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("an object");
    assert_eq!(first["progress"]["of"], 8 << 20, "{first}");
    std::io::Write::write_all(&mut input, &noise(2, 1 << 20)).expect("it reads");
    drop(input);
    let last: Value = serde_json::from_str(&lines.last().expect("more").expect("text")).expect("an object");
    assert_eq!((&last["volume"], &last["data"]), (&"told".into(), &(2 << 20).into()), "{last}");
    let status = wait_at_most(&mut child, PATIENCE).expect("it ends");
    assert!(status.success());
}

/// With a terminal at its standard error, which `script` is for it. The image ends when the line was seen.
#[test]
fn a_terminal_is_shown_how_far_it_is() {
    if !have(&["script"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let (go, said) = (c.dir().join("go"), c.dir().join("shown.said"));
    let program = c.freebs().get_program().to_str().expect("a plain path").to_owned();
    let image = format!("head -c 1000000 /dev/urandom; until [ -e {} ]; do sleep 0.05; done", text(&go));
    let inner = format!("({image}) | {program} volume import shown - --size 4M");
    let mut cmd = Command::new("script");
    cmd.args(["--quiet", "--return", "--command", &inner, "/dev/null"]).current_dir(c.dir());
    cmd.envs(c.freebs().get_envs().filter_map(|(k, v)| Some((k, v?))));
    let mut child = cmd.stdin(Stdio::null()).stdout(File::create(&said).expect("a file")).spawn().expect("it runs");
    let heard = || String::from_utf8_lossy(&std::fs::read(&said).unwrap_or_default()).into_owned();
    wait_for("the line", || heard().contains("import of shown: ").then_some(()));
    File::create(&go).expect("a file");
    let status = wait_at_most(&mut child, PATIENCE).expect("it ends");
    let said = heard();
    assert!(status.success() && said.contains("% of 4M, "), "{said}");
    assert!(said.contains("imported standard input (raw) into shown: 4M"), "{said}");
}

#[test]
fn a_volume_that_is_renamed_is_used_on() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let mut client = c.client(&own);
    client.write(0, &[7; 4096]);
    let to = format!("{own}-renamed");
    let view = |name: &str| shown(&c, name)["shards"][0]["view"].as_u64().expect("a number");
    let before = view(&own);
    let renamed = c.json(&["volume", "rename", &own, &to]);
    assert_eq!(renamed, serde_json::json!({ "renamed": own, "to": to }));
    client.write(4096, &[8; 4096]);
    assert_eq!(client.read(0, 8192), [[7; 4096], [8; 4096]].concat());
    wait_for("a view whose frame says the new name", || (view(&to) > before).then_some(()));
    refused(&c.cli(&["volume", "show", &own]), &["no volume", &own]);
    refused(&c.cli(&["volume", "rename", &to, "demo"]), &["'demo' already"]);
    assert_eq!(c.client(&to).read(0, 4096), [7; 4096]);
    let out = c.cli(&["events", "--json", "--volume", &to]);
    let said = String::from_utf8(out.stdout).expect("text");
    assert!(said.lines().any(|l| l.contains("volume_renamed") && l.contains(&format!("from {own}"))), "{said}");
}
