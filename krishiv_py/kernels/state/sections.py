"""What an operator keeps beside tables: typed sections of the one dictionary that adapters store."""

from __future__ import annotations

from typing import TypeVar

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
        """What a bucket has of it; defaults for what was never stored."""
        return cls(**{f.name: bucket.meta[f.name] for f in attrs.fields(cls) if f.name in bucket.meta})

    def store(self, bucket: Bucket) -> None:
        """Write it back; call it at the end of a step."""
        bucket.meta.update({f.name: getattr(self, f.name) for f in attrs.fields(type(self))})


@attrs.define
class Fired(Section):
    """Up to which watermark windows have fired."""

    fired_at: int = UNSET
