"""Define what an operator keeps next to tables: typed sections of the one dictionary that adapters store."""

from __future__ import annotations

from typing import Final, TypeVar

import attrs

from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.durations import UNSET

S = TypeVar("S", bound="Section")


@attrs.define
class Section:
    """A few numbers, lists or dictionaries of one owner; each is stored under the name of its field.

    The names are part of the format of checkpoints. Owners that meet in a chain of operators share no name.
    """

    @classmethod
    def of(cls: type[S], bucket: Bucket) -> S:
        """Return what a bucket has of it; defaults for what was never stored."""
        meta = bucket.meta
        return cls(**{name: meta[name] for name in _names(cls) if name in meta})

    def store(self, bucket: Bucket) -> None:
        """Write it back; call it at the end of a step."""
        for name in _names(type(self)):
            bucket.meta[name] = getattr(self, name)


_NAMES: Final[dict[type, tuple[str, ...]]] = {}


def _names(section: type[Section]) -> tuple[str, ...]:
    """The fields of a section, looked up once: each step reads and writes some."""
    if section not in _NAMES:
        _NAMES[section] = tuple(field.name for field in attrs.fields(section))
    return _NAMES[section]


@attrs.define
class Fired(Section):
    """Up to which watermark windows have fired."""

    fired_at: int = UNSET
