"""Everything that kernels count is exported: a row that is in no output is seen by whoever looks at metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from krishiv_py import metrics
from krishiv_py.kernels.prepare import COUNTERS

KERNELS = Path(metrics.__file__).parent / "kernels"
NOT_LOST = {"unchanged"}
"""Changes that give a row which is there already."""


def is_counters(node: ast.expr) -> bool:
    return (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "") == "counters"


def counted(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module counts under."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [node.value for target in targets if is_counters(target)]
            slices = [target.slice for target in targets if isinstance(target, ast.Subscript) and is_counters(target.value)]
            yield from (str(one.value) for one in slices if isinstance(one, ast.Constant))
        elif isinstance(node, ast.keyword) and node.arg == "counters":
            values = [node.value]
        elif isinstance(node, ast.BinOp) and is_counters(node.left):
            values = [node.right]
        for value in values:
            for part in ast.walk(value) if value is not None else ():
                if isinstance(part, ast.Dict):
                    yield from (str(key.value) for key in part.keys if isinstance(key, ast.Constant))


def test_every_counter_is_exported() -> None:
    names = {name for path in KERNELS.rglob("*.py") for name in counted(ast.parse(path.read_text()))}
    assert {"stale", "refused_changes", "unmatched", "limited", "rows"} <= names  # it finds them
    texts = {node.value for node in ast.walk(ast.parse(Path(metrics.__file__).read_text())) if isinstance(node, ast.Constant)}
    assert names - texts - set(COUNTERS) == NOT_LOST
