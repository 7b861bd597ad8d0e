"""Windows by the clock, plainly: a row is of the moment it came at, and a window is over when the clock says so (§10)."""

from __future__ import annotations

from collections.abc import Sequence

Arrival = tuple[int, str]  # when it came, its key
Counted = tuple[str, int, int, int]  # key, start, end, rows


def moments(clock: Sequence[int]) -> list[int]:
    """What a clock shows, look by look; one that goes back waits until it has caught up."""
    return [max(clock[: n + 1]) for n in range(len(clock))]


def grid(rows: Sequence[Arrival], size: int, slide: int) -> list[Counted]:
    """Tumbling and hopping windows: every start at a multiple of `slide`."""
    actual = []
    for key in {key for _, key in rows}:
        mine = [t for t, k in rows if k == key]
        for start in range((min(mine) - size) // slide * slide, max(mine) + 1, slide):
            inside = sum(start <= t < start + size for t in mine)
            if inside:
                actual.append((key, start, start + size, inside))
    return actual


def sessions(rows: Sequence[Arrival], gap: int) -> list[Counted]:
    """Sessions: rows of a key less than `gap` apart."""
    actual: list[Counted] = []
    for key in {key for _, key in rows}:
        mine = sorted(t for t, k in rows if k == key)
        while mine:
            run = [mine.pop(0)]
            while mine and mine[0] - run[-1] < gap:
                run.append(mine.pop(0))
            actual.append((key, run[0], run[-1] + gap, len(run)))
    return actual


def over(windows: Sequence[Counted], now: int) -> list[Counted]:
    """Those the clock has passed."""
    return sorted(w for w in windows if w[2] <= now)
