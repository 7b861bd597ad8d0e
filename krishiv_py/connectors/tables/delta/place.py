"""Where a Delta table is, and what delta-rs says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from krishiv_py.disk.folders import absolute
from krishiv_py.errors import RAISED, OperatorError, PlanError, message, require_extra, shown, told
from krishiv_py.plan.checks import a_text, setting
from krishiv_py.redaction import HIDDEN, is_secret

_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_ESCAPED: Final = re.compile("%[0-9a-fA-F]{2}")
_STRANGE: Final = re.compile(r"[\x00-\x1f\x7f\\\[\]|^]")


def delta() -> Any:
    """The module ``deltalake``.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    require_extra("Delta Lake", ("deltalake",), "delta", "no Delta table can be read or written")
    import deltalake

    return deltalake


def a_place(value: str | os.PathLike[str]) -> str:
    """The path of a table, the same whatever folder a process is in."""
    delta()
    text = a_text(os.fspath(value) if isinstance(value, os.PathLike) else value, "path", 'pass a folder: "out/results"')
    found = absolute(text)
    local = "://" not in found or found.startswith("file:")
    if local and (_ESCAPED.search(found) or _STRANGE.search(found)):
        got, consequence = shown(text), "delta-rs takes it for another sign, and would read another folder, or none"
        hint = "give the folder a name without % before two digits, and without any of [ ] | ^, backslashes and line breaks"
        raise PlanError(message("a folder of a Delta table cannot be called so", got, consequence, hint))
    return found


def options(value: object) -> Mapping[str, str]:
    """Settings for an object store.

    Raises
    ------
    PlanError
        For anything but texts.
    """
    if not isinstance(value, Mapping):
        hint = 'pass a dict: {"AWS_REGION": "eu-central-1"}'
        raise PlanError(message("`storage_options` is no dict", type(value).__name__, "the store cannot be reached", hint))
    for name in value:
        a_text(name, "storage_options", 'pass texts by name: {"AWS_REGION": "eu-central-1"}')
    return dict(setting(name, each) for name, each in value.items())


def opened(path: str, storage: Mapping[str, str], version: int | None = None) -> Any:
    """The table; None if there is none yet.

    Raises
    ------
    OperatorError
        When it cannot be read.
    """
    try:
        return found(path, storage, version)
    except RAISED as problem:
        raise refused(path, problem, storage) from None


def found(path: str, storage: Mapping[str, str], version: int | None = None) -> Any:
    """The table; None if there is none yet. What goes wrong is told in delta-rs's own words."""
    module = delta()
    try:
        return module.DeltaTable(path, version=version, storage_options=dict(storage) or None)
    except module.exceptions.TableNotFoundError:
        return None


def refused(path: str, problem: BaseException, storage: Mapping[str, str] | None = None) -> OperatorError:
    """The error for what delta-rs refuses."""
    text = without_secrets(problem, storage or {})
    if "ermission denied" in text:
        what, hint = "the Delta table may not be written", "let this user write the folder"
    elif "failed validation check" in text:
        what, hint = "a rule of the Delta table refuses rows", "drop its constraint or NOT NULL, or filter such rows"
    else:
        what, hint = "delta-rs refuses", "see what it says; start the query again: the batch is written again, or recognised"
    return OperatorError(message(what, f"{shown(path)}: {text}", "the batch is not written", hint))


def without_secrets(problem: BaseException, storage: Mapping[str, str]) -> str:
    """What an exception says, without the calls inside of delta-rs and without secrets of the store."""
    text = " ".join(_COLOUR.sub("", told(problem).split("\n   0: ")[0]).split())
    for name, value in storage.items():
        if is_secret(name) and value:
            text = text.replace(value, HIDDEN)
    return text
