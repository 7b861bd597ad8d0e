"""The class archive of ``krishiv warm``: used when it is whole and ours, left alone otherwise (docs/running.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from krishiv_py import EnvironmentSetupError
from krishiv_py.cli import machines
from krishiv_py.spark.setup.jvm import (
    SWITCH,
    archive_options,
    archive_path,
    checksum,
    checksum_path,
    java_found,
    require_java,
    tried_path,
)
from krishiv_py.spark.setup.workers import make_archive

_START = """
from pyspark import SparkContext
from krishiv_py import Session
with Session.embedded() as session:
    session.spark.range(3).count()
    print("archive", "SharedArchiveFile" in session.spark.conf.get("spark.driver.extraJavaOptions"))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.delenv(SWITCH, raising=False)
    return tmp_path / "a cache"


def put(cache: Path) -> Path:
    """Something in the place of an archive."""
    path = archive_path(str(java_found()))
    assert cache in path.parents
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(b"x" * 10_000)
    path.chmod(0o600)
    checksum_path(path).write_text(checksum(path))
    return path


def test_without_an_archive_nothing_changes(cache: Path) -> None:
    assert archive_options(require_java()) == ""
    assert not cache.exists()


def test_a_whole_archive_is_used_unless_it_is_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(cache)
    assert f"-XX:SharedArchiveFile={path}" in archive_options(require_java())
    monkeypatch.setenv(SWITCH, "off")
    assert archive_options(require_java()) == ""


@pytest.mark.parametrize("fault", ["a changed byte", "cut off", "no checksum"])
def test_a_damaged_archive_is_not_used(cache: Path, fault: str) -> None:
    path = put(cache)
    if fault == "no checksum":  # made by a call that was broken off
        checksum_path(path).unlink()
        assert archive_options(require_java()) == ""
        return
    path.write_bytes(b"x" * 9_999 + (b"y" if fault == "a changed byte" else b""))
    with pytest.warns(UserWarning, match=r"is damaged.*krishiv warm"):
        assert archive_options(require_java()) == ""


@pytest.mark.parametrize("what", ["the file", "the folder"])
def test_what_others_may_write_is_not_run(cache: Path, what: str) -> None:
    path = put(cache)
    (path if what == "the file" else path.parent).chmod(0o777)
    assert archive_options(require_java()) == ""


def test_another_set_of_jars_has_another_archive(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = require_java()
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    first = archive_path(java)
    (tmp_path / "jars/more.jar").write_bytes(b"")
    assert archive_path(java) != first


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentSetupError, match=r"cannot be kept.*Hint: set XDG_CACHE_HOME"):
        machines.warm()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that would have been begun."""
    actual: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: actual.append(words))
    monkeypatch.setenv(SWITCH, "auto")
    return actual


def test_on_request_a_session_has_the_archive_made_once(
    cache: Path, begun: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    make_archive()
    make_archive()  # another session, while it is being made or when that failed
    assert begun == [[sys.executable, "-m", machines.__name__]]
    assert str(cache) in (given := capsys.readouterr().err) and "180 MB" in given
    yesterday = time.time() - 100_000
    os.utime(tried_path(archive_path(str(java_found()))), (yesterday, yesterday))
    make_archive()
    assert len(begun) == 2


@pytest.mark.parametrize("why", ["not asked for", "switched off", "it is there", "no room", "no home", "no Java"])
def test_no_archive_is_made_where_none_is_wanted(
    why: str, cache: Path, begun: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if why == "not asked for":
        monkeypatch.delenv(SWITCH)
    elif why == "switched off":
        monkeypatch.setenv(SWITCH, "OFF")
    elif why == "it is there":
        put(cache)
    elif why == "no room":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    elif why == "no home":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    make_archive()
    assert begun == []


def test_two_do_not_make_it_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def slow(final: Path, made: Path) -> None:
        calls.append(1)
        time.sleep(0.3)
        final.write_bytes(b"x")
        checksum_path(final).write_text(checksum(final))

    monkeypatch.setattr(machines, "_make", slow)
    cache.mkdir()
    left = archive_path(require_java()).with_suffix("")
    left = left.with_name(f"{left.name}-killed")
    left.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        assert len({*pool.map(lambda _: machines.warm(again=False), range(2))}) == 1
    assert calls == [1] and not left.exists()
    machines.warm()  # asked for, it is made again
    assert calls == [1, 1]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real archive: that of this user if there is one, for it takes a while."""
    monkeypatch.delenv(SWITCH, raising=False)
    if not checksum_path(archive_path(require_java())).exists():
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return machines.warm(again=False)


@pytest.mark.slow
def test_a_session_starts_from_the_archive_that_was_made(made: Path) -> None:
    assert made.stat().st_size > 50_000_000
    assert [f.name for f in made.parent.glob("classes-*") if f.suffix not in (".jsa", ".crc", ".tried")] == []
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(machines.__file__).parents[2]), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run([sys.executable, "-c", _START], env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip().splitlines()[-1:] == ["archive True"], done.stderr[-2_000:]
    assert "cds" not in done.stdout + done.stderr
