"""Tries an installed krishiv_py, without Java: a window on the driver and in process, and every module that can be imported.

Modules for Spark and plots are left out where PySpark and matplotlib are not installed; then `embedded` names its extra.
"""

import importlib
import importlib.util
import pkgutil

import krishiv_py
from krishiv_py import MemorySink, MissingExtraError, Session, count
from krishiv_py.testing import Driver, stream_of

ROWS = [{"user": "a", "at": 1_000}, {"user": "a", "at": 2_000}, {"user": "a", "at": 30_000}]
EXPECTED = [{"user": "a", "window_start": 0, "window_end": 10_000, "count": 2}]
OPTIONAL = {"krishiv_py.spark": "pyspark", "krishiv_py.cli.machines": "pyspark", "krishiv_py.display.plots": "matplotlib"}


def check(actual: object, what: str) -> None:
    """End the program when an answer is wrong."""
    if actual != EXPECTED:
        raise SystemExit(f"wrong answer {what}: {actual}, expected {EXPECTED}")


def modules() -> list[str]:
    """Return the modules whose packages are installed."""
    missing = [room for room, package in OPTIONAL.items() if importlib.util.find_spec(package) is None]
    names, waiting = [], [krishiv_py]
    while waiting:
        package = waiting.pop()
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name.startswith(tuple(missing)) or module.name.endswith("__main__"):
                continue
            names.append(module.name)
            if module.ispkg:
                waiting.append(importlib.import_module(module.name))
    return names


stream = stream_of("user string, at bigint").watermark("at", "1 second").key_by("user")
check(Driver(stream.tumbling_window("10 seconds").agg(count())).send(ROWS).results.to_pylist(), "of the driver")
with Session.in_process() as session:
    rows, sender = session.memory_stream("user string, at bigint")
    query = rows.watermark("at", "1 second").key_by("user").tumbling_window("10 seconds").agg(count()).start(MemorySink())
    sender.send(ROWS)
    query.process_all_available()
    check(query.results().to_pylist(), "in process")
for name in modules():
    importlib.import_module(name)
if importlib.util.find_spec("pyspark") is None:
    try:
        Session.embedded()
    except MissingExtraError as problem:
        if "spark" not in str(problem):
            raise SystemExit(f"no extra is named: {problem}") from problem
    else:
        raise SystemExit("a session on Spark without PySpark")
print("krishiv_py works")
