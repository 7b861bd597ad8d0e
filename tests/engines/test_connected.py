"""Several keyed streams as one sequence, with a call for each: on the driver, in process and on Spark."""

from __future__ import annotations

import builtins
import random
from pathlib import Path
from typing import Any, cast

import attrs
import pyarrow as pa
import pytest

from krishiv_py import Context, MemorySink, PlanError, SchemaError, Session, SideOutputLateEventHandler, connect, count, sum
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

MOVED, BOUGHT = "user string, at bigint, city string", "buyer string, day bigint, amount bigint, tags array<string>"


@attrs.frozen
class Bought:
    """A row of one stream."""

    user: str
    amount: int
    tags: list[str] | None


@attrs.define
class Place:
    """Where a user is."""

    city: str | None = None


class WithCity:
    """Amounts with the city of then."""

    def on_moved(self, row: Any, state: Place, ctx: Context) -> None:
        """Note the city."""
        state.city = row.city
        ctx.timer("left", after=20)

    def on_bought(self, row: Bought, state: Place, ctx: Context) -> Any:
        """Give the amount."""
        assert isinstance(row, Bought) and ctx.key == row.user
        if row.amount < 0:
            ctx.refuse(row, "negative")
        yield {"amount": row.amount, "city": state.city, "tags": row.tags}

    def on_timer(self, name: str, state: Place, ctx: Context) -> None:
        """Forget the city."""
        state.city = None


RETURNS = "amount bigint, city string, tags array<string>"


def _plan(moved: Any, bought: Any) -> Any:
    both = connect(moved=moved.watermark("at", 3).key_by("user"), bought=bought.watermark("day", 5).key_by("buyer"))
    return both.process(WithCity(), returns=RETURNS, state=Place)


def _drawn(seed: int) -> list[dict[str, list[dict[str, Any]]]]:
    draw, now, batches = random.Random(seed), 10, []
    for _ in range(6):
        moved, bought = list[dict[str, Any]](), list[dict[str, Any]]()
        for _ in range(draw.randint(1, 6)):
            now += draw.choice([0, 0, 1, 4, 15])
            if draw.random() < 0.4:
                moved.append({"user": draw.choice("ab"), "at": now - draw.choice([0, 2]), "city": draw.choice("xyz")})
            else:
                tags = draw.choice([None, [], ["t"]])
                row = {"buyer": draw.choice("abc"), "day": now - draw.choice([0, 3]), "amount": draw.randint(0, 9)}
                bought.append({**row, "tags": tags})
        batches.append({"moved": moved, "bought": bought})
    return batches


def _wanted(batches: list[dict[str, list[dict[str, Any]]]]) -> list[tuple[Any, ...]]:
    """Return the results by hand: of equal time purchases come before moves, by the names of the streams."""
    rows = [("bought", r["buyer"], r["day"], r) for b in batches for r in b["bought"]]
    rows += [("moved", r["user"], r["at"], r) for b in batches for r in b["moved"]]
    wanted, city = [], dict[str, tuple[str, int]]()
    for stream, user, at, row in sorted(rows, key=lambda r: (r[2], r[0])):
        where, until = city.get(user, (None, 0))
        if stream == "moved":
            city[user] = row["city"], at + 20
        else:
            wanted.append((at, user, row["amount"], where if at < until else None, row["tags"]))
    return sorted(wanted, key=repr)


def _given(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[n] for n in ("at", "user", "amount", "city", "tags")) for row in table.to_pylist()), key=repr)


def _run(session: Session, batches: list[dict[str, list[dict[str, Any]]]], folder: Path, connected: Any = _plan) -> pa.Table:
    (moved, to_moved), (bought, to_bought) = session.memory_stream(MOVED), session.memory_stream(BOUGHT)
    sink, plan = MemorySink(), connected(moved, bought)
    for half in (batches[:3], batches[3:]):
        query = plan.start(sink, checkpoint=folder)
        for batch in half:
            to_moved.send(batch["moved"])
            to_bought.send(batch["bought"])
            query.process_all_available()
        if half is batches[3:] or half == batches[3:]:
            to_moved.close()
            to_bought.close()
            query.process_all_available()
        query.stop()
    return sink.table()


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_rows_of_a_key_are_one_sequence(seed: int) -> None:
    batches = _drawn(seed)
    driver = Driver(_plan(stream_of(MOVED), stream_of(BOUGHT)))
    tables = [driver.send(batch).results for batch in batches]
    if seed % 2:
        driver = driver.restarted()
    assert _given(pa.concat_tables([*tables, driver.close().results])) == _wanted(batches)
    assert driver.counters["late"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_in_process(workers: int, tmp_path: Path) -> None:
    with Session.in_process(workers=workers) as session:
        assert _given(_run(session, _drawn(4), tmp_path)) == _wanted(_drawn(4))


@pytest.mark.spark
def test_on_spark(session: Session, tmp_path: Path) -> None:
    assert _given(_run(session, _drawn(5), tmp_path)) == _wanted(_drawn(5))


def test_a_row_that_is_refused_leaves_whole() -> None:
    late = MemorySink()
    both = connect(
        moved=stream_of(MOVED).watermark("at", 0).key_by("user"), bought=stream_of(BOUGHT).watermark("day", 0).key_by("buyer")
    )
    noted = both.with_late_event_handler(SideOutputLateEventHandler(late))
    driver = Driver(noted.process(WithCity(), returns=RETURNS, state=Place))
    driver.send({"bought": [{"buyer": "a", "day": 1, "amount": -7, "tags": ["x"]}]})
    (row,) = driver.close().late.to_pylist()
    assert (row["user"], row["amount"], row["source"], row["reason"]) == ("a", -7, "bought", "negative")


def test_other_stages_take_connected_streams() -> None:
    one, two = (stream_of("k string, at bigint").watermark("at", 0).key_by("k") for _ in range(2))
    driver = Driver(connect(one=one, two=two).tumbling_window(10).agg(count()))
    driver.send({"one": [{"k": "a", "at": 1}], "two": [{"k": "a", "at": 2}]})
    assert driver.close().results["count"].to_pylist() == [2]


class Doubled:
    """Gives each purchase twice, so that results of one time have an order."""

    def on_row(self, row: Any, state: Any, ctx: Context) -> Any:
        """Give the purchase."""
        yield from ({"half": half, "of": row.amount} for half in (1, 2))


class Numbered:
    """Gives what came, with its number."""

    def on_total(self, row: Any, state: Count, ctx: Context) -> Any:
        """Give a total of a window."""
        yield from self.said(f"total {row.total}", state)

    def on_doubled(self, row: Any, state: Count, ctx: Context) -> Any:
        """Give a result of a process function."""
        yield from self.said(f"{row.of} {row.half}", state)

    def on_moved(self, row: Any, state: Count, ctx: Context) -> Any:
        """Give a row of a source."""
        yield from self.said(row.city, state)

    def said(self, text: str, state: Count) -> Any:
        """Give a text."""
        state.n += 1
        yield {"text": text, "n": state.n}


@attrs.define
class Count:
    """How many rows there were."""

    n: int = 0


def _of_results(moved: Any, bought: Any) -> Any:
    keyed = bought.watermark("day", 5).key_by("buyer")
    total = keyed.tumbling_window(10).agg(sum("amount").alias("total"))
    doubled = keyed.process(Doubled(), returns="half bigint, of bigint")
    streams = {"total": total.key_by("buyer"), "doubled": doubled.key_by("buyer")}
    return connect(**streams, moved=moved.watermark("at", 3).key_by("user")).process(
        Numbered(), returns="text string, n bigint", state=Count
    )


def _numbered(batches: list[dict[str, list[dict[str, Any]]]]) -> list[tuple[Any, ...]]:
    """Return the results by hand: of equal time by the names of the streams, then as the stage before gave them."""
    rows = [(r["at"], "moved", r["user"], [r["city"]]) for b in batches for r in b["moved"]]
    bought = [r for b in batches for r in b["bought"]]
    rows += [(r["day"], "doubled", r["buyer"], [f"{r['amount']} 1", f"{r['amount']} 2"]) for r in bought]
    for buyer, start in {(r["buyer"], r["day"] // 10 * 10) for r in bought}:
        amounts = [r["amount"] for r in bought if r["buyer"] == buyer and r["day"] // 10 * 10 == start]
        rows.append((start + 9, "total", buyer, [f"total {builtins.sum(amounts)}"]))
    wanted, counts = [], dict[str, int]()
    for at, _, user, texts in sorted(rows, key=lambda row: row[:2]):
        for text in texts:
            counts[user] = counts.get(user, 0) + 1
            wanted.append((at, user, text, counts[user]))
    return sorted(wanted, key=repr)


def _texts(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[n] for n in ("window_time", "buyer", "text", "n")) for row in table.to_pylist()), key=repr)


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_results_of_stages_are_connected(seed: int) -> None:
    batches = _drawn(seed)
    driver = Driver(_of_results(stream_of(MOVED), stream_of(BOUGHT)))
    tables = list[pa.Table]()
    for number, batch in enumerate(batches):
        tables.append(driver.send({"total": batch["bought"], "moved": batch["moved"]}).results)
        driver = driver.restarted() if number == seed % 6 else driver
    assert _texts(pa.concat_tables([*tables, driver.close().results])) == _numbered(batches)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_connected_in_process(workers: int, tmp_path: Path) -> None:
    with Session.in_process(workers=workers) as session:
        assert _texts(_run(session, _drawn(4), tmp_path, _of_results)) == _numbered(_drawn(4))


@pytest.mark.slow  # in process they are, in the ordinary run
@pytest.mark.spark
def test_results_are_connected_on_spark(session: Session, tmp_path: Path) -> None:
    assert _texts(_run(session, _drawn(5), tmp_path, _of_results)) == _numbered(_drawn(5))


def test_a_bounded_run_connects_results(tmp_path: Path) -> None:
    with Session.in_process() as session:
        (moved, to_moved), (bought, to_bought) = session.memory_stream(MOVED), session.memory_stream(BOUGHT)
        for batch in _drawn(6):
            to_moved.send(batch["moved"])
            to_bought.send(batch["bought"])
        assert _texts(_of_results(moved, bought).collect()) == _numbered(_drawn(6))


def _keyed(ddl: str = MOVED, lag: Any = 0) -> Any:
    return stream_of(ddl).watermark("at", lag).key_by("user")


class Half:
    """A function that lacks a call."""

    def on_a(self, row: Any, state: Any, ctx: Context) -> None:
        """Take a row."""


class Timers:
    """A stream cannot be called so."""

    def on_timer(self, name: str, state: Any, ctx: Context) -> None:
        """Take a timer."""


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: connect(a=_keyed()), PlanError, "connect takes several keyed streams by name"),
        (lambda: connect(a=_keyed(), b=cast(Any, stream_of(MOVED))), PlanError, "'b' is no keyed stream"),
        (
            lambda: connect(a=_keyed(), b=_keyed().tumbling_window(5).agg(count()).emit("retractions").key_by("user")),
            PlanError,
            "results that change cannot go into another stage",
        ),
        (
            lambda: connect(a=_keyed(), b=stream_of(MOVED).latest("user", by="at").key_by("user")),
            PlanError,
            "a table that changes goes into aggregates, joins and first rows only",
        ),
        (lambda: connect(a=_keyed(), b=_keyed().allowed_lateness(5)), PlanError, "'b' has options of its own"),
        (
            lambda: connect(a=_keyed(), b=stream_of(MOVED).watermark("at", 0).key_by("user", "city")),
            PlanError,
            "'b' has another key",
        ),
        (
            lambda: connect(a=_keyed(), b=stream_of(MOVED).watermark("at", 0, clock="row").key_by("user")),
            PlanError,
            "the streams go by several clocks",
        ),
        (
            lambda: connect(a=_keyed(), b=_keyed("user string, at bigint, city bigint")),
            SchemaError,
            "column 'city' has two types",
        ),
        (lambda: connect(a=_keyed(), b=_keyed("user bigint, at bigint")), SchemaError, "column 'user' has two types"),
        (
            lambda: connect(a=_keyed(), b=_keyed("user string, at bigint, source string")),
            SchemaError,
            "a column of 'b' is called like a key, the time or 'source'",
        ),
        (lambda: connect(a=_keyed(), b=_keyed()).process(Half(), returns="n bigint"), PlanError, "has no call for a stream"),
        (
            lambda: connect(timer=_keyed(), b=_keyed()).process(Timers(), returns="n bigint"),
            PlanError,
            "called like another call",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(wrong: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        wrong()
