"""Errors in the words of the command, which sets by options what a program says to the builder and to ``start()``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Final, TypeAlias

from krishiv_py.errors import KrishivError

_Option: TypeAlias = str | Callable[[re.Match[str]], str]
_VALUE: Final = r"""("[^"]*"|'[^']*'|\w[\w./-]*|/[\w./-]+|\.\.\.|…)"""


def _changes(found: re.Match[str]) -> str:
    """Return an option for each stage of a dictionary."""
    pairs = re.findall(r"'([^']*)': '(\w+)'", found[0])
    return " ".join(f"--on-change {shlex.quote(f'{stage}={word}')}" for stage, word in pairs)


def _started(found: re.Match[str]) -> str:
    """Return the command for the arguments of ``start()``, which are options by then."""
    return f"krishiv run JOB {found[1].replace(', ', ' ')}"


_OPTIONS: Final[tuple[tuple[str, _Option], ...]] = (
    (r"Session\.in_process\(\)", "--engine in-process"),
    (r"Session\.embedded\(\)", "--engine spark"),
    (r'\.engine\("([\w-]+)"\)', r"--engine \1"),
    (r"\.(workers|master)\(([^()]*)\)", r"--\1 \2"),
    (r"\.master\b", "--master"),
    (r'\bprofile="([\w-]+)"', r"--profile \1"),
    (r'\.config\("([^"]*)", "?([^"()]*)"?\)', r"--config \1=\2"),
    (r"\.config\((['\"])(.*?)\1\)", r"--config \2"),
    (r"\.config\(\)", "--config"),
    (r"Session\.builder\(\)\.storage_options\(.*?\) or Spark's settings (spark\.\S+…)", r"--config \1=..."),
    (r'Session\.builder\(\)\.storage_options\(\{"(\w+)": \.\.\.\}\)', r"the environment, as \1"),
    (r"`keep_batches`|\bkeep_batches=(?=\d)", lambda found: "--keep-batches" + (" " if "=" in found[0] else "")),
    (r"\bbatches=Batches\.available_now\(\)", "--until-idle"),
    (rf"\bbatches=Batches\.every\({_VALUE}\)", r"--every \1"),
    (r"\bon_change=\{('[^']*': '\w+'(, )?)+\}", _changes),
    (rf"\b(savepoint|checkpoint)={_VALUE}", r"--\1 \2"),
    (r"\bsavepoint=(?=\s)", "--savepoint"),
    (r"\bstart\(\.\.\., ([^()]*)\)", _started),
)
"""Patterns of what a program writes, in this order, and the options that say the same."""


def in_options(problem: KrishivError) -> str:
    """Return the text of an error, in which options stand for what a program would write.

    Examples
    --------
    >>> from krishiv_py.errors import PlanError
    >>> print(in_options(PlanError("options of Spark", got=".master", hint='leave it out, or write .engine("spark")')))
    options of Spark (got: --master). Hint: leave it out, or write --engine spark.
    """
    text = str(problem)
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text
