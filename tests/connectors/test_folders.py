"""A folder of output that cannot be made is one of our errors, in every engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import JsonSink, MemorySink, ParquetSink, Session, count
from krishiv_py.errors import PlanError
from krishiv_py.runtime.outputs import claim_folder
from krishiv_py.testing import Driver, stream_of


@pytest.mark.parametrize("place", ["file", "file/out", "file/deep/er"])
@pytest.mark.parametrize("kind", [ParquetSink, JsonSink])
def test_a_file_where_a_folder_should_be(tmp_path: Path, place: str, kind: type[ParquetSink] | type[JsonSink]) -> None:
    (tmp_path / "file").touch()
    sink = kind(str(tmp_path / place))
    plan = stream_of("k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(10).agg(count())
    driver = Driver(plan, sink=sink)
    with pytest.raises(PlanError, match=r"(?s)folder .*file.* cannot be written.*Hint"):
        driver.send([{"k": "a", "at": 1}])
    with pytest.raises(PlanError, match=r"(?s)folder .*file.* cannot be written.*Hint"):
        claim_folder(sink, "results", "aaaaaaaa", str(tmp_path / "checkpoint"))


CALLS: dict[str, Callable[[Session, str], Any]] = {
    "bounded": lambda s, path: s.read_parquet(path, "at bigint"),
    "streaming": lambda s, path: s.read_json(path, "at bigint", streaming=True),
    "csv": lambda s, path: s.read_csv(path, "at bigint"),
    "parquet sink": lambda s, path: ParquetSink(path),
    "json sink": lambda s, path: JsonSink(path),
    "checkpoint": lambda s, path: s.memory_stream("at bigint")[0].start(MemorySink(), checkpoint=path),
    "state": lambda s, path: s.read_state(
        path, s.memory_stream("at bigint")[0].watermark("at", 0).tumbling_window(10).agg(count())
    ),
    "archive": lambda s, path: s.read_parquet(".", "at bigint", streaming=True, after_read="archive", archive=path),
}


@pytest.mark.parametrize(
    ("path", "hint"),
    [("dbfs:/a/b", "write /dbfs/a/b"), ("s3a:/bucket/b", "write s3a://bucket/b"), ("hdfs:/b", "write hdfs://host/b")],
    ids=["dbfs", "s3a", "hdfs"],
)
@pytest.mark.parametrize("call", CALLS)
def test_a_scheme_with_one_slash_is_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, path: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session.in_process() as session, pytest.raises(PlanError, match=f"one slash after its scheme.*{hint}"):
        CALLS[call](session, path)
    assert os.listdir(tmp_path) == []


def test_a_folder_whose_name_reads_like_a_scheme_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("./dbfs:/a")
    with Session.in_process() as session:
        session.read_parquet("./dbfs:/a", "at bigint")
        session.read_parquet(f"file:{tmp_path}/dbfs:/a", "at bigint")
