"""What a changed trigger means for stored state of sessions and count windows (SEMANTICS §6.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import krishiv_py as kv
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import stream_of

Windowed = Callable[[kv.Trigger, bool], WindowedStream]


def sessions(trigger: kv.Trigger, pane: bool) -> WindowedStream:
    keyed = stream_of("at bigint").watermark("at", 5).trigger(trigger).emit("updates")
    return (keyed.with_pane() if pane else keyed).session_window(5)


def counts(trigger: kv.Trigger, pane: bool) -> WindowedStream:
    keyed = stream_of("at bigint").watermark("at", 5).trigger(trigger).emit("updates")
    return (keyed.with_pane() if pane else keyed).count_window(5)


def changed(windowed: Windowed, before: tuple[kv.Trigger, bool], after: tuple[kv.Trigger, bool]) -> list[str]:
    one, other = (fingerprint(windowed(*how).agg(kv.count())._plan(late="count").spec) for how in (before, after))
    return differences(one, other)


@pytest.mark.parametrize("windowed", [sessions, counts])
def test_state_of_another_layout_is_not_taken_over(windowed: Windowed) -> None:
    plain, often = kv.Trigger(), kv.Trigger.on_count(2)
    assert not changed(windowed, (plain, False), (plain, True))
    assert changed(windowed, (plain, False), (often, False))
    assert changed(windowed, (plain, True), (often, True))


def test_sessions_follow_another_count_and_count_windows_do_not() -> None:
    before, after = (kv.Trigger.on_count(2), False), (kv.Trigger.on_count(3), False)
    assert not changed(sessions, before, after)
    assert changed(counts, before, after)
