"""Illegal order and wrong arguments are type errors; the legal chain is none. One run of mypy judges all snippets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import krishiv_py

ROOT = Path(krishiv_py.__file__).parent.parent
HEAD = """\
from krishiv_py import WatermarkSpec, col, count, max, min, sum, udaf
from krishiv_py.api.stages.stream import Stream
from krishiv_py.testing import Driver, stream_of
stream: Stream = stream_of("user string, at bigint")
"""
LEGAL = [
    'stream.watermark("at", 0).tumbling_window(1).agg(count()).collect()',
    'stream.key_by("user").watermark("at", "5 s").hopping_window("10 s", "5 s").agg([count(), sum("at")]).explain()',
    'stream.filter("at > 3").watermark("at", 0).key_by("user").allowed_lateness(5).tumbling_window(1).late_rule("window")',
    'Driver(stream.with_watermark(WatermarkSpec.fixed_lag_ms(5), "at").tumbling_window(1).agg(count())).send([])',
]
ILLEGAL = {
    "a window needs a watermark": "stream.tumbling_window(1)",
    "a window needs a watermark, keyed": 'stream.key_by("user").tumbling_window(1)',
    "aggregates need a window": 'stream.watermark("at", 0).key_by("user").agg(count())',
    "aggregates need a watermark": "stream.agg(count())",
    "collect needs aggregates": 'stream.watermark("at", 0).tumbling_window(1).collect()',
    "start needs aggregates": 'stream.watermark("at", 0).tumbling_window(1).start(None)',
    "the driver needs aggregates": 'Driver(stream.watermark("at", 0).tumbling_window(1))',
    "steps on rows come before time": 'stream.watermark("at", 0).filter("at > 3")',
    "a window is chosen once": 'stream.watermark("at", 0).tumbling_window(1).tumbling_window(1)',
    "a watermark is set once": 'stream.watermark("at", 0).watermark("at", 0)',
    "no float sizes": 'stream.watermark("at", 0).tumbling_window(1.5)',
    "no float lag": 'stream.watermark("at", 1.5)',
    "no unknown late rule": 'stream.watermark("at", 0).late_rule("sideways")',
    "no unknown emission": 'stream.watermark("at", 0).emit("sometimes")',
    "aggregates are calls": 'stream.watermark("at", 0).tumbling_window(1).agg(count)',
    "keys are names": 'stream.watermark("at", 0).key_by(col("user"))',
    "a handler handles": 'stream.watermark("at", 0).with_late_event_handler(print)',
    "an expression has no truth value that a type checker would let through as a filter": "stream.filter(True)",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Line number → what mypy says."""
    snippet = tmp_path_factory.mktemp("typing") / "snippet.py"
    snippet.write_text(HEAD + "\n".join([*LEGAL, *ILLEGAL.values()]) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(snippet)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(n): said for n, said in re.findall(r"snippet\.py:(\d+): error: (.*)", done.stdout)}


@pytest.mark.parametrize("at", range(len(LEGAL)))
def test_legal_chains_are_clean(at: int, refused: dict[int, str]) -> None:
    assert refused.get(HEAD.count("\n") + 1 + at) is None


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_chains_are_refused(name: str, refused: dict[int, str]) -> None:
    at = HEAD.count("\n") + 1 + len(LEGAL) + list(ILLEGAL).index(name)
    assert re.search(r"\[(attr-defined|arg-type|call-overload)\]", refused.get(at, "nothing was refused"))
