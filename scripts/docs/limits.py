"""The table of what goes with what, asked of the planner: ``python -m scripts.docs.limits`` writes it into docs/costs.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from krishiv_py import KrishivError, SlidingWindows, StateTtlConfig, TimeIntervalWindowOptions, count
from krishiv_py.testing import stream_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "costs.md"
BEGIN: Final = "<!-- made by scripts/docs/limits.py -->\n"
END: Final = "<!-- end of what is made -->\n"

Step = Callable[[Any], Any]

WINDOWS: Final[dict[str, Step]] = {
    "tumbling": lambda s: s.tumbling_window("1 minute"),
    "hopping": lambda s: s.hopping_window("1 minute", "15 s"),
    "cumulate": lambda s: s.cumulate_window("15 s", "1 minute"),
    "session": lambda s: s.session_window("30 s"),
    "look-back": lambda s: s.lookback_window("1 minute"),
    "distinct-set": lambda s: s.windowed_by(SlidingWindows.of("1 minute").grace("1 minute")),
    "panes": lambda s: s.time_interval_window(TimeIntervalWindowOptions(60_000)),
    "count": lambda s: s.count_window(10),
}
OPTIONS: Final[dict[str, Step]] = {
    'emit("updates")': lambda w: w.emit("updates"),
    'emit("retractions")': lambda w: w.emit("retractions"),
    "allowed lateness": lambda w: w.allowed_lateness("1 minute"),
    "late rule window": lambda w: w.late_rule("window"),
    "discarding": lambda w: w.accumulation("discarding"),
    "state TTL": lambda w: w.with_state_ttl(StateTtlConfig("1 day")),
}


_AFTER: Final = "a stage after it"
_AFTER_UPDATES: Final = "a stage after updates"


def answer(window: Step, option: Step | None, after: bool) -> str | None:
    """Return what the planner refuses, or None."""
    keyed = stream_of("k string, at bigint").watermark("at", "5 s").key_by("k")
    try:
        results = window(keyed)
        results = (results if option is None else option(results)).agg(count())
        if after:
            results = results.tumbling_window("1 hour").agg(count())
        results.explain()
    except KrishivError as error:
        return str(error)
    return None


def table() -> str:
    """Return the table with a note for each refusal."""
    notes: list[str] = []
    columns = [*OPTIONS, _AFTER, _AFTER_UPDATES]
    lines = [f"| Window | {' | '.join(f'`{c}`' if '(' in c else c for c in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, window in WINDOWS.items():
        cells = []
        for column in columns:
            option = OPTIONS['emit("updates")'] if column == _AFTER_UPDATES else OPTIONS.get(column)
            refused = answer(window, option, column not in OPTIONS)
            if refused is not None and refused not in notes:
                notes.append(refused)
            cells.append("yes" if refused is None else f"no ({notes.index(refused) + 1})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    escaped = (note.replace("|", r"\|").replace("\n", " ") for note in notes)
    noted = [f"| {number} | {note} |" for number, note in enumerate(escaped, 1)]
    return "\n".join([*lines, "", "| No | What the planner says |", "|---|---|", *noted]) + "\n"


def page() -> str:
    """Return the page with the table as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
