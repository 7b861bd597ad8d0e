"""What all tests share: how hard Hypothesis tries, and one Spark session per process."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from krishiv_py.session import Session
from tests.goldens.engines import engine_named
from tests.goldens.engines.streaming import StreamingEngine

# A plain run draws other examples each time, and so finds what nobody thought of; the default keeps it short.
# KRISHIV_EXAMPLES=50000 is what `nox -s properties` sets.
settings.register_profile(
    "krishiv",
    max_examples=int(os.environ.get("KRISHIV_EXAMPLES", "30")),
    derandomize="KRISHIV_FIXED_EXAMPLES" in os.environ,  # set by .ci/run: a change is measured by its own faults
    deadline=None,  # a first call compiles and loads; time is measured in benchmarks, not here
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("krishiv")

ELSEWHERE = "KRISHIV_SESSION"
"""The environment variable with the engine of golden cases whose session is to serve all tests: ``connect`` or ``cluster``."""

LOCAL: list[Session] = []
"""The local Spark of this process, when it has begun."""


@pytest.hookimpl(tryfirst=True)  # what is slow is left out in a hook of pytest's own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a JVM, and what is slow as one of many cases.

    Each of the two processes has a JVM: queries wait much of their time.
    """
    cases: Counter[str] = Counter()
    for item in items:
        share = item.get_closest_marker("one_in")
        if share is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % share.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
        if "session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


def pytest_collection_finish() -> None:
    """Leave what was loaded and collected, a gigabyte, out of collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Run queries in one task a micro-batch, unless a test marks that its keys are to be in two: a task costs a quarter."""
    running = getattr(item, "funcargs", {}).get("session")
    if running in LOCAL:
        running.spark.conf.set("spark.sql.shuffle.partitions", "2" if item.get_closest_marker("two_tasks") else "1")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell a failure at once: a run that is stopped by its time-out has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed ({report.when}):\n{report.longreprtext}", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session", autouse=True)
def without_waiting() -> Iterator[None]:
    """Let a failure over something that is away be seen at once; tests of waiting say for how long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("krishiv_py.runtime.session.RETRY_S", 0.0)
        yield


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    """One local Spark for all tests of this process; starting it takes seconds."""
    if ELSEWHERE in os.environ:
        engine = engine_named(os.environ[ELSEWHERE])
        assert isinstance(engine, StreamingEngine)
        with engine.session as running:
            yield running
        return
    with Session.builder().master("local[2]").app_name("krishiv-tests").get_or_create() as running:
        LOCAL.append(running)
        yield running
