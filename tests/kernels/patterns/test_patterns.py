"""Patterns: the named cases of their design, and every step against a plain reference."""

from __future__ import annotations

import random
from typing import Any

import pytest

from krishiv_py import coalesce, col, collect_list, last, step
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.patterns.reference import Reference, Spec, random_spec

DDL = "k string, at bigint, c string, v bigint"
KEYS = ["a", "b", None]


def _rows_of(draw: random.Random, lag: int) -> list[list[dict[str, Any]]]:
    """Return rows in batches, none of which is late."""
    rows, now = [], 0
    for _ in range(draw.randint(0, 40)):
        now += draw.choice([0, 0, 1, 2, 5])
        rows.append({"k": draw.choice(KEYS), "at": now, "c": draw.choice("aabcx"), "v": draw.randint(0, 9)})
    rows.sort(key=lambda row: row["at"] + draw.randint(0, lag))
    batches, place = list[list[dict[str, Any]]](), 0
    while place < len(rows):
        size = draw.randint(1, 9)
        batches.append(rows[place : place + size])
        place += size
    return batches


def _plan(spec: Spec, lag: int, lateness: int, **options: Any) -> Any:
    stream = stream_of(DDL).watermark("at", lag).allowed_lateness(lateness).key_by("k")
    measures = [collect_list("at").alias("ats"), collect_list("v").alias("vs")]
    return stream.match(
        spec.pattern(), measures=measures, within=spec.within, skip=spec.skip, max_rows_per_key=spec.most, **options
    )


def _order(row: tuple[Any, ...]) -> Any:
    return (row[0], row[1] is not None, row[1] or "")


def _steps(spec: Spec, batches: list[list[dict[str, Any]]], lag: int, lateness: int) -> list[list[Any]]:
    """Return what the reference gives in each step: (decided, key, kind, times, values, start, end)."""
    keys, newest, steps = {key: Reference(spec) for key in KEYS}, None, []
    for batch in [*batches, None]:
        newest = max([*([] if newest is None else [newest]), *(row["at"] for row in batch or [])], default=newest)
        settled = -1 if newest is None else newest - lag - lateness
        given = []
        for key, reference in keys.items():
            rows = [row for row in batch or [] if row["k"] == key]
            for what, taken, decided, end in reference.feed(rows, settled, None if batch is not None else newest or 0):
                picked = [reference.rows[place] for _, place in taken]
                times, values = [row["at"] for row in picked], [row["v"] for row in picked]
                given.append((decided, key, what, times, values, times[0], end))
        steps.append(sorted(given, key=_order))
    return steps


def _said(table: Any) -> list[Any]:
    return [
        (r["matched_at"], r["k"], "match", r["ats"], r["vs"], r["match_start"], r["match_end"]) for r in table.to_pylist()
    ]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("seed", range(scaled(150)))
def test_every_step_is_that_of_the_reference(seed: int, asked: bool) -> None:
    draw = random.Random(f"{seed} {asked}")
    spec, lag, lateness = random_spec(draw, asked=asked), draw.choice([0, 4]), draw.choice([0, 3])
    batches = _rows_of(draw, lag)
    driver, before = Driver(_plan(spec, lag, lateness)), None
    steps = _steps(spec, batches, lag, lateness)
    for number, (batch, wanted) in enumerate(zip([*batches, None], steps, strict=True)):
        out = driver.close() if batch is None else driver.send(batch)
        matches = [each for each in wanted if each[2] == "match"]
        assert _said(out.results) == matches, spec.pattern()
        assert out.late.num_rows == 0
        assert all(before is None or each[0] >= before for each in matches)  # none is late in the next stage
        if batch is not None:
            before = max([row["at"] for rows in batches[: number + 1] for row in rows]) - lag - lateness
            if draw.random() < 0.3:
                driver = driver.restarted()


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_starts_that_are_given_up_or_time_out_are_those_of_the_reference(seed: int) -> None:
    draw = random.Random(f"limit {seed}")
    spec = random_spec(draw, asked=draw.random() < 0.3, most=draw.choice([2, 3, 6]))
    batches = _rows_of(draw, 0)
    timeouts = {} if spec.within is None else {"timeouts": "side_output"}
    driver = Driver(_plan(spec, 0, 0, **timeouts))
    for batch, wanted in zip([*batches, None], _steps(spec, batches, 0, 0), strict=True):
        out = driver.close() if batch is None else driver.send(batch)
        assert _said(out.results) == [each for each in wanted if each[2] == "match"], spec.pattern()
        late = sorted((r["reason"], r["at"], r["v"]) for r in out.late.to_pylist())
        reasons = {"limit": "pattern_limit", "timeout": "no_match"}
        assert late == sorted(
            (reasons[what], at, v)
            for _, _, what, times, values, _, _ in wanted
            if what != "match"
            for at, v in zip(times, values, strict=True)
        )
