//! Nodes and gateways as services: options from a file, and the shipped units under a real service manager, in namespaces of its
//! own.

use crate::support::PATIENCE;
use crate::support::cluster::{free_ports, freebs, scratch};
use crate::support::nbd::{Client, Place};
use crate::support::tools::{find, have, run, say, skip, told, wait_for};
use crate::support::{Weight, turn};
use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd")
}

/// A process that is killed at the end.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text_of(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn a_node_takes_its_options_from_a_file_and_says_when_it_is_up() {
    let _turn = turn(Weight::Light);
    let (dir, port) = (scratch(), free_ports(1));
    let (file, socket) = (dir.path().join("freebs.toml"), dir.path().join("notify"));
    let write = |text: &str| fs::write(&file, text).expect("a file");
    let mut words = vec![0; 64];
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let node = || {
        let mut node = freebs();
        node.args(["node", "--config"]).arg(&file).env("NOTIFY_SOCKET", &socket);
        node
    };
    write("[node]\nworkers = 1\nsegment = 3\n");
    let out = node().output().expect("freebs");
    assert!(out.status.code() == Some(2) && told(&out).contains("no key segment"), "{}", told(&out));
    let data = dir.path().join("data");
    write(&format!(
        "# one node\n[node]\nname = \"alone\"\ndata = {data:?}\nlisten = \"127.0.0.1:{port}\"\nworkers = 2\n\
         segment-size = \"8M\"\ndevice-size = \"1G\"\nscrub-rate = 0\n\n[gateway]\nname = \"g\"\n"
    ));
    let out = freebs().args(["config", "check"]).arg(&file).output().expect("freebs");
    assert!(out.status.success() && told(&out).contains("is in order"), "{}", told(&out));
    // The command line counts before the file.
    let mut running = Held(node().args(["--workers", "1"]).stderr(Stdio::null()).spawn().expect("freebs"));
    let n = manager.recv(&mut words).expect("a word that it is up");
    assert_eq!(String::from_utf8_lossy(&words[..n]).trim(), "READY=1");
    let out = freebs().args(["--cluster", &format!("127.0.0.1:{port}"), "status", "--json"]).output().expect("freebs");
    let status: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&out)));
    let found = &status["nodes"][0];
    assert_eq!((found["name"].as_str(), found["workers"].as_u64()), (Some("alone"), Some(1)), "{status:#}");
    // SAFETY: the child is ours, and was not waited for.
    unsafe { libc::kill(running.0.id().try_into().expect("a process"), libc::SIGTERM) };
    let n = manager.recv(&mut words).expect("a word that it stops");
    assert_eq!(String::from_utf8_lossy(&words[..n]).trim(), "STOPPING=1");
    assert!(running.0.wait().expect("its end").success());
}

/// A service manager with units of its own.
struct Manager {
    held: Held,
    dir: tempfile::TempDir,
}

impl Manager {
    /// None if none can run here.
    fn start() -> Option<Self> {
        // SAFETY: it takes nothing and can't fail.
        if unsafe { libc::geteuid() } != 0 {
            skip("a service manager of its own needs root");
            return None;
        }
        if !have(&["systemctl", "systemd-analyze", "unshare", "nsenter"]) {
            return None;
        }
        let systemd = Path::new("/lib/systemd/systemd");
        assert!(systemd.exists(), "systemctl is there, and {} is not", systemd.display());
        let dir = scratch();
        for sub in ["units", "lib"] {
            fs::create_dir(dir.path().join(sub)).expect("a directory");
        }
        for target in ["sysinit", "basic", "shutdown", "multi-user", "network-online"] {
            let file = dir.path().join(format!("units/{target}.target"));
            fs::write(file, format!("[Unit]\nDescription={target}\n")).expect("a file");
        }
        let script = format!(
            "mount --make-rprivate / && mount -t tmpfs tmpfs /run && mount --bind {lib} /var/lib && \
             export container=other SYSTEMD_UNIT_PATH={units} SYSTEMD_LOG_TARGET=console && \
             exec {systemd} --system --unit=multi-user.target",
            lib = dir.path().join("lib").display(),
            units = dir.path().join("units").display(),
            systemd = systemd.display(),
        );
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        let mut unshare = Command::new(find("unshare").expect("looked for"));
        unshare.args(["--fork", "--pid", "--kill-child=KILL", "--mount", "--uts", "--ipc", "--cgroup", "--mount-proc"]);
        unshare.args(["bash", "-c", &script]).stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        Some(Self { held: Held(unshare.spawn().expect("unshare")), dir })
    }

    /// A shipped unit, with the program, the user and the configuration of this test.
    fn add(&self, name: &str, config: &str) {
        let text = fs::read_to_string(units().join(name)).expect("a unit");
        let program = freebs().get_program().to_string_lossy().into_owned();
        let swaps = [("/usr/bin/freebs", program.as_str()), ("/etc/freebs/freebs.toml", config)];
        let swaps = swaps.into_iter().chain([("User=freebs", "User=nobody"), ("Group=freebs", "Group=nogroup")]);
        let text = swaps.fold(text, |text, (from, to)| {
            assert!(text.contains(from), "{name} has {from}");
            text.replace(from, to)
        });
        fs::write(self.dir.path().join("units").join(name), text).expect("a file");
    }

    /// The process that is the manager, in its own namespaces.
    fn inside(&self) -> Option<u32> {
        let of = format!("/proc/{0}/task/{0}/children", self.held.0.id());
        fs::read_to_string(of).ok()?.split_whitespace().next()?.parse().ok()
    }

    fn call(&self, args: &[&str]) -> Output {
        let pid = wait_for("a service manager", || self.inside()).to_string();
        let mut nsenter = Command::new(find("nsenter").expect("looked for"));
        nsenter.args(["--target", &pid, "--mount", "--pid", "--uts", "--ipc", "--cgroup"]).args(args);
        nsenter.output().expect("nsenter")
    }

    fn show(&self, unit: &str, property: &str) -> String {
        text_of(&self.call(&["systemctl", "show", "--value", "--property", property, unit])).trim().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn wait(&self, unit: &str, property: &str, is: impl Fn(&str) -> bool) -> String {
        let found = std::cell::RefCell::new(String::new());
        let ask = || {
            *found.borrow_mut() = self.show(unit, property);
            is(&found.borrow()).then(|| found.borrow().clone())
        };
        let begun = std::time::Instant::now();
        loop {
            if let Some(value) = ask() {
                return value;
            }
            assert!(begun.elapsed() < PATIENCE, "{unit}: {property} is {}\n{}", found.borrow(), self.log());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn the_shipped_units_run_under_a_service_manager() {
    let _turn = turn(Weight::Light);
    let Some(m) = Manager::start() else { return };
    let ports = free_ports(2);
    let (node, nbd) = (format!("127.0.0.1:{ports}"), format!("127.0.0.1:{}", ports + 1));
    let config = format!(
        "[node]\ndata = \"/var/lib/freebs/node\"\nlisten = \"{node}\"\nworkers = 1\nsegment-size = \"8M\"\n\
         device-size = \"1G\"\n\n[gateway]\ncluster = \"{node}\"\nnbd = \"{nbd}\"\nidentity = \"here\"\n"
    );
    wait_for("its own /run", || m.call(&["mountpoint", "-q", "/run"]).status.success().then_some(()));
    fs::write(m.dir.path().join("lib/freebs.toml"), config).expect("a file");
    for unit in ["freebs-node.service", "freebs-gateway.service"] {
        m.add(unit, "/var/lib/freebs.toml");
        let out = run("systemd-analyze", [Path::new("verify"), &m.dir.path().join("units").join(unit)]);
        assert!(out.is_empty(), "{unit}: {out}");
    }
    wait_for("an answer", || m.call(&["systemctl", "daemon-reload"]).status.success().then_some(()));
    for unit in ["freebs-node.service", "freebs-gateway.service"] {
        // It returns when the unit has said that it is up.
        let out = m.call(&["systemctl", "start", unit]);
        assert!(out.status.success(), "{}\n{}", told(&out), m.log());
        assert_eq!(m.show(unit, "ActiveState"), "active");
    }
    let ask = |args: &[&str]| freebs().args(["--cluster", &node]).args(args).output().expect("freebs");
    let out = ask(&["volume", "create", "data", "--size", "64M"]);
    assert!(out.status.success(), "{}", told(&out));
    let mut client = Client::connect(&Place::Tcp(nbd), "data", true).expect("a client");
    client.write(4096, &[7; 4096]);
    let first = m.show("freebs-node.service", "MainPID");
    let uid = text_of(&m.call(&["stat", "--format", "%U", &format!("/proc/{first}")]));
    assert_eq!(uid.trim(), "nobody", "an ordinary user");
    let mode = text_of(&m.call(&["stat", "--format", "%U %a", "/var/lib/freebs"]));
    assert_eq!(mode.trim(), "nobody 700");
    // It is started again when it was killed, and all is there.
    assert!(m.call(&["kill", "-9", &first]).status.success());
    m.wait("freebs-node.service", "MainPID", |pid| pid != "0" && pid != first);
    m.wait("freebs-node.service", "ActiveState", |state| state == "active");
    assert_eq!(client.read(4096, 4096), [7; 4096]);
    drop(client);
    for unit in ["freebs-gateway.service", "freebs-node.service"] {
        let out = m.call(&["systemctl", "stop", unit]);
        assert!(out.status.success(), "{}", told(&out));
        assert_eq!(
            (m.show(unit, "ActiveState").as_str(), m.show(unit, "Result").as_str()),
            ("inactive", "success"),
            "{}",
            m.log()
        );
        let out = m.call(&["systemd-analyze", "security", "--no-pager", unit]);
        let exposure = text_of(&out).lines().last().unwrap_or_default().to_owned();
        say(&format!("measured: {exposure}"));
    }
}
