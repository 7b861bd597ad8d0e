"""``krishiv doctor --engine in-process``: looks at what a job needs on this machine, and starts nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import attrs

from krishiv_py.api.session_options import DurabilityProfile
from krishiv_py.api.stages.running import Output, named_outputs
from krishiv_py.cli.options import in_options
from krishiv_py.cli.run import load, made_by
from krishiv_py.connectors.publish import check_sink
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.errors import CheckpointError, KrishivError, OperatorError, failure_text
from krishiv_py.failures.redaction import redacted
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan
from krishiv_py.planner.several import several
from krishiv_py.runtime.beginning import changes_against
from krishiv_py.runtime.checkpoint.notes import check_engine
from krishiv_py.runtime.checkpoint.sparklog import batches_of
from krishiv_py.session import Session
from krishiv_py.storage.files import check_reachable, store_at
from krishiv_py.storage.local import absolute
from krishiv_py.version import __version__

_PACKAGES: Final = ("pyarrow", "numpy", "attrs", "psycopg", "confluent-kafka", "deltalake", "pyiceberg", "prometheus-client")
_LEAST_BYTES: Final = 1 << 30


@attrs.frozen
class DoctorReport:
    """Holds what was found: `problems`, one line each, and the whole as `text`."""

    text: str
    problems: tuple[str, ...]


@attrs.define
class _Findings:
    lines: list[str] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)

    def see(self, what: str, look: Callable[[], str]) -> bool:
        """Note what a look gives, or what is wrong; False where something is."""
        try:
            self.lines.append(f"ok       {what}: {look()}")
        except (KrishivError, OSError) as problem:
            said = in_options(problem) if isinstance(problem, KrishivError) else failure_text(problem)
            self.problems.append(redacted(f"{what}: {said}"))
            return False
        return True


def examine_here(
    job: str | None, checkpoint: str | None, profile: DurabilityProfile = "dev-local", settings: Iterable[tuple[str, str]] = ()
) -> DoctorReport:
    """Look at Python and its packages, at folders, and where a `job` is named at its sources, sinks and checkpoint.

    Tables that are missing are made, as at a start; no row is read or written.

    Raises
    ------
    KrishivError
        For a profile or settings that a session in process does not take.
    """
    findings = _Findings()
    here = f"{socket.gethostname()}: Python {platform.python_version()}, krishiv_py {__version__}"
    findings.lines.append(f"         {here}, {_packages()}")
    findings.lines.append(f"         {os.cpu_count()} cores, {len(os.sched_getaffinity(0))} of them for this process")
    findings.see(f"temporary folder {tempfile.gettempdir()}", lambda: _room(tempfile.gettempdir()))
    builder = Session.builder().engine("in-process").profile(profile).retry_for(0)
    for key, value in settings:
        builder = builder.config(key, value)
    with builder.get_or_create() as session:
        home = None if checkpoint is None else absolute(checkpoint).rstrip("/")
        if home is not None:
            findings.see(f"checkpoint {home}", partial(_written, home))
        made = list[Output]()
        if job is not None and findings.see(f"job {job}", partial(_made, job, session, made)):
            _check_outputs(findings, made, home)
    lines = [*findings.lines, "", *(f"problem: {line}" for line in findings.problems)]
    return DoctorReport("\n".join([*lines, *([] if findings.problems else ["no problem found"])]), tuple(findings.problems))


def _packages() -> str:
    there = []
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            there.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(there)


def _room(folder: str) -> str:
    free = shutil.disk_usage(folder).free
    if free < _LEAST_BYTES:
        what, hint = "there is little room", "make room, or use another disk"
        raise OperatorError(what, got=f"{free >> 20} MiB free", then="batches and state may not fit", hint=hint)
    return f"{free >> 30} GiB free"


def _written(folder: str) -> str:
    """Write a small file into a folder, which is made, and remove it."""
    check_reachable([folder], written=True)
    store, root = store_at(folder)
    store.make_folder(root)
    path = f"{root}/_krishiv-doctor-{os.getpid()}"
    store.write(path, b"krishiv")
    store.delete(path)
    return f"can be written{', ' + _room(root) if store.local else ''}"


def _made(job: str, session: Session, into: list[Output]) -> str:
    into += made_by(job, load(job)[1], session)
    return f"{len(into)} output{'' if len(into) == 1 else 's'}, its sources answer"


def _check_outputs(findings: _Findings, outputs: Sequence[Output], home: str | None) -> None:
    plan = _plan(outputs)
    for output, sink in zip(plan.outputs, (one.sink for one in outputs), strict=True):
        folder = folder_of(sink)
        look = partial(_taken, sink, output) if folder is None else partial(_written, folder)
        findings.see(f"output {output.name} to {folder or sink.title}", look)
    if home is not None and batches_of(home):
        findings.see(f"state of {home}", partial(_goes_on, home, plan))


def _plan(outputs: Sequence[Output]) -> PhysicalPlan:
    if len(outputs) == 1 and outputs[0].name is None:
        return outputs[0].stream._plan("streaming")
    return several([(name, one.stream._plan("streaming")) for name, one in named_outputs(outputs, "krishiv doctor").items()])


def _taken(sink: Sink, output: OutputPlan) -> str:
    check_sink(sink, "results", output.schema)
    return "takes its rows"


def _goes_on(home: str, plan: PhysicalPlan) -> str:
    """Say what the job goes on from.

    Raises
    ------
    CheckpointError
        When its plan cannot.
    """
    check_engine(home, "in-process")
    refused = [str(change) for change in changes_against(home, plan) if change.fate == "refused"]
    if refused:
        hint = "see `krishiv diff` for what becomes of the state"
        raise CheckpointError("the plan does not go on from the checkpoint", got="; ".join(refused), hint=hint)
    return f"the plan goes on after batch {max(batches_of(home))}"
