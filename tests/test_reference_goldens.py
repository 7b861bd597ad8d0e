"""The plain reference holds every golden case, on this project's side of each dialect knob and on the other."""

from __future__ import annotations

import pytest

from tests.goldens.cases import OWN_CASES, QUIET_CASES, WORKED_CASES, Case, load
from tests.goldens.compare import differences
from tests.goldens.engines.reference import ReferenceEngine

CASES = load(OWN_CASES)
TURNED = [(case, knob) for case in CASES for knob in case.alternatives]


def test_the_corpus_is_all_there() -> None:
    assert len(CASES) == 93
    assert len({case.id for case in CASES}) == 93


@pytest.mark.parametrize("case", [*CASES, *load(WORKED_CASES), *load(QUIET_CASES)], ids=lambda case: case.id)
def test_reference_holds(case: Case) -> None:
    assert differences(case, ReferenceEngine().run(case)) == []


@pytest.mark.parametrize(("case", "knob"), TURNED, ids=[f"{case.id}-{knob}" for case, knob in TURNED])
def test_reference_holds_on_the_other_side(case: Case, knob: str) -> None:
    name, side = knob.split("=")
    turned = {name: side}
    seen = ReferenceEngine(turned).run(case)
    assert differences(case, seen, case.under(turned)) == []
    assert differences(case, seen, case.expect) != []
