"""Spark's own log of a checkpoint: looked at and mended before a query goes on.

**Files a crash left between two logs.** Spark's file source writes down which files come next (``sources/<i>/<k>``), and only
then is the micro-batch that reads them planned (``offsets/<n>``). After a crash between the two, Spark would put those files
and the next ones into one batch: rows would be classified by another watermark than in an uninterrupted run, and more of
them taken in. So what no batch was planned for is struck out of the source's log; Spark finds the files again and plans
them as it would have.

**A first batch that was half written down.** A crash while Spark writes its very first entry leaves a temporary file, and Spark
then refuses to begin, since its log "should be empty". Where no batch was planned such files are removed.

**A source more.** Spark counts the sources of every batch it planned and refuses to go on with another number. A query that is
to read control files now and did not before gets a place for them: a dash, which says that nothing of that source was read.

Spark trusts what it finds: with an entry of a source's log gone it reads a file a second time, with all planned batches gone it
begins again over the state there is, and a changed digit of the watermark is a changed watermark. On local folders Hadoop keeps
checksums next to the files; they are checked here, where the error can name the file, and the files are checked against each
other, which needs no checksum. State is checked when it is loaded.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlparse

import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from krishiv_py.errors import CheckpointError, KrishivError, cut, shown
from krishiv_py.failures.transient import verdict_of_text
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import checksum, damaged, missing, sealed, unsealed
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.local import DISK, is_temporary
from krishiv_py.storage.notes import in_shape, no_folder, note_in, reading
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.storage.sends.segments import RANGE, open_sent
from krishiv_py.storage.store import Store

_CRC: Final = b"crc\0"
_ENTRY: Final = '{"path":'
_HEAD: Final = 2
"""Lines of a planned batch before those of its sources: version and metadata."""


def forget_unplanned(checkpoint: str) -> None:
    """Strike out what file sources wrote down after the last planned micro-batch. No query may be running there."""
    store, root = store_at(checkpoint)
    if not numbered(store, f"{root}/offsets"):
        _drop_unfinished(store, f"{root}/offsets")
    planned = _planned(store, root)
    sources = store.entries(f"{root}/sources")
    for source in sources:
        if not source.base_name.isdigit():
            continue
        upto = planned.get(int(source.base_name))
        entries = store.entries(source.path)
        for entry in entries:
            number = entry.base_name.removesuffix(".compact")
            if not number.isdigit() or int(number) <= (-1 if upto is None else upto):
                continue
            if upto is not None or _lists_files(store, entry.path):  # a loss of power may have cut it
                store.delete(entry.path)
                _forget_checksum(store, entry.path)


def _drop_unfinished(store: Store, log: str) -> None:
    """Remove what a writer of a log that has no entry yet left behind."""
    for file in store.entries(log):
        if file.is_file and file.base_name.startswith(".") and ".tmp" in file.base_name:
            store.delete(file.path)


def _planned(store: Store, root: str) -> dict[int, int]:
    """Return the last entry of every file source that a micro-batch was planned for."""
    batches = numbered(store, f"{root}/offsets")
    return offsets_of(store, f"{root}/offsets/{max(batches)}") if batches else {}


def offsets_of(store: Store, path: str) -> dict[int, int]:
    """Return the entry of every file source in a planned batch."""
    return logged_offsets(checked_lines(store, path), path)


def logged_offsets(lines: list[str], path: str) -> dict[int, int]:
    """Return the entry of every file source in the lines of a planned batch.

    Raises
    ------
    CheckpointError
        When they are none.
    """
    with reading(path, NEW_CHECKPOINT):
        offsets = [json.loads(line) if line.startswith("{") else {} for line in lines[_HEAD:]]
        return {number: in_shape(offset["logOffset"], int) for number, offset in enumerate(offsets) if "logOffset" in offset}


def planned(checkpoint: str, batch: int) -> dict[str, Any]:
    """Return what Spark wrote down of a micro-batch before it ran: watermark, time, settings.

    Raises
    ------
    CheckpointError
        When that is damaged or missing.
    """
    store, path = store_at(f"{checkpoint}/offsets/{batch}")
    lines = checked_lines(store, path)
    with reading(path, NEW_CHECKPOINT):
        planned_ranges = in_shape(json.loads(lines[1]), dict[str, Any])
        in_shape(planned_ranges["batchWatermarkMs"], int), in_shape(planned_ranges["batchTimestampMs"], int)
    return planned_ranges


PLANNED_RANGES: Final = "ranges"
"""The last reads in the plan of a batch in process: for the number of each source its entry, position and ranges."""
RangesInPlans: TypeAlias = "dict[int, dict[int, tuple[str, tuple[str, ...]]]]"
"""By the place of a source and the number of an entry: the position after it, and its ranges, as JSON."""


_NO_CHECK: Final = "0" * 8
_UNCHECKED: Final = b'"check":"%s"' % _NO_CHECK.encode()
_CHECK: Final = re.compile(rb'"check":"([0-9a-f]{8})"')


def plan_of(number: int, head: Mapping[str, Any], ours: Mapping[str, Any], given: Sequence[str]) -> bytes:
    """Return the plan of a batch in process, with a checksum over its number and all that it says.

    Parameters
    ----------
    number : int
        The number of the batch.
    head : dict
        What Spark would note of it.
    ours : dict
        What the engine in process notes.
    given : sequence of str
        A line for each source.
    """
    noted = {**head, "krishiv": {**ours, "check": _NO_CHECK}}
    data = "\n".join(["v1", json.dumps(noted, separators=(",", ":")), *given]).encode()
    return data.replace(_UNCHECKED, b'"check":"%s"' % _check_of_plan(data, number), 1)


def _check_of_plan(unchecked: bytes, number: int) -> bytes:
    return b"%08x" % checksum(unchecked, checksum(b"%d" % number))


def _check_plan(data: bytes, path: str) -> None:
    """See that the plan of a batch in process is what was written; one of an earlier version has no checksum over all of it.

    Raises
    ------
    CheckpointError
        When it is not, or is that of another batch.
    """
    noted, name = _CHECK.search(data), path.rpartition("/")[2]
    if noted is None or b'"krishiv":' not in data or not name.isdigit():
        return
    if noted[1] != _check_of_plan(data.replace(noted[0], _UNCHECKED, 1), int(name)):
        raise damaged(path, "a wrong checksum", NEW_CHECKPOINT)


def as_noted(ranges: Mapping[int, tuple[int, str, Sequence[str]]]) -> dict[str, Any]:
    """Return what a plan holds of sources: the entry of each, the position after it and its ranges."""
    noted = {str(source): [entry, position, list(each)] for source, (entry, position, each) in ranges.items()}
    return {PLANNED_RANGES: noted} if noted else {}


def ranges_in_plans(checkpoint: str, *, newest: bool = False) -> RangesInPlans:
    """Return what the plans of batches, or the `newest` alone, say of sources whose log is there; nothing where Spark plans.

    Raises
    ------
    CheckpointError
        When a plan is damaged.
    """
    store, root = store_at(checkpoint)
    by_source: RangesInPlans = {}
    batches = numbered(store, f"{root}/offsets")
    for batch in batches[-1:] if newest else reversed(batches):
        path = f"{root}/offsets/{batch}"
        with no_folder(path, NEW_CHECKPOINT):
            data = store.read(path)
        if data is None or b'"krishiv"' not in data:
            break  # a plan of Spark's, or damaged, which is said where it is read
        with reading(path, NEW_CHECKPOINT):
            _check_plan(data, path)
            ours = json.loads(data.split(b"\n")[1])["krishiv"]
            noted = in_shape(ours.get(PLANNED_RANGES, {}), dict[str, list[Any]])
            if noted and not isinstance(ours.get("check"), str) and ours.get("check") != _check_before(noted):
                raise damaged(path, "a wrong checksum", NEW_CHECKPOINT)
            for source, (entry, position, ranges) in noted.items():
                by_source.setdefault(int(source), {})[int(entry)] = in_shape(position, str), tuple(in_shape(ranges, list[str]))
    return by_source


def _check_before(noted: Any) -> int:
    """Return the checksum of ranges alone, which earlier versions wrote."""
    return checksum(json.dumps(noted, separators=(",", ":")).encode())


def add_source(checkpoint: str) -> None:
    """Make room for one more source, the last, in every batch that was planned. May be broken off and repeated.

    Raises
    ------
    CheckpointError
        When Spark wrote its log in a form this does not know.
    """
    store, root = store_at(checkpoint)
    batches = numbered(store, f"{root}/offsets")
    if not batches:
        return
    note = f"{root}/krishiv/sources"  # how many there are to be: what an attempt that was broken off began with
    if not store.exists(note):
        store.write(note, sealed(str(len(_planned_lines(store, root, max(batches))) - _HEAD + 1).encode()))
    wanted = int(unsealed(store.read(note) or b"", note, NEW_CHECKPOINT))
    for batch in batches:
        lines = _planned_lines(store, root, batch)
        if len(lines) - _HEAD < wanted:
            rewrite(store, f"{root}/offsets/{batch}", "\n".join([*lines, "-"]))


def sources_of(checkpoint: str) -> int:
    """Return how many sources the last planned micro-batch had; 0 before the first."""
    store, root = store_at(checkpoint)
    batches = numbered(store, f"{root}/offsets")
    return len(checked_lines(store, f"{root}/offsets/{max(batches)}")) - _HEAD if batches else 0


def entries_of(store: Store, root: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the log of every file source, from its last compact file on, which has all before: its files, and what they
    say.
    """
    listed = store.entries(f"{root}/sources", recursive=True)
    logs: dict[str, list[tuple[int, bool, str]]] = {}
    for file in listed:
        number = file.base_name.removesuffix(".compact")
        if file.is_file and number.isdigit():
            logs.setdefault(file.path.rpartition("/")[0], []).append((int(number), number != file.base_name, file.path))
    entries = []
    for log in logs.values():
        begin = max((n for n, compact, _ in log if compact), default=0)
        read = [(path, checked_lines(store, path)) for n, _, path in sorted(log) if n >= begin]
        entries += [(path, entries_in(lines, path)) for path, lines in read if _ENTRY in "".join(lines)]
    return entries


class _Entry(TypedDict):
    """A file that a file source of Spark's has read."""

    path: str
    batchId: int  # Spark's own name


class _Reader(TypedDict):
    """The note of a query that reads a memory stream."""

    checkpoint: str
    inside: NotRequired[str]
    """The folder of this machine that the checkpoint lies in; empty for a checkpoint that goes with its process."""


def entries_in(lines: list[str], path: str) -> list[dict[str, Any]]:
    """Return what the lines of a file source's log say of the files that were read.

    Raises
    ------
    CheckpointError
        When one of them is not an entry.
    """
    with reading(path, NEW_CHECKPOINT):
        entries = in_shape([json.loads(line) for line in lines[1:] if line], list[_Entry])
    if lines[0] != "v1" or not entries:
        raise damaged(path, f"{len(lines)} lines", NEW_CHECKPOINT)
    return [{**entry} for entry in entries]


def strike_out(store: Store, path: str, first: int, **others: Any) -> None:
    """Leave in a file of a source's log what it says of batches from the first one on, and of its last one.

    Parameters
    ----------
    store : Store
        The place of the file.
    path : str
        The file.
    first : int
        The first batch that may be repeated.
    **others : object
        Values for all that is left.
    """
    entries = entries_in(checked_lines(store, path), path)
    last = max(int(e["batchId"]) for e in entries)
    kept = [{**e, **others} for e in entries if int(e["batchId"]) >= min(first, last)]
    if kept != entries:
        rewrite(store, path, "\n".join(["v1", *map(as_line, kept)]))


def as_line(entry: dict[str, Any]) -> str:
    """Return an entry as Spark writes it."""
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)


def _planned_lines(store: Store, root: str, batch: int) -> list[str]:
    lines = checked_lines(store, f"{root}/offsets/{batch}")
    if lines[0] != "v1":
        got = f"Spark's log in version {lines[0]}"
        raise CheckpointError("the checkpoint was begun without control files", got=got, hint="use a new checkpoint folder")
    return lines


def batches_of(checkpoint: str) -> list[int]:
    """Return the micro-batches Spark has written down."""
    store, root = store_at(checkpoint)
    return numbered(store, f"{root}/offsets")


def numbered(store: Store, folder: str) -> list[int]:
    """Return the numbers that are names of files in a folder, ascending."""
    entries = store.entries(folder)
    return sorted(int(f.base_name) for f in entries if f.base_name.isdigit())


PROCESS_STATE: Final = "state"
"""The folder of the state of a query in process, below ``krishiv``: a file a batch."""


def last_finished(store: Store, root: str) -> int:
    """Return the newest batch that is finished: Spark notes it, and in process its state is written; -1 without one."""
    entries = store.entries(f"{root}/krishiv/{PROCESS_STATE}")
    of_state = [int(f.base_name[:12]) for f in entries if f.base_name.endswith(".state") and f.base_name[:12].isdigit()]
    return max([*numbered(store, f"{root}/commits"), *of_state], default=-1)


def rewrite(store: Store, path: str, text: str) -> None:
    """Write one of Spark's files again; may be broken off and repeated."""
    _forget_checksum(store, path)
    store.write(path, text.encode())


def _forget_checksum(store: Store, path: str) -> None:
    store.delete(sum_of(path))


def _lists_files(store: Store, path: str) -> bool:
    """Return whether this is the log of a file source; others keep other things in their folder."""
    return _ENTRY.encode() in (store.read(path) or b"")


_DESCRIBED: Final = ("_metadata", "_stateSchema")
"""The places where Spark describes an operator's state: a few small files."""


def check_log(checkpoint: str, sources: int) -> None:
    """See that Spark's log is whole: planned and finished micro-batches, what sources wrote down, the query's identity.

    `sources` is how many the query has; its log may have one more, for control files.

    Raises
    ------
    CheckpointError
        Naming the file that is damaged or missing.
    """
    store, root = store_at(checkpoint)
    batches, finished = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if not batches:
        if finished or _has_state(store, root):
            raise missing(f"{root}/offsets", NEW_CHECKPOINT)
        return
    last = batches[-1]
    _check_identity(store, f"{root}/metadata")
    if finished and finished[-1] > last:
        raise missing(f"{root}/offsets/{finished[-1]}", NEW_CHECKPOINT)
    if last and last - 1 not in batches:
        raise missing(f"{root}/offsets/{last - 1}", NEW_CHECKPOINT)
    lines = checked_lines(store, f"{root}/offsets/{last}")
    watermark = _number(lines, "batchWatermarkMs", f"{root}/offsets/{last}")
    if len(lines) - 2 not in (sources, sources + 1):
        what = f"{root}/offsets/{last} is of a query with another number of sources, or damaged"
        raise CheckpointError(what, got=f"{len(lines) - 2}, now {sources}", hint=NEW_CHECKPOINT)
    for batch in finished[-2:]:
        path = f"{root}/commits/{batch}"
        reached = _number(checked_lines(store, path), "nextBatchWatermarkMs", path)
        if batch == last - 1 and reached != watermark:
            raise damaged(path, f"watermark {reached}, which the next batch has as {watermark}", NEW_CHECKPOINT)
    for number, upto in logged_offsets(lines, f"{root}/offsets/{last}").items():
        _check_source(store, f"{root}/sources/{number}", upto)
    for operator in store.entries(f"{root}/state"):
        for name in _DESCRIBED:
            for path in _damaged_files(store, f"{operator.path}/{name}"):
                raise damaged(path, "a wrong checksum", NEW_CHECKPOINT)


def damaged_state(checkpoint: str) -> str | None:
    """Return the first file of state that is not what its checksum says, for an error of Spark's that does not name it."""
    store, root = store_at(checkpoint)
    return next(_damaged_files(store, f"{root}/state"), None)


def _damaged_files(store: Store, folder: str) -> Iterator[str]:
    """Yield the files below a folder that are there and not what their checksums say; Spark reads state without a look at
    them.
    """
    entries = store.entries(folder, recursive=True)
    for path in sorted(f.path for f in entries if f.is_file and not f.base_name.startswith(".")):
        try:
            checked(store, path)
        except CheckpointError:
            yield path


def _has_state(store: Store, root: str) -> bool:
    entries = store.entries(f"{root}/state", recursive=True)
    return any(f.is_file for f in entries)


def _check_identity(store: Store, path: str) -> None:
    with reading(path, NEW_CHECKPOINT):
        in_shape(json.loads(checked(store, path))["id"], str)


def _check_source(store: Store, folder: str, upto: int) -> None:
    """The log of a file source: from its last compact entry on without a gap."""
    names = {f.base_name for f in store.entries(folder)}
    compact = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact") and not n.startswith(".")]
    begin = max((n for n in compact if n <= upto), default=0)
    for number in range(begin, upto + 1):
        name = f"{number}.compact" if number in compact else str(number)
        entries_in(checked_lines(store, f"{folder}/{name}"), f"{folder}/{name}")


def _number(lines: list[str], name: str, path: str) -> int:
    with reading(path, NEW_CHECKPOINT):
        if lines[0] != "v1":
            raise ValueError(f"its first line is {shown(lines[0])}")
        return in_shape(json.loads(lines[1])[name], int)


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
_MISSED: Final = re.compile(r"(?:^|: )((?:[a-z0-9]+://|/)[^\n]*?) is missing \(got: no such file\)")
_NAME: Final = r"[^\s'\",;()\[\]]"
_PATH: Final = re.compile(f"(?:[a-z0-9]+:)?/{_NAME}*/(?:state|offsets|commits|sources|metadata)(?:/{_NAME}+)?")


def gone_checkpoint(name: str, checkpoint: str) -> CheckpointError | None:
    """Return the error for a query, `name`, that ended while its checkpoint is not there; None where it is."""
    if not _is_there(f"{checkpoint}/krishiv/plan.json"):
        return CheckpointError(
            f"query {name!r} failed: its checkpoint is gone",
            got=checkpoint,
            then="the micro-batch is not finished",
            hint="mount it, or put it back from a copy, and start the query again",
            transient=True,
        )
    return None


def lost_file(trace: str, name: str, checkpoint: str) -> CheckpointError | None:
    """Return the error for a query, `name`, that ended over a damaged or missing file of its checkpoint; None for any other
    end. `trace` is what Spark's exception and its causes say, with their stack traces.
    """
    own = _OWN.findall(trace)
    if own:
        return CheckpointError(f"query {name!r} failed: {own[-1]}")
    if _SIGNS.search(trace) is None or "PythonException" in trace:
        return None
    causes = [line for line in trace.splitlines() if line.startswith("Caused by:") and "NullPointerException" not in line]
    cause = [trace.splitlines()[0], *causes][-1]
    is_away = verdict_of_text(cause) == "transient"
    if is_away or (_STORE.search(cause) and not _NOT_THERE.search(trace)):
        return CheckpointError(
            f"query {name!r} failed: the store did not take or give a file of the checkpoint",
            got=cut(cause.removeprefix("Caused by: ").strip(), 300),
            then="the micro-batch is not finished, and the checkpoint is as whole as before",
            hint="see that the store can be reached and its credentials are valid, and start the query again",
            transient=is_away or None,
        )
    match = _PATH.search(trace)
    here = match is not None and is_local_path(match[0])  # a bucket has no mount
    was_away = here and match is not None and _NOT_THERE.search(trace) is not None and _is_there(match[0].removeprefix("file:"))
    where = match[0] if match else damaged_state(checkpoint) or f"a file of Spark's in {checkpoint}/state"
    what = f"query {name!r} failed: {where} cannot be read"
    got, hint = cut(cause.removeprefix("Caused by: ").strip(), 300), NEW_CHECKPOINT
    if was_away:
        hint = "it is there by now: start the query again"
    return CheckpointError(what, got=got, hint=hint, transient=was_away or None)


def is_back(text: str) -> bool:
    """Return whether the text of an error names a missing file that is there by now: it was away."""
    match = _MISSED.search(text)
    return match is not None and _is_there(match[1])


def _is_there(path: str) -> bool:
    """Return whether there is a file; also False where its store does not answer."""
    try:
        store, where = store_at(path)
        return store.exists(where)
    except (OSError, KrishivError, pa.ArrowException):
        return False


_READER: Final = "_krishiv_reader_"


_READERS_WAY_OUT: Final = "remove it, and start the query that wrote it once more"


def note_reader(spool: str, checkpoint: str) -> None:
    """Note next to the sends that a query reads them: what it did not read stays, as long as its checkpoint."""
    mark = f"{checksum(checkpoint.encode()):08x}"
    path = f"{spool}/{_READER}{mark}.json"
    with no_folder(path, _READERS_WAY_OUT):
        DISK.write_note(path, _Reader(checkpoint=checkpoint, inside="" if is_temporary(checkpoint) else _around(checkpoint)))


def trim(spool: str) -> int:
    """Remove the sends, but the end of input, that all queries have finished which read a stream; see :meth:`Session.trim`."""
    readers = [c for c in map(_checkpoint, sorted(Path(spool).glob(f"{_READER}*.json"))) if c is not None]
    log = ReplayLog(spool)
    return log.drop_before(min(log.following() - log.closed(), *(_finished(c, spool) for c in readers)) if readers else 0)


def check_begin(checkpoint: str, stream: ReplayLog, known: bool) -> None:
    """See that nothing was removed that a query from this checkpoint has not read.

    Raises
    ------
    CheckpointError
        When it was.
    """
    first = stream.first()
    numbers = [*_read(checkpoint, stream.folder), *_planned_ranges(checkpoint, stream.folder)] if known else []
    read = max((number for _, number in numbers), default=-1) + 1
    if first > read:
        what = f"the sends before {first} were removed from {stream.folder}"
        hint = "go on from a checkpoint that has read them, or send them again to another memory stream"
        raise CheckpointError(what, got=f"read so far: {read}", then="their rows would be missing", hint=hint)


def _checkpoint(note: Path) -> str | None:
    """Return the checkpoint of a reader; None, and no note any more, if that was removed.

    Raises
    ------
    CheckpointError
        When it is away, as where a mount is missing: an empty folder is in its place, or it was in another folder.
    """
    with no_folder(str(note), _READERS_WAY_OUT):
        data = note.read_bytes()
    reader = note_in(data, _Reader, str(note), _READERS_WAY_OUT)
    checkpoint, inside = reader["checkpoint"], reader.get("inside", "")
    store, root = store_at(checkpoint)
    if store.exists(f"{root}/krishiv/plan.json"):
        return checkpoint
    if inside and (os.path.exists(root) or inside != _around(checkpoint)):
        raise CheckpointError(
            f"the checkpoint {checkpoint} is gone",
            got=f"its query reads the memory stream in {note.parent}",
            then="sends that it has not read would be removed",
            hint=f"mount it or put it back; if it was removed on purpose, write `rm {shlex.quote(str(note))}`",
            transient=True,
        )
    note.unlink()
    return None


def _around(checkpoint: str) -> str:
    """Return what tells the folder that a checkpoint lies in from any other; empty where there is none on this machine."""
    store, root = store_at(checkpoint)
    if not store.local:
        return ""
    try:
        found = os.stat(os.path.dirname(root))
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def _finished(checkpoint: str, spool: str) -> int:
    """Return the first send a query may yet read: what the oldest batch Spark could go back to had not read."""
    store, root = store_at(checkpoint)
    batches = numbered(store, f"{root}/offsets")
    if not batches or batches[0] >= last_finished(store, root):
        return 0
    upto = offsets_of(store, f"{root}/offsets/{batches[0]}")
    by_spark = max((n for (source, entry), n in _read(checkpoint, spool) if entry <= upto.get(source, -1)), default=-1) + 1
    return max(by_spark, min((first for first, _ in _planned_ranges(checkpoint, spool)), default=0))


def _planned_ranges(checkpoint: str, spool: str) -> list[tuple[int, int]]:
    """Return the first and the last send in what is kept of the range log of each source that reads a stream."""
    store, root = store_at(f"{checkpoint}/krishiv/ranges")
    identity, by_source = ReplayLog(spool).identity(), dict[int, dict[int, Sequence[str]]]()
    for place, in_plans in ranges_in_plans(checkpoint).items():
        by_source[place] = {number: ranges for number, (_, ranges) in in_plans.items()}
    for entry in store.entries(root, recursive=True):
        source, name = entry.path.split("/")[-2:]
        if name.endswith(".parquet") and name[:20].isdigit():
            noted = open_sent(store, entry.path).read()
            ranges = noted[RANGE].to_pylist() if RANGE in noted.column_names else []
            by_source.setdefault(int(source), {})[int(name[:20])] = ranges
    planned = list[tuple[int, int]]()
    for entries in by_source.values():
        sends = [json.loads(one) for _, ranges in sorted(entries.items()) for one in ranges]
        ours: list[dict[str, Any]] = [one for one in sends if isinstance(one, dict) and one.get("stream") == identity]
        if ours:
            planned.append((ours[0].get("first", ours[0]["send"]), ours[-1]["send"]))
    return planned


def _read(checkpoint: str, spool: str) -> list[tuple[tuple[int, int], int]]:
    """Source and entry, and number, of every send of a stream in the log of a checkpoint."""
    store, root = store_at(checkpoint)
    lines_read = []
    for path, entries in entries_of(store, root):
        source = int(path.rsplit("/", 2)[-2])
        for entry in entries:
            folder, name = os.path.split(unquote(urlparse(entry["path"]).path))
            if folder == spool and name[:12].isdigit():
                lines_read.append(((source, int(entry["batchId"])), int(name[:12])))
    return lines_read


def checked(store: Store, path: str) -> bytes:
    """Return what a file of Spark's holds, after a look at its checksum, where there is one.

    Raises
    ------
    CheckpointError
        When it is missing, or not what its checksum says; names it.
    """
    with no_folder(path, NEW_CHECKPOINT):
        data = store.read(path)
    if data is None:
        raise missing(path, NEW_CHECKPOINT)
    if store.local:
        kept = store.read(sum_of(path))
        if kept is not None and kept != sums(data, int.from_bytes(kept[4:8], "big")):
            raise damaged(path, f"{len(data)} bytes with a wrong checksum", NEW_CHECKPOINT)
    return data


def checked_lines(store: Store, path: str) -> list[str]:
    """Return the lines of a text file of Spark's; raises as :func:`checked`, and when it is not a text."""
    data = checked(store, path)
    _check_plan(data, path)
    try:
        return data.decode().split("\n")
    except UnicodeDecodeError as problem:
        raise damaged(path, f"{len(data)} bytes that are not text", NEW_CHECKPOINT) from problem


def sum_of(path: str) -> str:
    """Return where the checksum of a file lies."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def sums(data: bytes, step: int) -> bytes:
    """Return a checksum file: a magic word, how many bytes a checksum covers, and the checksums."""
    if step <= 0:
        return b""
    sums = [checksum(data[begin : begin + step]).to_bytes(4, "big") for begin in range(0, len(data), step)]
    return _CRC + step.to_bytes(4, "big") + b"".join(sums)
