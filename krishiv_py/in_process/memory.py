"""Let the process keep memory that one micro-batch freed for the next one.

The columns of a batch are megabytes each. By its own rules glibc gives such memory back to the system at once and asks for it
again a moment later, and the system fills every page with zeros first: up to a third of the CPU of large batches.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

KEPT_BYTES: Final = 1 << 28
"""So much freed memory at the end of the heap stays with the process; larger arrays are taken from the system one by one."""
CHOSEN: Final = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""A choice of the user's in the environment holds."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h


def keep_freed_memory() -> bool:
    """Set limits of glibc, and return whether they are set: not where the environment has its own, or without glibc.

    Threads that begin after it share the heap of the main thread. In a heap of their own all arrays together have 64 MB; what
    is beyond that is given back when it is freed.
    """
    if any(name in os.environ for name in CHOSEN) or not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    limits = {_TRIM_THRESHOLD: KEPT_BYTES, _MMAP_THRESHOLD: KEPT_BYTES, _ARENA_MAX: 1}
    return all([libc.mallopt(limit, value) for limit, value in limits.items()])
