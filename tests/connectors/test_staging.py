"""Files of a sink on this machine's disk: a driver that was thought dead, and publishes late, takes nothing away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from krishiv_py import ParquetSink
from krishiv_py.connectors.publish import STAGING, Publisher, write_staged
from krishiv_py.errors import OperatorError
from krishiv_py.storage.local import Disk


def written(folder: Path, batch: int, *numbers: int) -> list[str]:
    """Files of a batch, one for each number, not published."""
    sink = ParquetSink(str(folder))
    return [name for n in numbers for name in write_staged(sink, sink.path, "cafe", batch, n, pa.table({"n": [n]}))]


def values(folder: Path) -> list[int]:
    """What any reader of the folder finds."""
    return sorted(ds.dataset(folder).to_table()["n"].to_pylist())


def test_who_was_thought_dead_removes_nothing_and_publishes_nothing(tmp_path: Path) -> None:
    old = written(tmp_path, 0, 1, 2)
    Publisher(str(tmp_path), "cafe").publish(0, written(tmp_path, 0, 1, 2))
    late = Publisher(str(tmp_path), "cafe")
    with pytest.raises(
        OperatorError, match=r"a file cannot be published: it is gone \(got: 2 of 2 in .*000000000000\): the batch"
    ):
        late.publish(0, old)
    assert values(tmp_path) == [1, 2]


def test_who_was_thought_dead_in_the_middle_of_its_run_publishes_nothing(tmp_path: Path) -> None:
    dead = Publisher(str(tmp_path), "cafe")
    dead.publish(0, written(tmp_path, 0, 1))
    old = written(tmp_path, 1, 2, 3)
    Publisher(str(tmp_path), "cafe").publish(1, written(tmp_path, 1, 2, 3))
    with pytest.raises(OperatorError, match="a file cannot be published: it is gone"):
        dead.publish(1, old)
    assert values(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("at", ["write", "publish"])
def test_a_full_disk_says_that_the_batch_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    folder = tmp_path / "out"

    def full(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    wanted = r"files of a batch cannot be written.*out: .*No space left on device.*room.*start the query again"
    with monkeypatch.context() as patched, pytest.raises(OperatorError, match=wanted):
        where, name = (pq, "write_table") if at == "write" else (Disk, "rename")
        patched.setattr(where, name, full)
        Publisher(str(folder), "cafe").publish(0, written(folder, 0, 1))
    Publisher(str(folder), "cafe").publish(0, written(folder, 0, 1))
    assert values(folder) == [1]


def test_what_waits_of_earlier_attempts_goes_first(tmp_path: Path) -> None:
    """Of this batch, and of others of the same checkpoint; not what another query has staged."""
    Publisher(str(tmp_path), "cafe").publish(0, written(tmp_path, 0, 1))
    written(tmp_path, 0, 98)
    written(tmp_path, 1, 99)
    sink = ParquetSink(str(tmp_path))
    write_staged(sink, sink.path, "beef", 0, 0, pa.table({"n": [7]}))
    Publisher(str(tmp_path), "cafe").publish(0, written(tmp_path, 0, 1))
    assert values(tmp_path) == [1]
    assert [actual.name for actual in (tmp_path / STAGING).iterdir()] == ["beef-000000000000"]


def test_who_is_overtaken_while_it_publishes_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its two files has its final name when another driver goes on: that one takes it away, and the other one, too."""
    old, real = written(tmp_path, 0, 1, 2), Disk.rename

    def overtaken(store: Disk, moves: Sequence[tuple[str, str]]) -> None:
        real(store, moves[:1])
        monkeypatch.undo()
        Publisher(str(tmp_path), "cafe").publish(0, written(tmp_path, 0, 1, 2))
        real(store, moves[1:])

    monkeypatch.setattr(Disk, "rename", overtaken)
    with pytest.raises(OperatorError, match="a file cannot be published: it is gone"):
        Publisher(str(tmp_path), "cafe").publish(0, old)
    assert values(tmp_path) == [1, 2]
