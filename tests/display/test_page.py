"""The page of a session: what it shows, to whom it answers, and that it goes with the session."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from krishiv_py import (
    MemorySink,
    OperatorError,
    PlanError,
    ResultStream,
    Sender,
    Session,
    SideOutputLateEventHandler,
    count,
    logs,
)
from krishiv_py.display.page import Box, Sample, View, content, drawn
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.running import Progress
from krishiv_py.ui import boxes

NASTY = "<script>alert('x')</script> password=hunter2"


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.in_process() as made:
        yield made


def pipeline(session: Session) -> tuple[ResultStream, Sender]:
    stream, sender = session.memory_stream("user string, at bigint")
    windows = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    return windows.with_late_event_handler(SideOutputLateEventHandler(MemorySink())), sender


def get(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode(), dict(refused.headers)


def test_it_shows_what_runs(session: Session) -> None:
    windows, sender = pipeline(session)
    query = windows.start(MemorySink(), name=NASTY)
    sender.send([{"user": "a", "at": 100}, {"user": "b", "at": 5_100}])
    sender.send([{"user": "late user", "at": 200}])
    query.process_all_available()
    with session.ui(port=0) as page:
        text = get(page.url)[1]
        assert "33.3 % of the rows" in text and "late user" not in text, "values are shown to whoever asks for them"
    with session.ui(port=0, late_rows=True, leave_out=["user"]) as page:
        text = get(page.url)[1]
        assert "Last late rows of" in text and "late user" not in text
    with session.ui(port=0, late_rows=True) as page:
        code, text, headers = get(page.url)
        assert code == 200 and "tumbling 1 s" in text and "late user" in text
        assert "<dd>3<small>" in text, "three rows"
        assert "33.3 % of the rows" in text
        assert "hunter2" not in text and "<script>alert" not in text
        nonce = re.search(r"'nonce-([^']+)'", headers["Content-Security-Policy"])
        assert nonce is not None and re.findall(r"<script[^>]*>", text) == [f"<script nonce='{nonce[1]}'>"]
        assert not re.search(r"(?:src|href)=", text), "it needs nothing from elsewhere"
        assert "tumbling 1 s" in get(f"{page.url}now")[1]
        assert "fires when the watermark reaches" in get(f"{page.url}why?{urlencode({'query': NASTY})}")[1]
        assert "no query of this name" in get(f"{page.url}why?query=none")[1]
        assert get(f"{page.url}secret")[0] == 404


def test_a_page_of_another_site_reads_nothing(session: Session) -> None:
    # A name of the attacker's that is made to mean 127.0.0.1 gives a browser's script what this machine serves.
    with session.ui(port=0) as page:
        assert get(page.url, Host=f"evil.example:{page.port}")[0] == 403
        assert get(page.url, Host=f"localhost:{page.port}")[0] == 200


def test_a_failed_query_is_shown_with_its_problem(session: Session) -> None:
    def broken(rows: object) -> object:
        raise ZeroDivisionError("nothing can be shared among nobody")

    windows, sender = pipeline(session)
    query = windows.map_batches(broken, "user string").start(MemorySink(), name="q")
    sender.send([{"user": "a", "at": 100}, {"user": "b", "at": 5_100}])
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        query.process_all_available()
    with session.ui(port=0) as page:
        assert "✖ failed" in get(page.url)[1] and "ZeroDivisionError" in get(page.url)[1]
        why = get(f"{page.url}why?query=q")[1]
        assert why.startswith("The query has failed") and "ZeroDivisionError" in why


def test_of_many_queries_those_that_need_somebody_are_first() -> None:
    day_us = 86_400_000_000
    views = [View(f"q{n}", "running", Progress(batch_id=1, rows=10, batch_ended_us=day_us)) for n in range(28)]
    views += [View("hung", "running", Progress(busy_seconds=1_200)), View("broken", "failed", Progress(), problem="of a sink")]
    text = content(views, 1_200 * day_us)
    overview = text[: text.index("</nav>")]
    assert "30 queries" in overview and "1 failed, 1 stuck, 28 running" in overview
    assert overview.index("broken") < overview.index("hung") < overview.index("q0")
    assert re.findall(r"data-query='([^']*)'", text)[:3] == ["broken", "hung", "q0"]
    assert text.count("<details class='whole'>") == 28 and "⚠ stuck</b> the batch in hand" in text
    assert "1\u202f199 days ago" in text and "e+" not in text
    assert "#query-broken" in overview and "id='query-broken'" in text
    assert "<nav" not in content(views[:1])


def test_columns_to_leave_out_are_of_late_rows() -> None:
    with Session.in_process() as session, pytest.raises(PlanError, match="late_rows=True"):
        session.ui(port=0, leave_out=["user"])


def test_it_goes_with_the_session_and_its_port_is_free_again() -> None:
    with Session.in_process() as session:
        page = session.ui(port=0)
        with pytest.raises(PlanError, match=r"cannot be served.*Hint: pass a port"):
            session.ui(port=page.port)
        port = page.port
    assert not [t for t in threading.enumerate() if t.name == "krishiv-ui"]
    with Session.in_process() as session, session.ui(port=port) as page:
        assert get(page.url)[0] == 200
        page.close()
        page.close()


def test_the_last_minutes_are_drawn(session: Session) -> None:
    windows, sender = pipeline(session)
    windows.start(MemorySink(), name="q")
    with session.ui(port=0) as page:
        until = time.monotonic() + 30
        moment = 0
        while "<polyline" not in get(f"{page.url}now")[1]:
            assert time.monotonic() < until
            sender.send([{"user": "a", "at": moment}])
            moment += 500
            time.sleep(0.2)


def test_the_parts_of_its_batches_are_a_bar_with_numbers(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_RECENT_SPACING_NS", 0)  # of each batch
    windows, sender = pipeline(session)
    query = windows.start(MemorySink(), name=NASTY, checkpoint=str(tmp_path / "c"))
    with session.ui(port=0) as page:
        assert "Time of a batch" not in get(page.url)[1]
        for second in range(3):
            sender.send([{"user": "a", "at": 1_000 * second}])
            query.process_all_available()
        text = get(page.url)[1]
        assert "mean of 3" in text
        for part in ("plan", "read", "pack", "step", "publish", "commit", "rest"):
            assert re.search(rf"</i>{part}</td><td[^>]*>[\d.,]+ ms</td><td[^>]*>[\d.,]+ ms</td><td[^>]*>\d+ %</td>", text), part
        for bar in re.findall(r"role='img' aria-label='(plan [^']+)'", text):
            assert bar.count(" ms") == 7, bar
    assert not logs._WATCHES, "nothing is noted once the page is closed"


def test_parts_of_any_length_can_be_shown() -> None:
    cases: list[list[dict[str, float]]] = [
        [{}],
        [{"rest": 0.0}],
        [{"read": 0.0}, {"rest": 1e-9}],
        [{"step": 1e9, NASTY: 1e-12}],
    ]
    for times in cases:
        text = content([View("q", "running", Progress(), times=times)])
        assert "nan" not in text and "inf" not in text and "<script" not in text and "hunter2" not in text


@pytest.mark.parametrize("watermark", [UNSET, END_OF_TIME, 0, -(10**15), 2 * 10**15, 10**17])
def test_any_watermark_can_be_shown(watermark: int) -> None:
    samples = [Sample.of(Progress(batch_id=n, watermark_us=watermark, rows=n), float(n)) for n in range(4)]
    progress = Progress(
        batch_id=3, watermark_us=watermark, source_watermarks_us={"a": watermark, "b": UNSET}, held_back={"a": 2}
    )
    assert "nan" not in content([View("q", "running", progress, samples=samples)], now_us=1_800_000_000_000_000)


def test_no_arrow_of_the_drawing_passes_through_a_box() -> None:
    chain = (Box("source", "s"), Box("stage", "1", inputs=(0,)), Box("stage", "2", inputs=(1,)), Box("stage", "3", inputs=(2,)))
    out = (Box("output", "of 1", inputs=(1,)), Box("output", "of 2", inputs=(2,)), Box("output", "of 3", inputs=(3,)))
    text = drawn((*chain, *out))
    frames = [tuple(map(int, f)) for f in re.findall(r"x='(\d+)' y='(\d+)' width='(\d+)' height='(\d+)' rx", text)]
    arrows = re.findall(r"<path class='arrow' d='M(\d+) (\d+)C\d+ \d+ \d+ \d+ (\d+) (\d+)H(\d+)'", text)
    assert len(frames) == 7 and len(arrows) == 6
    for _, _, bend, level, end in (tuple(map(int, arrow)) for arrow in arrows):
        assert not [f for f in frames if f[1] <= level <= f[1] + f[3] and f[0] < end and f[0] + f[2] > bend]


def test_several_outputs_and_joins_are_drawn_with_what_they_read(session: Session) -> None:
    windows, _ = pipeline(session)
    other, _ = session.memory_stream("user string, at bigint, price double")
    joined = other.watermark("at", 0).interval_join(windows.key_by("user"), on="user", lower="-1 s", upper="1 s")
    actual = boxes(joined._plan("in_process"))
    assert [b.kind for b in actual].count("source") == 2 and actual[-1].kind == "output"
    assert all(n < i for i, box in enumerate(actual) for n in box.inputs)


@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "localhost"])
def test_the_page_is_served_at_any_kind_of_address(host: str) -> None:
    with Session.in_process() as session, session.ui(port=0, host=host) as shown:
        assert urllib.request.urlopen(shown.url, timeout=10).status == 200


def test_an_address_that_cannot_be() -> None:
    with Session.in_process() as session, pytest.raises(PlanError, match="cannot be served"):
        session.ui(port=0, host="256.0.0.1")
