"""Holds what an engine saw against what a case expects, part by part, with the leniency the format grants."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from tests.goldens.cases import Case, Expect, Key, LateRow, Result, Written
from tests.goldens.engines import Observed

T = TypeVar("T", bound=Hashable)
WindowId = tuple[Key, int, int]
SHOWN = 4  # differences shown per part


def differences(case: Case, seen: Observed, expect: Expect | None = None) -> list[str]:
    """What differs in the binding parts; empty if the case holds."""
    want = case.expected if expect is None else expect
    seen_with_values = all(w.row.values is not None for w in seen.written)
    sign = _Normal(with_values=seen_with_values)
    written = [sign.written(w) for w in seen.written]
    expected = [sign.written(w) for w in want.emissions]
    steps_known = all(w.step is not None for w in written)
    # An engine that cannot tell steps runs to the end of input, and closes what would still be open (§2.5).
    final = [sign.result(r) for r in (*want.final, *(() if steps_known else want.still_open))]
    actual: list[str] = []
    for part in case.compare:
        if part == "final" and case.emit != "retractions":
            actual += _final(case, written, final)
        elif part in ("final", "net"):
            actual += _net(written, final)
        elif part == "late":
            actual += _late(seen, want)
        elif part == "emissions":
            actual += _emissions(case, written, expected, seen.may_lag)
        elif part == "watermark":
            actual += _watermark(seen, want)
        else:
            raise ValueError(f"{case.id}: nothing known of how to compare {part!r}")
    return list(dict.fromkeys(actual))


class _Normal:
    """Brings both sides into one form: keys as strings, ``+`` and ``-``, values only where both sides have them."""

    def __init__(self, *, with_values: bool) -> None:
        self._with_values = with_values

    def result(self, r: Result) -> Result:
        values = tuple(sorted(r.values)) if self._with_values and r.values is not None else None
        return Result(normal_key(r.key), r.start_ms, r.end_ms, r.count, r.sum, r.min, r.max, values, r.row)

    def written(self, w: Written) -> Written:
        if w.op not in ("+", "-", "+I", "+U", "-U", "-D"):
            raise ValueError(f"unknown op {w.op!r}")
        return Written(w.step, w.op[0], w.pane, self.result(w.row))


def normal_key(key: Key) -> Key:
    """A runner may turn keys into strings; null stays null."""
    return None if key is None else str(key)


def window_of(row: Result) -> WindowId:
    """The window a result belongs to."""
    return (row.key, row.start_ms, row.end_ms)


def _final(case: Case, written: Sequence[Written], final: Sequence[Result]) -> list[str]:
    if case.emit == "final":
        rows = [w.row for w in written if w.op == "+"]
        withdrawn = [w.row for w in written if w.op == "-"]
        return _unlike("final", final, rows) + [f"final: withdrawn {show(r)}" for r in withdrawn[:SHOWN]]
    last = _last_rows(written, Counter(window_of(r) for r in final))
    if case.window.kind == "session":
        last = [r for r in last if not _merged_away(case, window_of(r), [window_of(f) for f in final])]
    return _unlike("final", final, last)


def _last_rows(written: Sequence[Written], wanted: Counter[WindowId]) -> list[Result]:
    """The last row per window; of windows that look-back gives several times, as many as are wanted."""
    standing: dict[WindowId, list[Result]] = defaultdict(list)
    for w in written:
        rows = standing[window_of(w.row)]
        if w.op == "+":
            rows.append(w.row)
        elif rows:
            rows.pop()
    return [row for window, rows in standing.items() for row in rows[-max(wanted[window], 1) :]]


def _merged_away(case: Case, window: WindowId, final: Sequence[WindowId]) -> bool:
    """Whether a session lies in another that stayed; a capped one may also have been divided up among several."""
    key, start, end = window
    if window in final:
        return False
    if case.window.max_duration_ms is None:
        return any(key == k and a <= start and end <= b for k, a, b in final)
    return any(key == k and a < end and start < b for k, a, b in final)


def _net(written: Sequence[Written], final: Sequence[Result]) -> list[str]:
    standing: Counter[Result] = Counter()
    for w in written:
        standing[w.row] += 1 if w.op == "+" else -1
    return _unfounded(written) + _unlike("net", final, list(standing.elements()))


def _unfounded(written: Sequence[Written]) -> list[str]:
    """Withdrawals of what does not stand at that point of the log."""
    standing: Counter[Result] = Counter()
    actual = []
    for w in written:
        standing[w.row] += 1 if w.op == "+" else -1
        if standing[w.row] < 0:
            actual.append(f"net: withdrawn though it did not stand{_at(w.step)}: {show(w.row)}")
            standing[w.row] = 0
    return actual[:SHOWN]


def _late(seen: Observed, want: Expect) -> list[str]:
    actual = []
    if isinstance(seen.late, int):
        if seen.late != len(want.late):
            actual.append(f"late: expected {len(want.late)} rows, got {seen.late}")
    else:
        rows = [row for row in seen.late if row.reason != "null_time"]
        steps_known = all(row.step is not None for row in rows)
        actual += _unlike("late", _late_keys(want.late, steps_known), _late_keys(rows, steps_known))
    null_rows = seen.null_ts_dropped
    if null_rows is None and not isinstance(seen.late, int) and any(r.reason == "null_time" for r in seen.late):
        null_rows = sum(row.reason == "null_time" for row in seen.late)
    for name, expected, got in (
        ("null_ts_dropped", want.null_ts_dropped, null_rows),
        ("unassigned", want.unassigned, seen.unassigned),
    ):
        if got is not None and got != expected:
            actual.append(f"{name}: expected {expected}, got {got}")
    return actual


def _late_keys(rows: Iterable[LateRow], steps_known: bool) -> list[str]:
    """Late rows as text, without what the engine cannot tell."""
    return [f"{_at(r.step if steps_known else None)} {normal_key(r.key)!r} t={r.ts_ms} v={r.value}" for r in rows]


def _emissions(case: Case, written: Sequence[Written], expected: Sequence[Written], may_lag: bool) -> list[str]:
    if case.emit != "final" and (case.trigger is None or case.trigger.accumulation == "accumulating"):
        written, expected = _without_repeats(written), _without_repeats(expected)
    panes_known = all(w.pane is not None for w in written)
    got, want = _steps_of(written, panes_known), _steps_of(expected, panes_known)
    actual = []
    for line in dict.fromkeys([*want, *got]):
        have, need = sorted(got.get(line, [])), sorted(want.get(line, []))
        if len(have) != len(need) or not all(_same_step(n, h, may_lag) for n, h in zip(need, have, strict=True)):
            actual.append(f"emissions: {_line(line)}: expected {_steps(need)}, got {_steps(have)}")
    return actual[:SHOWN] + (_unfounded(written) if case.emit == "retractions" else [])


UNKNOWN = -1  # stands for a step the engine cannot tell
Line = tuple[str, str | None, Result]


def _steps_of(written: Sequence[Written], panes_known: bool) -> dict[Line, list[int]]:
    steps: dict[Line, list[int]] = defaultdict(list)
    for w in written:
        steps[w.op, w.pane if panes_known else None, w.row].append(UNKNOWN if w.step is None else w.step)
    return steps


def _same_step(need: int, have: int, may_lag: bool) -> bool:
    return UNKNOWN in (need, have) or have == need or (may_lag and have == need + 1)


def _without_repeats(written: Sequence[Written]) -> list[Written]:
    """Without on-time rows equal to the row written before for the same window: they may be left out."""
    standing: dict[WindowId, Result] = {}
    kept = []
    for w in written:
        window = window_of(w.row)
        if w.op == "+" and w.pane in ("on_time", None) and standing.get(window) == w.row:
            continue
        if w.op == "+":
            standing[window] = w.row
        else:
            standing.pop(window, None)
        kept.append(w)
    return kept


def _watermark(seen: Observed, want: Expect) -> list[str]:
    if seen.watermark_after_ms is None:
        return []
    expected = list(want.watermark_after_ms)
    got = seen.watermark_after_ms
    if got == expected:
        return []
    if len(got) != len(expected):
        return [f"watermark: expected {len(expected)} steps, got {len(got)}"]
    wrong = [(i, e, g) for i, (e, g) in enumerate(zip(expected, got, strict=True)) if e != g]
    return [f"watermark: after step {i}: expected {e}, got {g}" for i, e, g in wrong[:SHOWN]]


def _unlike(part: str, expected: Sequence[T], got: Sequence[T]) -> list[str]:
    """The difference of two multisets."""
    want, have = Counter(expected), Counter(got)
    missing, extra = list((want - have).elements()), list((have - want).elements())
    if not missing and not extra:
        return []
    return [f"{part}: expected but missing {_some(missing)}; got but not expected {_some(extra)}"]


def _some(rows: Sequence[object]) -> str:
    shown = ", ".join(show(r) if isinstance(r, Result) else str(r) for r in rows[:SHOWN])
    more = len(rows) - SHOWN
    return f"[{shown}{f', and {more} more' if more > 0 else ''}]"


def show(row: Result) -> str:
    """A result on a line."""
    values = "" if row.values is None else f" values={list(row.values)}"
    numbers = f"count={row.count} sum={row.sum} min={row.min} max={row.max}{values}"
    carried = "" if row.row is None else f" row={row.row}"
    return f"{row.key!r} {row.start_ms}..{row.end_ms} {numbers}{carried}"


def _line(line: Line) -> str:
    op, pane, row = line
    return f"{op} {pane or 'any pane'} {show(row)}"


def _steps(steps: Sequence[int]) -> str:
    return "nothing" if not steps else "at step " + ", ".join("?" if s == UNKNOWN else str(s) for s in steps)


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"
