"""Clusters, volumes and intervals."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, Union

from ._errors import check, opened
from ._native import ffi, lib

Data = Union[bytes, bytearray, memoryview]
"""Bytes to be written: anything with the buffer protocol."""

PLACES = 64
"""Room for places of one interval: it has at most so many shards."""


def speak_as_node(data_directory: str | os.PathLike[str]) -> None:
    """Speaks TLS with all nodes, with the key and certificate in the data directory of a node on this machine.

    To be called before the first `connect`, and for one node only.
    """
    check(lib.freebs_speak_as_node(os.fsencode(data_directory)))


def trust_network() -> None:
    """Speaks plain with nodes on other machines, too: nobody else reaches that network.

    To be called before the first `connect`.
    """
    lib.freebs_trust_network()


def connect(addresses: str | Iterable[str], name: str | None = None) -> Cluster:
    """Finds the cluster that has a node at one of these addresses: `HOST:PORT`, several with commas between them, or a list.

    With a name of the program's own: when it was killed, and another process connects under that name, it gets its
    volumes at once, and whatever is left of the earlier one is refused. No two processes that are to live at the same
    time may have one name.

    Raises RetryError if no node answers within ten seconds.
    """
    return Cluster(addresses, name)


class _Handle:
    """Something that the library has open. One that nobody has any more is closed."""

    def __init__(self, handle: Any, close: Any):
        self._at = handle
        self._end = weakref.finalize(self, close, handle)

    def _closed(self) -> None:
        """From now on nothing closes it, as it is closed."""
        self._end.detach()


class Cluster(_Handle):
    """A cluster that this program speaks with. As a context manager it is closed at the end."""

    def __init__(self, addresses: str | Iterable[str], name: str | None = None):
        text = addresses if isinstance(addresses, str) else ",".join(addresses)
        if name is None:
            handle = lib.freebs_connect(_text(text))
        else:
            handle = lib.freebs_connect_as(_text(text), _text(name))
        super().__init__(opened(handle), lib.freebs_close)

    def attach(self, volume: str) -> Volume:
        """Attaches a volume by its name. Nobody else can use it until it is given back.

        Raises NotFoundError if there is none, BusyError if somebody else has it and is there, RetryError with what it
        waits for.
        """
        return Volume(lib.freebs_attach(self._at, _text(volume)), self)

    def open_snapshot(self, volume: str, snapshot: str) -> Volume:
        """Opens a snapshot of a volume to read it, whoever has the volume.

        Raises NotFoundError if there is none of these names, RetryError if the snapshot is not complete.
        """
        return Volume(lib.freebs_open_snapshot(self._at, _text(volume), _text(snapshot)), self)

    def close(self) -> None:
        """Gives back all volumes that are still attached through it, and ends. Once more does nothing."""
        if self._end.alive:
            self._closed()
            check(lib.freebs_close(self._at))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Volume(_Handle):
    """An attached volume, or a snapshot. As a context manager it is given back at the end.

    Offsets and lengths are bytes; nothing has to be aligned. What is answered is durable. All its methods may be called
    from several threads at once.
    """

    def __init__(self, handle: Any, cluster: Cluster):
        super().__init__(opened(handle), lib.freebs_detach)
        # The cluster is closed after its volumes.
        self._cluster = cluster

    @property
    def size(self) -> int:
        """Bytes that it had when it was attached, or when the snapshot was taken."""
        size = lib.freebs_size(self._at)
        if size == 2**64 - 1:
            check(-1)
        return int(size)

    def read(self, offset: int, length: int) -> bytes:
        """Reads at most REQUEST_BYTES_MAX. What was never written reads as zeroes."""
        return _read(lib.freebs_read, self._at, offset, length)

    def write(self, offset: int, data: Data) -> None:
        """Writes at most REQUEST_BYTES_MAX.

        One write of at most 4 KiB that lies in one block happens as a whole or not at all; of a longer one a part may be
        there if the program is killed before the answer. An interval has no parts.
        """
        view = memoryview(data)
        check(lib.freebs_write(self._at, ffi.from_buffer(view), view.nbytes, offset))

    def trim(self, offset: int, length: int) -> None:
        """The range reads as zeroes afterwards, and takes no room."""
        check(lib.freebs_trim(self._at, length, offset))

    def flush(self) -> None:
        """Returns when all that was answered is durable, which it is already."""
        check(lib.freebs_flush(self._at))

    def interval(self) -> Interval:
        """Begins an interval. Several may be open at a time, each of its own; there are none within one another."""
        return Interval(lib.freebs_begin(self._at), self)

    def detach(self) -> None:
        """Gives the volume back, or closes the snapshot. Once more does nothing.

        Raises RetryError if the cluster could not be told: the volume is free when its leases have ended.
        """
        if self._end.alive:
            self._closed()
            check(lib.freebs_detach(self._at))

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


class Place(NamedTuple):
    """The place of an interval in the log of a shard."""

    volume: int
    """Number of the volume."""
    shard: int
    """Shard of the volume, from 0."""
    view: int
    """The view in which it was found durable on a quorum."""
    sequence: int
    """Its frame, counted in that view's log."""


class Interval(_Handle):
    """Changes that happen together or not at all. Nothing of it is anywhere but in memory before it is committed.

    As a context manager it is committed at the end, and aborted if that is left by an exception. It sees its own changes
    over those of others: a program that computes what it writes from what it reads keeps its own threads apart.
    """

    def __init__(self, handle: Any, volume: Volume):
        super().__init__(opened(handle), lib.freebs_abort)
        self._volume = volume

    def read(self, offset: int, length: int) -> bytes:
        """Reads from the volume, with this interval's own changes over it."""
        return _read(lib.freebs_interval_read, self._at, offset, length)

    def write(self, offset: int, data: Data) -> None:
        """Writes these bytes when it is committed. Of changes that overlap the later one counts.

        Raises InvalidError past the end, or for more changes or bytes than an interval has (INTERVAL_CHANGES_MAX,
        INTERVAL_BUFFER_MAX): then this change is left out, and the others stay.
        """
        view = memoryview(data)
        check(lib.freebs_interval_write(self._at, ffi.from_buffer(view), view.nbytes, offset))

    def trim(self, offset: int, length: int) -> None:
        """The range reads as zeroes when it is committed, and takes no room."""
        check(lib.freebs_interval_trim(self._at, length, offset))

    def commit(self) -> list[Place]:
        """Does all of it, or nothing, and ends the interval. Its places in the logs of the shards that it has changed.

        Raises AbortedError if nothing of it is there, nor will be. Any other error of an interval that was open says that
        the outcome is not known: with RetryError it may still happen, and a read of any of its blocks waits until that is
        decided, and shows it; with FencedError the volume was attached elsewhere.
        """
        self._closed()
        places, count = ffi.new("struct freebs_place[]", PLACES), ffi.new("size_t *", PLACES)
        check(lib.freebs_commit(self._at, places, count))
        found = places[0 : min(count[0], PLACES)]
        return [Place(p.volume, p.shard, p.view, p.sequence) for p in found]

    def abort(self) -> None:
        """Drops it. One that was committed or aborted before is left as it is."""
        if self._end.alive:
            self._closed()
            check(lib.freebs_abort(self._at))

    def __enter__(self) -> Interval:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif self._end.alive:
            self.commit()


def _text(text: str) -> bytes:
    """A string for C, which would take a zero byte for its end."""
    if "\0" in text:
        raise ValueError("a name or address with a zero byte in it")
    return text.encode("utf-8")


def _read(call: Any, handle: Any, offset: int, length: int) -> bytes:
    # The number that C gets has to be the one that the buffer is made by.
    length = operator.index(length)
    # The library refuses what is too long before it looks at the buffer: then none is made.
    is_possible = length <= lib.FREEBS_REQUEST_BYTES_MAX
    buffer = bytearray(length) if is_possible else b""
    check(call(handle, ffi.from_buffer(buffer) if is_possible else ffi.NULL, length, offset))
    return bytes(buffer)
