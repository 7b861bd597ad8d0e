"""What the library keeps beside Spark's own checkpoint: the plan it belongs to, and counters by bucket."""

from __future__ import annotations

import json
import uuid
from typing import Any

import attrs
import pyarrow.fs as pafs

from krishiv_py.errors import CheckpointError, message
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.spark.files import file_system, write_whole


@attrs.frozen
class Claim:
    """What a checkpoint fixes for all runs from it.

    Attributes
    ----------
    buckets : int
        How many buckets, and so partitions, its state has.
    outputs : str
        The mark its output files carry in their names, so that only they are replaced when a batch is repeated.
    """

    buckets: int
    outputs: str


@attrs.frozen
class CheckpointNotes:
    """The folder ``<checkpoint>/krishiv``."""

    checkpoint: str

    def _at(self, name: str) -> tuple[pafs.FileSystem, str]:
        return file_system(f"{self.checkpoint}/krishiv/{name}")

    def _read(self, name: str) -> dict[str, Any] | None:
        system, path = self._at(name)
        if system.get_file_info(path).type == pafs.FileType.NotFound:
            return None
        with system.open_input_stream(path) as stream:
            found: dict[str, Any] = json.loads(stream.read())
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        write_whole(*self._at(name), json.dumps(value, indent=1).encode())

    def claim(self, spec: OperatorSpec, buckets: int) -> Claim:
        """Take the checkpoint for a plan.

        Raises
        ------
        CheckpointError
            When it belongs to a plan whose state this one cannot follow; names what changed.
        """
        stored = self._read("plan.json")
        if stored is None:
            claim = Claim(buckets, uuid.uuid4().hex[:8])
            self._write("plan.json", {"plan": fingerprint(spec), **attrs.asdict(claim)})
            return claim
        changed = differences(stored["plan"], fingerprint(spec))
        if changed:
            raise CheckpointError(
                message(
                    "the checkpoint belongs to another plan",
                    "; ".join(changed),
                    "its state cannot be continued",
                    f"use a new checkpoint folder instead of {self.checkpoint}",
                )
            )
        return Claim(stored["buckets"], stored["outputs"])

    def check(self, spec: OperatorSpec) -> None:
        """See that the state of a query of this plan is here to be read.

        Raises
        ------
        CheckpointError
            When there is none, or it belongs to another plan; names what differs.
        """
        stored = self._read("plan.json")
        if stored is None:
            raise CheckpointError(
                message(
                    "no query has kept its state here",
                    self.checkpoint,
                    "there is nothing to read",
                    "pass the folder of start(..., checkpoint=...); without one, state goes when the query is stopped",
                )
            )
        changed = differences(stored["plan"], fingerprint(spec))
        if changed:
            raise CheckpointError(
                message(
                    "the state is of another plan",
                    "; ".join(changed),
                    "it cannot be decoded",
                    f"pass the stream whose query was started with {self.checkpoint}",
                )
            )

    def metrics(self) -> dict[str, Any]:
        """The last metrics by bucket."""
        return self._read("metrics.json") or {}

    def keep_metrics(self, metrics: dict[str, Any]) -> None:
        """Write the metrics by bucket."""
        self._write("metrics.json", metrics)
