"""Files replayed by the driver without a JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.testing import Driver, replay, stream_of

SCHEMA = "key string, at bigint"


def written(folder: Path) -> list[Path]:
    """Three files: one runs ahead, one has a late row and a column nobody asked for, one has no rows."""
    tables = [
        pa.table({"key": ["a", "a"], "at": [10, 100]}),
        pa.table({"other": [1, 2], "at": [20, 101], "key": ["a", None]}),
        pa.table({"key": pa.array([], pa.string()), "at": pa.array([], pa.int64())}),
    ]
    files = [folder / f"{n}.parquet" for n in range(len(tables))]
    for file, table in zip(files, tables, strict=True):
        pq.write_table(table, file)
    return files


def test_each_file_is_a_micro_batch_right_behind_the_one_before(tmp_path: Path) -> None:
    files = written(tmp_path)
    plan = stream_of(SCHEMA).watermark("at", 0).key_by("key").tumbling_window(50).agg(kv.count())
    out = replay(plan, files)
    driver = Driver(plan, idle_batches=False)
    sent = [driver.send(pq.read_table(f).select(["key", "at"])) for f in files] + [driver.close()]
    assert out.results.to_pylist() == [r for s in sent for r in s.results.to_pylist()]
    assert out.late["at"].to_pylist() == [20]
    assert out.watermark_us == driver.watermark_us
    still = replay(plan, files, close=False)
    assert still.results["count"].to_pylist() == [1], "what is open stays so"
    assert replay(plan, []).results.num_rows == 0
    assert replay(plan, [], close=False).watermark_us == Driver(plan).watermark_us


def test_what_cannot_be_replayed_is_reported(tmp_path: Path) -> None:
    plan = stream_of(SCHEMA).watermark("at", 0).tumbling_window(50).agg(kv.count())
    (tmp_path / "broken").write_bytes(b"PAR1 no")
    for wrong in ([tmp_path / "none"], [tmp_path / "broken"], [tmp_path], [5]):
        with pytest.raises(SourceError, match="cannot be replayed"):
            replay(plan, wrong)  # type: ignore[arg-type]
    for order in (tmp_path, str(tmp_path), 5):
        with pytest.raises(PlanError, match="order in which they came"):
            replay(plan, order)  # type: ignore[arg-type]
