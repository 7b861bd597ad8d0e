"""Set what belongs to the whole process: the handler of SIGTERM and how freed memory is kept. Only where the program asks.

The columns of a batch are megabytes each. By its own rules glibc gives such memory back to the system at once and asks for it
again a moment later, and the system fills every page with zeros first: up to a third of the CPU of large batches.
mimalloc, which Arrow takes, gives memory back within a second, and reads its setting once, when Arrow is loaded.
jemalloc, which Arrow brings too, can be set at any time.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

import pyarrow as pa

from krishiv_py.storage.ending import handle_sigterm

KEPT_BYTES: Final = 1 << 28
"""So much freed memory at the end of the heap stays with the process; larger arrays are taken from the system one by one."""
CHOSEN: Final = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""A choice of the user's in the environment holds."""
KEPT_MS: Final = 10_000
"""For so long what Arrow has freed stays with the process: longer than most batches take."""
CHOSEN_FOR_ARROW: Final = ("ARROW_DEFAULT_MEMORY_POOL", "MIMALLOC_PURGE_DELAY")
"""The same for the memory of Arrow."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h


def own_process() -> None:
    """Let the library set what belongs to the whole process, where a program is there for its queries alone.

    Without this call a session changes none of it, so it can live in a web server or a notebook. ``krishiv run`` makes the
    call. Make it once, at the beginning of the program, in the main thread; it holds for all sessions.

    - **SIGTERM** stops the queries, and the program ends as by ``sys.exit(143)``, so ``finally`` and ``with`` run. Process 1 of
      a container has to handle SIGTERM to end by it. A handler that the program has already stays.
    - **glibc** keeps up to 256 MB of freed memory, in one heap for all threads. A choice in the environment holds:
      ``MALLOC_ARENA_MAX``, ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_`` or ``GLIBC_TUNABLES``.
    - **Arrow** allocates by jemalloc, where its build has that, which keeps freed memory for 10 s. A pool that the program has
      set stays, and so does the choice by ``ARROW_DEFAULT_MEMORY_POOL`` or ``MIMALLOC_PURGE_DELAY``.

    Raises
    ------
    PlanError
        In another thread than the main one, where Python takes no handler of signals.

    Examples
    --------
    >>> from krishiv_py import Session, own_process
    >>> own_process()  # doctest: +SKIP
    >>> session = Session.in_process()
    """
    handle_sigterm()
    keep_freed_memory()
    keep_freed_columns()


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


def keep_freed_columns() -> bool:
    """Let Arrow allocate by jemalloc, which keeps freed memory for a while; return whether it does.

    Not where the environment or the program has chosen an allocator, or where Arrow was built without this one.
    """
    chosen = any(name in os.environ for name in CHOSEN_FOR_ARROW) or pa.default_memory_pool().backend_name != "mimalloc"
    if chosen or "jemalloc" not in pa.supported_memory_backends():
        return False
    pa.set_memory_pool(pa.jemalloc_memory_pool())
    pa.jemalloc_set_decay_ms(KEPT_MS)
    return True
