"""Folders that a query reads and writes, by whatever spelling, and which of them may not be one, nor one inside another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.connectors.tables.keys import KeyedTable
from krishiv_py.errors import PlanError
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.storage.files import is_local_path, kind_of, local_path

Place: TypeAlias = tuple[str, ...]


RESULTS: Final = "results"


LATE: Final = "late rows"


def place_of(path: str) -> Place:
    """File system and folders of a path: two spellings of one folder are equal. Patterns stay patterns."""
    if is_local_path(path):
        return ("", *(p for p in os.path.realpath(local_path(path)).split("/") if p))
    scheme, _, rest = path.partition("://")
    kind = kind_of(path)
    return (f"{scheme if kind is None else kind.schemes[0]}://", *(p for p in os.path.normpath(rest).split("/") if p))


def check_places(
    results: Sink | None,
    late: Sink | None,
    source: SourceNode,
    checkpoint: str | None,
    late_of_others: Sequence[Sink | None] = (),
    others: Sequence[Sink] = (),
) -> None:
    """Refuse outputs that would replace, or be read as, one another, the input, or the checkpoint.

    `late` takes the late rows of the last stage, `further` those of the other stages; `others` take more results.

    Raises
    ------
    PlanError
        Naming both and their folders.
    """
    for aside in (late, *late_of_others):
        if aside is not None and aside.exclusive and any(aside is taken for taken in (results, *others)):
            raise _one_sink(aside)
    shared = [id(sink) for sink in (results, *others) if sink is not None and sink.exclusive]
    if len(set(shared)) < len(shared):
        then = "the results of one would replace those of the other"
        raise PlanError("two outputs go to one sink", got=results, then=then, hint="pass a sink of its own to each .to(...)")
    own = [id(sink) for sink in (late, *late_of_others) if sink is not None and sink.exclusive]
    if len(set(own)) < len(own):
        then = "those of one stage would replace those of the other"
        hint = "pass a sink of its own to each handler"
        raise PlanError("late rows of two stages go to one sink", got=late, then=then, hint=hint)
    _check_keys(
        [(RESULTS, results), *((RESULTS, sink) for sink in others), *((LATE, aside) for aside in (late, *late_of_others))]
    )
    folders = [(RESULTS, folder_of(sink)) for sink in (results, *others)]
    folders += [(LATE, folder_of(aside)) for aside in (late, *late_of_others)]
    written = [(name, folder) for name, folder in folders if folder is not None]
    read = [*source.places, *([("the checkpoint", checkpoint)] if checkpoint is not None else [])]
    for i, one in enumerate(written):
        for other in (*written[i + 1 :], *read):
            _check_pair(one, other)
    for one in read[:-1] if checkpoint is not None else ():
        _check_pair(read[-1], one)


def _check_keys(outputs: Sequence[tuple[str, Sink | None]]) -> None:
    """Refuse two outputs that have one table and other keys."""
    tables: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
    for what, sink in outputs:
        if not isinstance(sink, KeyedTable):
            continue
        before, key = tables.setdefault(sink.table_id, (what, sink.key))
        if set(key) != set(sink.key):
            raise PlanError(
                f"{before} and {what} go to one table with different keys",
                got=f"{sink.title}: {_keyed(key)} and {_keyed(sink.key)}",
                then="rows of one would replace those of the other, or be refused as a second row of a key",
                hint="give each a table of its own, or both the same `key`",
            )


def _keyed(key: tuple[str, ...]) -> str:
    return f"key {list(key)}" if key else "no key"


def _one_sink(aside: Sink) -> PlanError:
    then = "the late rows of a batch would replace its results"
    hint = "pass two: SideOutputLateEventHandler(MemorySink())"
    return PlanError("results and late rows go to one sink", got=aside, then=then, hint=hint)


def _check_pair(one: tuple[str, str], other: tuple[str, str]) -> None:
    a, b = place_of(one[1]), place_of(other[1])
    short, long = sorted((a, b), key=len)
    if not all(_same(x, y) for x, y in zip(short, long, strict=False)):
        return
    rest = long[len(short) :]
    if rest and rest[0].startswith(("_", ".")):  # readers of folders skip such names
        return
    what = "one folder" if not rest else "folders of which one lies in the other"
    then = "one would replace the files of the other, or be read with them"
    hint = "use folders side by side, or an inner one whose name begins with an underscore"
    raise PlanError(f"{one[0]} and {other[0]} have {what}", got=f"{one[1]} and {other[1]}", then=then, hint=hint)


def _same(one: str, other: str) -> bool:
    """Return whether two names of a folder can be one; either may be a pattern, as in the path of a source."""
    return one == other or any(fnmatchcase(one, p) for p in _spelt(other)) or any(fnmatchcase(other, p) for p in _spelt(one))


def _spelt(pattern: str) -> list[str]:
    """Return a pattern with every choice in braces made; nothing for a plain name."""
    if not any(c in pattern for c in "*?[{"):
        return []
    head, brace, rest = pattern.partition("{")
    inside, closed, tail = rest.partition("}")
    if not brace or not closed:
        return [pattern]
    tails = _spelt(tail) or [tail]
    return [head + choice + t for choice in inside.split(",") for t in tails]
