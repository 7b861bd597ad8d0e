"""Define what Spark says when it cannot read its own files of a checkpoint, as an error that names the file and the way out."""

from __future__ import annotations

import re
from typing import Final

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.logcheck import damaged_state
from krishiv_py.runtime.storage.hadoopsums import NEW_CHECKPOINT

_SIGNS: Final = re.compile(
    r"ChecksumException|Checksum error|CANNOT_LOAD_STATE_STORE|STATE_STORE|StateStore|STDS_FAILED_TO_READ|_stateSchema|"
    r"state[./](?:RocksDB|metadata)|org\.rocksdb|OperatorStateMetadata|STATEFUL_OPERATOR_NOT_MATCH|operatorPropertiesJson|"
    r"OffsetSeqLog|CommitLog|HDFSMetadataLog|FileStreamSourceLog|StreamMetadata"
)
_STORE: Final = re.compile(
    r"software\.amazon\.awssdk|hadoop\.fs\.s3a\.|AWSClientIOException|com\.google\.cloud\.|hadoop\.fs\.gs\.|hadoop\.fs\.azurebfs\."
)
_NOT_THERE: Final = re.compile(r"FileNotFoundException|NoSuchKey|Status Code: 404")
_OWN: Final = re.compile(r"krishiv_py\.errors\.CheckpointError: ([^\n]+)")
_NAME: Final = r"[^\s'\",;()\[\]]"
_PATH: Final = re.compile(f"(?:[a-z0-9]+:)?/{_NAME}*/(?:state|offsets|commits|sources|metadata)(?:/{_NAME}+)?")


def lost_file(problem: BaseException, name: str, checkpoint: str) -> CheckpointError | None:
    """The error for a query, `name`, that ended over a damaged or missing file of its checkpoint; None for any other end."""
    at: BaseException | None = problem
    changes: list[str] = []
    while at is not None:
        changes += [str(at), str(getattr(at, "_stackTrace", None) or "")]
        at = getattr(at, "_cause", None) or at.__cause__
    trace = "\n".join(changes)
    own = _OWN.findall(trace)
    if own:
        return CheckpointError(f"query {name!r} failed: {own[-1]}")
    if _SIGNS.search(trace) is None or "PythonException" in trace:
        return None
    causes = [line for line in trace.splitlines() if line.startswith("Caused by:") and "NullPointerException" not in line]
    cause = [trace.splitlines()[0], *causes][-1]
    if _STORE.search(cause) and not _NOT_THERE.search(trace):
        return CheckpointError(
            f"query {name!r} failed: the store did not take or give a file of the checkpoint",
            got=cause.removeprefix("Caused by: ").strip()[:300],
            then="the micro-batch is not finished, and the checkpoint is as whole as before",
            hint="see that the store can be reached and its credentials are valid, and start the query again",
        )
    found = _PATH.search(trace)
    where = found[0] if found else damaged_state(checkpoint) or f"a file of Spark's in {checkpoint}/state"
    return CheckpointError(
        f"query {name!r} failed: {where} cannot be read",
        got=cause.removeprefix("Caused by: ").strip()[:300],
        hint=NEW_CHECKPOINT,
    )
