"""A session changes nothing of its process; after ``own_process()`` memory that a batch freed is there for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_py.process import CHOSEN, CHOSEN_FOR_ARROW

PAGES = """
import resource, sys, threading
import numpy as np
if sys.argv[1] != "alone":
    from krishiv_py import Session, own_process
    if sys.argv[1] == "owned":
        own_process()
    session = Session.in_process()

def batches():
    for _ in range(40):
        columns = [np.arange(1_500_000) for _ in range(4)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        columns = [np.arange(1_500_000) for _ in range(4)]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=batches)  # queries run in threads
thread.start()
thread.join()
"""

POOL = """
import sys
import pyarrow as pa
from krishiv_py import own_process
if sys.argv[1] == "own":
    pa.set_memory_pool(pa.system_memory_pool())
own_process()
print(pa.default_memory_pool().backend_name)
"""

ROOT = Path(__file__).parents[1]
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no such limits")


def new_pages(who: str, **environment: str) -> int:
    """Return how many pages the system gave to a process that makes and drops the same columns again and again."""
    return int(printed(PAGES, who, **environment))


def printed(code: str, argument: str, **environment: str) -> str:
    """Return what a process of its own prints."""
    plain = {name: value for name, value in os.environ.items() if name not in (*CHOSEN, *CHOSEN_FOR_ARROW)}
    command = [sys.executable, "-c", code, argument]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**plain, **environment})
    return done.stdout.strip()


@GLIBC
def test_a_process_of_ours_uses_freed_memory_again() -> None:
    alone, kept = new_pages("alone"), new_pages("owned")
    assert kept * 10 < alone


@GLIBC
def test_a_session_alone_leaves_the_allocator() -> None:
    assert new_pages("session") * 2 > new_pages("alone")


@GLIBC
def test_what_the_environment_says_of_memory_holds() -> None:
    limits = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    assert new_pages("owned", **limits) * 2 > new_pages("alone", **limits)


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="Arrow is built without it")
def test_arrow_keeps_what_it_freed_unless_somebody_has_chosen() -> None:
    assert printed(POOL, "") == "jemalloc"
    assert printed(POOL, "own") == "system"
    assert printed(POOL, "", ARROW_DEFAULT_MEMORY_POOL="mimalloc") == "mimalloc"
    assert printed(POOL, "", MIMALLOC_PURGE_DELAY="-1") == "mimalloc"


def test_a_session_changes_nothing_of_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.host", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("{}\n", "")
