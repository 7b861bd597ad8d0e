"""``check(plan)``: draw streams, try laws, shrink what fails, keep it for the next time."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.stages.running import RunMethods
from krishiv_py.errors import RAISED, PlanError, shown
from krishiv_py.plan.checks import PathLike, a_number, a_path, is_collection
from krishiv_py.storage.checksums import as_text, from_text
from krishiv_py.testing.checking.code import CodeLaw
from krishiv_py.testing.checking.laws import (
    ArrivalLaw,
    ConservationLaw,
    CutLaw,
    EngineLaw,
    Finding,
    Law,
    MonotoneLaw,
    OracleLaw,
    RestartLaw,
    SpreadLaw,
    Subject,
    Trial,
    UpgradeLaw,
    found,
    stopped,
)
from krishiv_py.testing.checking.plans import CheckedPlan
from krishiv_py.testing.checking.report import Report, coverage, failed
from krishiv_py.testing.checking.runs import ran
from krishiv_py.testing.checking.shrinking import shrunk
from krishiv_py.testing.checking.streams import Arrival, Arrivals, arrivals_of, drawn, us_of

LAWS: Final = ("code", "cut", "restart", "arrival", "conservation", "monotone", "spread", "oracle", "engine", "upgrade")
LawName: TypeAlias = Literal[
    "code", "cut", "restart", "arrival", "conservation", "monotone", "spread", "oracle", "engine", "upgrade"
]
KEPT: Final = ".krishiv_check"
_CUTS: Final = 5


def check(
    plan: RunMethods | Callable[[], RunMethods],
    *,
    cases: int = 200,
    seconds: float = 20,
    seed: int | None = None,
    laws: Iterable[LawName] | None = None,
    rows: Any = None,
    oracle: Callable[[Any], Any] | None = None,
    against: RunMethods | Callable[[], RunMethods] | None = None,
    engines: Sequence[str] = ("driver", "in-process"),
    keep: PathLike | None = KEPT,
    replay: PathLike | None = None,
) -> Report:
    """Try on drawn streams that a plan gives the same answer whatever batches, restarts, order of arrival, workers and engine.

    Parameters
    ----------
    plan : Stream, TimedStream or ResultStream, or a function that returns one
        The pipeline, over streams of :func:`stream_of` and :func:`union_of`.
    cases : int
        How many streams are drawn.
    seconds : float
        The check ends after this time with what it has tried; a failing stream is made smaller for as long again.
    seed : int, optional
        What the streams follow from: the same seed gives the same streams everywhere. By default another one each time.
    laws : iterable of str, optional
        The laws that are tried: ``code``, ``cut``, ``restart``, ``arrival``, ``conservation``, ``monotone``, ``spread``,
        ``oracle``, ``engine``, ``upgrade``. By default all that the plan claims (docs/testing.md).
    rows : callable or hypothesis strategy, optional
        Draws the rows of a case instead: a function of a ``random.Random``, or a strategy. A case is a list of dicts; of
        several streams a list of pairs of a name and a dict.
    oracle : callable, optional
        Computes the results from all rows of a case, none of them late: a function of an Arrow table (of several streams a dict
        of them) that returns a table of Arrow, pandas or Polars, or a list of dicts. Columns that both have are compared.
    against : as plan, optional
        The plan before a change: a savepoint of it is where `plan` goes on.
    engines : sequence of str
        ``("driver", "in-process")``; ``("driver",)`` runs no query.
    keep : str or os.PathLike, optional
        The folder in which failing streams are kept, to be tried first the next time; None keeps none.
    replay : str or os.PathLike, optional
        A file of that folder: only its stream is tried.

    Returns
    -------
    Report
        What was tried, what was left out and why, and what never came.

    Raises
    ------
    CheckFailedError
        When a law does not hold: with the smallest stream that was found, as a test.
    PlanError
        For what is no plan, law or number.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import check, stream_of
    >>> per_minute = (stream_of("user string, at bigint").watermark("at", 5_000).key_by("user")
    ...               .tumbling_window(60_000).agg(count()))
    >>> print(check(per_minute, cases=30, seed=7))
    30 cases, seed 7, ... s
      cut: holds in ... cases
      restart: holds in 15 cases
      ...
    """
    _positive(seconds)
    a_number(cases, "cases", 1, "pass how many streams are drawn")
    names = _law_names(laws)
    unknown = [engine for engine in engines if engine not in ("driver", "in-process")]
    if unknown:
        raise PlanError("no such engine", got=shown(unknown[0]), hint='pass engines=("driver", "in-process")')
    checked, before = _checked(plan), None if against is None else _checked(against)
    subject = Subject(checked, oracle, before, tuple(engines))
    keep = None if keep is None else a_path(keep, "keep", "pass a folder, or None to keep nothing")
    replay = None if replay is None else a_path(replay, "replay", "pass the file that a failure names")
    drawn_seed = SystemRandom().randrange(1 << 32) if seed is None else seed
    run = _Check(subject, _Kept.of(checked, keep), drawn_seed, seconds)
    run.choose(names)
    origin = None if isinstance(plan, RunMethods) else _origin(plan)
    title = getattr(plan, "__name__", "plan")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"query '", RuntimeWarning)  # doubts about times, which are odd on purpose
        return run.all_cases(_cases(run, cases, rows, replay), title, origin)


def _positive(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise PlanError("`seconds` is not a time", got=shown(seconds), hint="pass a positive number, such as 20")


def _law_names(laws: Iterable[LawName] | None) -> tuple[str, ...]:
    if laws is None:
        return LAWS
    given = tuple(laws) if is_collection(laws) else (laws,)
    for name in given:
        if name not in LAWS:
            raise PlanError("no such law", got=shown(name), hint=f"the laws are {', '.join(LAWS)}")
    return tuple(str(name) for name in given)


def _checked(plan: Any) -> CheckedPlan:
    built = plan() if callable(plan) and not isinstance(plan, RunMethods) else plan
    return CheckedPlan.of(built)


def _origin(plan: Any) -> str | None:
    """Return the lines that import a function which builds the plan, where it can be imported."""
    name, module = getattr(plan, "__qualname__", "."), getattr(plan, "__module__", "__main__")
    if "." in name or "<" in name or module == "__main__":
        return None
    return f"from {module} import {name}\n\nplan = {name}()"


def _cases(run: _Check, cases: int, rows: Any, replay: str | None) -> Iterator[tuple[Trial, bool]]:
    """Yield the cases: first those that have failed before."""
    if replay is not None:
        yield run.kept.read(Path(replay)), False
        return
    for file in run.kept.files():
        yield run.kept.read(file), False
    given = _row_drawing(run, cases, rows)
    for number in range(cases):
        chance = Random(f"krishiv {run.seed} {number}")  # a text seeds the same way on every platform
        orderly = bool(number % 2)
        arrivals = (
            drawn(run.subject.plan, chance, orderly=orderly)
            if given is None
            else arrivals_of(run.subject.plan, given(chance, number))
        )
        yield _trial(run.subject.plan, arrivals, chance), True


def _row_drawing(run: _Check, cases: int, rows: Any) -> Callable[[Random, int], Any] | None:
    """Return how rows of a case are drawn by what a user gives."""
    if rows is None:
        return None
    if callable(rows):
        return lambda chance, number: rows(chance)
    if not hasattr(rows, "example"):
        hint = "pass a function of a random.Random that returns a list of dicts, or a strategy of hypothesis"
        raise PlanError("`rows` draws no rows", got=shown(rows), hint=hint)
    examples = _examples(rows, run.seed, cases)
    return lambda chance, number: examples[number % len(examples)]


def _examples(strategy: Any, seed: int, cases: int) -> list[Any]:
    """Return examples of a strategy of hypothesis, which follow from the seed."""
    examples: list[Any] = []
    hypothesis: Any = importlib.import_module("hypothesis")  # whose strategy it is, so it is installed
    settings = hypothesis.settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.seed(seed)(settings(hypothesis.given(strategy)(lambda example: examples.append(example))))()
    return examples or [[]]


def _trial(plan: CheckedPlan, arrivals: Arrivals, chance: Random) -> Trial:
    n = len(arrivals)
    every = chance.randrange(6) == 0
    cut = range(1, n) if every else sorted(chance.sample(range(1, n), chance.randrange(0, min(_CUTS, n))) if n > 1 else [])
    return Trial(arrivals, tuple(cut), _order(plan, arrivals, chance))


def _order(plan: CheckedPlan, arrivals: Arrivals, chance: Random) -> tuple[int, ...]:
    """Return another order in which no row is later than the lag; rows of equal time stay in theirs."""
    shapes = {shape.name: shape for shape in plan.streams}

    def place(number: int) -> tuple[float, int]:
        column = shapes[arrivals[number].of].time
        time_us = None if column is None else us_of(arrivals[number].row[column])
        return (0.0 if time_us is None else time_us + moves.setdefault(time_us, chance.random() * lag_us), number)

    moves: dict[int, float] = {}
    lag_us = min((shape.lag_us for shape in plan.streams), default=0)
    return tuple(sorted(range(len(arrivals)), key=place))


@attrs.define(eq=False)
class _Check:
    """Tries the laws on one case after the other."""

    subject: Subject
    kept: _Kept
    seed: int
    seconds: float
    laws: list[Law] = attrs.field(factory=list)
    left_out: dict[str, str] = attrs.field(factory=dict)
    tried: dict[str, int] = attrs.field(factory=dict)
    covered: dict[str, int] = attrs.field(factory=dict)
    cases: int = 0
    began: float = attrs.field(factory=time.monotonic)

    def choose(self, names: Sequence[str]) -> None:
        """Take the laws of these names that the plan claims."""
        of_name: dict[str, Law] = {law.name: law for law in _all_laws()}
        for name in names:
            law = of_name[name]
            why = law.unclaimed(self.subject)
            if why is None:
                self.laws.append(law)
                self.tried[name] = 0
            else:
                self.left_out[name] = why

    def all_cases(self, cases: Iterable[tuple[Trial, bool]], title: str, origin: str | None) -> Report:
        """Try cases until one fails or the time is over."""
        ended, until = "", time.monotonic() + self.seconds
        for trial, is_drawn in cases:
            if self.cases and time.monotonic() > until:
                ended = "the time was over before all cases were tried"
                break
            self.cases += is_drawn
            self._fail_if(self._of_case(trial, every=not is_drawn), trial, title, origin)
        for law in self.laws:
            if isinstance(law, CodeLaw) and (finding := law.elsewhere()) is not None:
                raise failed(self.subject.plan, finding, Trial(()), self.report(ended), title, origin)
        return self.report(ended)

    def _of_case(self, trial: Trial, *, every: bool) -> tuple[Law, Finding] | None:
        """Return what is broken; of code that breaks several laws the law of code, which names it."""
        broken = self._first_broken(trial, every=every)
        code = next((law for law in self.laws if isinstance(law, CodeLaw)), None)
        if broken is None or code is None or broken[1].raised:
            return broken
        finding = found(code, self.subject, trial)
        return broken if finding is None or finding.law != code.name else (code, finding)

    def _first_broken(self, trial: Trial, *, every: bool) -> tuple[Law, Finding] | None:
        try:
            base = ran(self.subject.plan, trial.arrivals, trial.cut)
        except RAISED as problem:
            return ConservationLaw(), stopped(problem)
        for what, came in coverage(self.subject.plan, base).items():
            self.covered[what] = self.covered.get(what, 0) + came
        for law in self.laws:
            number = LAWS.index(law.name)
            if (not every and (self.cases + number) % law.every) or not law.tried(self.subject, trial, base):
                continue
            self.tried[law.name] += 1
            if (finding := found(law, self.subject, trial, base)) is not None:
                return law, finding
        return None

    def _fail_if(self, broken: tuple[Law, Finding] | None, trial: Trial, title: str, origin: str | None) -> None:
        if broken is None:
            return
        law, finding = broken
        smallest, finding = shrunk(law, self.subject, trial, finding, time.monotonic() + self.seconds)
        file = self.kept.write(smallest)
        failure = failed(self.subject.plan, finding, smallest, self.report(""), title, origin)
        if file is not None:
            failure.args = (
                f"{failure}\n\nThe stream is kept in {file}: it is tried first the next time, or alone with replay=.",
            )
        raise failure

    def report(self, ended: str) -> Report:
        """Return what was tried so far."""
        took = time.monotonic() - self.began
        return Report(self.cases, self.seed, self.tried, self.left_out, self.covered, took, ended)


def _all_laws() -> list[Law]:
    return [
        CodeLaw(),  # first, as it names the function that other laws only suffer from
        CutLaw(),
        RestartLaw(),
        ArrivalLaw(),
        ConservationLaw(),
        MonotoneLaw(),
        SpreadLaw(),
        OracleLaw(),
        EngineLaw(),
        UpgradeLaw(),
    ]


@attrs.frozen
class _Kept:
    """Holds failing streams of a plan in a folder, one a file."""

    folder: Path | None
    mark: str
    plan: CheckedPlan

    @classmethod
    def of(cls, plan: CheckedPlan, keep: str | None) -> _Kept:
        """Return those of a plan, which its columns and fingerprint tell from others."""
        text = repr((sorted(plan.plan.fingerprint.items()), [(s.name, str(s.schema)) for s in plan.streams]))
        return cls(None if keep is None else Path(keep), hashlib.sha256(text.encode()).hexdigest()[:12], plan)

    def files(self) -> list[Path]:
        """Return the files, in a fixed order."""
        return [] if self.folder is None else sorted(self.folder.glob(f"{self.mark}-*.json"))

    def write(self, trial: Trial) -> Path | None:
        """Keep a case; return its file."""
        if self.folder is None:
            return None
        of = [arrival.of for arrival in trial.arrivals]
        tables = {
            shape.name: as_text(
                pa.Table.from_pylist([a.row for a in trial.arrivals if a.of == shape.name], schema=shape.schema)
            )
            for shape in self.plan.streams
        }
        lines = [repr(arrival.row) for arrival in trial.arrivals]
        text = json.dumps({"of": of, "cut": trial.cut, "order": trial.order, "rows": lines, "arrow": tables}, indent=1)
        file = self.folder / f"{self.mark}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
        return file

    def read(self, file: Path) -> Trial:
        """Return a case that was kept.

        Raises
        ------
        PlanError
            For a file that holds none, or one of other columns.
        """
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            rows = {name: from_text(text).to_pylist() for name, text in kept["arrow"].items()}
            arrivals = tuple(Arrival(name, rows[name].pop(0)) for name in kept["of"])
            columns = [(shape.name, shape.schema.names) for shape in self.plan.streams]
            if any(list(a.row) != dict(columns).get(a.of) for a in arrivals):
                raise PlanError("the stream that was kept has other columns", got=shown(str(file)), hint="delete the file")
            return Trial(arrivals, tuple(kept["cut"]), tuple(kept["order"]))
        except (OSError, ValueError, KeyError, IndexError, pa.ArrowException) as problem:
            if isinstance(problem, PlanError):
                raise
            hint = f"pass a file that a check has written into {KEPT}"
            raise PlanError("not a stream that was kept", got=shown(str(file)), hint=hint) from problem
