"""A damaged checkpoint gives the right answer or an error of ours that names the file, never a wrong answer.

The ordinary run damages the newest file of the kinds below in one or two ways; ``nox -s damage`` files of every kind in every
way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from krishiv_py import Session
from tests.damage.trial import DAMAGES, PLANS, SETTINGS, Trial, prepared

LONG = os.environ.get("KRISHIV_DAMAGE") == "long"
EXPECTED = {
    "spark": {
        "spool/N.parquet", "spool/_krishiv_spool", "cp/metadata", "cp/offsets/N", "cp/commits/N", "cp/sources/N/N",
        "cp/krishiv/plan.json", "cp/krishiv/metrics.json", "cp/krishiv/chunks/N/N", "cp/state/N/N/N.changelog",
        "cp/state/N/_metadata/vN/N", "out/_krishiv_outputs/N.json",
    },
    "ledger": {"cp/krishiv/ledger/N.json"},
}  # fmt: skip
SHORT: dict[str, dict[str, tuple[str, ...]]] = {
    "spark": {
        "cp/offsets/N": ("flipped",), "cp/commits/N": ("flipped at the end", "removed"), "cp/sources/N/N": ("flipped",),
        "cp/metadata": ("cut",), "cp/krishiv/chunks/N/N": ("flipped", "removed"), "cp/krishiv/plan.json": ("flipped",),
        "cp/krishiv/metrics.json": ("cut",), "cp/state/N/N/N.changelog": ("flipped", "removed"),
        "cp/state/N/_stateSchema/default/N_N": ("flipped",),
        "spool/N.parquet": ("flipped",), "cp/state/N/_metadata/vN/N": ("cut",), "out/_krishiv_outputs/N.json": ("cut",),
        "spool/_krishiv_spool": ("flipped",),
    },
    "ledger": {"cp/krishiv/ledger/N.json": ("removed", "flipped")},
}  # fmt: skip


@pytest.fixture(scope="module", params=PLANS)
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


def test_every_kind_of_file_is_damaged(trial: Trial) -> None:
    trial.put_back(trial.home.parent / "copy")
    kinds = trial.kinds()
    assert EXPECTED[trial.plan] <= kinds.keys()
    wrong = []
    for kind, paths in kinds.items():
        damages = tuple(DAMAGES) if LONG else SHORT[trial.plan].get(kind, ())
        for path in {paths[-1], paths[len(paths) // 2]} if LONG else paths[-1:]:
            for damage in damages:
                trial.put_back(trial.home.parent / "copy")
                found = trial.outcome(path, DAMAGES[damage])
                if found != "right" and not named(found, path):
                    wrong.append(f"{path.relative_to(trial.home)} {damage}: {found}")
    assert not wrong, "\n".join(wrong)


def named(error: str, path: Path) -> bool:
    """Whether an error is of ours, names a file of the query, and says what can be done."""
    return error.startswith("CheckpointError: ") and str(path.parents[1]) in error and "Hint: " in error
