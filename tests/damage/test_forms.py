"""What operators know next to their tables, of another form under a right checksum: an error of ours, never a bare one."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Final

import pytest

from krishiv_py.errors import CheckpointError
from krishiv_py.testing import Driver
from tests.damage.shapes import numbered, variants
from tests.in_process.test_evolution_laws import OPERATORS, Times, rows_of, sent_to

LONG: Final = os.environ.get("KRISHIV_DAMAGE") == "long"
SOME: Final = 8


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", OPERATORS)
def test_what_is_known_of_tables_in_another_form_is_no_bare_error(kind: str, tmp_path: Path) -> None:
    driver, rows = Driver(OPERATORS[kind](Times())), rows_of(random.Random(4), kind, 0)
    for batch in rows[:4]:
        sent_to(driver, batch)
    whole, dice = driver.savepoint(str(tmp_path / "savepoint")), random.Random(f"{kind} {os.environ.get('KRISHIV_SEED', '1')}")
    named = 0
    for path in sorted(Path(whole).rglob("bucket.json")):
        data = path.read_bytes()
        note = json.loads(data)["note"]
        every = list(variants(note["known"]))
        for what, known in every if LONG else dice.sample(every, SOME):
            path.write_bytes(numbered(json.dumps({**note, "known": known}).encode()))
            try:
                changed = Driver(OPERATORS[kind](Times()), savepoint=whole)
                for batch in rows[4:]:
                    sent_to(changed, batch)
                changed.close()
            except CheckpointError as problem:
                named += str(path) in str(problem)
            except Exception as problem:
                raise AssertionError(f"{path.relative_to(tmp_path)}: {what}") from problem
        path.write_bytes(data)
    assert named
