"""Compares what belongs to a process before the library is imported and after sessions in it; prints what has changed.

``python -m tests.host FOLDER``; the test is in ``test_process.py``.
"""

import atexit
import decimal
import faulthandler
import gc
import importlib
import json
import locale
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Facts = dict[str, Any]


def module(name: str) -> ModuleType | None:
    """Return a module of an extra, or None where it is not installed."""
    with suppress(ImportError):
        return importlib.import_module(name)
    return None


def host() -> Facts:
    """Return what a process has for all of its code."""
    mask = os.umask(0o077)
    os.umask(mask)
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    pandas, matplotlib = module("pandas"), module("matplotlib")
    return {
        "signals": {one.name: signal.getsignal(one) for one in signal.Signals},
        "wake-up": signal.set_wakeup_fd(-1),
        "pool": pa.default_memory_pool().backend_name,
        "threads of Arrow": (pa.cpu_count(), pa.io_thread_count()),
        "environment": dict(os.environ),
        "import": (sys.path, sys.meta_path, sys.path_hooks),
        "warnings": (warnings.filters, warnings.showwarning),
        "locale": locale.setlocale(locale.LC_ALL),
        "numbers": (decimal.getcontext(), np.geterr(), np.get_printoptions()),
        "loggers": {
            name: (one.level, one.propagate, one.handlers)
            for name, one in loggers.items()
            if isinstance(one, logging.Logger) and (one.level, one.propagate, one.handlers) != (logging.NOTSET, True, [])
        },
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook),
        "tracing": (sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.stdin, sys.stdout, sys.stderr),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "folders": (os.getcwd(), tempfile.gettempdir(), mask),
        "sockets": socket.getdefaulttimeout(),
        "matplotlib": matplotlib and (dict(matplotlib.rcParams), matplotlib.get_backend()),
        "pandas": pandas and pandas._config.config._global_config,
        "threads": sorted(one.name for one in threading.enumerate()),
    }


def one_session(folder: str) -> None:
    """Run queries of several kinds, look at them in all ways, and stop the session."""
    from krishiv_py import KrishivError, MemorySink, ParquetSink, Session, count, metrics, udf

    @udf("bigint")
    def doubled(n: pa.Array) -> pa.Array:
        return pc.multiply(n, 2)

    with Session.in_process(workers=2) as session:
        stream, sender = session.memory_stream("user string, at bigint", linger="1 ms")
        plan = stream.watermark("at", 5).key_by("user").tumbling_window(10).agg(count())
        query = plan.start(ParquetSink(f"{folder}/out"), checkpoint=f"{folder}/check")
        with metrics.serve(0, [query]):
            for n in range(3):
                sender.send([{"user": "a", "at": 10 * n}, {"user": "b", "at": 10 * n}])
            query.process_all_available()
        assert pq.read_table(f"{folder}/out").num_rows == 2
        assert plan.collect().num_rows == 6
        files = session.read_parquet(f"{folder}/out", streaming=True)
        other = files.with_column("n", doubled("count")).start(MemorySink())
        other.process_all_available()
        if module("matplotlib"):
            from krishiv_py.display import plots

            late = pa.table({"reason": ["late"], "watermark": [0], "lateness": [1_000]})
            plots.lateness(late).savefig(f"{folder}/late.png")
        with suppress(KrishivError):
            session.sql("SELECT nonsense FROM nowhere")
        objects: tuple[Any, ...] = (session, plan, query, other)
        for shown in objects:
            repr(shown), str(shown), shown._repr_html_()
        plan.explain()


def main() -> None:
    """Print the differences."""
    module("matplotlib.pyplot")  # what its import sets is its own
    before = json.loads(json.dumps(host(), default=repr))
    one_session(f"{sys.argv[1]}/first")
    at_exit = atexit._ncallbacks()
    one_session(f"{sys.argv[1]}/second")
    assert atexit._ncallbacks() == at_exit, "each session adds to what is done at exit"
    after = json.loads(json.dumps(host(), default=repr))
    print(json.dumps({name: [before[name], after[name]] for name in before if before[name] != after[name]}))


if __name__ == "__main__":
    main()
