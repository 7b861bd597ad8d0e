"""Columns of more text than one array can hold: rows are picked, grouped and aggregated in parts, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from krishiv_py import col, collect_list, count, last
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.arrays import grouping, types
from krishiv_py.arrays.grouping import by_groups, by_size, codes_of, hash_values, joined
from krishiv_py.arrays.types import in_parts, pick
from krishiv_py.engine import stage
from krishiv_py.errors import OperatorError
from krishiv_py.testing import Driver, stream_of
from tests.goldens.cases import OWN_CASES, QUIET_CASES, WORKED_CASES, Case, load
from tests.goldens.compare import differences
from tests.goldens.engines import engine_named, unsupported_by

CASES = [*load(OWN_CASES), *load(WORKED_CASES), *load(QUIET_CASES)]
TEXTS = st.lists(st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=6), min_size=1, max_size=4)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever has more than a few bytes is worked on in parts."""
    monkeypatch.setattr(grouping, "WHOLE_BYTES", 24)
    monkeypatch.setattr(types, "PART_BYTES", 24)
    monkeypatch.setattr(stage, "_CHUNK_BYTES", 24)
    yield


@given(TEXTS, st.data())
def test_values_in_parts_are_those_that_arrow_takes(texts: list[list[str | None]], data: st.DataObject) -> None:
    column = pa.chunked_array([pa.array(part, pa.string()) for part in texts], pa.string())
    place = st.none() if not len(column) else st.one_of(st.none(), st.integers(0, len(column) - 1))
    moment = pa.array(data.draw(st.lists(place, max_size=12)), data.draw(st.sampled_from([pa.int64(), pa.uint64()])))
    values = column.to_pylist()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(types, "PART_BYTES", data.draw(st.integers(1, 64)))
        actual = in_parts(column, moment)
    assert actual.type == pa.string()
    assert actual.to_pylist() == [None if n is None else values[n] for n in moment.to_pylist()]


def test_a_table_whose_texts_arrow_cannot_join_is_picked_from() -> None:
    part = pa.table({"n": np.arange(1_000), "text": pa.array(["x" * 1_000_000]).take(pa.array(np.zeros(1_000, np.int64)))})
    table = pa.concat_tables([part, part, part])  # 3 GB of text, in the memory of one
    with pytest.raises(pa.ArrowInvalid):
        table.take(pa.array([0, 2_999]))
    actual = pick(table, np.array([2_999, 0, 1_500]))
    assert actual["n"].to_pylist() == [999, 0, 500]
    assert [len(text) for text in actual["text"].to_pylist()] == [1_000_000] * 3


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 200))
def test_parts_are_whole_groups_in_their_order(drawn: list[int], part_bytes: int) -> None:
    groups = np.unique(np.array(drawn), return_inverse=True)[1].astype(np.int64)
    n = int(groups.max()) + 1
    rows = pa.table({"group": groups, "at": np.arange(len(groups))})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(types, "PART_BYTES", part_bytes)
        parts = list(by_groups(rows, groups, n))
    assert sum(many for _, _, many in parts) == n
    base, seen = 0, []
    for part, ids, many in parts:
        assert (part["group"].to_numpy() == ids + base).all() and ids.max() < many
        for group in range(many):
            ats = part["at"].to_numpy()[ids == group].tolist()
            assert ats == np.flatnonzero(groups == group + base).tolist()
            seen += ats
        base += many
    assert sorted(seen) == list(range(len(groups)))


def test_columns_made_in_parts_are_put_together() -> None:
    actual = joined([[pa.array([1]), pa.chunked_array([["a"]])], [pa.array([2]), pa.array(["b"])]])
    assert [column.to_pylist() for column in actual] == [[1, 2], ["a", "b"]]


@given(TEXTS)
def test_texts_in_parts_have_the_groups_and_hashes_of_one_array(texts: list[list[str | None]]) -> None:
    column = pa.chunked_array([pa.array(part, pa.string()) for part in texts], pa.string())
    assume(len(column))
    whole = column.combine_chunks()
    assert (hash_values(column) == hash_values(whole)).all()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grouping, "WHOLE_BYTES", -1)
        codes, bound, _ = codes_of(column)
    same, *_ = codes_of(whole)
    assert len(codes) == len(same) and (not len(codes) or codes.max() < bound)
    assert ((codes[:, None] == codes[None, :]) == (same[:, None] == same[None, :])).all()


def test_a_long_text_has_the_hash_it_has_alone() -> None:
    texts = ["a" * 3_000_000, "b", "c" * 5_000_000, "", None, "d" * 100]
    alone = [int(hash_values(pa.array([text], pa.string()))[0]) for text in texts]
    assert hash_values(pa.array(texts)).tolist() == alone


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_goldens_hold_in_parts(case: Case, small_parts: None) -> None:
    engine = engine_named("driver")
    if unsupported_by(engine) & set(case.tags):
        pytest.skip("a feature the semantics do not define")
    assert differences(case, engine.run(case)) == []


SCHEMA = pa.schema([("user", pa.int64()), ("at", pa.timestamp("us")), ("text", pa.string())])


@pytest.mark.slow
@pytest.mark.parametrize("window", ["tumbling", "session", "look-back", "text keys", "no window", "duplicates"])
def test_a_batch_of_more_than_two_gibibytes_of_text(window: str) -> None:
    rows, each = 30_000, 75_000  # 2.25 GB, more than one array holds
    texts = pa.array(["x" * each]).take(pa.array(np.zeros(rows // 3, np.int64)))
    i = pa.array(1_700_000_000_000_000 + np.arange(rows)).cast(pa.timestamp("us"))
    batch = pa.table({"user": np.arange(rows), "at": i, "text": pa.chunked_array([texts] * 3)}, schema=SCHEMA)
    stream = stream_of(SCHEMA)
    timed = stream.watermark("at", "5 seconds")
    keyed = timed.key_by("user")
    plans: dict[str, ResultStream | Stream | TimedStream] = {
        "tumbling": keyed.tumbling_window("1 hour").agg(last("text")),
        "session": keyed.session_window("100 seconds").agg(last("text")),
        "look-back": keyed.lookback_window("1 second").agg(last("text"), count()),
        "text keys": timed.key_by("text").tumbling_window("1 hour").agg(count()),
        "no window": stream.filter(col("user") >= 0),
        "duplicates": timed.drop_duplicates("user", within="100 seconds"),
    }
    driver = Driver(plans[window])
    results = [driver.send(batch).results, driver.close().results]
    assert sum(table.num_rows for table in results) == (1 if window == "text keys" else rows)
    if window == "tumbling":
        assert {len(text) for table in results for chunk in table["last_text"].chunks for text in chunk.to_pylist()} == {each}


@given(st.lists(st.text(max_size=5), max_size=20), st.integers(1, 200))
def test_slices_are_all_rows_in_their_order(texts: list[str], part_bytes: int) -> None:
    rows = pa.table({"text": pa.array(texts, pa.string())})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(types, "PART_BYTES", part_bytes)
        parts = list(by_size(rows))
    assert [text for part in parts for text in part["text"].to_pylist()] == texts


@pytest.mark.slow
def test_a_list_of_three_gigabytes_is_an_error_that_names_it() -> None:
    texts = pa.array(["x" * 100_000]).take(pa.array(np.zeros(10_000, np.int64)))
    i = pa.array(1_700_000_000_000_000 + np.arange(30_000)).cast(pa.timestamp("us"))
    batch = pa.table({"user": np.arange(30_000), "at": i, "text": pa.chunked_array([texts] * 3)}, schema=SCHEMA)
    driver = Driver(stream_of(SCHEMA).watermark("at", 0).tumbling_window("1 hour").agg(collect_list("text")))
    with pytest.raises(OperatorError, match="'collect_list_text' of one window is too long"):
        driver.send(batch)
        driver.close()
