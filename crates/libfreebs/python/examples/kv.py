#!/usr/bin/env python3
"""A key-value store in a volume that needs no log of its own: each change is an interval, which happens as a whole or not
at all, whatever is killed meanwhile.

    kv.py 127.0.0.1:7400 store put apple red plum blue    # both or neither
    kv.py 127.0.0.1:7400 store get apple
    kv.py 127.0.0.1:7400 store del apple
    kv.py 127.0.0.1:7400 store list
    kv.py 127.0.0.1:7400 store check

It is the twin of the Rust example `kv`, and each reads and changes what the other one has written. The first block
counts the keys, and the buckets. Each other one is a bucket: a key lies in the bucket of its hash, as lengths (2 bytes
each), key and value, one behind the other, and zeroes behind the last. A put changes buckets and the count together, so
they agree after any crash, without a journal, a checksum or a repair at the start.
"""

from __future__ import annotations

import itertools
import struct
import sys

import freebs

BLOCK = 4096
MAGIC = b"KVSTORE1"
# Longest key and value together: several of them fit a bucket.
ENTRY_BYTES_MAX = 1000


class Failed(Exception):
    """Something that can't be done, in words."""


def entries(bucket: bytes) -> dict[str, str]:
    """The keys and values of a bucket."""
    found, at = {}, 0
    while at + 4 <= len(bucket):
        key, value = struct.unpack_from("<HH", bucket, at)
        if key == 0:
            break
        at += 4
        if at + key + value > len(bucket):
            raise Failed("a bucket is damaged")
        found[bucket[at : at + key].decode()] = bucket[at + key : at + key + value].decode()
        at += key + value
    return found


def bucket(all_of_it: dict[str, str]) -> bytes:
    """The bucket of these keys and values."""
    made = b""
    for key, value in all_of_it.items():
        k, v = key.encode(), value.encode()
        made += struct.pack("<HH", len(k), len(v)) + k + v
    if len(made) > BLOCK:
        raise Failed("a bucket is full: begin a store in a larger volume")
    return made.ljust(BLOCK, b"\0")


class Store:
    """The store of a volume."""

    def __init__(self, volume: freebs.Volume, begins: bool):
        """Opens it; `begins`: begins one if nothing is in the volume's first MiB."""
        self.volume = volume
        first = volume.read(0, min(volume.size, 1 << 20))
        magic, _, self.buckets = struct.unpack_from("<8sQQ", first)
        fits = volume.size // BLOCK - 1
        if magic == MAGIC and 1 <= self.buckets <= fits:
            return
        if any(first):
            raise Failed("the volume has something else in it than a store")
        if not begins:
            raise Failed("there is no store in the volume; put begins one")
        # How many buckets there are is kept: where a key lies is to stay the same when the volume grows.
        self.buckets = fits
        volume.write(0, struct.pack("<8sQQ", MAGIC, 0, fits))

    def place(self, key: str) -> int:
        """The offset of a key's bucket."""
        # FNV-1a: the same in every version of this program.
        found = 0xCBF29CE484222325
        for byte in key.encode():
            found = (found ^ byte) * 0x100000001B3 % 2**64
        return int(1 + found % self.buckets) * BLOCK

    def get(self, key: str) -> str | None:
        """The value of a key."""
        return entries(self.volume.read(self.place(key), BLOCK)).get(key)

    def change(self, changes: list[tuple[str, str | None]]) -> None:
        """All of these keys get their value, or go if that is None; or none do."""
        with self.volume.interval() as interval:
            (count,) = struct.unpack("<Q", interval.read(8, 8))
            for key, value in changes:
                count += self.change_one(interval, key, value)
            interval.write(8, struct.pack("<Q", count))

    def change_one(self, interval: freebs.Interval, key: str, value: str | None) -> int:
        """Tells how many keys more there are. The interval sees what it has changed before."""
        if not key or len(key.encode()) + len((value or "").encode()) > ENTRY_BYTES_MAX:
            raise Failed("a key has a byte at least, and has 1,000 at most together with its value")
        place = self.place(key)
        there = entries(interval.read(place, BLOCK))
        before = len(there)
        there.pop(key, None)
        if value is not None:
            there[key] = value
        interval.write(place, bucket(there))
        return len(there) - before

    def all(self) -> dict[str, str]:
        """All keys and values."""
        found = {}
        end = (1 + self.buckets) * BLOCK
        for at in range(BLOCK, end, 1 << 20):
            part = self.volume.read(at, min(end - at, 1 << 20))
            for i in range(0, len(part), BLOCK):
                found.update(entries(part[i : i + BLOCK]))
        return found

    def check(self) -> int:
        """Compares the count with the keys. They were changed together."""
        (counted,) = struct.unpack("<Q", self.volume.read(8, 8))
        there = len(self.all())
        if counted != there:
            raise Failed(f"the store counts {counted} keys and has {there}")
        return there


def load(store: Store) -> None:
    """Puts pairs of keys, both or neither, and prints the number of each pair that is there. Until it is killed."""
    for n in itertools.count(int(store.get("begin") or 0)):
        store.change([(f"left-{n % 500}", str(n)), (f"right-{n % 500}", str(n)), ("begin", str(n))])
        print(n, flush=True)


def run(store: Store, command: str, args: list[str]) -> None:
    """Does what the command line says."""
    if command == "put" and args and len(args) % 2 == 0:
        store.change(list(zip(args[::2], args[1::2])))
    elif command == "get" and len(args) == 1:
        value = store.get(args[0])
        if value is None:
            raise Failed(f"there is no {args[0]}")
        print(value)
    elif command == "del" and args:
        store.change([(key, None) for key in args])
    elif command == "list" and not args:
        for key, value in store.all().items():
            print(key, value)
    elif command == "check" and not args:
        print(store.check(), "keys")
    elif command == "load" and not args:
        load(store)
    else:
        raise Failed("say put KEY VALUE ..., get KEY, del KEY ..., list, check or load")


def main() -> int:
    if len(sys.argv) < 4:
        print("kv: say kv.py ADDRESSES VOLUME and what to do", file=sys.stderr)
        return 1
    addresses, name, command, *args = sys.argv[1:]
    try:
        # The name makes the next process the owner of what one has left that was killed.
        with freebs.connect(addresses, name="kv-example") as cluster, cluster.attach(name) as volume:
            run(Store(volume, begins=command in ("put", "load")), command, args)
    except (Failed, freebs.Error) as why:
        print(f"kv: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
