"""Volumes of a freebs cluster, and changes of them that happen together or not at all.

    with freebs.connect("127.0.0.1:7400") as cluster, cluster.attach("demo") as volume:
        with volume.interval() as interval:
            interval.write(0, b"from here")
            interval.write(40960, b"to there")

What a volume has answered is durable on a quorum of its copies. Calls wait until they have their answer, and let other
threads run meanwhile. The library has threads of its own, so everything is refused in a process that was forked from
one that has connected: connect in the process that uses it.
"""

from ._errors import (
    AbortedError,
    BugError,
    BusyError,
    CorruptError,
    Error,
    FencedError,
    InvalidError,
    NoSpaceError,
    NotFoundError,
    RetryError,
    SystemCallError,
)
from ._native import lib as _lib
from ._volumes import Cluster, Data, Interval, Place, Volume, connect, speak_as_node, trust_network

REQUEST_BYTES_MAX: int = _lib.FREEBS_REQUEST_BYTES_MAX
"""Bytes of one read or write."""
INTERVAL_BYTES_MAX: int = _lib.FREEBS_INTERVAL_BYTES_MAX
"""Bytes of data of an interval in a shard; a block that is changed in part counts whole."""
INTERVAL_RUNS_MAX: int = _lib.FREEBS_INTERVAL_RUNS_MAX
"""Runs of blocks of an interval in a shard."""
INTERVAL_CHANGES_MAX: int = _lib.FREEBS_INTERVAL_CHANGES_MAX
"""Changes of an interval."""
INTERVAL_BUFFER_MAX: int = _lib.FREEBS_INTERVAL_BUFFER_MAX
"""Bytes of all writes of an interval together, those that later ones lie over included."""

__all__ = [
    "AbortedError",
    "BugError",
    "BusyError",
    "Cluster",
    "CorruptError",
    "Data",
    "Error",
    "FencedError",
    "INTERVAL_BUFFER_MAX",
    "INTERVAL_BYTES_MAX",
    "INTERVAL_CHANGES_MAX",
    "INTERVAL_RUNS_MAX",
    "Interval",
    "InvalidError",
    "NoSpaceError",
    "NotFoundError",
    "Place",
    "REQUEST_BYTES_MAX",
    "RetryError",
    "SystemCallError",
    "Volume",
    "connect",
    "speak_as_node",
    "trust_network",
]
