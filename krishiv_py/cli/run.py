"""``krishiv run jobs.py:orders``: runs a job until its query ends, for a terminal, a service manager or a scheduler.

A job is a function that takes a session and returns its outputs: ``stream.to(sink)``, or a list of these. The command makes the
session, starts one query with the outputs, and stops it at Ctrl-C and SIGTERM when the batch in hand is finished.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import functools
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from krishiv_py import metrics
from krishiv_py.api.query import Query
from krishiv_py.api.stages.running import Output
from krishiv_py.display.progress import drawn, of_query, shown
from krishiv_py.ending import EXIT_CODE, heed
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.errors import shown as shown_value
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import ENGINES, PROFILES, a_function
from krishiv_py.plan.options.query import Batches
from krishiv_py.session import Session

if TYPE_CHECKING:
    from krishiv_py.spark.setup import workers as interpreter
else:  # a job in process needs no Spark
    interpreter = lazy("krishiv_py.spark.setup.workers")

DONE: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130
_SLICE: Final = dt.timedelta(seconds=0.2)
_LINE_S: Final = 10.0
_CONTRACT: Final = "let it take a session and return stream.to(sink), or a list of these"
CODES: Final = (
    "Exit codes: 0 the query has ended; 1 it failed, and may go on from its checkpoint; 2 it could not be started, and a "
    "repetition will not help; 130 after Ctrl-C and 143 after SIGTERM, when the batch in hand is finished."
)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = CODES
    parser.add_argument("job", help="a function of a file or module: jobs.py:orders, package.jobs:orders")
    parser.add_argument("--engine", choices=ENGINES, default="in-process", help="what runs it (default in-process)")
    parser.add_argument("--checkpoint", help="folder from which the query goes on when it is started again")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--until-idle", action="store_true", help="end when all that is there is read, for a scheduler")
    when.add_argument("--every", metavar="INTERVAL", help='begin a batch at each interval, "1 min"')
    parser.add_argument("--keep-batches", type=int, metavar="N", help="keep what `krishiv capture --last N` needs")
    parser.add_argument("--name", help="name of the query in logs and metrics (default: that of the function)")
    parser.add_argument("--profile", default="dev-local", choices=PROFILES, help="durability profile")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that share the keys, with --engine in-process")
    parser.add_argument("--master", help="Spark master, with --engine spark")
    parser.add_argument("--config", action="append", default=[], type=a_setting, metavar="KEY=VALUE", help="a setting")
    parser.add_argument(
        "--metrics-port", type=a_port, metavar="PORT", help="serve /metrics, /healthz and /readyz there; 0 takes a free port"
    )
    parser.add_argument("--ui", type=a_port, metavar="PORT", help="serve a page there that shows what runs; 0: a free port")
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help="address of it; 0.0.0.0 in a container")


def a_setting(text: str) -> tuple[str, str]:
    """Return the halves of ``key=value``."""
    key, _, value = text.partition("=")
    if not key or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a key=value")
    return key, value


_PORTS: Final = 65_536


def a_port(text: str) -> int:
    """Return a port of TCP; 0 for a free one."""
    if not text.isdecimal() or int(text) >= _PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 1 to {_PORTS - 1}, or 0 for a free one")
    return int(text)


def run(given: argparse.Namespace) -> int:
    """Run a job to its end; returns the exit code."""
    heed()  # a job may take long to load, and as process 1 of a container only a handler ends it
    try:
        module, function = load(given.job)
        name = given.name or str(getattr(function, "__name__", "job"))
        with _session(given) as session:
            if given.engine == "spark":
                interpreter.send_whole(module)
            return _started(session, function, name, given)
    except KrishivError as problem:
        _say(f"krishiv run: {problem}")
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _session(given: argparse.Namespace) -> Session:
    builder = Session.builder().engine(given.engine).profile(given.profile)
    if given.workers is not None:
        builder = builder.workers(given.workers)
    if given.master is not None:
        builder = builder.master(given.master)
    for key, value in given.config:
        builder = builder.config(key, value)
    return builder.get_or_create()


def _started(session: Session, function: Callable[[Session], Any], name: str, given: argparse.Namespace) -> int:
    outputs = made_by(given.job, function, session)
    when = Batches.available_now() if given.until_idle else None if given.every is None else Batches.every(given.every)
    with contextlib.ExitStack() as around:
        query = _query(session, outputs, name, given, when)
        if given.metrics_port is not None:
            around.callback(query.stop)  # where the port is taken
            served = around.enter_context(metrics.serve(given.metrics_port, [query], host=given.metrics_host))
            if not given.metrics_port:
                _say(f"krishiv run: metrics at http://{given.metrics_host}:{served.port}/metrics")
        if given.ui is not None:
            around.callback(query.stop)
            _say(f"{name}: what runs is shown at {session.ui(given.ui).url}")
        return _wait(query, name)


def _query(session: Session, outputs: list[Output], name: str, given: argparse.Namespace, when: Batches | None) -> Query:
    """Start the query of what the function made."""
    if len(outputs) == 1 and outputs[0].name is None:
        [only] = outputs  # as the same pipeline in a program: checkpoints of one go on in the other
        start = functools.partial(only.stream.start, only.sink)
    else:
        start = functools.partial(session.start, outputs)
    return start(checkpoint=given.checkpoint, batches=when, name=name, keep_batches=given.keep_batches)


def made_by(job: str, function: Callable[[Session], object], session: Session) -> list[Output]:
    """Return the outputs that the function of a job makes.

    Raises
    ------
    PlanError
        When it makes anything else, or fails.
    """
    try:
        made = function(session)
    except KrishivError:
        raise
    except SystemExit as leaving:
        if leaving.code == EXIT_CODE:  # SIGTERM
            raise
        got = f"it left with sys.exit({leaving.code!r}) before its query was started"
        raise PlanError(f"the job {job} could not be made", got=got, hint=_CONTRACT) from leaving
    except Exception as problem:  # code of the user: where it failed is what helps
        traceback.print_exc()
        got = type(problem).__name__
        raise PlanError(f"the job {job} could not be made", got=got, hint="see the traceback above") from problem
    listed = list(made) if isinstance(made, (list, tuple)) else [made]
    outputs = [output for output in listed if isinstance(output, Output)]
    if not outputs or len(outputs) < len(listed):
        raise PlanError(f"the job {job} returned no outputs", got=shown_value(made), hint=_CONTRACT)
    return outputs


def _wait(query: Query, name: str) -> int:
    """Wait for the end of a query, and show where it is."""
    began = time.monotonic()
    try:
        with _following(query, name) as look:
            while not query.await_termination(_SLICE):
                look()
    except KeyboardInterrupt:
        _say(f"{name}: Ctrl-C, the batch in hand is finished first; once more ends at once")
        query.stop()
        _last(query, name, "stopped", began)
        return INTERRUPTED
    except SystemExit as leaving:  # SIGTERM: the queries are stopped (krishiv_py/ending.py)
        _last(query, name, "stopped by SIGTERM" if leaving.code == EXIT_CODE else "stopped", began)
        raise
    except KrishivError as problem:
        _last(query, name, "failed", began)
        _say(f"krishiv run: {problem}")
        return FAILED
    _last(query, name, "ended", began)
    return DONE


@contextlib.contextmanager
def _following(query: Query, name: str) -> Iterator[Callable[[], None]]:
    """Show where a query is: a progress line in a terminal, else a line of text now and then."""
    if drawn(sys.stderr):
        with shown(lambda: of_query(name, query.progress), None):
            yield lambda: None
        return
    _say(f"{name}: started")
    last = [time.monotonic(), query.progress.batch_id]

    def look() -> None:
        if time.monotonic() - last[0] >= _LINE_S and query.progress.batch_id != last[1]:
            last[:] = time.monotonic(), query.progress.batch_id
            _say(_standing(query, name))

    yield look


def _standing(query: Query, name: str) -> str:
    standing = of_query(name, query.progress)
    return f"{standing.label}: {standing.done} rows, {standing.note}"


def _last(query: Query, name: str, how: str, began: float) -> None:
    _say(f"{_standing(query, name)}; {how} after {time.monotonic() - began:.1f} s")


def _say(text: str) -> None:
    print(f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}", file=sys.stderr, flush=True)


def load(job: str) -> tuple[ModuleType, Callable[[Session], Any]]:
    """Load the module and the function that ``file.py:name`` or ``module:name`` names.

    Raises
    ------
    PlanError
        When there is none.
    """
    where, _, name = job.rpartition(":")
    if not where or not name.isidentifier():
        raise _no_job(job, "it names no function", "write a file or module, a colon and a function: jobs.py:orders")
    module = _module(where, job)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [
            n for n, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise _no_job(job, f"no function {name}", f"it has {', '.join(functions[:20]) or 'no functions'}")
    a_function(function, f"the job {job} is a function", "")
    return module, function


_JOBS: Final[list[ModuleType]] = []
"""The files that were loaded as modules: another one of the same name takes their place."""


def _module(where: str, job: str) -> ModuleType:
    path = Path(where)
    sys.path.insert(0, str(path.parent.absolute()) if where.endswith(".py") else str(Path.cwd()))
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise _no_job(job, f"no file {path}", "pass the path of a Python file")
        if path.stem in sys.stdlib_module_names or _is_other(sys.modules.get(path.stem), path):
            raise _no_job(job, f"a file with the name of the module {path.stem}", "give the file another name")
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        _JOBS.append(module)
        spec.loader.exec_module(module)
        return module
    except KrishivError:
        raise
    except SystemExit as leaving:
        if leaving.code == EXIT_CODE:  # SIGTERM
            raise
        hint = 'put what is only for the file as a program under if __name__ == "__main__":'
        raise _no_job(job, f"sys.exit({leaving.code!r}) while it was imported", hint) from leaving
    except Exception as problem:  # code of the user, which the import runs: its traceback is what helps
        if isinstance(problem, ModuleNotFoundError) and problem.name == where.partition(".")[0]:
            hint = "pass a file of Python, jobs.py:orders, or run it in the folder of the module"
            raise _no_job(job, f"no module {where}", hint) from None
        traceback.print_exc()
        raise _no_job(job, f"{type(problem).__name__} while it was imported", "see the traceback above") from problem


def _is_other(loaded: ModuleType | None, path: Path) -> bool:
    """Return whether a module that is `loaded` is in use by others than jobs."""
    if loaded is None or loaded in _JOBS:
        return False
    file = loaded.__spec__.origin if loaded.__spec__ is not None else None
    return file is None or Path(file).resolve() != path.resolve()


def _no_job(job: str, got: str, hint: str) -> PlanError:
    return PlanError(f"the job {job} cannot be loaded", got=got, hint=hint)
