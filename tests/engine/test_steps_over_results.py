"""Steps over results in any order: the event time goes along with each, whether or not they name it (SEMANTICS §7.1).

Law: results that a user keeps, with their event time in a column of its own, are the same results without that column. And a
stage that follows gives the same for both, however many steps lie between.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ResultStream, col, collect_list, count, sum
from krishiv_py.errors import KrishivError
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

TABLE = pa.table({"user": ["a", "b", "a"], "city": ["Ulm", "Rom", "Bern"]})
OTHER = stream_of("user string, k bigint, t bigint").watermark("t", 0)


def stages(chance: random.Random) -> dict[str, Callable[[], ResultStream]]:
    rows = stream_of("user string, n bigint, at bigint").watermark("at", chance.choice([0, 3]))
    keyed = (rows.filter("n <> 2") if chance.random() < 0.4 else rows).key_by("user")
    wanted = count().alias("c"), sum("n"), collect_list("n").alias("l")
    return {
        "tumbling": lambda: keyed.tumbling_window(10).agg(*wanted),
        "session": lambda: keyed.session_window(5).agg(*wanted),
        "look-back": lambda: keyed.lookback_window(8).agg(count().alias("c"), sum("n")),
        "deduplication": lambda: rows.drop_duplicates("user", "n", within=20),
        "join": lambda: rows.interval_join(OTHER, on="user", lower=-5, upper=5, how="left"),
    }


def step(chance: random.Random, rows: ResultStream, time: str, *, names_it: bool) -> ResultStream:
    """A step; where it `names_it`, the event time stays a column."""
    names = [name for name in rows.schema.names if name != time]
    numbers = [f.name for f in rows.schema if pa.types.is_int64(f.type) and f.name != time]
    kind = chance.choice(["select", "with_column", "rename", "drop", "filter", "map_batches", "unnest", "lookup"])
    chosen, one, n = chance.sample(names, chance.randint(1, len(names))), chance.choice(names), chance.randint(-1, 6)
    number, how = chance.choice(numbers or [one]), chance.choice(["left", "inner", "semi", "anti"])
    if kind == "select":
        return rows.select(*chosen, *([time] if names_it else []))
    if kind == "with_column" and numbers:
        return rows.with_column(f"x{n + 1}", col(number) + 1)
    if kind == "rename":
        return rows.rename(**{one: f"{one}_"})
    if kind == "drop" and len(names) > 1:
        return rows.drop(one)
    if kind == "filter" and numbers:
        return rows.filter(col(number) > n)
    if kind == "map_batches":
        return rows.map_batches(lambda batch: batch)
    if kind == "unnest" and "l" in names:
        return rows.unnest("l", outer=n > 2)
    if kind == "lookup" and "user" in names and "city" not in names:
        return rows.lookup_join(TABLE, "user", how=how)  # type: ignore[arg-type]
    return rows


def follow(chance: random.Random, rows: ResultStream, time: str) -> ResultStream:
    """The results, or a stage over them whose results have no column of theirs but those that are named here."""
    plain = [f.name for f in rows.schema if not pa.types.is_list(f.type) and f.name != time]
    kind = chance.choice(["none", "tumbling", "session", "tumbling without a key"])
    if kind == "none" or not plain:
        return rows
    key = chance.choice(plain)
    if kind == "session":
        return rows.key_by(key).session_window(7).agg(count().alias("rows"))
    keyed = rows.key_by(key) if kind == "tumbling" else rows
    return keyed.tumbling_window(20).agg(count().alias("rows"), collect_list(key).alias("values"))


def plan(seed: int, *, names_it: bool) -> tuple[ResultStream, str]:
    chance = random.Random(seed)
    made = stages(chance)
    kind = chance.choice([*made])
    rows = made[kind]()
    time = {"deduplication": "at", "join": "join_time"}.get(kind, "window_time")
    if names_it and time not in rows.schema.names:
        rows = rows.select(*rows.schema.names, time)
    if not names_it and time in rows.schema.names:
        rows = rows.drop(time)
    for _ in range(chance.randint(0, 4)):
        rows = step(chance, rows, time, names_it=names_it)
    return follow(chance, rows, time), time


def outputs(stream: ResultStream, time: str, seed: int) -> list[Any]:
    chance, driver, outs = random.Random(seed), Driver(stream), []
    start, joined = 0, time == "join_time"
    for _ in range(5):
        start += chance.randint(0, 8)
        given = [
            {"user": chance.choice(["a", "b", None]), "n": chance.randint(0, 4), "at": start + chance.randint(0, 9)}
            for _ in range(chance.randint(0, 5))
        ]
        others = [{"user": chance.choice(["a", "b"]), "k": chance.randint(0, 2), "t": start + chance.randint(0, 9)}]
        outs.append(driver.send({"left": given, "right": others} if joined else given))
    tables = [*outs, driver.close()]
    return [[{name: value for name, value in row.items() if name != time} for row in out.results.to_pylist()] for out in tables]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", range(4))
def test_an_event_time_that_is_named_changes_nothing(part: int) -> None:
    ran = 0
    for seed in range(part * 1_000, part * 1_000 + scaled(40)):
        try:
            (named, time), (hidden, _) = plan(seed, names_it=True), plan(seed, names_it=False)
        except KrishivError as problem:  # two steps that do not go together, such as two columns of one name
            with pytest.raises(type(problem)):
                plan(seed, names_it=False)
            continue
        assert outputs(named, time, seed) == outputs(hidden, time, seed), seed
        ran += 1
    assert ran > scaled(40) // 3


def test_an_event_time_that_is_dropped_again_was_not_named() -> None:
    counts = stream_of("user string, at bigint").watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    named = counts.select("user", "window_end", "window_time")
    for last in (
        named.drop("window_time"),
        named.select("user", "window_end"),
        named.map_batches(lambda b: b).drop("window_time"),
    ):
        assert Driver(last).send([{"user": "a", "at": 1}, {"user": "a", "at": 12}]).results.to_pylist() == [
            {"user": "a", "window_end": 10}
        ]
