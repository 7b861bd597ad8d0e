"""Objects that belong to one process say so when they are pickled; and the package shows what it offers."""

from __future__ import annotations

import copy
import importlib
import operator
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import krishiv_py
from krishiv_py import MemorySink, PlanError, Session, count
from krishiv_py.testing import Driver, stream_of

HINTS = {
    "session": "Session.in_process()",
    "sender": "spool=folder",
    "query": "query.results()",
    "driver": "Driver(...)",
    "stream": "def pipeline(stream)",
    "results": "def pipeline(stream)",
    "method": "Session.in_process()",
    "list": "spool=folder",
}


@pytest.mark.parametrize("way", [pickle.dumps, lambda one: pickle.dumps({"of": one}, protocol=2)])
def test_pickling_says_what_to_send(way: Callable[[Any], object]) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        results = stream.watermark("at", 0).tumbling_window(10).agg(count())
        query = results.start(MemorySink())
        objects: dict[str, Any] = {
            "session": session,
            "sender": sender,
            "query": query,
            "driver": Driver(stream_of("at bigint")),
            "stream": stream,
            "results": results,
            "method": session.memory_stream,
            "list": [1, sender],
        }
        for name, one in objects.items():
            with pytest.raises(PlanError, match="cannot be pickled") as caught:
                way(one)
            assert HINTS[name] in str(caught.value)
        for name in ("session", "sender", "query", "driver", "stream"):
            assert copy.copy(objects[name]) is objects[name] is copy.deepcopy(objects[name])
        assert pickle.loads(pickle.dumps(query.progress)).batch_id == query.progress.batch_id


@pytest.mark.parametrize("module", ["krishiv_py", "krishiv_py.connectors", "krishiv_py.testing", "krishiv_py.sql"])
def test_what_a_module_shows(module: str) -> None:
    offered = importlib.import_module(module)
    modules = {"compat", "connectors", "display", "errors", "functions", "lineage", "logs", "metrics", "otel", "sql", "testing"}
    modules = {*modules, "ui", "windows"} if module == "krishiv_py" else set()
    names = {name for name in dir(offered) if not name.startswith("__")}
    assert set(offered.__all__) <= names <= {*offered.__all__, *modules}
    assert all(hasattr(offered, name) for name in dir(offered))


def test_what_completion_shows() -> None:
    code = "import krishiv_py; print(*dir(krishiv_py))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "Session" in shown and "connectors" in shown
    assert not {"calls", "lazy", "typing", "redaction", "replay_log", "deprecation", "api", "plan", "_group"} & set(shown)


def test_help_begins_with_where_to_look() -> None:
    """pydoc writes every class of ``__all__`` in full, and no package with ``__all__`` can tell it not to: so the first screen
    names steps and how to look up one name, and all that it names is there.
    """
    text = pydoc.plain(pydoc.render_doc(krishiv_py))
    screen = "\n".join(text.splitlines()[:40])
    looked_up = re.findall(r"``help\(krishiv_py\.([\w.]+)\)``", screen)
    assert {name.count(".") for name in looked_up} == {0, 1}
    assert all(operator.attrgetter(name)(krishiv_py) for name in looked_up)
    rows = re.findall(r"^ +``(\w+)`` {2,}(\S.*?)(?: {2,}``(\w+)``)?$", screen, re.M)
    assert [following for _, _, following in rows] == [*(value for value, _, _ in rows[1:]), ""] and len(rows) == 7
    for value, has, _ in rows:
        names = re.findall(r"``(\w+)``", has)
        assert names and all(hasattr(getattr(krishiv_py, value), name) for name in names), value
