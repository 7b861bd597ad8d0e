"""The golden cases on every route. On real queries a run of all tests takes some; `nox -s goldens` takes all."""

from __future__ import annotations

import os

import pytest

from krishiv_py import Session
from krishiv_py.in_process import core, stage
from tests.goldens.cases import OWN_CASES, QUIET_CASES, WORKED_CASES, Case, load
from tests.goldens.compare import differences
from tests.goldens.engines import engine_named, unsupported_by

WORKED = [*load(WORKED_CASES), *load(QUIET_CASES)]
CORPUS = load(OWN_CASES)
CASES = [*CORPUS, *WORKED]
SOME = CASES if os.environ.get("KRISHIV_GOLDENS") == "all" else [*CORPUS[::60], *WORKED[::5]]


def _holds(engine: str, case: Case) -> None:
    actual = engine_named(engine)
    if unsupported_by(actual) & set(case.tags):
        pytest.skip("a feature the semantics do not define")
    assert differences(case, actual.run(case)) == []


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_driver(case: Case) -> None:
    _holds("driver", case)


@pytest.mark.parametrize("case", CASES[::4] if SOME is not CASES else CASES, ids=lambda c: c.id)
def test_in_process(case: Case) -> None:
    _holds("in_process", case)


@pytest.mark.parametrize("case", CASES[2::8] if SOME is not CASES else CASES, ids=lambda c: c.id)
def test_in_process_with_workers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "FEW_ROWS", 0)
    monkeypatch.setattr(core, "FEW_ROWS", 0)
    _holds("in_process_workers", case)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_in_process_bounded(case: Case) -> None:
    _holds("in_process_bounded", case)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_bounded(session: Session, case: Case) -> None:
    _holds("bounded", case)


@pytest.mark.parametrize("case", SOME, ids=lambda c: c.id)
def test_streaming(session: Session, case: Case) -> None:
    _holds("streaming", case)
