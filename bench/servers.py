"""Servers to measure: start, stop, their URIs and the processor time that they use.

Only processes that were started here are ended, by process id. All of them listen on loopback or unix sockets.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def free_ports(count):
    for base in range(17400 + os.getpid() % 500 * 10, 29000, count):
        try:
            for port in range(base, base + count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise RuntimeError("no free ports")


def wait_for(what, seconds, done):
    end = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return found


def serves(uri):
    return subprocess.run(["nbdinfo", "--size", uri], capture_output=True, timeout=30).returncode == 0


class Processes:
    """Some server processes that belong together."""

    def __init__(self):
        self.running = {}

    def start(self, name, command, log, **more):
        with open(log, "ab") as out:
            self.running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **more)

    def cpu_seconds(self):
        """User and system time of all of them so far."""
        total = 0
        for process in self.running.values():
            with open(f"/proc/{process.pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def stop(self):
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running = {}


class Freebs(Processes):
    """Nodes that each serve NBD themselves, and a gateway."""

    def __init__(self, binary, data, nodes=3, device_size="20G", workers=1):
        super().__init__()
        self.binary, self.data = binary, data
        os.makedirs(data)
        base = free_ports(nodes)
        self.names = [f"node{i + 1}" for i in range(nodes)]
        self.address = f"127.0.0.1:{base}"
        entries = [
            {"id": i + 1, "name": name, "address": f"127.0.0.1:{base + i}", "data": name, "workers": workers}
            for i, name in enumerate(self.names)
        ]
        self.file = os.path.join(data, "cluster.json")
        with open(self.file, "w") as f:
            json.dump({"version": 1, "cluster": secrets.token_hex(16), "nodes": entries}, f)
        self.device_size = device_size
        for name in self.names:
            self.start_node(name)
        wait_for("the cluster", 30, lambda: self.ask("status") is not None)
        gateway = [binary, "gateway", "--cluster", self.address, "--nbd", "unix:" + self.socket("gateway")]
        self.start("gateway", gateway, os.path.join(data, "gateway.log"))
        wait_for("the gateway", 30, lambda: os.path.exists(self.socket("gateway")))

    def start_node(self, name):
        command = [self.binary, "node", "--cluster-file", self.file, "--name", name, "--device-size", self.device_size]
        command += ["--nbd", "unix:" + self.socket(name)]
        self.start(name, command, os.path.join(self.data, name + ".log"))

    def socket(self, name):
        return os.path.join(self.data, name + ".sock")

    def ask(self, *args):
        out = subprocess.run(
            [self.binary, "--json", "--cluster", self.address, *args], capture_output=True, text=True, timeout=60
        )
        return json.loads(out.stdout) if out.returncode == 0 else None

    def create(self, name, size, copies):
        if self.ask("volume", "create", name, "--size", size, "--copies", str(copies)) is None:
            raise RuntimeError(f"volume {name} could not be created; see {self.data}/*.log")

    def head(self, volume):
        return self.ask("volume", "show", volume)["shards"][0]["head"]

    def uri(self, volume, by):
        return f"nbd+unix:///{volume}?socket={self.socket(by)}"


class Joined(Freebs):
    """Nodes that have joined one after the other, and so speak TLS; the gateway speaks as the first of them."""

    def __init__(self, binary, data, nodes=3, device_size="20G", workers=1):
        Processes.__init__(self)
        self.binary, self.data, self.device_size = binary, data, device_size
        os.makedirs(data)
        base = free_ports(nodes)
        self.names = [f"node{i + 1}" for i in range(nodes)]
        self.address = f"127.0.0.1:{base}"
        for i, name in enumerate(self.names):
            self.make(name, f"127.0.0.1:{base + i}", ["--workers", str(workers), "--device-size", device_size])
            self.start_node(name)
            wait_for("the node", 30, lambda: self.up() == i + 1)
        gateway = [binary, "gateway", "--cluster", self.address, "--nbd", "unix:" + self.socket("gateway")]
        gateway += ["--as-node", self.directory(self.names[0])]
        self.start("gateway", gateway, os.path.join(data, "gateway.log"))
        wait_for("the gateway", 30, lambda: os.path.exists(self.socket("gateway")))

    def directory(self, name):
        return os.path.join(self.data, name)

    def make(self, name, listen, shape):
        shape = ["--name", name, "--listen", listen, "--data", self.directory(name), *shape]
        if name == self.names[0]:
            subprocess.run([self.binary, "cluster", "init", *shape], check=True, capture_output=True)
            return
        token = self.ask("cluster", "token")["token"]
        join = [self.binary, "node", "join", self.address, *shape]
        subprocess.run(join, check=True, capture_output=True, env={**os.environ, "FREEBS_TOKEN": token})

    def up(self):
        status = self.ask("status")
        return sum(n["state"] == "up" for n in status["nodes"]) if status else 0

    def start_node(self, name):
        command = [self.binary, "node", "--data", self.directory(name), "--nbd", "unix:" + self.socket(name)]
        self.start(name, command, os.path.join(self.data, name + ".log"))


class NbdkitFile(Processes):
    def __init__(self, data, size):
        super().__init__()
        os.makedirs(data)
        path, self.sock = os.path.join(data, "file"), os.path.join(data, "sock")
        subprocess.run(["fallocate", "-l", size, path], check=True)
        self.start("nbdkit", ["nbdkit", "-f", "-U", self.sock, "file", path], os.path.join(data, "log"))
        self.uri = f"nbd+unix:///?socket={self.sock}"
        wait_for("nbdkit", 20, lambda: os.path.exists(self.sock) and serves(self.uri))


class QemuNbd(Processes):
    def __init__(self, data, size):
        super().__init__()
        os.makedirs(data)
        path, self.sock = os.path.join(data, "file"), os.path.join(data, "sock")
        subprocess.run(["fallocate", "-l", size, path], check=True)
        command = ["qemu-nbd", "-t", "-e", "16", "-k", self.sock, "-f", "raw", "--cache=none", "--aio=io_uring", path]
        self.start("qemu-nbd", command, os.path.join(data, "log"))
        self.uri = f"nbd+unix:///?socket={self.sock}"
        wait_for("qemu-nbd", 20, lambda: os.path.exists(self.sock) and serves(self.uri))


def scratch(parent, name):
    """An empty directory; short, because sockets lie in it."""
    path = os.path.join(parent, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path
