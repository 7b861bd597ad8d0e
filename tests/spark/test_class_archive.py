"""The class archive of ``krishiv warm``: used when it is whole and ours, left alone otherwise (docs/running.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from krishiv_py import EnvironmentSetupError
from krishiv_py.cli import warm
from krishiv_py.spark.setup.class_archive import SWITCH, archive_options, archive_path, checksum, checksum_path
from krishiv_py.spark.setup.java import require_java

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
    path = archive_path(require_java())
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


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentSetupError, match=r"cannot be kept.*Hint: set XDG_CACHE_HOME"):
        warm.warm()


def test_a_session_starts_from_the_archive_that_was_made(cache: Path) -> None:
    made = warm.warm()
    assert made.stat().st_size > 50_000_000
    assert [f.name for f in made.parent.iterdir() if f.suffix not in (".jsa", ".crc")] == []
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(warm.__file__).parents[2]), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run([sys.executable, "-c", _START], env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip().splitlines()[-1:] == ["archive True"], done.stderr[-2_000:]
    assert "cds" not in done.stdout + done.stderr
