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
import logging
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
from krishiv_py.cli.options import in_options
from krishiv_py.display.progress import drawn, of_query, shown
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.errors import shown as shown_value
from krishiv_py.failures.retrying import retried
from krishiv_py.failures.transient import verdict
from krishiv_py.lazy import lazy
from krishiv_py.logs import JsonFormatter
from krishiv_py.plan.checks import ENGINES, PROFILES, a_function
from krishiv_py.plan.durations import to_us
from krishiv_py.plan.options.query import Batches
from krishiv_py.process import own_process
from krishiv_py.session import Session
from krishiv_py.storage.ending import EXIT_CODE

if TYPE_CHECKING:
    from krishiv_py.spark.setup import workers as interpreter
else:  # a job in process needs no Spark
    interpreter = lazy("krishiv_py.spark.setup.workers")

_LOG: Final = logging.getLogger("krishiv_py.run")
_IN_JSON: Final[list[bool]] = []
"""Not empty while lines are to be JSON."""
DONE: Final = 0
AGAIN: Final = 1
"""A repetition may help."""
REFUSED: Final = 2
"""A repetition will not."""
INTERRUPTED: Final = 130
_SLICE: Final = dt.timedelta(seconds=0.2)
_LINE_S: Final = 10.0
_CONTRACT: Final = "let it take a session and return stream.to(sink), or a list of these"
CODES: Final = (
    "Exit codes: 0 the query has ended; 1 a repetition may help: something was away for longer than --retry-for, or the query "
    "failed for the first time at its batch, from which it goes on; 2 a repetition will not help, as with wrong options, a "
    "plan that does not fit, or a line that cannot be read; 130 after Ctrl-C and 143 after SIGTERM, when the batch in hand is "
    "finished."
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
    parser.add_argument(
        "--retry-for",
        metavar="LIMIT",
        help='try again for so long while something is away, before exit code 1 (default "1 min")',
    )
    parser.add_argument("--savepoint", metavar="FOLDER", help="begin with the state of a savepoint, with a new --checkpoint")
    parser.add_argument(
        "--on-change",
        action="append",
        type=a_setting,
        metavar="STAGE=WORD",
        help="with --savepoint: reset or drop the state of a stage that the job cannot take; may be repeated",
    )
    parser.add_argument("--keep-batches", type=int, metavar="N", help="keep what `krishiv capture --last N` needs")
    parser.add_argument("--name", help="name of the query in logs and metrics (default: that of the function)")
    parser.add_argument("--profile", default="dev-local", choices=PROFILES, help="durability profile")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that share the keys, with --engine in-process")
    parser.add_argument("--master", help="Spark master, with --engine spark")
    parser.add_argument("--config", action="append", default=[], type=a_setting, metavar="KEY=VALUE", help="a setting")
    parser.add_argument(
        "--metrics-port", type=a_port, metavar="PORT", help="serve /metrics, /healthz and /readyz there; 0 takes a free port"
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="lines on standard error: text, or JSON with each batch"
    )
    parser.add_argument(
        "--hung-after", metavar="LIMIT", default="10 min", help="/healthz is 503 for a batch that runs for longer"
    )
    parser.add_argument(
        "--linger", metavar="TIME", help="serve the metrics for so long after a failure, so that a scrape sees it (default 0)"
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
    own_process()  # a job may take long to load, and as process 1 of a container only a handler ends it
    with _in_json() if given.log_format == "json" else contextlib.nullcontext():
        return _run(given)


@contextlib.contextmanager
def _in_json() -> Iterator[None]:
    """Let all that is said, warnings and a line of each batch too, be lines of JSON."""
    handler, root, own = logging.StreamHandler(), logging.getLogger(), logging.getLogger("krishiv_py")
    handler.setFormatter(JsonFormatter())
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    logging.captureWarnings(True)
    _IN_JSON.append(True)
    try:
        yield
    finally:
        _IN_JSON.pop()
        logging.captureWarnings(False)
        own.setLevel(level)
        root.removeHandler(handler)


def _run(given: argparse.Namespace) -> int:
    try:
        for name in ("retry_for", "every", "hung_after", "linger"):
            if (limit := getattr(given, name)) is not None:
                to_us(limit, f"--{name.replace('_', '-')}", allow_zero=True)
        module, function = load(given.job)
        name = given.name or str(getattr(function, "__name__", "job"))
        with _session(given) as session:
            if given.engine == "spark":
                interpreter.send_whole(module)
            return _started(session, function, name, given)
    except KrishivError as problem:
        return _failed(problem)
    except KeyboardInterrupt:
        return INTERRUPTED


def _failed(problem: KrishivError) -> int:
    """Say what went wrong; returns the exit code that says whether a repetition may help."""
    code = REFUSED if verdict(problem) == "lasting" else AGAIN
    _say(
        f"krishiv run: {in_options(problem)} (exit code {code}: a repetition {'may' if code == AGAIN else 'will not'} help)",
        logging.ERROR,
    )
    return code


def _session(given: argparse.Namespace) -> Session:
    builder = Session.builder().engine(given.engine).profile(given.profile)
    if given.workers is not None:
        builder = builder.workers(given.workers)
    if given.retry_for is not None:
        builder = builder.retry_for(given.retry_for)
    if given.master is not None:
        builder = builder.master(given.master)
    for key, value in given.config:
        builder = builder.config(key, value)
    return builder.get_or_create()


def _started(session: Session, function: Callable[[Session], Any], name: str, given: argparse.Namespace) -> int:
    retry_s = session._runner.retry_s
    outputs = retried(lambda: made_by(given.job, function, session), retry_s, f"the job {name}")
    when = Batches.available_now() if given.until_idle else None if given.every is None else Batches.every(given.every)
    query = _query(session, outputs, name, given, when)
    with _served(session, query, name, given):
        code, problem = _wait(query, name)
        if problem is not None and given.linger is not None and given.metrics_port is not None:
            _say(f"{name}: its metrics are served for {given.linger} more: {in_options(problem)}")
            time.sleep(to_us(given.linger, "linger", allow_zero=True) / 1e6)
    return code if problem is None else _failed(problem)


@contextlib.contextmanager
def _served(session: Session, query: Query, name: str, given: argparse.Namespace) -> Iterator[None]:
    """Serve the metrics and the page of a query, if they are wanted."""
    with contextlib.ExitStack() as around:
        if given.metrics_port is not None:
            around.callback(query.stop)  # where the port is taken
            served = around.enter_context(
                metrics.serve(given.metrics_port, [query], host=given.metrics_host, hung_after=given.hung_after)
            )
            if not given.metrics_port:
                _say(f"krishiv run: metrics at http://{given.metrics_host}:{served.port}/metrics")
        if given.ui is not None:
            around.callback(query.stop)
            shown_at = around.enter_context(session.ui(given.ui))
            _say(f"{name}: what runs is shown at {shown_at.url}")
        yield


def _query(session: Session, outputs: list[Output], name: str, given: argparse.Namespace, when: Batches | None) -> Query:
    """Start the query of what the function made."""
    if len(outputs) == 1 and outputs[0].name is None:
        [only] = outputs  # as the same pipeline in a program: checkpoints of one go on in the other
        start = functools.partial(only.stream.start, only.sink)
    else:
        start = functools.partial(session.start, outputs)
    return start(
        checkpoint=given.checkpoint,
        batches=when,
        name=name,
        savepoint=given.savepoint,
        on_change=None if given.on_change is None else dict(given.on_change),
        keep_batches=given.keep_batches,
    )


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
        raise PlanError(f"the job {job} could not be made", got=got, hint=_CONTRACT, transient=False) from leaving
    except Exception as problem:  # code of the user: where it failed is what helps
        _show_traceback()
        got = type(problem).__name__
        raise PlanError(f"the job {job} could not be made", got=got, hint="see the traceback above") from problem
    listed = list(made) if isinstance(made, (list, tuple)) else [made]
    outputs = [output for output in listed if isinstance(output, Output)]
    if not outputs or len(outputs) < len(listed):
        raise PlanError(f"the job {job} returned no outputs", got=shown_value(made), hint=_CONTRACT)
    return outputs


def _wait(query: Query, name: str) -> tuple[int, KrishivError | None]:
    """Wait for the end of a query, and show where it is; returns the exit code, and what it failed over."""
    began = time.monotonic()
    try:
        with _following(query, name) as look:
            while not query.await_termination(_SLICE):
                look()
    except KeyboardInterrupt:
        _say(f"{name}: Ctrl-C, the batch in hand is finished first; once more ends at once")
        query.stop()
        _last(query, name, "stopped", began)
        return INTERRUPTED, None
    except SystemExit as leaving:  # SIGTERM: the queries are stopped (krishiv_py/storage/ending.py)
        _last(query, name, "stopped by SIGTERM" if leaving.code == EXIT_CODE else "stopped", began)
        raise
    except KrishivError as problem:
        _last(query, name, "failed", began)
        return AGAIN, problem
    _last(query, name, "ended", began)
    return DONE, None


@contextlib.contextmanager
def _following(query: Query, name: str) -> Iterator[Callable[[], None]]:
    """Show where a query is: a progress line in a terminal, else a line of text now and then."""
    if drawn(sys.stderr) and not _IN_JSON:
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
    new = query.progress.run_rows
    rows = f"{new} rows" if new == standing.done else f"{new} new rows, {standing.done} in all"
    return f"{standing.label}: {rows}, {standing.note}"


def _last(query: Query, name: str, how: str, began: float) -> None:
    _say(f"{_standing(query, name)}; {how} after {time.monotonic() - began:.1f} s")


def _say(text: str, level: int = logging.INFO) -> None:
    if _IN_JSON:
        _LOG.log(level, text)
        return
    print(f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}", file=sys.stderr, flush=True)


def _show_traceback() -> None:
    if _IN_JSON:
        _LOG.exception("code of the job failed")
    else:
        traceback.print_exc()


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
        raise _no_job(job, f"sys.exit({leaving.code!r}) while it was imported", hint) from None
    except Exception as problem:  # code of the user, which the import runs: its traceback is what helps
        if isinstance(problem, ModuleNotFoundError) and problem.name == where.partition(".")[0]:
            hint = "pass a file of Python, jobs.py:orders, or run it in the folder of the module"
            raise _no_job(job, f"no module {where}", hint) from None
        _show_traceback()
        raise _no_job(job, f"{type(problem).__name__} while it was imported", "see the traceback above") from problem


def _is_other(loaded: ModuleType | None, path: Path) -> bool:
    """Return whether a module that is `loaded` is in use by others than jobs."""
    if loaded is None or loaded in _JOBS:
        return False
    file = loaded.__spec__.origin if loaded.__spec__ is not None else None
    return file is None or Path(file).resolve() != path.resolve()


def _no_job(job: str, got: str, hint: str) -> PlanError:
    return PlanError(f"the job {job} cannot be loaded", got=got, hint=hint)
