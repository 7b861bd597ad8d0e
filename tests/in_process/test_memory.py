"""Memory that a batch freed is there for the next one, unless the environment says how memory is to be kept."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from krishiv_py.in_process.memory import CHOSEN

PAGES = """
import resource, sys, threading
import numpy as np
if sys.argv[1] == "session":
    from krishiv_py import Session
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

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no such limits")


def new_pages(who: str, **environment: str) -> int:
    """Return how many pages the system gave to a process that makes and drops the same columns again and again."""
    plain = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    command = [sys.executable, "-c", PAGES, who]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env={**plain, **environment}).stdout)


def test_a_session_in_process_uses_freed_memory_again() -> None:
    alone, kept = new_pages("alone"), new_pages("session")
    assert kept * 10 < alone


def test_what_the_environment_says_of_memory_holds() -> None:
    limits = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    assert new_pages("session", **limits) * 2 > new_pages("alone", **limits)
