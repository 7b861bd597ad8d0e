"""A folder of output that cannot be made is one of our errors, in every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_py import JsonSink, ParquetSink, count
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
