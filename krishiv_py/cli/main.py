"""The command ``krishiv``: its arguments, and what it does with checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.json as json
import pyarrow.parquet as pq

from krishiv_py.api.stages.running import Output, RunMethods, named_outputs
from krishiv_py.cli import doctor
from krishiv_py.cli.options import in_options
from krishiv_py.cli.run import a_port, a_setting, add_run, load, made_by, run
from krishiv_py.display.lag import lateness_profile
from krishiv_py.errors import CheckpointError, KrishivError, PlanError, SourceError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import ENGINES, PROFILES
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.several import several
from krishiv_py.runtime.beginning import changes_against
from krishiv_py.runtime.capture import OpenCapture
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, engine_of
from krishiv_py.runtime.savepoints import is_savepoint
from krishiv_py.session import Session
from krishiv_py.storage.local import absolute
from krishiv_py.types import type_text
from krishiv_py.version import __version__


def add_capture(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...); its query may run")
    parser.add_argument("out", help="a new folder")
    parser.add_argument("--job", required=True, help="what the query was started with: jobs.py:orders, as for krishiv run")
    parser.add_argument("--last", nargs="+", metavar="N", help="the last N batches: --last 50, or --last 50 batches")
    parser.add_argument("--savepoint", help="the batches after this savepoint of the query")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="COLUMN", help="columns that are null in the capture")
    parser.add_argument("--hash", nargs="+", default=[], metavar="COLUMN", help="columns whose values are hashed")


def write_capture(given: argparse.Namespace) -> None:
    """Write a capture, and say what is in it.

    Raises
    ------
    CheckpointError
        As :meth:`krishiv_py.Session.capture`.
    PlanError
        For a number that is wrong, for a job that gives no outputs, and for columns that cannot be hidden.
    """
    last = None
    if given.last is not None:
        words = given.last[1:]
        if not given.last[0].isdecimal() or words not in ([], ["batches"]):
            raise PlanError("--last takes a number of batches", got=" ".join(given.last), hint="write --last 50")
        last = int(given.last[0])
    _, function = load(given.job)
    with _session_of(given.checkpoint) as session:
        folder = session.capture(
            given.checkpoint,
            _as_started(given.checkpoint, made_by(given.job, function, session)),
            given.out,
            last=last,
            savepoint=given.savepoint,
            leave_out=given.leave_out,
            hashes=given.hash,
        )
    batches = OpenCapture.open(folder).batches
    span = f"batches {batches[0].number} to {batches[-1].number}" if batches else "no batch"
    print(f"the capture {folder} has {span}: run it with Driver.from_capture({folder!r}, stream)")


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = "Exit codes: 0 no state is lost; 1 state is lost, or it could not be looked at."
    parser.add_argument("checkpoint", help="the folder of a checkpoint or savepoint")
    parser.add_argument("job", help="a function of a file or module: jobs.py:orders, package.jobs:orders")
    parser.add_argument(
        "--bootstrap",
        action="append",
        default=[],
        metavar="SOURCE",
        help="a source whose archive the job begins with: what is new and reads it is rebuilt; may be repeated",
    )
    parser.add_argument("--engine", choices=ENGINES, default="in-process", help="the session that the job is made with")


def diff(given: argparse.Namespace) -> int:
    """Print what becomes of each stage; returns 1 where state is lost.

    Raises
    ------
    CheckpointError
        When no checkpoint or savepoint is there.
    PlanError
        When the job cannot be loaded or returns no outputs, and when it does not read a source of ``--bootstrap``.
    """
    _, function = load(given.job)
    with Session.builder().engine(given.engine).get_or_create() as session:
        plan = _plan(_as_started(given.checkpoint, made_by(given.job, function, session)), "krishiv diff")
        changes = changes_against(given.checkpoint, plan, given.bootstrap)
    for change in changes:
        print(change)
    return 1 if any(change.loses for change in changes) else 0


def add_move(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...); no query may run from it")
    parser.add_argument("--to", required=True, choices=("spark", "in-process"), help="the engine that is to run the query")
    parser.add_argument("--into", metavar="NEW", help="a new folder; by default CHECKPOINT-on-spark or CHECKPOINT-in-process")
    parser.add_argument(
        "--buckets", type=int, metavar="N", help="for Spark: how many tasks may share the state; by default one for each core"
    )


def move_checkpoint(given: argparse.Namespace) -> None:
    """Move a checkpoint, and say where it is.

    Raises
    ------
    CheckpointError
        As :meth:`krishiv_py.Session.move`.
    PlanError
        As :meth:`krishiv_py.Session.move`.
    """
    # to Spark nothing of Spark is needed: its first micro-batch takes the state over
    with Session.in_process() if given.to == "spark" else Session.embedded() as session:
        moved = session.move(given.checkpoint, given.to, given.into, buckets=given.buckets)
    print(f"the query of {given.checkpoint} goes on from {moved}: start it with checkpoint={moved!r}")


def add_savepoint(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...); no query may run from it")
    parser.add_argument("path", help="a new folder")


def write_savepoint(given: argparse.Namespace) -> None:
    """Write a savepoint, and say where it is.

    Raises
    ------
    CheckpointError
        As :meth:`krishiv_py.Session.savepoint`.
    """
    with _session_of(given.checkpoint) as session:
        savepoint = session.savepoint(given.checkpoint, given.path)
    print(f"the savepoint is {savepoint}: start its query with savepoint={savepoint!r} and a new checkpoint")


def add_why(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...)")
    parser.add_argument("--job", required=True, help="what the query was started with: jobs.py:orders, as for krishiv run")
    parser.add_argument(
        "--key", action="append", metavar="VALUE", help="the key; of several columns once for each, in their order"
    )
    parser.add_argument("--time", help="the event time: ISO text as it is printed, or milliseconds since the epoch")
    parser.add_argument("--stage", help="a stage by its name; by default the last one with windows")


def say_why(given: argparse.Namespace) -> None:
    """Print what became of a key at a time.

    Raises
    ------
    CheckpointError
        Where no query has begun, and where it has another plan.
    PlanError
        For a job that gives no outputs, and a key or stage that it does not have.
    DurationError
        For a value that is not a time.
    """
    if engine_of(absolute(given.checkpoint).rstrip("/")) is None:
        hint = "pass the folder of start(..., checkpoint=...)"
        raise CheckpointError("no query has begun from this checkpoint", got=given.checkpoint, hint=hint)
    _, function = load(given.job)
    with _session_of(given.checkpoint) as session:
        only = _as_started(given.checkpoint, made_by(given.job, function, session))
        key = None if given.key is None else _key(_plan(only, "krishiv why"), given.stage, given.key)
        time = int(given.time) if given.time is not None and given.time.lstrip("-").isdecimal() else given.time
        print(session.why(given.checkpoint, only, key, time, given.stage))


def _session_of(checkpoint: str) -> Session:
    """Return a session of the engine that a checkpoint is of."""
    on_spark = engine_of(absolute(checkpoint).rstrip("/")) == "spark"
    return Session.embedded() if on_spark else Session.in_process()


def _as_started(checkpoint: str, outputs: list[Output]) -> RunMethods | list[Output]:
    """Return what the query was started with: one output alone may be of ``stream.start`` or ``session.start``."""
    folder = absolute(checkpoint).rstrip("/")
    note = {} if is_savepoint(folder) else CheckpointNotes(folder).plan() or {}
    alone = len(outputs) == 1 and outputs[0].name is None and "outputs" not in note.get("plan", {})
    return outputs[0].stream if alone else outputs


def _plan(only: RunMethods | list[Output], command: str) -> PhysicalPlan:
    if isinstance(only, RunMethods):
        return only._plan("streaming")
    return several([(name, output.stream._plan("streaming")) for name, output in named_outputs(only, command).items()])


def _key(plan: PhysicalPlan, stage: str | None, texts: list[str]) -> Any:
    """Return the values that texts stand for, by the types of the key columns.

    Raises
    ------
    PlanError
        For another number of columns, and a text that is not such a value.
    """
    fields = plan.stages[plan.stage_called(stage)].layout.key_fields
    if len(fields) != len(texts):
        names = ", ".join(plan.stages[plan.stage_called(stage)].spec.keys) or "(none)"
        raise PlanError("not a key of this query", got=f"{len(texts)} values", hint=f"the key columns are {names}")
    values = []
    for field, text in zip(fields, texts, strict=True):
        try:
            values.append(pa.array([text]).cast(field.type).to_pylist()[0])
        except pa.ArrowException as problem:
            got = shown(text)
            raise PlanError("not a key of this query", got=got, hint=f"pass a {type_text(field.type)}") from problem
    return values[0] if len(values) == 1 else tuple(values)


if TYPE_CHECKING:
    from krishiv_py.cli import machines
    from krishiv_py.testing import broker as brokers
else:  # a job in process needs no Spark
    machines = lazy("krishiv_py.cli.machines")
    brokers = lazy("krishiv_py.testing.broker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 when all is well, 1 when something was found, 2 for a wrong call.

    ``run`` has more codes (:data:`krishiv_py.cli.run.CODES`).
    """
    given = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int | None] = given.call
    try:
        return command(given) or 0
    except KrishivError as problem:
        print(f"krishiv {given.command}: {in_options(problem)}", file=sys.stderr)
        return 1


def make_archive(_given: argparse.Namespace) -> None:
    """Make the class archive of local sessions."""
    made = machines.warm()
    print(f"{made}: {made.stat().st_size >> 20} MB; sessions of this Java and Spark start with it from now on")


def run_broker(given: argparse.Namespace) -> None:
    """Run a broker until Ctrl-C, or only fetch what it needs."""
    if given.fetch:
        print(f"{len(brokers.JARS.fetch())} jars in {brokers.JARS.cache()}")
    else:
        brokers.serve(given.port)


def examine(given: argparse.Namespace) -> int:
    """Look at machines, or at what a job needs here; returns 1 where there is a problem."""
    if given.engine == "in-process":
        report = doctor.examine_here(given.job, given.checkpoint, given.profile, given.config)
    else:
        report = machines.examine(_session(given), given.checkpoint)
    print(report.text)
    return 1 if report.problems else 0


def _session(given: argparse.Namespace) -> Session:
    if given.connect is not None:
        return Session.connect(given.connect, profile=given.profile)
    builder = Session.builder().master(given.master).app_name("krishiv doctor").profile(given.profile)
    for key, value in given.config:
        builder = builder.config(key, value)
    return builder.get_or_create()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser("krishiv", description="Event-time stream processing, in this process and on Spark.")
    made.add_argument("--version", action="version", version=f"krishiv_py {__version__}")
    commands = made.add_subparsers(dest="command", required=True)

    def command(name: str, call: Callable[[argparse.Namespace], int | None], said: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=said)
        added.set_defaults(call=call)
        return added

    add_run(command("run", run, "run a job: a function that takes a session and returns its outputs"))
    command("warm", make_archive, "make the class archive that shortens the start of local sessions (180 MB, half a minute)")
    broker = command("broker", run_broker, "run a Kafka broker of one process, to try things out, until Ctrl-C")
    broker.add_argument("--port", type=a_port, default=9092, help="its port on this machine (default 9092)")
    broker.add_argument("--fetch", action="store_true", help="only fetch what it needs: 44 MB, once")
    add_lateness(command("lateness", show_lateness, "show which lag of the watermark loses how many rows of a file"))
    add_why(command("why", say_why, "say what became of a key at a time in the query of a checkpoint"))
    add_move(command("move", move_checkpoint, "let the query of a checkpoint go on on the other engine"))
    add_diff(command("diff", diff, "show what becomes of the state of a checkpoint if a job begins from it"))
    add_savepoint(command("savepoint", write_savepoint, "write the state of a checkpoint as values, of no engine"))
    add_capture(command("capture", write_capture, "write the last batches of a query, to run them again on any machine"))
    machines = command(
        "doctor", examine, "look at the machines of a cluster, or with --engine in-process at what a job needs here"
    )
    machines.add_argument("--engine", choices=ENGINES, default="spark", help="what the job runs on (default spark)")
    machines.add_argument("--job", help="with --engine in-process: a job whose sources, sinks and checkpoint are looked at")
    where = machines.add_mutually_exclusive_group()
    where.add_argument(
        "--master", default="local[*]", help="Spark master: local[*] (default), spark://host:7077, yarn, k8s://..."
    )
    where.add_argument("--connect", help="address of a Spark Connect server: sc://host:15002")
    machines.add_argument("--checkpoint", help="folder that every task must be able to read and write; it is made if need be")
    machines.add_argument("--profile", default="dev-local", choices=PROFILES, help="durability profile")
    machines.add_argument("--config", action="append", default=[], type=a_setting, metavar="KEY=VALUE", help="a Spark setting")
    return made


_READERS = {
    ".parquet": pq.read_table,
    ".csv": csv.read_csv,
    ".json": json.read_json,
    ".jsonl": json.read_json,
    ".arrow": feather.read_table,
    ".feather": feather.read_table,
}


def add_lateness(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", type=Path, help=f"a file of rows in order of arrival: {', '.join(_READERS)}")
    parser.add_argument("--time", required=True, help="the column of the event time: a timestamp, or integer milliseconds")
    parser.add_argument("--arrival", help="the column that says when a row arrived; without it the order of the file")
    parser.add_argument("--order", help="a column that says only in which order rows arrived, such as an offset")
    parser.add_argument("--by", help="a column, such as the source, for whose values the lateness is shown")
    parser.add_argument("--batch", help='rows that arrived within this time form a batch: "1 s"; needs --arrival')
    parser.add_argument("--window", help='size of tumbling windows, "1 min": shows what is held and how late results are')
    parser.add_argument("--lag", action="append", metavar="LAG", help='a lag to try, "5 s"; may be given several times')
    parser.add_argument(
        "--loses-at-most", type=float, metavar="SHARE", help="also print the smallest lag that loses at most this share: 0.001"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the tables as a page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curve as a picture (.svg, .png); needs matplotlib")


def show_lateness(given: argparse.Namespace) -> None:
    """Print the profile of a file, and draw it where a picture is wanted.

    Raises
    ------
    SourceError
        For a file that cannot be read.
    PlanError
        For a kind of file that is not known, and for arguments that :func:`krishiv_py.lateness_profile` refuses.
    """
    profile = lateness_profile(
        _rows(given.file),
        given.time,
        arrival=given.arrival,
        order=given.order,
        by=given.by,
        batch=given.batch,
        window=given.window,
        lags=given.lag,
    )
    print(profile)
    if given.loses_at_most is not None:
        print(f"\nsmallest lag: {profile.smallest_lag(given.loses_at_most)}")
    if given.html is not None:
        page = f"<!doctype html><meta charset='utf-8'><title>Lateness</title>{profile._repr_html_()}"
        _written(given.html, lambda file: file.write_text(page, encoding="utf-8"))
    if given.plot is not None:
        _written(given.plot, profile.plot().savefig)


def _written(file: Path, write: Callable[[Path], object]) -> None:
    try:
        write(file)
    except (OSError, ValueError) as problem:
        got = f"{file}: {str(problem).splitlines()[0]}"
        hint = "pass a file in a folder that can be written"
        raise SourceError("the file cannot be written", got=got, hint=hint) from problem
    print(f"\nwritten: {file}")


def _rows(file: Path) -> pa.Table:
    if file.is_dir() and file.suffix.lower() != ".parquet":  # Spark writes folders that are called as files
        way = "in Python lateness_profile(session.read_parquet(...), ...) takes all of them"
        raise PlanError("a folder is not a file of rows", got=f"{file}", hint=f"pass one of its files; {way}")
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        got, known = file.suffix or "no suffix", ", ".join(_READERS)
        raise PlanError("not a known kind of file", got=got, hint=f"pass a file that ends in {known}")
    try:
        table: pa.Table = reader(file)
    except (OSError, pa.ArrowException) as problem:
        hint = "pass another file"
        raise SourceError("the file cannot be read", got=f"{file}: {str(problem).splitlines()[0]}", hint=hint) from problem
    return table
