"""A client of NBD for the measurements."""

import os
import socket
import struct
from urllib.parse import parse_qs, urlparse

OPTION, MAGIC, REQUEST, REPLY = 0x49484156454F5054, 0x4E42444D41474943, 0x25609513, 0x67446698


class Nbd:
    """As much of an NBD client as reads and writes need: fixed newstyle, GO, simple replies."""

    def __init__(self, uri):
        u = urlparse(uri)
        if u.scheme == "nbd+unix":
            self.s = socket.socket(socket.AF_UNIX)
            self.s.connect(parse_qs(u.query)["socket"][0])
        else:
            self.s = socket.create_connection((u.hostname, u.port or 10809))
            self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if struct.unpack(">QQH", self.get(18))[:2] != (MAGIC, OPTION):
            raise OSError("no NBD server")
        name = u.path.lstrip("/").encode()
        go = struct.pack(">I", len(name)) + name + b"\0\0"
        self.s.sendall(struct.pack(">IQII", 3, OPTION, 7, len(go)) + go)
        self.size = None
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.get(20))
            data = self.get(length)
            if kind == 1:
                break
            if kind != 3:
                raise OSError(f"refused: {data.decode(errors='replace')}")
            if data[:2] == b"\0\0":
                self.size = struct.unpack(">Q", data[2:10])[0]

    def get(self, count):
        out = b""
        while len(out) < count:
            more = self.s.recv(count - len(out))
            if not more:
                raise OSError("the server has closed the connection")
            out += more
        return out

    def error(self):
        magic, error, _ = struct.unpack(">IIQ", self.get(16))
        if magic != REPLY:
            raise OSError("no reply")
        return error

    def write(self, at, data):
        """The error number, 0 if there is none."""
        self.s.sendall(struct.pack(">IHHQQI", REQUEST, 0, 1, 1, at, len(data)) + data)
        return self.error()

    def read(self, at, length):
        self.s.sendall(struct.pack(">IHHQQI", REQUEST, 0, 0, 1, at, length))
        if error := self.error():
            raise OSError(error, os.strerror(error))
        return self.get(length)

    def close(self):
        self.s.sendall(struct.pack(">IHHQQI", REQUEST, 0, 2, 1, 0, 0))
        self.s.close()
