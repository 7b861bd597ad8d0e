"""UNION ALL."""

from __future__ import annotations

from sqlglot import expressions as sg

from krishiv_py.sql.env import Env, Inner
from krishiv_py.sql.scope import Rows
from krishiv_py.sql.text.statements import refused


def united(tree: sg.SetOperation, env: Env, inner: Inner) -> Rows:
    """The rows of both."""
    raise refused(tree.key.upper(), tree.sql("spark"))
