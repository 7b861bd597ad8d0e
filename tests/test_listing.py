"""Which files a path names, in which order, and what a query remembers of those it has planned."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors.ranges import RangeSource, next_ranges
from krishiv_py.errors import CheckpointError, SourceError
from krishiv_py.plan.nodes import FileSource
from krishiv_py.runtime.ranges.folders import FolderSource, PlannedNames, as_folder, files_in
from krishiv_py.runtime.ranges.log import RangeLog
from krishiv_py.runtime.ranges.planning import RangePlanner
from krishiv_py.runtime.ranges.spark_files import convert
from krishiv_py.runtime.reading import file_reader
from krishiv_py.storage import files
from krishiv_py.storage.files import QuietFolders, files_at

SCHEMA = pa.schema([("n", pa.int64())])


def put(path: Path, text: str = '{"n": 1}\n', at_s: float = 5) -> Path:
    """A file of some age."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at_s, at_s))
    return path


def names(path: Path | str, root: Path, *, literal: bool = True) -> list[str]:
    """What is listed, below a folder."""
    return [file.path.removeprefix(f"file:{root}/") for file in files_at(str(path), literal=literal)]


def test_files_are_listed_by_time_then_name_whatever_order_the_folder_has(tmp_path: Path) -> None:
    wanted = [(i, f"{folder}{n}.json") for i in (3, 9) for folder in ("", "a/", "user=7/") for n in range(4)]
    for i, name in random.Random(1).sample(wanted, len(wanted)):
        put(tmp_path / f"{name}", at_s=i)
    put(tmp_path / "old.json", at_s=-(10**9))
    put(tmp_path / "new.json", at_s=5.05e9)
    for name in ("_x", ".x", "_f/x", "x.TMP", "x.partial", "x._COPYING_"):
        put(tmp_path / name)
    put(tmp_path / "empty.json", "")
    last = {name: i for i, name in random.Random(1).sample(wanted, len(wanted))}
    assert names(tmp_path, tmp_path) == ["old.json", *sorted(last, key=lambda n: (last[n], str(tmp_path / n))), "new.json"]


class Lister:
    """Lists what is new below a folder of which it knows what it listed; counts the folders that it looked into."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.quiet, self.looked, self._listing = root, QuietFolders(), 0, os.listdir
        self.known: dict[str, set[str]] = {}
        monkeypatch.setattr(os, "listdir", self._listdir)
        monkeypatch.setattr(files, "_SURE_S", 1e9)

    def _listdir(self, path: Any) -> Any:
        self.looked += 1
        return self._listing(path)

    def new(self) -> list[str]:
        self.looked = 0
        found = files_at(str(self.root), literal=True, known=lambda folder: self.known.get(folder, ()), quiet=self.quiet)
        for file in found:
            self.known.setdefault(os.path.dirname(file.real), set()).add(os.path.basename(file.real))
        return [file.path.removeprefix(f"file:{self.root}/") for file in found]


def settled(root: Path, at_s: int) -> None:
    """Let the last change of all folders be long ago."""
    for folder, _, _ in os.walk(root):
        os.utime(folder, ns=(at_s * 1_000_000_000 + 7, at_s * 1_000_000_000 + 7))


def test_a_folder_that_has_not_changed_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lister = Lister(tmp_path, monkeypatch)
    put(tmp_path / "1/a.json")
    put(tmp_path / "2/a.json")
    assert lister.new() == ["1/a.json", "2/a.json"]
    settled(tmp_path, 1)
    assert (lister.new(), lister.looked) == ([], 3), "nothing shows yet that the times of folders change"
    put(tmp_path / "1/b.json")
    assert lister.new() == ["1/b.json"]
    settled(tmp_path, 2)
    assert (lister.new(), lister.looked) == ([], 3)
    assert (lister.new(), lister.looked) == ([], 0)
    put(tmp_path / "2/b.json")
    assert (lister.new(), lister.looked) == (["2/b.json"], 1)
    assert (lister.new(), lister.looked) == ([], 1), "more may come in the same tick of the clock"
    put(tmp_path / "3/a.json")
    assert lister.new() == ["3/a.json"]


@pytest.mark.parametrize("many", [4, 5_000])
def test_a_new_file_next_to_many_is_found_by_one_list(many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MANY", many)
    lister = Lister(tmp_path, monkeypatch)
    for number in range(3):  # the times of the folder are seen to change
        put(tmp_path / f"{number}.json")
        lister.new()
        settled(tmp_path, number)
        lister.new()
    put(tmp_path / "_hidden.json")
    settled(tmp_path, 5)
    lister.new()
    lists = 0
    for number in range(10, 20):
        put(tmp_path / f"{number}.json")
        assert lister.new() == [f"{number}.json"]
        lists += lister.looked
        assert lister.new() == []
        lists += lister.looked
    assert (lists == 10) == (many == 4), "a folder of a few names is listed again until it has settled"


def test_an_empty_file_is_found_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of its folder does not change with it."""
    lister = Lister(tmp_path, monkeypatch)
    put(tmp_path / "a.json")
    lister.new()
    settled(tmp_path, 1)
    lister.new()
    put(tmp_path / "b.json")
    put(tmp_path / "empty.json", "")
    assert lister.new() == ["b.json"]
    settled(tmp_path, 2)
    assert (lister.new(), lister.looked) == ([], 1)
    put(tmp_path / "empty.json")
    assert (lister.new(), lister.looked) == (["empty.json"], 0)


_LISTS = st.lists(st.text("ab", min_size=1, max_size=3), unique=True)


def _text(listed: list[str]) -> bytes:
    return "".join(f"{name}/" for name in listed).encode()


@given(_LISTS, _LISTS)
def test_a_name_that_the_list_before_did_not_have_is_among_those_that_changed(before: list[str], now: list[str]) -> None:
    changed = files._changed(_text(before), _text(now))
    assert set(now) - set(before) <= set(changed) <= set(now)
    assert len(changed) == len(set(changed))


@given(_LISTS, st.integers(0, 9))
def test_one_more_name_is_all_that_changed_but_for_the_next_one(before: list[str], at: int) -> None:
    changed = files._changed(_text(before), _text([*before[:at], "new", *before[at:]]))
    assert changed == ["new", *before[at : at + 1]]


def test_a_file_system_that_tells_no_changes_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lister = Lister(tmp_path, monkeypatch)
    for number in range(6):
        put(tmp_path / f"{number}.json")
        settled(tmp_path, 1)
        assert lister.new() == [f"{number}.json"]
        assert lister.new() == []


def test_all_folders_are_looked_into_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may write there, whose changes this one hears of late."""
    lister = Lister(tmp_path, monkeypatch)
    for number in range(3):
        put(tmp_path / f"{number}.json")
        assert lister.new() == [f"{number}.json"]
        settled(tmp_path, number)
        assert lister.new() == []
    put(tmp_path / "late.json")
    settled(tmp_path, 2)
    assert lister.new() == []
    monkeypatch.setattr(files, "_SURE_S", 0.0)
    assert lister.new() == ["late.json"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("many", [1, 5_000])
@pytest.mark.parametrize("seed", range(4))
def test_folders_that_are_passed_over_hold_nothing_new(
    seed: int, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MANY", many)
    chance = random.Random(seed)
    (tmp_path / "in").mkdir()
    lister = Lister(tmp_path / "in", monkeypatch)
    for step in range(150):
        place = tmp_path / "in" / chance.choice(["", "a", "b", "a/c", "b/d/e", "_hidden"])
        what = chance.randrange(7)
        if what == 0:
            put(place / f"{step}.json", chance.choice(["", "x"]))
        elif what == 1:
            put(tmp_path / f"else/{step}.json")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{step}.json").symlink_to(tmp_path / f"else/{step}.json")
        elif what == 2 and place.is_dir() and (there := sorted(place.glob("*.json"))):
            put(chance.choice(there), "more")  # into a file that is empty, or known
        elif what == 3 and place.is_dir() and place != lister.root:
            place.rename(tmp_path / "in" / f"moved{step}")
        elif what == 4 and place.is_dir() and (there := sorted(place.glob("*.json"))):
            chance.choice(there).unlink()
        elif what == 5:
            settled(tmp_path, step)
        plain = files_at(str(lister.root), literal=True, known=lambda folder: lister.known.get(folder, ()))
        assert lister.new() == [file.path.removeprefix(f"file:{lister.root}/") for file in plain]


def test_a_link_gives_no_file_twice_and_loops_end(tmp_path: Path) -> None:
    put(tmp_path / "in/a.json")
    put(tmp_path / "in/sub/b.json")
    put(tmp_path / "else/c.json")
    put(tmp_path / "else/d.json")
    for name, target in {
        "self": ".",
        "sub/up": "..",
        "a-again.json": "a.json",
        "b-again.json": "sub/b.json",
        "other": "../else",
        "third": "../else",
        "c.json": "../else/c.json",
        "nowhere": "gone",
        "l1": "l2",
        "l2": "l1",
    }.items():
        (tmp_path / "in" / name).symlink_to(target)
    assert sorted(names(tmp_path / "in", tmp_path / "in")) == ["a.json", "other/c.json", "other/d.json", "sub/b.json"]
    (tmp_path / "in/other").unlink()
    (tmp_path / "in/third").unlink()
    assert sorted(names(tmp_path / "in", tmp_path / "in")) == ["a.json", "c.json", "sub/b.json"]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("*.json", ["a.json", "b.json"]),
        ("{a,c}.*", ["a.json", "c.txt"]),
        ("[a-b].json", ["a.json", "b.json"]),
        ("[^a].json", ["b.json"]),
        ("?/*", ["d/x.json"]),
        ("*/x.json", ["d/x.json"]),
        ("{a.json,d/x.json}", ["a.json", "d/x.json"]),
        ("\\*.json", []),
        ("d*", ["d/x.json"]),
        ("no/*/no", []),
    ],
)
def test_patterns_are_those_of_hadoop(tmp_path: Path, pattern: str, paths: list[str]) -> None:
    for name in ("a.json", "b.json", "c.txt", "d/x.json", "_h.json"):
        put(tmp_path / name)
    assert names(f"{tmp_path}/{pattern}", tmp_path, literal=False) == paths


def test_a_folder_that_cannot_be_entered_is_named() -> None:
    tmp_path = Path(tempfile.mkdtemp())  # texts show the beginning of long paths only
    tmp_path.chmod(0o755)
    put(tmp_path / "in/locked/a.json")
    code = f"""
import os
from krishiv_py.storage import files
from krishiv_py.storage.files import QuietFolders, files_at
from krishiv_py.errors import SourceError
if os.geteuid() == 0: os.setuid(65534)
try: files_at({str(tmp_path / "in")!r}, literal=True)
except SourceError as problem: print(problem)
"""
    for mode in (0o000, 0o644):
        (tmp_path / "in/locked").chmod(mode)
        given = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert "a folder cannot be read" in given and "in/locked" in given and "Hint" in given
    (tmp_path / "in/locked").chmod(0o755)
    shutil.rmtree(tmp_path)


def planner(
    tmp_path: Path, most: int | None = None, *, taken: int = -1, form: Any = "json", done: Any = "keep", committed: int = -1
) -> RangePlanner:
    """A planner over a folder, as a query has it that has begun some batches, and committed some."""
    folder, archive = str(tmp_path / "in"), str(tmp_path / "archive") if done == "archive" else None
    source = FileSource(folder, form, SCHEMA, False, most, literal=True, after_read=done, archive=archive)
    if committed >= 0:
        (tmp_path / "cp/commits").mkdir(parents=True, exist_ok=True)
        (tmp_path / "cp/commits" / str(committed)).write_text("v1\n{}")
    node: RangeSource = as_folder(source, file_reader(source, SCHEMA), 2)
    checkpoint = tmp_path / "cp"
    if taken >= 0:
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "offsets" / str(taken)).write_text(f'v1\n{{}}\n{{"logOffset":{taken}}}')
    log = RangeLog.open(f"{checkpoint}/krishiv/ranges/0", durable=False)
    return RangePlanner(node, 0, str(checkpoint), log, lambda: 0)


def planned(one: RangePlanner) -> list[list[str]]:
    """The files of every batch in the log."""
    return [[Path(file[0]).name for file in files_in(one.log.ranges_of(n))] for n in one.log.numbers()]


def test_batches_are_planned_in_order_and_empty_files_wait(tmp_path: Path) -> None:
    for n in (3, 1, 2):
        put(tmp_path / f"in/{n}.json")
    put(tmp_path / "in/0.json", "", at_s=1)
    one = planner(tmp_path, 2)
    one.begin(everything=True)
    assert planned(one) == [["1.json", "2.json"], ["3.json"]]
    again = planner(tmp_path, 2, taken=0)  # the second batch was not begun: it is planned again
    put(tmp_path / "in/0.json", at_s=1)
    again.begin(everything=True)
    assert planned(again) == [["1.json", "2.json"], ["0.json", "3.json"]]
    put(tmp_path / "in/late.json", at_s=0)
    last = planner(tmp_path, 2, taken=1)
    last.begin(everything=True)
    assert planned(last)[2:] == [["late.json"]]


@pytest.mark.parametrize("change", ["removed", "renamed", "emptied", "longer", "touched"])
def test_a_planned_file_that_is_not_as_it_was_is_named(tmp_path: Path, change: str) -> None:
    path = put(tmp_path / "in/a.json")
    one = planner(tmp_path)
    one.begin(everything=True)
    source = one.node.source
    assert isinstance(source, FolderSource)
    (text,) = one.log.ranges_of(0)
    ranges = [file for file in files_in([text])]
    assert sum(s.batch.num_rows for s in source.scanned(ranges, SCHEMA) if s.batch) == 1
    if change == "removed":
        path.unlink()
    elif change == "renamed":
        path.rename(path.with_name("b.json"))
    elif change == "touched":
        os.utime(path, (6, 6))
    else:
        put(path, "" if change == "emptied" else '{"n": 1}\n{"n": 2}\n')
    with pytest.raises(SourceError, match=r"in/a\.json.*Hint"):
        list(source.scanned(ranges, SCHEMA))


def test_a_parquet_file_that_was_not_finished_is_read_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / "in/a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    one = planner(tmp_path, form="parquet")
    one.begin(everything=True)
    source = one.node.source
    assert isinstance(source, FolderSource)
    ranges = files_in(one.log.ranges_of(0))
    with pytest.raises(SourceError, match="not a whole parquet file"):
        list(source.scanned(ranges, SCHEMA))
    path.write_bytes(whole)
    assert [s.batch.num_rows for s in source.scanned(ranges, SCHEMA) if s.batch] == [2]


def test_names_are_kept_in_few_parts_and_none_is_forgotten(tmp_path: Path) -> None:
    taken = PlannedNames(str(tmp_path / "files"), durable=False)
    seeded, every = random.Random(5), set[str]()
    for batch in range(200):
        new = {f"/in/{seeded.randrange(10)}/{batch}-{n}.json" for n in range(seeded.choice([1, 1, 1, 30]))}
        taken.add((name, 1) for name in new)
        taken.keep([(name, 1) for name in new], batch)
        every |= new
    again = PlannedNames.open(str(tmp_path / "files"), durable=False)
    assert again.count == len(every) and again.upto == 199
    assert all(os.path.basename(n) in again.known(os.path.dirname(n)) for n in every)
    parts = sorted((tmp_path / "files").glob("*.parquet"))
    assert len(parts) < 30
    parts[len(parts) // 2].unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        PlannedNames.open(str(tmp_path / "files"), durable=False)


def test_many_names_are_small_and_are_not_written_again(tmp_path: Path) -> None:
    taken = PlannedNames(str(tmp_path / "files"), durable=False)
    taken.keep([(f"/in/part-{n:07d}.json", n) for n in range(100_000)], 0)
    size = sum(p.stat().st_size for p in (tmp_path / "files").iterdir())
    assert size < 1_000_000
    taken.keep([("/in/x.json", 1)], 1)
    sizes = sorted(p.stat().st_size for p in (tmp_path / "files").iterdir())
    assert len(sizes) == 2 and sizes[0] < 5_000


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_spark_has_read_is_taken_over(tmp_path: Path, broken_off: bool) -> None:
    """A checkpoint of a version in which Spark planned files: two batches, of which the last one may not be finished."""
    for n in range(4):
        put(tmp_path / f"in/{n}.json")
    for folder in ("sources/0", "offsets"):
        (tmp_path / "cp" / folder).mkdir(parents=True)
    for batch, read in enumerate(("01", "2")):
        lines = [f'{{"path":"file://{tmp_path}/in/{n}.json","timestamp":5000,"batchId":{batch}}}' for n in read]
        (tmp_path / f"cp/sources/0/{batch}").write_text("\n".join(["v1", *lines]))
        (tmp_path / f"cp/offsets/{batch}").write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
    source = FileSource(str(tmp_path / "in"), "json", SCHEMA, bounded=False, literal=True)
    if broken_off:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RangeLog, "note", lambda *_: (_ for _ in ()).throw(OSError("full")))
            with pytest.raises(OSError, match="full"):
                convert(str(tmp_path / "cp"), [source], durable=False)
    convert(str(tmp_path / "cp"), [source], durable=False)
    convert(str(tmp_path / "cp"), [source], durable=False)
    for batch in (0, 1):
        (entry,) = (tmp_path / f"cp/sources/0/{batch}").read_text().splitlines()[1:]
        assert f"/krishiv/ranges/0/{batch:020d}.parquet" in entry and f'"batchId":{batch}' in entry
    one = planner(tmp_path, taken=1)
    one.begin(everything=True)
    assert planned(one) == [["2.json"], ["3.json"]]
    at_work = one.node.source
    assert isinstance(at_work, FolderSource)
    assert sum(s.batch.num_rows for s in at_work.scanned(files_in(one.log.ranges_of(1)), SCHEMA) if s.batch) == 1


def test_a_range_is_noted_as_text(tmp_path: Path) -> None:
    put(tmp_path / "in/ä #1%20.json")
    one = planner(tmp_path)
    assert isinstance(one.node.source, FolderSource)
    one.node.source.plans(PlannedNames(str(tmp_path / "files"), durable=False))
    actual = next_ranges(one.node.source, "files", None)
    assert actual is not None and files_in(actual)[0][0] == f"file:{tmp_path}/in/ä #1%20.json"
    assert next_ranges(one.node.source, "files", actual.position) is None


@pytest.mark.parametrize("done", ["archive", "delete"])
def test_files_are_put_away_when_their_batch_is_committed(tmp_path: Path, done: str) -> None:
    """Not before, over restarts, and a file that comes later under the name of one is read."""
    here, there = tmp_path / "in", tmp_path / "archive"

    def left() -> list[str]:
        return sorted(str(p.relative_to(here)) for p in here.rglob("*") if p.is_file())

    for n, name in enumerate(["a.json", "sub/b.json", "c.json"]):
        put(here / name, at_s=n + 1)
    planner(tmp_path, 1, done=done).begin(everything=True)
    planner(tmp_path, 1, done=done, taken=0).begin(everything=True)
    assert left() == ["a.json", "c.json", "sub/b.json"], "a batch that began may be repeated"
    again = planner(tmp_path, 1, done=done, taken=1, committed=0)
    again.begin(everything=True)
    assert left() == ["c.json", "sub/b.json"]
    put(here / "a.json", at_s=9)
    last = planner(tmp_path, 1, done=done, taken=2, committed=1)
    last.begin(everything=True)
    assert left() == ["a.json", "c.json"]
    assert planned(last) == [["a.json"], ["b.json"], ["c.json"], ["a.json"]]
    planner(tmp_path, 1, done=done, taken=3, committed=3).begin(everything=True)
    assert left() == []
    actual = sorted(str(p.relative_to(there)) for p in there.rglob("*.json")) if there.exists() else []
    assert actual == (["a-1.json", "a.json", "c.json", "sub/b.json"] if done == "archive" else [])


def test_a_file_that_was_replaced_after_it_was_read_is_a_new_one(tmp_path: Path) -> None:
    put(tmp_path / "in/a.json")
    planner(tmp_path, done="delete").begin(everything=True)
    put(tmp_path / "in/a.json", at_s=7)
    again = planner(tmp_path, done="delete", taken=0, committed=0)
    again.begin(everything=True)
    assert planned(again) == [["a.json"], ["a.json"]]
    assert (tmp_path / "in/a.json").exists()
