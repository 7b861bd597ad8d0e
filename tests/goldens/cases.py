"""Golden cases as typed values, and which of them an engine may leave out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

Key = str | int | None
Accumulation = Literal["accumulating", "discarding"]

OWN_CASES = Path(__file__).with_name("cases.jsonl")
QUIET_CASES = Path(__file__).with_name("quiet_streams.jsonl")
"""Watermarks that go on with the clock (§10), worked out in the same way."""
WORKED_CASES = Path(__file__).with_name("lookback_rows.jsonl")
"""Look-back results that carry their row or do without it (§11.4), each worked out by hand above the case."""

# The side this project takes where it is not the default one of the corpus.
DIALECT: Mapping[str, str] = {"all_idle": "hold"}

# Tags of features the semantics do not define; an engine may leave out no others.
UNDEFINED: Mapping[str, str] = {"policy_max": "the semantics know no maximum over sources (§2.4)"}


@dataclass(frozen=True)
class Result:
    """A window with its aggregates; ``values`` (sorted) need not be offered.

    ``row``: time and value of the row a look-back result carries.
    """

    key: Key
    start_ms: int
    end_ms: int
    count: int
    sum: int | None
    min: int | None
    max: int | None
    values: tuple[int, ...] | None = None
    row: tuple[int, int | None] | None = None


@dataclass(frozen=True)
class Written:
    """One line of an output log.

    ``op``: ``+I``, ``-U``, ``+U``, ``-D``, or just ``+`` and ``-``. ``step`` and ``pane`` are None where an engine
    cannot tell; ``pane`` is ``early``, ``on_time``, ``late`` or ``final``.
    """

    step: int | None
    op: str
    pane: str | None
    row: Result


@dataclass(frozen=True)
class LateRow:
    """A row of the late output; rows with reason ``null_time`` are counted apart."""

    step: int | None
    key: Key
    ts_ms: int | None
    value: int | None
    reason: str = "late"


@dataclass(frozen=True)
class Window:
    """The window of a case; fields that do not belong to its kind are None.

    The last four are of ``sliding_event``, and not in the format of the corpus.
    """

    kind: Literal["tumbling", "hopping", "session", "sliding_kafka", "sliding_event", "time_interval"]
    size_ms: int | None = None
    slide_ms: int | None = None
    offset_ms: int = 0
    gap_ms: int | None = None
    max_duration_ms: int | None = None
    clamp_zero: bool = False
    lower_ms: int | None = None
    upper_ms: int | None = None
    probes_ms: tuple[int, ...] = ()
    two_sided: bool = False
    with_row: bool = False
    exclude_self: bool = False
    on_arrival: bool = False

    def need(self, field: Literal["size_ms", "slide_ms", "gap_ms", "lower_ms", "upper_ms"]) -> int:
        """A field this kind must have."""
        value = getattr(self, field)
        if not isinstance(value, int):
            raise ValueError(f"a {self.kind} window without {field}")
        return value


@dataclass(frozen=True)
class Watermark:
    """One lag, or a lag per source."""

    lag_ms: int | None = None
    sources: Mapping[str, int] | None = None
    policy: Literal["min", "max"] = "min"
    initial_ms: int | None = None
    idle_timeout_ms: int | None = None
    idle_advance_ms: int | None = None
    start_now_ms: int | None = None


@dataclass(frozen=True)
class Trigger:
    """``early`` and ``late``: fire after that many rows of a window (1 is every row); None is never."""

    early: int | None
    on_time: bool
    late: int | None
    accumulation: Accumulation


@dataclass(frozen=True)
class Row:
    """An input row."""

    key: Key
    ts_ms: int | None
    value: int | None
    source: str | None = None
    gap_ms: int | None = None


@dataclass(frozen=True)
class Step:
    """A micro-batch, or a batch without rows that moves the watermark to ``advance_watermark_ms``."""

    batch: tuple[Row, ...]
    advance_watermark_ms: int | None = None
    source: str | None = None
    now_ms: int | None = None
    restart_before: bool = False


@dataclass(frozen=True)
class Expect:
    """What must come out."""

    final: tuple[Result, ...]
    late: tuple[LateRow, ...]
    emissions: tuple[Written, ...]
    watermark_after_ms: tuple[int | None, ...]
    still_open: tuple[Result, ...] = ()
    null_ts_dropped: int = 0
    unassigned: int = 0


@dataclass(frozen=True)
class Case:
    """A golden case."""

    id: str
    category: str
    window: Window
    watermark: Watermark
    allowed_lateness_ms: int
    emit: Literal["final", "updates", "retractions"]
    trigger: Trigger | None
    steps: tuple[Step, ...]
    expect: Expect
    alternatives: Mapping[str, Expect]
    compare: tuple[str, ...]
    tags: frozenset[str]
    notes: str

    @property
    def expected(self) -> Expect:
        """The expectation on this project's side of the dialect."""
        return self.under(DIALECT)

    def under(self, dialect: Mapping[str, str]) -> Expect:
        """The expectation with some dialect knobs turned; knobs that change nothing have no entry."""
        turned = [self.alternatives[f"{k}={v}"] for k, v in dialect.items() if f"{k}={v}" in self.alternatives]
        if len(turned) > 1:
            raise ValueError(f"{self.id}: no expectation for several knobs turned at once")
        return turned[0] if turned else self.expect

    def reason_to_skip(self, unsupported: Iterable[str]) -> str | None:
        """Why an engine that lacks some features may leave the case out; None if it must run it."""
        for tag in sorted(self.tags & frozenset(unsupported)):
            if tag in UNDEFINED:
                return f"{tag}: {UNDEFINED[tag]}"
        return None


def load(path: Path) -> list[Case]:
    """The cases of a file, one per line; lines that begin with ``#`` are comments."""
    with path.open(encoding="utf-8") as lines:
        return [_case(json.loads(line)) for line in lines if line.strip() and not line.startswith("#")]


Raw = Mapping[str, Any]  # a JSON object: checked field by field as it is read


def _case(raw: Raw) -> Case:
    alternatives = raw.get("alternatives") or {}
    return Case(
        id=raw["id"],
        category=raw["category"],
        window=Window(**{**raw["window"], "probes_ms": tuple(raw["window"].get("probes_ms") or ())}),
        watermark=_watermark(raw["watermark"]),
        allowed_lateness_ms=raw["allowed_lateness_ms"],
        emit=raw["emit"],
        trigger=_trigger(raw["trigger"]) if raw.get("trigger") else None,
        steps=tuple(_step(step) for step in raw["steps"]),
        expect=_expect(raw["expect"]),
        alternatives={knob: _expect({**raw["expect"], **alt}) for knob, alt in alternatives.items()},
        compare=tuple(raw["compare"]),
        tags=frozenset(raw.get("tags") or ()),
        notes=raw.get("notes") or "",
    )


def _watermark(raw: Raw) -> Watermark:
    sources = raw.get("sources")
    lags = None if sources is None else {name: int(spec["lag_ms"]) for name, spec in sources.items()}
    return Watermark(**{**raw, "sources": lags})


def _trigger(raw: Raw) -> Trigger:
    accumulation = cast(Accumulation, raw.get("accumulation", "accumulating"))
    return Trigger(_every(raw.get("early")), raw.get("on_time", True), _every(raw.get("late")), accumulation)


def _every(raw: Raw | None) -> int | None:
    if raw is None:
        return None
    return 1 if raw.get("each") else int(raw["count"])


def _step(raw: Raw) -> Step:
    return Step(**{**raw, "batch": tuple(Row(**row) for row in raw.get("batch") or ())})


def _expect(raw: Raw) -> Expect:
    return Expect(
        final=tuple(_result(r) for r in raw["final"]),
        late=tuple(LateRow(**row) for row in raw["late"]),
        emissions=tuple(Written(e["step"], e["op"], e["pane"], _result(e)) for e in raw["emissions"]),
        watermark_after_ms=tuple(raw["watermark_after_ms"]),
        still_open=tuple(_result(r) for r in raw.get("still_open") or ()),
        null_ts_dropped=_number(raw.get("null_ts_dropped")),
        unassigned=_number(raw.get("unassigned")),
    )


def _result(raw: Raw) -> Result:
    values = raw.get("values")
    row = (raw["row"]["ts_ms"], raw["row"]["value"]) if "row" in raw else None
    bounds = (raw["key"], raw["start_ms"], raw["end_ms"])
    return Result(*bounds, raw["count"], raw["sum"], raw["min"], raw["max"], None if values is None else tuple(values), row)


def _number(raw: int | list[Any] | None) -> int:
    """Rows given one by one, or just their number."""
    return len(raw) if isinstance(raw, list) else raw or 0
