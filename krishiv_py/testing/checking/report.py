"""The report of a check: what was tried and what never came, and of a failure the smallest stream as a test."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from krishiv_py.errors import KrishivError, failure_text
from krishiv_py.testing.checking.laws import Finding, Trial, cut_text
from krishiv_py.testing.checking.plans import CheckedPlan
from krishiv_py.testing.checking.runs import Cut, RunOutput, batches_of
from krishiv_py.testing.checking.streams import Arrivals, in_lines, us_of
from krishiv_py.testing.driver import Driver

_MOST_ROWS: Final = 20


@attrs.frozen
class Report:
    """Says what a check tried.

    Attributes
    ----------
    cases : int
        How many streams were drawn.
    seed : int
        The seed they follow from.
    laws : dict of str to int
        For each law, in how many cases it was tried.
    left_out : dict of str to str
        For each law that the plan does not claim, why.
    covered : dict of str to int
        In how many cases something came: a late row, a withdrawal, a match.
    seconds : float
        How long it took.
    ended : str
        Empty when all cases were tried; else why the check ended before.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import check, stream_of
    >>> report = check(stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count()), cases=20, seed=1)
    >>> report.cases, report.seed, report.laws["monotone"], report.left_out["spread"]
    (20, 1, 20, 'the plan has no key')
    """

    cases: int
    seed: int
    laws: dict[str, int]
    left_out: dict[str, str]
    covered: dict[str, int]
    seconds: float = attrs.field(eq=False)
    ended: str = ""

    @property
    def never(self) -> tuple[str, ...]:
        """The names of what could have come and did not: no law was tried on it.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import check, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
        >>> check(counts, cases=3, rows=lambda chance: [{"at": chance.randrange(100)}]).never
        ('late rows', 'rows without a time')
        """
        return tuple(what for what, cases in self.covered.items() if not cases)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.cases} cases, seed {self.seed}, {self.seconds:.1f} s" + (f"; {self.ended}" if self.ended else "")
        for law, tried in self.laws.items():
            yield f"  {law}: holds in {tried} cases" if tried else f"  {law}: no case says anything of it"
        for law, why in self.left_out.items():
            yield f"  {law}: left out, for {why}"
        came = [f"{what} in {cases}" for what, cases in self.covered.items() if cases]
        yield f"  came: {', '.join(came) or 'nothing'}"
        for what in self.never:
            yield f"  never in {self.cases} cases: {what}. Hint: give `rows=` that have them"


def coverage(plan: CheckedPlan, base: RunOutput) -> dict[str, bool]:
    """Return what came in a case, of what can come in the plan."""
    stages = plan.plan.stages
    timed = any(not stage.stateless for stage in stages)
    counters = [*base.counters.values()]
    rows = [row for output in base.results.values() for row in output]
    came = {"results": bool(rows)}
    if timed:
        came["late rows"] = any(counted.get("late", 0) for counted in counters)
        came["rows without a time"] = any(counted.get("null_time", 0) for counted in counters)
    if any(stage.spec.options.emit_mode == "retractions" for stage in stages):
        came["withdrawals"] = any(row.get("op") in ("-U", "-D") for row in rows)
    if any(stage.spec.operation.kind == "deduplication" for stage in stages):
        came["duplicates"] = any(counted.get("duplicates", 0) for counted in counters)
    last: Any = stages[-1].spec.operation
    if last.nature.joins and not last.left_only:
        came["rows that met"] = any(row.get(name) is not None for row in rows for name in last.sides.right)
    return came


class CheckFailedError(AssertionError):
    """A law does not hold for a plan; the text is the smallest stream as a test.

    Attributes
    ----------
    law : str
        The name of the law.
    rows : list
        The rows of the smallest stream that was found; of several streams pairs of a name and a row.
    cut : tuple of int
        Where its batches begin, besides the first.
    report : Report
        What was tried before.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.testing import CheckFailedError, check, stream_of
    >>> def numbered(batch):
    ...     return batch.append_column("n", pa.array(range(batch.num_rows)))
    >>> try:
    ...     check(stream_of("v bigint").map_batches(numbered, "v bigint, n bigint"), seed=1, keep=None)
    ... except CheckFailedError as failure:
    ...     print(failure.law, len(failure.rows), failure.cut)
    cut 2 (1,)
    """

    def __init__(self, text: str, law: str, rows: Sequence[Any], cut: Cut, report: Report) -> None:
        super().__init__(text)
        self.law, self.rows, self.cut, self.report = law, list(rows), cut, report


def failed(
    plan: CheckedPlan, finding: Finding, trial: Trial, report: Report, name: str, origin: str | None
) -> CheckFailedError:
    """Return the error that shows the smallest case."""
    rows = [a.row if len(plan.streams) == 1 else (a.of, a.row) for a in trial.arrivals]
    parts = [
        f"the law of {finding.law} does not hold: {finding.what}",
        f"(case {report.cases} of seed {report.seed}; {len(rows)} rows, {cut_text(trial.cut)})",
        "",
        *_differences(finding),
        *_why(plan, finding, trial),
        *(["As a test:", "", *as_test(plan, finding, trial, name, origin)] if trial.arrivals else []),
    ]
    return CheckFailedError("\n".join(parts), finding.law, rows, trial.cut, report)


def _differences(finding: Finding) -> Iterator[str]:
    for name, rows in (finding.one, finding.other):
        if not name:
            continue
        other = finding.other[1] if rows is finding.one[1] else finding.one[1]
        yield f"{name}: {len(rows)} rows"
        for row in rows[:_MOST_ROWS]:
            yield f"  {' ' if row in other else '≠'} {row}"
        if len(rows) > _MOST_ROWS:
            yield f"    … {len(rows) - _MOST_ROWS} more"
    yield ""


def _why(plan: CheckedPlan, finding: Finding, trial: Trial) -> Iterator[str]:
    """Yield what a driver says of the key and time of the first row that differs."""
    stage = plan.stage
    time = None if stage.stateless else stage.spec.operation.result_time(stage.spec.time_column)
    if finding.row is None or time is None or finding.row.get(time.column) is None:
        return
    keys = [finding.row.get(key) for key in stage.spec.keys]
    time_us = us_of(finding.row[time.column])
    assert time_us is not None
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(
        microseconds=time_us - time.before_us(stage.spec.tick_us)
    )
    try:
        driver = Driver(plan.stream)
        for begin, end in batches_of(plan, trial.arrivals, trial.cut):
            driver.send(in_lines(trial.arrivals[begin:end]))
        said = driver.why(None if not keys else keys[0] if len(keys) == 1 else tuple(keys), moment)
    except KrishivError as problem:  # a plan or a key of which nothing can be said
        said = failure_text(problem)
    yield "Why, before the end of input:"
    yield from (f"  {line}" for line in str(said).splitlines())
    yield ""


# ---- a test that can be pasted


def as_test(plan: CheckedPlan, finding: Finding, trial: Trial, name: str, origin: str | None) -> list[str]:
    """Return the lines of a test that fails as the check did."""
    body = list(_body(plan, finding, trial))
    text = "\n".join(body)
    head = [f"import {module}" for module in ("datetime", "decimal") if f"{module}." in text]
    head += [""] if head else []
    head += ["from krishiv_py.testing import Driver" if "Driver(" in text else "from krishiv_py.testing import check"]
    head += [origin] if origin else [f"# and the plan, as {name}"]
    head += [f'{value} = float("{value}")' for value in ("nan", "inf") if f" {value}" in text or f"-{value}" in text]
    return [*head, "", "", f"def test_{finding.law}_of_{_identifier(name)}() -> None:", *(f"    {line}" for line in body)]


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.replace("()", "")).strip("_").lower() or "plan"


def _body(plan: CheckedPlan, finding: Finding, trial: Trial) -> Iterator[str]:
    if finding.law == "restart" and not finding.raised:
        yield from _driven("one", plan, trial.arrivals, trial.cut)
        yield from _driven("other", plan, trial.arrivals, trial.cut, restarts=True)
        yield "assert one == other"
    elif finding.law == "cut" and not finding.raised:
        yield from _driven("one", plan, trial.arrivals, ())
        yield from _driven("other", plan, trial.arrivals, trial.cut)
        yield "assert one == other  # of updates and retractions, once folded"
    elif finding.law == "arrival" and not finding.raised:
        yield from _driven("one", plan, trial.arrivals, trial.cut)
        yield from _driven("other", plan, trial.permuted, trial.cut)
        yield "assert one == other"
    elif finding.raised and finding.law == "conservation":
        yield from _driven("rows", plan, trial.arrivals, trial.cut)
    else:
        yield "rows = ["
        for arrival in trial.arrivals:
            yield f"    {literal(arrival.row if len(plan.streams) == 1 else (arrival.of, arrival.row))},"
        yield "]"
        yield f'check(plan, rows=lambda chance: rows, cases=20, laws=["{finding.law}"])'


def _driven(name: str, plan: CheckedPlan, arrivals: Arrivals, cut: Cut, *, restarts: bool = False) -> Iterator[str]:
    yield "driver, rows = Driver(plan), []"
    for begin, end in batches_of(plan, arrivals, cut):
        yield f"rows += driver.send({literal(in_lines(arrivals[begin:end]))}).results.to_pylist()"
        if restarts:
            yield "driver = driver.restarted()"
    yield f"{name} = sorted(map(repr, rows + driver.close().results.to_pylist()))"


def literal(value: Any) -> str:
    """Return Python source of a value of a row."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(name)}: {literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))},)"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, decimal.Decimal):
        return f"decimal.{value!r}"
    return repr(value)
