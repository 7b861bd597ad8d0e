"""A checkpoint goes on with another number of tasks, and gives what it would have given (docs/state.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import CheckpointError, JsonSink, MemorySink, PlanError, Session, count
from krishiv_py import sum as total
from krishiv_py.spark.setup.config import BUCKETS, bucket_ids, murmur3_int
from krishiv_py.spark.state import Rescaling, check_rescaled
from krishiv_py.storage.checksums import sealed

pytestmark = pytest.mark.two_tasks

SCHEMA = "user bigint, at timestamp, amount bigint"
MINUTE = 60_000_000


@pytest.fixture
def buckets(session: Session) -> Iterator[Session]:
    """Sixteen buckets for new checkpoints."""
    before = session.spark.conf.get(BUCKETS)
    session.spark.conf.set(BUCKETS, "16")
    yield session
    session.spark.conf.set(BUCKETS, before)


def slow(plan: Any, tasks: list[int]) -> Any:
    """For `nox -s slow`."""
    return pytest.param(plan, tasks, marks=pytest.mark.slow)


def write(folder: Path, number: int) -> None:
    """One file: a minute and a half of events of forty users, each file a minute after the one before."""
    folder.mkdir(exist_ok=True)
    users = [(number * 7 + i * 13) % 40 for i in range(300)]
    times = [number * MINUTE + (i * 291_173) % (MINUTE * 3 // 2) for i in range(300)]
    rows = {"user": users, "at": pa.array(times, pa.timestamp("us", "UTC")), "amount": list(range(300))}
    pq.write_table(pa.table(rows), folder / f"{number:03d}.parquet")


def one(session: Session, folder: Path) -> Any:
    """One stage: Spark's clock."""
    read = session.read_parquet(str(folder), schema=SCHEMA, streaming=True, max_files_per_batch=1)
    return read.watermark("at", "20 s").key_by("user").tumbling_window("1 min").agg(count().alias("n"), total("amount"))


def chain(session: Session, folder: Path) -> Any:
    """Two stages with an idle time-out: the ledger."""
    read = session.read_parquet(str(folder), schema=SCHEMA, streaming=True, max_files_per_batch=1)
    timed = read.watermark("at", "20 s", idle_advance="1 h")
    counts = timed.key_by("user").tumbling_window("1 min").agg(count().alias("n"))
    return counts.key_by("n").tumbling_window("2 min").agg(count().alias("users"), total("user"))


def joined(session: Session, folder: Path) -> Any:
    """Two sources: the ledger."""
    sides = [
        session.read_parquet(str(folder), schema=SCHEMA, streaming=True, max_files_per_batch=n).watermark("at", "20 s")
        for n in (1, 2)
    ]
    return sides[0].interval_join(sides[1], on="user", lower="-1 s", upper="1 s", suffixes=("", "_right"))


def run(plan: Any, out: Path, checkpoint: Path) -> Any:
    """Go on over what is there; the query, ended."""
    query = plan.start(JsonSink(str(out)), checkpoint=str(checkpoint))
    query.process_all_available()
    query.stop()
    return query


def rows(out: Path) -> list[str]:
    """What a sink holds, in some order."""
    return sorted(line for file in out.glob("*.json") for line in file.read_text().splitlines())


def state(session: Session, folder: Path, checkpoint: Path) -> list[str]:
    """The windows in the state of a query of one stage, in some order."""
    actual = session.read_state(str(checkpoint), one(session, folder)).drop_columns(["last_update"])
    return sorted(map(str, actual.to_pylist()))


def test_buckets_lie_evenly_in_any_number_of_partitions_that_divides_them() -> None:
    ids = bucket_ids(64)
    for tasks in (1, 2, 4, 8, 16, 32, 64):
        held = [murmur3_int(b) % tasks for b in ids]
        assert {held.count(t) for t in range(tasks)} == {64 // tasks}


@pytest.mark.parametrize(("plan", "tasks"), [slow(one, [8]), slow(chain, [8]), slow(chain, [8, 1]), slow(joined, [4])])
def test_a_query_goes_on_with_more_tasks_and_with_fewer(buckets: Session, tmp_path: Path, plan: Any, tasks: list[int]) -> None:
    wanted, actual, folder = tmp_path / "wanted", tmp_path / "found", tmp_path / "in"
    for i, number in enumerate([None, *tasks]):
        if number is not None:
            buckets.rescale(str(tmp_path / "cp-found"), number)
            assert len(list((tmp_path / "cp-found/state/0").glob("[0-9]"))) == max(tasks)
        for file in range(2 * i, 2 * i + 2):
            write(folder, file)
        run(plan(buckets, folder), actual, tmp_path / "cp-found")
    run(plan(buckets, folder), wanted, tmp_path / "cp-wanted")
    assert rows(actual) == rows(wanted) != []
    if plan is one:
        assert state(buckets, folder, tmp_path / "cp-found") == state(buckets, folder, tmp_path / "cp-wanted") != []


class Dying:
    """Spark's manager, which is killed on its way."""

    def __init__(self, spark: Any, died: str) -> None:
        self.manager = spark._streamingCheckpointManager
        self.died = died

    def repartition(self, checkpoint: str, tasks: int) -> None:
        """Spread the state, and die."""
        self.manager.repartition(checkpoint, tasks)
        if self.died == "before Spark was done":
            last = max(int(f.name) for f in Path(checkpoint, "commits").iterdir() if f.name.isdigit())
            for name in (f"{last}", f".{last}.crc"):
                Path(checkpoint, "commits", name).unlink(missing_ok=True)
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_rescaling_that_was_broken_off(buckets: Session, tmp_path: Path) -> None:
    folder, checkpoints = tmp_path / "in", {"before Spark was done": tmp_path / "cp1", "before the ledger": tmp_path / "cp2"}
    for number in range(2):
        write(folder, number)
    for i, (died, cp) in enumerate(checkpoints.items()):
        run(chain(buckets, folder), tmp_path / f"found-{i}", cp)
        with pytest.raises(KeyboardInterrupt):
            Rescaling(str(cp), 4, durable=False).run(Dying(buckets.spark, died))
        assert (cp / "krishiv/rescaling.json").exists()
    half = checkpoints["before Spark was done"]
    with pytest.raises(CheckpointError, match=r"half spread over 4 tasks.*rescale"):
        run(chain(buckets, folder), tmp_path / "found-0", half)
    with pytest.raises(CheckpointError, match="half spread over 4 tasks"):
        buckets.rescale(str(half), 8)
    buckets.rescale(str(half), 4)
    for number in range(2, 4):
        write(folder, number)
    run(chain(buckets, folder), tmp_path / "wanted", tmp_path / "cp-wanted")
    for i, cp in enumerate(checkpoints.values()):
        run(chain(buckets, folder), tmp_path / f"found-{i}", cp)
        assert not (cp / "krishiv/rescaling.json").exists()
        assert rows(tmp_path / f"found-{i}") == rows(tmp_path / "wanted") != []


def test_what_was_only_announced_is_forgotten(tmp_path: Path) -> None:
    note = tmp_path / "krishiv/rescaling.json"
    note.parent.mkdir()
    note.write_bytes(sealed(json.dumps({"batch": 3, "tasks": 4}).encode()))
    check_rescaled(str(tmp_path), durable=False)
    assert not note.exists()


@pytest.mark.slow
def test_odd_names_of_folders(buckets: Session, tmp_path: Path) -> None:
    checkpoint = tmp_path / "a b%20[c]ü"
    write(tmp_path / "in", 0)
    run(one(buckets, tmp_path / "in"), tmp_path / "out", checkpoint)
    before = state(buckets, tmp_path / "in", checkpoint)
    buckets.rescale(str(checkpoint), 4)
    assert state(buckets, tmp_path / "in", checkpoint) == before != []
    write(tmp_path / "in", 1)
    run(one(buckets, tmp_path / "in"), tmp_path / "out", checkpoint)


def test_what_cannot_be_rescaled_says_why(buckets: Session, tmp_path: Path) -> None:
    write(tmp_path / "in", 0)
    cp = str(tmp_path / "cp")
    with pytest.raises(CheckpointError, match="no query has kept its state here"):
        buckets.rescale(cp, 4)
    assert not Path(cp).exists()
    query = one(buckets, tmp_path / "in").start(MemorySink(), checkpoint=cp)
    query.process_all_available()
    with pytest.raises(CheckpointError, match="is in use"):
        buckets.rescale(cp, 4)
    query.stop()
    with pytest.raises(PlanError, match="has 16 buckets"):
        buckets.rescale(cp, 17)
    for wrong in (0, -1, True, "4", 2.0, None):
        with pytest.raises(PlanError, match="`tasks` is out of range"):
            buckets.rescale(cp, wrong)  # type: ignore[arg-type]
    offsets = sorted(f.name for f in (tmp_path / "cp/offsets").iterdir())
    buckets.rescale(cp, int(buckets.spark.conf.get("spark.sql.shuffle.partitions")))
    assert sorted(f.name for f in (tmp_path / "cp/offsets").iterdir()) == offsets
    last = max((f for f in (tmp_path / "cp/commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
    last.unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        buckets.rescale(cp, 4)
    passed = buckets.read_parquet(str(tmp_path / "in"), schema=SCHEMA, streaming=True).filter("amount > 5")
    run(passed, tmp_path / "out", tmp_path / "cp2")
    with pytest.raises(PlanError, match="keeps no state"):
        buckets.rescale(str(tmp_path / "cp2"), 4)


@pytest.mark.parametrize("wrong", ["0", "-2", "many", "5000", "1.5"])
def test_a_wrong_number_of_buckets_is_refused(buckets: Session, tmp_path: Path, wrong: str) -> None:
    write(tmp_path / "in", 0)
    buckets.spark.conf.set(BUCKETS, wrong)
    with pytest.raises(PlanError, match="is not a number of buckets"):
        one(buckets, tmp_path / "in").start(MemorySink())
