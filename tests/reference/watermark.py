"""The watermark over one or several sources (§2)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.reference.model import END, UNSET, Row, Watermark, WatermarkSpec

LONE = ""  # the name of the one source of a query that declares none


class Clock:
    """Keeps the largest event time per source and the watermark in force."""

    def __init__(self, spec: WatermarkSpec) -> None:
        self._spec = spec
        self._lag = dict(spec.sources) if spec.sources is not None else {LONE: spec.lag}
        self._highest: dict[str, Watermark] = dict.fromkeys(self._lag, UNSET)
        self._spoke_at: dict[str, int | None] = dict.fromkeys(self._lag, spec.start_now)
        self._rejoining: set[str] = set()
        self._last_row_at = self._looked = spec.start_now
        self.value: Watermark = UNSET if spec.initial is None else spec.initial

    def observe(self, rows: Iterable[Row], now: int | None) -> None:
        """Take in the rows of a batch, late ones too, then move (§2.2)."""
        for row in rows:
            self._heard(self._source_of(row), row.time, now)
        self._settle(now)

    def advance(self, to: int, source: str | None, now: int | None) -> None:
        """As if a row at ``to + lag`` had come, on one source or on all."""
        for name in self._lag if source is None else [source]:
            self._heard(name, to + self._lag[name], now)
        self._settle(now)

    def close(self) -> None:
        """End of input (§2.5)."""
        self.value = END

    def of_source(self, name: str) -> Watermark:
        """The watermark of one source."""
        own = self._highest[name] - self._lag[name]
        return own if self._spec.initial is None else max(own, self._spec.initial)

    def _source_of(self, row: Row) -> str:
        if self._spec.sources is None:
            return LONE
        if row.source not in self._lag:
            raise ValueError(f"source {row.source!r} was never declared")
        return row.source

    def _heard(self, name: str, t: int, now: int | None) -> None:
        self._highest[name] = max(self._highest[name], t)
        if now is not None:
            self._spoke_at[name] = self._last_row_at = self._looked = now

    def _is_idle(self, name: str, now: int | None) -> bool:
        spoke_at = self._spoke_at[name]
        timeout = self._spec.idle_timeout
        return timeout is not None and now is not None and spoke_at is not None and now - spoke_at > timeout

    def _settle(self, now: int | None) -> None:
        """§2.4: the minimum over the sources that are not idle; never back."""
        self._go_on(now)
        idle = {name for name in self._lag if self._is_idle(name, now)}
        if self._spec.idle_resume == "align":
            self._rejoining |= idle
            self._rejoining = {n for n in self._rejoining if n in idle or self.of_source(n) < self.value}
        counted = [self.of_source(n) for n in self._lag if n not in idle and n not in self._rejoining]
        if counted:
            candidate = min(counted) if self._spec.policy == "min" else max(counted)
        elif len(idle) == len(self._lag) and self._spec.all_idle == "max":
            candidate = max(self.of_source(n) for n in self._lag)
        else:
            candidate = self.value
        self.value = max(self.value, candidate)

    def _go_on(self, now: int | None) -> None:
        """§10: tick by tick, with the clock, while every source has been silent for so long."""
        after = self._spec.idle_advance
        if after is None or now is None:
            return
        if self._last_row_at is None or self._looked is None:
            self._last_row_at = self._looked = now
        for tick in range(self._looked + 1, now + 1):
            if tick - self._last_row_at > after and self.value not in (UNSET, END):
                self.value += 1
        self._looked = max(self._looked, now)
