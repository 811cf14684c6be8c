"""All of the package on a cluster: what it does, and each mistake that a program can make.

    tour.py ADDRESSES VOLUME SNAPSHOT

The volume is empty, and the snapshot is one of it. Exit status 0 if all is as it should be.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
from typing import Any, Callable

import freebs

MIB = 1 << 20


def refused(kind: type[BaseException], words: str, call: Callable[..., Any], *args: Any) -> Any:
    """The error of a call that must fail in this way."""
    try:
        found = call(*args)
    except kind as e:
        assert type(e) is kind and words in str(e), repr(e)
        return e
    raise AssertionError(f"{call} {args} gave {found!r}, and not {kind}")


def reads_and_writes(volume: freebs.Volume) -> None:
    assert volume.size == 64 * MIB
    assert volume.read(0, 5) == bytes(5)
    volume.write(4094, b"hello")
    volume.write(5000, bytearray(b"from"))
    volume.write(6000, memoryview(b"xxthenxx")[2:6])
    assert volume.read(4093, 7) == b"\0hello\0"
    assert volume.read(5000, 4) + volume.read(6000, 4) == b"fromthen"
    volume.trim(4095, 2)
    volume.flush()
    assert volume.read(4094, 5) == b"h\0\0lo"
    volume.write(volume.size, b"")
    assert volume.read(volume.size, 0) == b""


def intervals(volume: freebs.Volume) -> None:
    with volume.interval() as interval:
        interval.write(100, b"here")
        interval.write(900_000, b"there")
        interval.trim(4094, 1)
        assert interval.read(99, 6) == b"\0here\0", "its own changes are seen"
        assert volume.read(100, 4) == bytes(4), "and nobody else sees them"
    assert (volume.read(100, 4), volume.read(900_000, 5), volume.read(4094, 1)) == (b"here", b"there", b"\0")
    refused(freebs.InvalidError, "not open", interval.read, 0, 1)
    refused(freebs.InvalidError, "not open", interval.commit)
    interval.abort()

    interval = volume.interval()
    interval.write(200, b"x")
    (place,) = interval.commit()
    assert place.shard == 0 and place.view >= 1 and place.sequence >= 1, place

    try:
        with volume.interval() as interval:
            interval.write(100, b"never")
            raise KeyError("a mistake of the program")
    except KeyError:
        pass
    assert volume.read(100, 5) == b"here\0"
    interval = volume.interval()
    interval.write(100, b"never")
    interval.abort()
    interval.abort()
    del interval
    volume.interval().write(100, b"never")
    assert volume.read(100, 5) == b"here\0"


def limits(volume: freebs.Volume) -> None:
    interval = volume.interval()
    interval.write(100, b"never")
    interval.write(1, b"x" * freebs.INTERVAL_BYTES_MAX)
    aborted = refused(freebs.AbortedError, "4 MiB", interval.commit)
    assert isinstance(aborted.why, freebs.InvalidError) and aborted.errno == errno.ECANCELED
    assert isinstance(aborted, freebs.Error) and aborted.why.errno == errno.EINVAL
    assert volume.read(100, 5) == b"here\0"
    interval = volume.interval()
    for _ in range(freebs.INTERVAL_CHANGES_MAX):
        interval.write(300, b"y")
    refused(freebs.InvalidError, "4,096 changes", interval.write, 300, b"z")
    interval.commit()
    assert volume.read(300, 1) == b"y"
    interval = volume.interval()
    for _ in range(freebs.INTERVAL_BUFFER_MAX // MIB):
        interval.write(0, bytes(MIB))
    refused(freebs.InvalidError, "16 MiB", interval.write, 0, b"z")
    refused(freebs.InvalidError, "64 MiB", volume.read, 0, freebs.REQUEST_BYTES_MAX + 1)
    refused(freebs.InvalidError, "64 MiB", interval.read, 0, 1 << 40)


def mistakes(volume: freebs.Volume, cluster: freebs.Cluster, addresses: str) -> None:
    with volume.interval() as interval:
        for of in (volume, interval):
            refused(freebs.InvalidError, "past the end", of.read, volume.size - 1, 2)
            refused(freebs.InvalidError, "past the end", of.write, volume.size - 1, b"xy")
            refused(freebs.InvalidError, "past the end", of.trim, 2**64 - 1, 2)
            refused(OverflowError, "", of.write, -1, b"x")
            refused(OverflowError, "", of.trim, 0, 2**64)
            refused(ValueError, "", of.read, 0, -1)
            refused(TypeError, "", of.write, 0, "text")
            refused(TypeError, "", of.read, "0", 1)
    refused(freebs.NotFoundError, "", cluster.attach, "none")
    refused(freebs.BusyError, "already", cluster.attach, "demo")
    refused(ValueError, "zero byte", cluster.attach, "demo\0x")
    refused(freebs.NotFoundError, "", cluster.open_snapshot, "demo", "none")
    refused(freebs.InvalidError, "address", freebs.connect, "")
    refused(freebs.InvalidError, "name", freebs.connect, addresses, "two words")
    refused(freebs.InvalidError, "data directory", freebs.speak_as_node, "nowhere/at/all")


def threads(volume: freebs.Volume) -> None:
    wrong = []

    def work(number: int) -> None:
        at = MIB + number * 8192
        for n in range(1, 30):
            with volume.interval() as interval:
                interval.write(at, b"%4d" % n)
                interval.write(at + 2 * MIB, b"%4d" % n)
            if volume.read(at, 4) != volume.read(at + 2 * MIB, 4):
                wrong.append((number, n))

    all_of_them = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    assert not wrong, wrong


def a_fork_is_refused(volume: freebs.Volume) -> None:
    child = os.fork()
    if child == 0:
        try:
            refused(freebs.InvalidError, "fork", volume.read, 0, 1)
            refused(freebs.InvalidError, "fork", volume.interval)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    volume.read(0, 1)


def ends(cluster: freebs.Cluster, volume: freebs.Volume, addresses: str) -> None:
    with freebs.connect(addresses.split(","), name="tour-of-python") as other:
        refused(freebs.BusyError, "", other.attach, "demo")
        interval = volume.interval()
        interval.write(100, b"never")
        volume.detach()
        volume.detach()
        refused(freebs.InvalidError, "not open", volume.read, 0, 1)
        refused(freebs.InvalidError, "not open", lambda: volume.size)
        assert isinstance(refused(freebs.AbortedError, "given back", interval.commit).why, freebs.FencedError)
        # One that nobody has any more is given back, too.
        left = other.attach("demo")
        assert left.read(100, 4) == b"here"
        del left
        gc.collect()
        with cluster.attach("demo") as again, again.interval() as interval:
            interval.write(0, b"end")
        volume = cluster.attach("demo")
        assert volume.read(0, 3) == b"end"
        cluster.close()
        cluster.close()
        refused(freebs.FencedError, "closed", volume.read, 0, 1)
        volume.detach()
        with other.attach("demo") as volume:
            assert volume.read(0, 3) == b"end"
    refused(freebs.InvalidError, "not open", cluster.attach, "demo")


def main() -> None:
    addresses, name, snapshot = sys.argv[1:]
    cluster = freebs.connect(addresses)
    volume = cluster.attach(name)
    reads_and_writes(volume)
    intervals(volume)
    limits(volume)
    mistakes(volume, cluster, addresses)
    threads(volume)
    with cluster.open_snapshot(name, snapshot) as past:
        assert past.read(0, 8192) == bytes(8192)
        refused(freebs.InvalidError, "snapshot", past.write, 0, b"x")
        refused(freebs.InvalidError, "snapshot", past.interval)
    a_fork_is_refused(volume)
    ends(cluster, volume, addresses)
    print("all is well")


main()
