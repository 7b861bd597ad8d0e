"""The quickstart of docs/kafka.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from krishiv_py import Session
from krishiv_py.testing.broker import Broker

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


@pytest.mark.slow  # sinks and sources over Kafka have tests of their own
def test_it_runs(
    session: Session, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    actual = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in actual] == ["fill", "per_minute", "show"]
    for name, program in actual:
        exec(compile(program.replace("localhost:9092", broker.address), name, "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1001 records, 1 malformed"
    assert 'user-0 {"user":"user-0","window_start":0,"window_end":60000,"count":20,"sum_amount":570}' in said
    (refused,) = pq.read_table("refused").to_pylist()
    assert (refused["malformed_value"], refused["reason"]) == (b"this is not JSON", "malformed")
