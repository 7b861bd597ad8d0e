"""A plan is made without a name being asked for that is not there: the answer with the nearest names takes a millisecond."""

from __future__ import annotations

import pytest

from krishiv_py import missing
from krishiv_py.testing import Driver
from tests.checking.operators import PLANS


@pytest.mark.parametrize("name", PLANS)
def test_no_name_is_asked_for_in_vain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, asked = PLANS[name]("row"), list[str]()

    def way_of(kind: str, wanted: str, own: object) -> None:
        asked.append(f"{kind}.{wanted}")

    monkeypatch.setattr(missing, "way_of", way_of)
    Driver(plan).close()
    PLANS[name]("batch")
    assert not asked
