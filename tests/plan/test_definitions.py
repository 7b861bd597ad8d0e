"""What is said of a function in its definition holds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from krishiv_py.functions.definition import Definition
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.parse import parse_expr

ROW = pa.table({"row": [1]})
SHOWN = sorted(name for name, known in FUNCTIONS.items() if known.example[0])


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_has_the_value_it_shows(name: str) -> None:
    text, wanted = FUNCTIONS[name].example
    (actual,) = evaluate(parse_expr(text), ROW).to_pylist()
    assert (actual, type(actual)) == (wanted, type(wanted))


def test_only_the_function_that_no_user_calls_has_no_example() -> None:
    assert set(FUNCTIONS) - set(SHOWN) == {"distinct_key"}


@pytest.mark.parametrize("known", FUNCTIONS.values(), ids=[*FUNCTIONS])
def test_a_definition_is_a_sentence_with_its_parameters(known: Definition) -> None:
    assert known.doc.startswith("Return "), known.name
    fewest, most = known.limits
    required = [p for p in known.params if not p.optional]
    assert fewest == len(required)
    assert most >= len(known.params)


def test_two_functions_share_no_spelling() -> None:
    spelled: dict[Any, str] = {}
    for known in FUNCTIONS.values():
        for node in known.nodes:
            key = (node.kind, tuple(sorted(node.says.items())))
            assert spelled.setdefault(key, known.name) == known.name
        for name in (known.name, *known.names):
            assert spelled.setdefault(name, known.name) == known.name
