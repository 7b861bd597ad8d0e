"""Sections of the state dictionary: typed by owner, stored under names that belong to the format of checkpoints."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import attrs

import krishiv_py.kernels
from krishiv_py.kernels.state.store import Bucket, FiringProgress, MemoryStore, Section
from krishiv_py.plan.durations import UNSET

ADAPTERS = {"counters", "sizes", "timer", "moved"}
AROUND = {"krishiv_py.kernels.wrappers", "krishiv_py.kernels.ttl"}
"""Operators around operators, whose sections meet those of the operator within."""


for _module in pkgutil.walk_packages(krishiv_py.kernels.__path__, "krishiv_py.kernels."):
    importlib.import_module(_module.name)  # operators are loaded at their first use


def sections() -> list[type[Section]]:
    """All sections there are."""
    actual: list[type[Section]] = [Section]
    for section in actual:
        actual.extend(section.__subclasses__())
    by_name = {
        (s.__module__, s.__qualname__): s for s in actual[1:]
    }  # attrs makes a class with slots next to the one it was given
    return list(by_name.values())


def names(section: type[Section]) -> set[str]:
    return {f.name for f in attrs.fields(section)}


def test_a_section_reads_and_writes_its_own_names_only() -> None:
    meta: dict[str, Any] = {"sizes": {"a": 1}, "now_ms": 7}
    bucket = Bucket(MemoryStore(), meta)
    assert FiringProgress.of(bucket) == FiringProgress(UNSET)
    FiringProgress(5).store(bucket)
    assert meta == {"sizes": {"a": 1}, "now_ms": 7, "fired_at": 5}
    assert FiringProgress.of(bucket) == FiringProgress(5)


def test_owners_that_meet_share_no_name() -> None:
    around = [s for s in sections() if s.__module__ in AROUND]
    within = [s for s in sections() if s.__module__ not in AROUND]
    assert len(around) == 4
    assert len(within) >= 6
    taken = set(ADAPTERS)
    for own in [*map(names, around), set().union(*map(names, within))]:
        assert own
        assert not own & taken
        taken |= own


def test_the_stored_names_are_those_of_format_2() -> None:
    known = {"fired_at", "closed_at", "seq", "rows", "rows_arrived", "results", "shown_at", "new_at", "late_at"}
    known |= {"joined_at", "given_at", "arrived_left", "arrived_right", "dedup_at"}
    known |= {"stepped_at", "stepped_late", "ttl_checked", "ttl_checked_left", "ttl_checked_right", "rows_needed"}
    known |= {"clock_due", "expected_keys", "input_silence", "waits_us"}
    assert set().union(*map(names, sections())) == known
