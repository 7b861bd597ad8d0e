"""The quickstart of docs/kafka.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from krishiv_py.testing.broker import Broker

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


@pytest.mark.slow  # sinks and sources over Kafka have tests of their own
def test_it_runs(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    programs = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert list(programs) == ["fill", "per_minute", "more", "show"]
    for name in ("fill", "per_minute", "more", "per_minute", "show"):
        exec(compile(programs[name].replace("localhost:9092", broker.address), name, "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["1001 records, 1 malformed", "1061 records, 1 malformed"]
    assert len(said) == len(set(said)) == 2 + 51
    assert 'user-0 {"user":"user-0","window_start":0,"window_end":60000,"count":20,"sum_amount":570}' in said
    assert 'user-0 {"user":"user-0","window_start":960000,"window_end":1020000,"count":20,"sum_amount":19770}' in said
    (refused,) = pq.read_table("refused").to_pylist()
    assert (refused["malformed_value"], refused["reason"]) == (b"this is not JSON", "malformed")
