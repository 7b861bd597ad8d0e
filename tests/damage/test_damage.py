"""A damaged checkpoint gives the right answer or an error of ours that names the file, never a wrong answer.

The ordinary run damages what tasks read, all files of a kind at once, and in one go everything that has no weight;
``nox -s damage`` files of every kind in every way. What is read before anything runs is damaged in ``test_notes.py``, tables
of lookup joins in every way in ``test_tables.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from krishiv_py import Session
from tests.damage.kinds import ALWAYS, CHECKSUM, OF_PLAN, is_known
from tests.damage.trial import DAMAGES, PLANS, SETTINGS, Trial, prepared

LONG = os.environ.get("KRISHIV_DAMAGE") == "long"
pytestmark = pytest.mark.xdist_group("damage")  # what is damaged is prepared once
FATAL: dict[str, tuple[tuple[str, str], ...]] = {
    "spark": (("cp/krishiv/chunks/N/N", "flipped"), ("cp/state/N/N/N.changelog", "flipped"), ("cp/state/N/N/N.zip", "cut")),
    "ledger": (
        ("cp/krishiv/ledger/N.json", "flipped"),
        ("cp/krishiv/controls/N.parquet", "flipped"),
        ("cp/krishiv/tables/N.arrow", "emptied"),
        ("cp/krishiv/chunks/N/N", "removed"),
        ("cp/krishiv/tables/_in_use.json", "removed"),
    ),
}
"""What the query needs, and finds to be damaged when it runs; the ordinary run has the first three."""
WITHOUT_WEIGHT = {
    "cp/krishiv/lock": "emptied",
    "cp/krishiv/metrics.json": "cut",
    "spool/_krishiv_spool": "flipped",
    "spool/_krishiv_reader_N.json": "removed",
    "late/_krishiv_outputs/N.json": "removed",
    "late/_krishiv_staging/N/N-N.parquet": "cut",
    "out/_krishiv_staging/N/N-N.parquet": "flipped",
    "out/_krishiv_staging/N/_SUCCESS": "removed",
    "out/_krishiv_staging/N/part-N-N-cN.json": "flipped",
}
"""What is made again, or is there for people and other queries."""


@pytest.fixture(scope="module", params=PLANS if LONG else ["ledger"])
def trial(request: pytest.FixtureRequest, session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """A query stopped half way."""
    before = {name: session.spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        session.spark.conf.set(name, value)
    yield prepared(session, tmp_path_factory.mktemp("damage"), request.param)
    for name, old in before.items():
        if old is None:
            session.spark.conf.unset(name)
        else:
            session.spark.conf.set(name, old)


def test_every_kind_of_file_is_known(trial: Trial) -> None:
    """A new kind of file goes into the list, and so into the trial."""
    trial.put_back()
    kinds = trial.kinds().keys()
    assert ALWAYS | OF_PLAN[trial.plan] <= kinds
    assert [k for k in kinds if not is_known(k)] == []


@pytest.mark.skipif(not LONG, reason="nox -s damage")
def test_what_has_no_weight_may_all_be_damaged(trial: Trial) -> None:
    trial.put_back()
    kinds = trial.kinds()
    damaged = [(path, damage) for kind, damage in WITHOUT_WEIGHT.items() for path in kinds.get(kind, ())]
    assert len(damaged) > 5
    with pytest.warns(RuntimeWarning, match=r"metrics\.json are damaged"):
        assert trial.outcome(*damaged) == "right"


def test_what_a_query_needs_is_found_to_be_damaged(trial: Trial) -> None:
    trial.put_back()
    kinds = trial.kinds()
    for kind, damage in FATAL[trial.plan][: None if LONG else 3]:
        actual = trial.outcome(*((path, damage) for path in kinds[kind]))
        assert any(named(actual, path) for path in kinds[kind]), f"{kind} {damage}: {actual}"


@pytest.mark.skipif(not LONG, reason="takes an hour: nox -s damage")
def test_every_kind_of_file_is_damaged(trial: Trial) -> None:
    trial.put_back()
    wrong = []
    for path, damage in cases(trial.kinds()):
        actual = trial.outcome((path, damage))
        if actual != "right" and not named(actual, path):
            wrong.append(f"{path.relative_to(trial.home)} {damage}: {actual}")
    assert not wrong, "\n".join(wrong)


def cases(kinds: dict[str, list[Path]]) -> list[tuple[Path, str]]:
    """The newest file of each kind, and one from the middle, in every way; checksum files last."""
    some = [path for paths in kinds.values() for path in dict.fromkeys((paths[-1], paths[len(paths) // 2]))]
    return [(path, damage) for path in sorted(some, key=lambda p: p.name.endswith(CHECKSUM)) for damage in DAMAGES]


def named(error: str, path: Path) -> bool:
    """Whether an error is of ours, names the file, or the folder or state it is of, and says what can be done."""
    state = next((str(p) for p in path.parents if p.name == "state"), None)
    return error.startswith("CheckpointError: ") and (state or str(path.parent)) in error and "Hint: " in error
