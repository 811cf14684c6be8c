"""The C library, as cffi sees it.

It lies beside this file, with its header: the header is the one place that says what the functions are like.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cffi import FFI

_HERE = Path(__file__).parent


def _declarations(header: str) -> str:
    """What cffi understands of a header: declarations, and constants that are numbers."""
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    header = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", header, flags=re.DOTALL)
    lines = header.splitlines()
    return "\n".join(line for line in lines if not line.startswith("#") or re.fullmatch(r"#define \w+ \d+", line))


ffi: Any = FFI()
ffi.cdef(_declarations((_HERE / "freebs.h").read_text("utf-8")))
lib: Any = ffi.dlopen(str(_HERE / "libfreebs.so"))

if lib.freebs_library_version() >> 16 != lib.FREEBS_MAJOR:
    raise ImportError("libfreebs.so is of another version than its header; build the wheel again")
