"""Clusters whose nodes speak TLS, of one node each: a program speaks as the node of one, and with that one only.

    secured.py ADDRESS-A ADDRESS-B DATA-A DATA-B

Volumes are called as the last part of their node's data directory. Exit status 0 if all is as it should be.
"""

from __future__ import annotations

import os
import sys

import freebs


def fails(kind: type, call, *args) -> None:
    try:
        call(*args)
    except kind as e:
        print(f"refused: {e}")
        return
    raise AssertionError(f"{call} {args} was taken")


a, b, data_a, data_b = sys.argv[1:]
freebs.speak_as_node(data_a)
freebs.speak_as_node(data_a)
fails(freebs.InvalidError, freebs.speak_as_node, data_b)
with freebs.connect(a) as cluster, cluster.attach(os.path.basename(data_a)) as volume:
    with volume.interval() as interval:
        interval.write(0, b"over TLS")
    assert volume.read(0, 8) == b"over TLS"
# The node of the other cluster has another authority.
fails(freebs.RetryError, freebs.connect, b)
print("all is well")
