"""The output log: final results, updates or retractions, early, on-time and late firings (§5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.reference.lateness import Horizon
from tests.reference.model import Config, Emission, Facts, Key, Op, Pane, Result, Seen, Watermark, Window, order_of

Identity = tuple[Key, int, int, int | None]
Mark = tuple[Identity | None, int]  # a row in a window; in sessions, which change their bounds, just the row


@dataclass
class _Standing:
    """A result that was written and not withdrawn."""

    identity: Identity
    rows: frozenset[int]
    result: Result


@dataclass
class Firings:
    """Decides what a window writes when it is asked to fire, and remembers what it wrote."""

    config: Config
    horizon: Horizon
    merging: bool
    log: list[Emission] = field(default_factory=list)
    _fired: set[Mark] = field(default_factory=set)
    _completed: set[Mark] = field(default_factory=set)
    _standing: list[_Standing] = field(default_factory=list)
    _often: dict[Mark, int] = field(default_factory=dict)

    def after_row(self, step: int, changed: Iterable[Window], watermark: Watermark) -> None:
        """§5.2: each-element and count triggers, after one row."""
        for window in sorted(changed, key=order_of):
            complete = self.horizon.complete(window.end, watermark)
            every = self.config.trigger.late if complete else self.config.trigger.early
            if isinstance(every, int) and len(self._pending(window)) >= every:
                self._fire(step, window, "late" if complete else "early")
                if complete:
                    self._completed |= self._marks(window)

    def after_batch(self, step: int, windows: Iterable[Window], watermark: Watermark) -> None:
        """§5.1: once per batch, the complete windows that mildly late rows changed; what grew beyond gets another turn."""
        for window in sorted(windows, key=order_of):
            if not self.horizon.complete(window.end, watermark):
                self._completed -= self._marks(window)
            elif self.config.trigger.late == "batch" and (self._pending(window) or self._divided_again(window)):
                self._fire(step, window, "late")
                self._completed |= self._marks(window)

    def ask(self, step: int, windows: Iterable[Window], fresh: int, watermark: Watermark) -> None:
        """§5.7: once per batch, open windows that rows numbered from `fresh` came to, or with new rows at all."""
        requested, waiting = self.config.trigger.decides, self.config.trigger.waiting
        if requested is None:
            return
        windows = sorted(windows, key=order_of)
        keys = {w.key for w in windows if any(s.number >= fresh for s in w.rows)}
        for window in windows:
            if self.horizon.complete(window.end, watermark):
                continue
            new = self._pending(window)
            came = any(s.number >= fresh for s in window.rows)
            is_divided = self._divided_again(window) and not new and (waiting or window.key in keys)
            if not is_divided and not (new and (waiting or came)):
                continue
            often, newest = self._fired_so_often(window), max(s.t for s in window.rows)
            facts = (len(window.rows), len(new), often, newest, watermark)
            if requested(Facts(window.key, window.start, window.end, *facts)):
                self._fire(step, window, "early")

    def _fired_so_often(self, window: Window) -> int:
        return max(self._often.get(mark, 0) for mark in self._marks(window))

    def _count(self, window: Window) -> None:
        self._often |= dict.fromkeys(self._marks(window), self._fired_so_often(window) + 1)

    def _divided_again(self, window: Window) -> bool:
        """Whether rows that were all written before now make up another capped session."""
        accumulating = self.config.trigger.accumulation == "accumulating"
        return self.merging and accumulating and not self._in_force(window)

    def on_watermark(self, step: int, windows: Iterable[Window], watermark: Watermark) -> None:
        """§5.1: once when the end is passed; a session that grew beyond the watermark gets another turn."""
        for window in sorted(windows, key=order_of):
            if not self.horizon.complete(window.end, watermark):
                self._completed -= self._marks(window)
            elif not self._completed & self._marks(window):
                self._completed |= self._marks(window)
                if self.config.trigger.on_time and not self._in_force(window):
                    self._fire(step, window, "on_time")
                elif self.config.trigger.on_time and self.config.emit == "updates":
                    self._count(window)  # the library writes it again

    def on_close(self, step: int, window: Window) -> None:
        """§5.4: the final result, when nothing can change it any more."""
        if self.config.emit == "final":
            self._write(step, "+I", "final", window.result())

    def _marks(self, window: Window) -> set[Mark]:
        return {(None if self.merging else window.identity, s.number) for s in window.rows}

    def _pending(self, window: Window) -> list[Seen]:
        tag = None if self.merging else window.identity
        return [s for s in window.rows if (tag, s.number) not in self._fired]

    def _in_force(self, window: Window) -> bool:
        rows = frozenset(s.number for s in window.rows)
        return any(old.identity == window.identity and old.rows == rows for old in self._standing)

    def _fire(self, step: int, window: Window, pane: Pane) -> None:
        if self.config.emit == "final":
            return
        pending = self._pending(window)
        self._fired |= self._marks(window)
        if self.config.trigger.accumulation == "discarding":
            if pending:
                self._count(window)
                self._write(step, "+I", pane, window.result(pending))
            return
        self._count(window)
        withdrawn = self._withdraw(window)
        retracting = self.config.emit == "retractions"
        for old in withdrawn if retracting else []:
            self._write(step, "-U" if old.identity == window.identity else "-D", pane, old.result)
        again = any(old.identity == window.identity for old in withdrawn)
        result = window.result()
        self._write(step, "+U" if again else "+I", pane, result)
        self._standing.append(_Standing(window.identity, frozenset(s.number for s in window.rows), result))

    def _withdraw(self, window: Window) -> Sequence[_Standing]:
        """Take out what the new result replaces: the same window, or sessions that share rows with it."""
        rows = {s.number for s in window.rows}
        gone = [
            old
            for old in self._standing
            if old.identity == window.identity or (self.merging and old.identity[0] == window.key and old.rows & rows)
        ]
        self._standing = [old for old in self._standing if old not in gone]
        return gone

    def _write(self, step: int, op: Op, pane: Pane, result: Result) -> None:
        self.log.append(Emission(step, op, pane, result))
