"""When a source plans: once the batch in hand is published, with all that came meanwhile; slow ones while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_py.connectors import JsonValue, Planned, Source
from krishiv_py.connectors.ranges import RangeSource, node_of
from krishiv_py.failures.retrying import RunningRetries
from krishiv_py.runtime.ranges.log import RangeLog
from krishiv_py.runtime.ranges.planning import RangePlanner

SCHEMA = pa.schema([("n", pa.int64())])


class Arrivals(Source):
    """Numbers up to the one that has come; a batch has all of them that are new."""

    schema = SCHEMA
    poll_seconds = 0.005

    def __init__(self, takes_s: float = 0.0) -> None:
        self.come, self.takes_s = 1, takes_s

    def plan(self, last: JsonValue) -> Planned | None:
        """All that is new."""
        time.sleep(self.takes_s)
        begin, end = last if isinstance(last, int) else 0, self.come
        return Planned(end, [[begin, end]]) if end > begin else None

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Not used here."""
        raise NotImplementedError


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def begun(tmp_path: Path, source: Arrivals, interval_us: int | None = None) -> RangePlanner:
    """A planner whose query has begun its first batch."""
    (tmp_path / "offsets").mkdir()
    node: RangeSource = node_of(source, None)
    log = RangeLog.open(str(tmp_path / "krishiv/ranges/0"), durable=False)
    planner = RangePlanner(node, 0, str(tmp_path), log, lambda: 0, None, interval_us)
    planner.begin(everything=False)
    retries = RunningRetries(0, "q", threading.Event(), print)
    planner.start(lambda: True, lambda problem: pytest.fail(str(problem)), retries)
    (tmp_path / "offsets/0").write_text('v1\n{}\n{"logOffset":0}')
    planner.taken(0)
    return planner


@pytest.mark.parametrize("interval_us", [None, 1, 50_000])
def test_what_comes_during_a_batch_is_in_the_next_one(tmp_path: Path, interval_us: int | None) -> None:
    source = Arrivals()
    planner = begun(tmp_path, source, interval_us)
    for source.come in (2, 3):
        time.sleep(0.1)
        assert planner.log.last == 0  # no batch was planned over 2 alone
    planner.computed()
    planner.published()
    if interval_us is None:  # Spark asks for more at once: whoever waits for all there is must not miss it
        assert planner.log.last == 1
    until(lambda: planner.log.last == 1)
    assert planner.log.ranges_of(1) == ["[1, 3]"]
    planner.stop()


def test_a_slow_source_plans_while_a_batch_runs(tmp_path: Path) -> None:
    source = Arrivals(takes_s=0.15)
    planner = begun(tmp_path, source)
    source.come = 2
    until(lambda: planner.log.last == 1)
    planner.stop()


def test_with_an_interval_a_batch_is_planned_just_before_it_ends(tmp_path: Path) -> None:
    """Spark looks for a batch at multiples of the interval only: what was planned sooner would lack what came since."""
    time.sleep(2.0 - time.time() % 2.0 + 0.05)  # a batch that begins and ends early in its interval
    source = Arrivals()
    planner = begun(tmp_path, source, 2_000_000)
    source.come = 2
    planner.computed()
    planner.published()
    assert planner.behind()
    time.sleep(0.2)
    assert planner.log.last == 0
    source.come = 3
    until(lambda: planner.log.last == 1)
    assert planner.log.ranges_of(1) == ["[1, 3]"]
    planner.stop()
