"""Versioned joins against nested loops (SEMANTICS §16.7): any batches, any order of arrival, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import MemorySink, OrderError, PlanError, SideOutputLateEventHandler, StateTtlConfig
from krishiv_py.api.joins import TableClock
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.joins import sides
from krishiv_py.kernels.state import time_log, window_log
from krishiv_py.plan.joins import AsofType
from krishiv_py.testing import Driver, stream_of
from tests.joins.test_interval import LEFT, few_hashes, inputs, ordered, results_of
from tests.reference.joins import Clock, Given, Row, Side, VersionedJoin

CHANGES = "op string, rid bigint, key string, seen bigint, seq bigint"
ROWS = stream_of("buy bigint, id bigint, at bigint").watermark("at", 0)
TABLE = stream_of("id bigint, city string, since bigint").watermark("since", 0).from_changelog("upsert", key="id")


@attrs.frozen
class Plan:
    """A join and its input; of each change by its number whether it deletes, and its sequence."""

    how: AsofType
    table_clock: TableClock
    ordered: bool
    lags: dict[Side, int]
    lateness: int
    batches: list[list[Row]]
    restarts: set[int]
    idle_batches: bool
    deletes: dict[int, bool]
    sequence: dict[int, int]

    def joined(self) -> ResultStream:
        left = stream_of(LEFT).watermark("at", self.lags["left"])
        changes = stream_of(CHANGES).watermark("seen", self.lags["right"])
        table = changes.from_changelog("log", key="key", sequence="seq" if self.ordered else None)
        return left.versioned_join(table, "key", how=self.how, table_clock=self.table_clock).allowed_lateness(self.lateness)

    def reference(self) -> VersionedJoin:
        clock = Clock(self.lags, passive=frozenset({"right"}) if self.table_clock == "left" else frozenset())
        sequence = self.sequence if self.ordered else {}
        join = VersionedJoin("backward", None, self.how, self.lateness, clock, self.idle_batches)
        join.deletes, join.sequence = self.deletes, sequence
        return join

    def sent(self, rows: list[Row]) -> dict[str, list[dict[str, Any]]]:
        changes = [row for row in rows if row.side == "right"]
        ops = {True: "-D", False: "+I"}
        return {
            "left": [{"lid": r.id, "key": r.key, "at": r.t} for r in rows if r.side == "left"],
            "right": [
                {"op": ops[self.deletes[r.id]], "rid": r.id, "key": r.key, "seen": r.t, "seq": self.sequence[r.id]}
                for r in changes
            ],
        }


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    batches = draw(inputs())
    ids = [row.id for batch in batches for row in batch]
    n = len(ids)
    return Plan(
        draw(st.sampled_from(get_args(AsofType))),
        draw(st.sampled_from(get_args(TableClock))),
        draw(st.booleans()),
        {"left": draw(st.integers(0, 4)), "right": draw(st.integers(0, 4))},
        draw(st.integers(0, 4)),
        batches,
        draw(st.sets(st.integers(0, 7), max_size=3)),
        draw(st.booleans()),
        dict(zip(ids, draw(st.lists(st.sampled_from([False, False, True]), min_size=n, max_size=n)), strict=True)),
        dict(zip(ids, draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), strict=True)),
    )


def check(plan: Plan) -> None:
    driver, reference = Driver(plan.joined(), idle_batches=plan.idle_batches), plan.reference()
    for number, batch in enumerate([*plan.batches, None]):
        if number in plan.restarts:
            driver = driver.restarted()
        before = driver.counters.get("unmatched", 0)
        out = driver.close() if batch is None else driver.send(plan.sent(batch))
        wanted: Given = reference.close() if batch is None else reference.send(batch)
        assert ordered(results_of(out)) == ordered(wanted.results)
        late = [r["lid"] if r["side"] == "left" else r["rid"] for r in out.late.to_pylist()]
        assert sorted(late) == sorted(wanted.late)
        assert driver.counters.get("unmatched", 0) - before == wanted.unmatched
    assert driver.progress.open_rows == 0
    assert not driver._store.tables, "nothing is left behind"


@given(plans())
def test_results_are_those_of_nested_loops(plan: Plan) -> None:
    check(plan)


@given(plans())
def test_pieces_of_a_few_rows_and_hashes_that_collide(plan: Plan) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_log, "PIECE", 3)
        patch.setattr(time_log, "_TRIMMED", 2)
        patch.setattr(window_log, "PIECE", 3)
        patch.setattr(sides, "key_hashes", few_hashes)
        check(plan)


def test_a_version_is_valid_from_its_time_on_and_a_deletion_ends_it() -> None:  # C28
    driver = Driver(ROWS.versioned_join(TABLE, "id"))
    moves = [{"id": 7, "city": city, "since": at} for city, at in [("Ulm", 10), ("Rom", 20), (None, 30)]]
    first = driver.send({"right": moves, "left": [{"buy": at, "id": 7, "at": at} for at in (9, 10, 19, 20, 29, 30)]})
    out = [first, driver.send({"left": [{"buy": 99, "id": 7, "at": 99}]}), driver.close()]
    cities = {row["buy"]: row["city"] for step in out for row in step.results.to_pylist()}
    assert cities == {9: None, 10: "Ulm", 19: "Ulm", 20: "Rom", 29: "Rom", 30: None, 99: None}


@pytest.mark.parametrize(("sequence", "wanted"), [("seq", "high"), (None, "last")])
def test_of_two_versions_of_one_time_one_counts(sequence: str | None, wanted: str) -> None:  # C29
    changes = stream_of("id bigint, city string, since bigint, seq bigint").watermark("since", 0)
    driver = Driver(ROWS.versioned_join(changes.from_changelog("upsert", key="id", sequence=sequence), "id"))
    same = [{"id": 7, "city": city, "since": 10, "seq": seq} for city, seq in [("high", 5), ("last", 4)]]
    driver.send({"right": same, "left": [{"buy": 1, "id": 7, "at": 10}]})
    assert driver.close().results["city"].to_pylist() == [wanted]


def test_a_change_that_cannot_be_read_goes_aside() -> None:
    changes = stream_of("op string, id bigint, city string, since bigint, seq bigint").watermark("since", 0)
    joined = ROWS.versioned_join(changes.from_changelog("log", key="id", sequence="seq"), "id")
    driver = Driver(joined.with_late_event_handler(SideOutputLateEventHandler(MemorySink())))
    bad = [{"op": "?", "id": 7, "since": 1, "seq": 1}, {"op": "+I", "id": 7, "since": 1}]
    late = driver.send({"right": bad}).late.to_pylist()
    assert [(row["side"], row["id"], row["reason"]) for row in late] == [("right", 7, "bad_op"), ("right", 7, "bad_sequence")]
    assert driver.counters["refused_changes"] == 2


def test_a_version_that_comes_late_goes_aside_and_is_not_taken() -> None:
    driver = Driver(ROWS.versioned_join(TABLE, "id", table_clock="left"))
    driver.send({"left": [{"buy": 1, "id": 7, "at": 50}]})
    late = driver.send({"right": [{"id": 7, "city": "Ulm", "since": 40}]}).late.to_pylist()
    assert [(row["side"], row["city"], row["reason"]) for row in late] == [("right", "Ulm", "late")]
    assert driver.send({"left": [{"buy": 2, "id": 7, "at": 60}]}).results["city"].to_pylist() == [None]


def test_a_quiet_table_holds_the_watermark_unless_it_goes_by_the_left_side() -> None:
    for clock, cities in (("both", []), ("left", [None])):
        driver = Driver(ROWS.versioned_join(TABLE, "id", table_clock=clock))  # type: ignore[arg-type]
        driver.send({"left": [{"buy": 1, "id": 7, "at": 50}]})
        assert driver.send({"left": [{"buy": 2, "id": 7, "at": 60}]}).results["city"].to_pylist() == cities


def test_results_on_the_left_meet_versions_of_either_clock() -> None:
    for clock in get_args(TableClock):
        deduplicated = ROWS.drop_duplicates("buy", within=1_000)
        driver = Driver(deduplicated.versioned_join(TABLE, "id", table_clock=clock))
        driver.send({"right": [{"id": 7, "city": "Ulm", "since": 10}], "left": [{"buy": 1, "id": 7, "at": 20}] * 2})
        assert driver.close().results["city"].to_pylist() == ["Ulm"]


def test_a_time_to_live_and_a_savepoint(tmp_path: Path) -> None:
    joined = ROWS.versioned_join(TABLE, "id", table_clock="left").with_state_ttl(StateTtlConfig(1_000))
    driver = Driver(joined)
    driver.send({"right": [{"id": 7, "city": "Ulm", "since": 10}, {"id": 8, "city": "Rom", "since": 10}]})
    driver.send({"left": [{"buy": 1, "id": 7, "at": 600}]})
    driver = Driver(joined, savepoint=driver.savepoint(str(tmp_path / "s")))
    driver.send({"left": [{"buy": 2, "id": 7, "at": 1_500}]})
    rows = [*driver.send({"left": [{"buy": 3, "id": 8, "at": 1_500}]}).results.to_pylist(), *driver.close().results.to_pylist()]
    assert {row["buy"]: row["city"] for row in rows} == {2: "Ulm", 3: None}
    assert driver.counters["ttl_dropped"] == 1


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (ROWS, "not a table of changes"),
        (TABLE.filter("id > 1"), "steps follow"),
        (stream_of("id bigint, city string").from_changelog("upsert", key="id"), "no event time"),
    ],
)
def test_other_tables_are_refused(table: Any, problem: str) -> None:
    with pytest.raises((PlanError, OrderError), match=problem):
        ROWS.versioned_join(table, "id")


def test_other_columns_than_the_key_are_refused() -> None:
    with pytest.raises(PlanError, match="by the key of its table"):
        ROWS.with_column("city", "'Ulm'").versioned_join(TABLE, "city")
