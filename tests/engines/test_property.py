"""The driver, a bounded run and a streaming query agree over every type, as keys, values, times, late rows and expressions.

A query is dear and a column of it is cheap, so a case is a column: one combination of aggregate or expression, type of its
input, window and type of the event time, or one type as a key, or of the late rows. A round has a query a window; one seed is
fixed, ``KRISHIV_EXAMPLES`` (``nox -s engines``) adds rounds of random seeds. A difference names the command that repeats it.
"""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

from krishiv_py.session import Session
from tests.engines.arrow_types import ACCEPTED
from tests.engines.runs import differences, on_driver, on_spark
from tests.engines.workload import KEY_TYPES, SHARE, TIMES, WINDOWS, combinations, key_name, workload

pytestmark = pytest.mark.two_tasks

SHORT: Final = ("hopping", "session, rule window")
"""Windows of a run of all tests: fixed ones and sessions; on Spark sessions. `nox -s engines` has all."""
_GIVEN: Final = os.environ.get("KRISHIV_ENGINE_SEED")
_ROUNDS: Final = max(1, int(os.environ.get("KRISHIV_EXAMPLES", "40")) // 40)
SEEDS: Final = [int(_GIVEN)] if _GIVEN else [20, *(random.randrange(1 << 30) for _ in range(_ROUNDS - 1))]
QUERIES: Final = [
    (seed, window, TIMES[(i + number) % len(TIMES)]) for number, seed in enumerate(SEEDS) for i, window in enumerate(WINDOWS)
]


def test_there_are_two_thousand_cases_and_every_combination_is_one() -> None:
    seed = SEEDS[0]
    works = [workload(seed, window, time) for s, window, time in QUERIES if s == seed]
    compared = [(w.window, str(w.time), case.what) for w in works for case in w.cases]
    assert len(compared) == len(set(compared)) == len(works) * (SHARE + len(KEY_TYPES))
    assert len(compared) >= 2_000
    assert {str(w.time) for w in works} == {str(t) for t in TIMES}
    dealt = {what.split(" where ")[0] for _, _, what in compared}
    assert dealt == {what for what, _ in combinations()[0]} | {f"key {t}" for t in KEY_TYPES}
    assert combinations()[1] > 0  # refused at the call, on every engine: none has run


@pytest.mark.parametrize(
    ("seed", "window", "time"),
    [pytest.param(*query, marks=() if query[1] == SHORT[1] else pytest.mark.slow) for query in QUERIES],
    ids=str,
)
def test_the_engines_agree(session: Session, seed: int, window: str, time: object) -> None:
    agree(session, seed, window, time)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("seed", "window", "time"),
    [pytest.param(*query, marks=() if query[1] in SHORT else pytest.mark.slow) for query in QUERIES],
    ids=str,
)
def test_a_session_in_process_agrees(seed: int, window: str, time: object) -> None:
    with Session.in_process() as session:
        agree(session, seed, window, time)


def agree(session: Session, seed: int, window: str, time: object) -> None:
    """See that a bounded run and a query of a session give what the driver gives."""
    work = workload(seed, window, time)
    driver = on_driver(work)
    assert driver.results.num_rows > 0
    assert driver.late.num_rows > 0
    assert set(driver.late.column_names) >= {f"{t} `.'é" for t in ACCEPTED}
    bounded, streamed = on_spark(session, work)
    what = {case.column: case.what for case in work.cases}
    keys = [key_name(t) for t in KEY_TYPES]
    actual = [
        f"{engine}, {what.get(column, column)}: {how}"
        for engine, seen in (("bounded", bounded), ("streaming", streamed))
        for column, how in differences(driver, seen, keys).items()
    ]
    again = f'KRISHIV_ENGINE_SEED={seed} python -m pytest tests/engines/test_property.py -m "" -k "{window} and engines_agree"'
    assert not actual, "\n".join([f"driver against {line}" for line in actual] + [f"repeat: {again}"])
