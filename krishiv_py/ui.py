"""A page in the browser that shows what a session runs: read only, on this machine, without a build step or a network.

``session.ui()`` and ``krishiv run --ui`` serve it. A thread notes the numbers of each query once a second while the page is
served, so that it can draw their last minutes; where no page is served nothing is noted.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Final
from urllib.parse import parse_qs, urlsplit

import attrs
import pyarrow as pa

from krishiv_py.display.page import Box, Sample, View, content, page
from krishiv_py.errors import KrishivError, PlanError, shown
from krishiv_py.failures.redaction import redacted
from krishiv_py.logs import RecentTimes
from krishiv_py.metrics import Answers, Served, server_at
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.query import RunningQuery, inside
from krishiv_py.storage.ending import ClosedAtEnd

__all__ = ["Page"]

_EVERY_S: Final = 1.0
_KEPT: Final = 600
_LOCAL: Final = ("127.0.0.1", "[::1]", "localhost")
_GUARDS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)


class Page(ClosedAtEnd):
    """The page of a session while it is served; made by :meth:`krishiv_py.Session.ui`.

    It is a context manager: at the end of ``with`` it is served no more, as after :meth:`close` and with the session.
    """

    def __init__(
        self,
        title: str,
        queries: Callable[[], Sequence[RunningQuery]],
        host: str,
        port: int,
        *,
        late_rows: bool = False,
        leave_out: frozenset[str] = frozenset(),
    ) -> None:
        self._watcher = _Watcher(queries, late_rows=late_rows, leave_out=leave_out)
        self._host = host
        try:
            server = server_at(host, port, _handler(title, self._watcher, host))
        except (OSError, OverflowError, TypeError, UnicodeError) as problem:
            got = f"{shown(host)}:{shown(port)}: {problem}"
            hint = "pass a port from 1 to 65535 that nobody listens on, or 0 for a free one"
            what = "the page of the session cannot be served"
            raise PlanError(what, got=got, hint=hint, transient=False) from problem
        server.daemon_threads = True
        self._watcher.start()
        self._served = Served(server, "krishiv-ui")

    @property
    def port(self) -> int:
        """The port it is served on."""
        return self._served.port

    @property
    def url(self) -> str:
        """The address for the browser."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/"

    def close(self) -> None:
        """Serve it no more. Does nothing the second time."""
        if self._watcher.end():
            self._served.close()

    def __repr__(self) -> str:
        return f"<Page of a session at {self.url}>"

    def _repr_html_(self) -> str:
        """Show the address as a link in a notebook."""
        return f"<a href='{self.url}' target='_blank' rel='noopener'>{self.url}</a>"


def boxes(plan: PhysicalPlan, view: Callable[[str], str] = lambda stage: "") -> tuple[Box, ...]:
    """Return the sources, stages and outputs of a plan, for a drawing; `view` gives the numbers of a stage by its name."""
    made: list[Box] = []
    sources: dict[int, int] = {}
    stages: list[int] = []
    for stage in plan.stages:
        inputs: list[int] = []
        for branch in stage.inputs:
            if branch.after is not None:
                inputs.append(stages[branch.after])
                continue
            if id(branch.source) not in sources:
                sources[id(branch.source)] = len(made)
                made.append(Box("source", branch.name or branch.source.title, redacted(branch.source.detail())))
            inputs.append(sources[id(branch.source)])
        stages.append(len(made))
        name = stage.spec.name
        made.append(Box("stage", name, stage.node.operation.describe(), view(name), tuple(dict.fromkeys(inputs))))
    made += [Box("output", output.name, inputs=(stages[output.stage],)) for output in plan.outputs]
    return tuple(made)


@attrs.define(eq=False)
class _Watcher:
    """The queries of a session, the numbers of their last minutes, and the times of their last batches."""

    queries: Callable[[], Sequence[RunningQuery]]
    late_rows: bool = False
    """True if values of late rows are shown, but for those of the columns to `leave_out`."""
    leave_out: frozenset[str] = frozenset()
    samples: dict[str, deque[Sample]] = attrs.field(factory=dict)
    times: dict[str, RecentTimes] = attrs.field(factory=dict)
    _ended: threading.Event = attrs.field(factory=threading.Event)
    _following: threading.Lock = attrs.field(factory=threading.Lock)

    def start(self) -> None:
        """Begin to note the numbers, in a thread."""
        self._follow({query.name for query in self.queries()})
        threading.Thread(target=self._note, name="krishiv-ui-samples", daemon=True).start()

    def end(self) -> bool:
        """Note no more; returns whether it did until now."""
        if self._ended.is_set():
            return False
        self._ended.set()
        self._follow(set())
        return True

    def _follow(self, names: set[str]) -> None:
        """Keep the times of the batches of these queries, and of no other."""
        with self._following:
            for name in set(self.times) - names:
                self.times.pop(name).end()
            for name in set() if self._ended.is_set() else names - set(self.times):
                self.times[name] = RecentTimes(name)
                self.times[name].begin()

    def _note(self) -> None:
        while not self._ended.wait(_EVERY_S):
            queries = list(self.queries())
            for query in queries:
                if query.status == "running":
                    kept = self.samples.setdefault(query.name, deque(maxlen=_KEPT))
                    kept.append(Sample.of(query.progress, time.monotonic()))
            names = {query.name for query in queries}
            for name in set(self.samples) - names:
                del self.samples[name]
            self._follow(names)

    def views(self) -> list[View]:
        """Return what the page shows now."""
        return [self._view(query) for query in list(self.queries())]

    def _view(self, query: RunningQuery) -> View:
        now, status = query.progress, query.status
        plan, late = inside(query)
        late = {stage: _without(rows, self.leave_out) for stage, rows in late.items()} if self.late_rows else {}
        stages = now.stages or {query.operator: now}
        problem = query.exception() if status == "failed" else None

        def numbers(stage: str) -> str:
            one = stages.get(stage)
            return "" if one is None else f"{one.rows:,} rows, {one.open_windows:,} open"

        return View(
            query.name,
            status,
            now,
            boxes(plan, numbers),
            list(self.samples.get(query.name, ())),
            None if problem is None else str(problem),
            late,
            () if (recent := self.times.get(query.name)) is None else recent.last(),
        )

    def why(self, name: str) -> str:
        """Return what the oldest open window of a query waits for."""
        for query in self.queries():
            if query.name == name:
                problem = query.exception() if query.status == "failed" else None
                if problem is not None:
                    return redacted(f"{_FAILED} {problem}")
                try:
                    return redacted(query.why_not_fired())
                except KrishivError as problem:
                    return redacted(str(problem))
        return "There is no query of this name any more."


_FAILED: Final = "The query has failed: no window fires until it is started again from its checkpoint, which has them."


def _without(rows: pa.Table, names: frozenset[str]) -> pa.Table:
    return rows.select([name for name in rows.column_names if name not in names])


def _handler(title: str, watcher: _Watcher, host: str) -> type[BaseHTTPRequestHandler]:
    names = (*_LOCAL, host, f"[{host}]")

    class Handler(Answers):
        server_version = "krishiv"
        sys_version = ""

        def get(self) -> None:
            url, nonce = urlsplit(self.path), secrets.token_urlsafe(16)
            if host != "0.0.0.0" and self.headers.get("Host", "").rpartition(":")[0] not in names:
                self._answer(
                    403, "text/plain", "this page is for the machine of the session only\n"
                )  # a name that somebody rebound
            elif url.path == "/":
                policy = f"default-src 'none';style-src 'unsafe-inline';script-src 'nonce-{nonce}';connect-src 'self'"
                self._answer(200, "text/html", page(title, watcher.views(), nonce), ("Content-Security-Policy", policy))
            elif url.path == "/now":
                self._answer(200, "text/html", content(watcher.views()))
            elif url.path == "/why":
                self._answer(200, "text/plain", watcher.why(parse_qs(url.query).get("query", [""])[0]))
            else:
                self._answer(404, "text/plain", "the page is at /\n")

        def _answer(self, code: int, kind: str, text: str, *more: tuple[str, str]) -> None:
            self.answer(code, f"{kind}; charset=utf-8", text.encode(), *_GUARDS, *more)

    return Handler


def __dir__() -> list[str]:
    return __all__
