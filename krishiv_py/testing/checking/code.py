"""The law of code: functions of a user's, called twice with equal arguments, give equal values, in another process too."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import RAISED, shown
from krishiv_py.plan.aggregates.user import Udaf
from krishiv_py.plan.expressions.udfs import Called
from krishiv_py.plan.nodes import MapBatches
from krishiv_py.plan.processing import Processing
from krishiv_py.testing.checking.laws import Finding, Law, Subject, Trial, differing
from krishiv_py.testing.checking.plans import CheckedPlan, parts_of, rewritten
from krishiv_py.testing.checking.runs import RunOutput, ran
from krishiv_py.testing.sends import DriverInput

_MOST_CALLS: Final = 300
_WAIT_S: Final = 60


class _UnequalError(Exception):
    """A function gave two values for equal arguments."""


def text_of(value: Any) -> str:
    """Return an argument or a value of a function as a text that equal ones share."""
    if type(value) is tuple:
        return f"({', '.join(map(text_of, value))})"
    if isinstance(value, (pa.RecordBatch, pa.Table, pa.Array, pa.ChunkedArray)):
        return repr(value.to_pylist())
    if hasattr(value, "__dict__") and getattr(type(value), "__repr__", None) is getattr(object, "__repr__", None):
        return f"{type(value).__name__}({vars(value)!r})"
    return repr(value)


@attrs.define(eq=False)
class CallRecord:
    """Calls functions twice, and keeps some calls for another process."""

    kept: list[tuple[bytes, str, str, str]] = attrs.field(factory=list)
    """Pickled function and arguments, the name of the function, its arguments and its value as texts."""

    def twice(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function that also sees that a second call gives the same value."""

        def called(*arguments: Any) -> Any:
            again, given = copy.deepcopy(arguments), text_of(arguments)
            kept = self._packed(function, arguments)
            value = function(*arguments)
            text, second = text_of(value), text_of(function(*again))
            if text != second:
                raise _UnequalError(f"{name} gives two values for {shown_call(given)}: {text}, then {second}")
            if kept is not None:
                self.kept.append((kept, name, given, text))
            return value

        return called

    def _packed(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes | None:
        if len(self.kept) >= _MOST_CALLS:
            return None
        try:
            return pickle.dumps((function, arguments))
        except Exception:  # noqa: BLE001  # a lambda or a closure: only this process can call it
            return None


def shown_call(arguments: str) -> str:
    """Return arguments for people."""
    return arguments if len(arguments) <= 200 else arguments[:200] + " …"


@attrs.frozen(eq=False)
class _TwiceAggregator:
    """Calls each method of an aggregator twice."""

    wrapped: Any
    record: CallRecord

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.wrapped, name)
        if name not in ("create", "add", "merge", "finish", "partial"):
            return value
        return self.record.twice(value, f"{type(self.wrapped).__name__}.{name}")


def watched(plan: CheckedPlan, record: CallRecord) -> CheckedPlan:
    """Return a plan whose functions are called twice."""

    def change(part: Any) -> Any:
        if isinstance(part, Called):
            return attrs.evolve(
                part, called=attrs.evolve(part.called, function=record.twice(part.called.function, part.called.name))
            )
        if isinstance(part, MapBatches):
            name = getattr(part.function, "__name__", repr(part.function))
            return attrs.evolve(part, function=record.twice(part.function, name))
        if isinstance(part, Udaf) and part.udaf is not None and not isinstance(part.udaf, _TwiceAggregator):
            return attrs.evolve(part, udaf=_TwiceAggregator(part.udaf, record))
        return part

    changed = rewritten(plan.plan, change)
    again = attrs.evolve(plan, plan=changed)
    object.__setattr__(again, "inputs", DriverInput(changed))
    return again


class CodeLaw(Law):
    """Functions of users give equal values for equal arguments."""

    name = "code"
    every = 3

    def __init__(self) -> None:
        self.record = CallRecord()
        self._plan: CheckedPlan | None = None

    def _watched(self, plan: CheckedPlan) -> CheckedPlan:
        self._plan = self._plan or watched(plan, self.record)
        return self._plan

    def unclaimed(self, subject: Subject) -> str | None:
        return None if subject.plan.functions else "no function of yours runs in the plan"

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        try:
            ran(self._watched(subject.plan), trial.arrivals, trial.cut)
        except RAISED as problem:
            cause: BaseException | None = problem
            while cause is not None and not isinstance(cause, _UnequalError):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            return Finding(self.name, f"{cause}. Results then depend on restarts and repeated batches")
        return self._unequal_calls(subject.plan, trial, base)

    def _unequal_calls(self, plan: CheckedPlan, trial: Trial, base: RunOutput) -> Finding | None:
        """Return what differs where all calls of process functions, which have state and timers, are made once more."""
        names = [part.callbacks.name for part in parts_of(plan.plan) if isinstance(part, Processing)]
        if not names:
            return None
        sides = ("at first", base), ("once more", ran(plan, trial.arrivals, trial.cut))
        return differing(self.name, f"{names[0]} is called twice with equal rows", plan, *sides, any_cut=False)

    def elsewhere(self) -> Finding | None:
        """Return what differs in another process, in which texts have other hashes."""
        if not self.record.kept:
            return None
        environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        given = pickle.dumps([call for call, *_ in self.record.kept])
        program = [sys.executable, "-m", "krishiv_py.testing.checking.answering"]
        done = subprocess.run(program, input=given, capture_output=True, env=environment, timeout=_WAIT_S, check=False)
        if done.returncode:
            return None  # what pickles here need not load there: a module of a test, for instance
        answers: list[str | None] = pickle.loads(done.stdout)
        differing = [
            (len(arguments), name, arguments, text, answer)
            for (_, name, arguments, text), answer in zip(self.record.kept, answers, strict=True)
            if answer is not None and answer != text
        ]
        if not differing:
            return None
        _, name, arguments, text, answer = min(differing)
        what = (
            f"{name} gives another value in another process for {shown_call(arguments)}: {shown(text)}, there {shown(answer)}"
        )
        return Finding(self.name, f"{what}. The order of a set differs by process; sort it")
