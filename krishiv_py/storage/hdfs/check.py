"""Determine whether HDFS answers to this process: asked before a query begins, so that it does not wait for minutes first."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Final

from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.storage.hdfs.client import DEFAULT, as_os_errors, hdfs_settings, new_client
from krishiv_py.storage.hdfs.system import Hdfs, hdfs_path

_ANSWER_S: Final = 20
_IMPATIENT: Final = {"dfs.client.failover.max.attempts": "3", "dfs.client.failover.sleep.base.millis": "100"}
_WHY: Final = (
    (("No NameNode hosts found",), "no namenode of this name is known"),
    ((f"No {DEFAULT} setting", "Default FS", "default FS"), "it names no host, and the default file system is not in HDFS"),
    (
        ("Connection refused", "No answer", "resolve", "lookup", "Name or service", "timed out", "unreachable"),
        "no namenode answers",
    ),
    (("Permission denied", "denied"), "the user may not do that"),
    (("afe mode",), "the namenode takes no files yet"),
)
_HINT: Final = (
    "see to the namenode and to Spark's settings spark.hadoop.fs.defaultFS and spark.hadoop.dfs.…, or HADOOP_CONF_DIR; the "
    "user is HADOOP_USER_NAME, else the one of the process"
)


def check_hdfs(path: str, *, written: bool = False) -> None:
    """See that the namenode of a path answers, and that files may be written there if they are to be.

    Raises
    ------
    EnvironmentSetupError
        When it does not, its name is unknown, or the user may not.
    MissingExtraError
        When hdfs-native is not installed.
    """
    host, _, rest = path.removeprefix("hdfs://").partition("/")
    try:
        _answer(host)
        if written:
            _write(Hdfs(host), hdfs_path(rest))
    except OSError as problem:
        raise _unreached(path, str(problem)) from problem


def _answer(host: str) -> None:
    """Ask the namenode for its root; a machine that swallows what it is sent answers never."""
    client = new_client(host, hdfs_settings() | _IMPATIENT)
    failed: list[BaseException | None] = []

    def ask() -> None:
        try:
            with as_os_errors():
                client.get_file_info("/")
        except OSError as problem:
            failed.append(problem)
        else:
            failed.append(None)

    _within(ask, failed)


def _within(ask: Callable[[], None], failed: list[BaseException | None]) -> None:
    asking = threading.Thread(target=ask, name="krishiv-hdfs", daemon=True)
    asking.start()
    asking.join(_ANSWER_S)
    if not failed:
        raise TimeoutError(f"No answer in {_ANSWER_S} s")
    if failed[0] is not None:
        raise failed[0]


def _write(system: Hdfs, folder: str) -> None:
    """Make the folder, and a file in it for a moment."""
    system.create_dir(folder, recursive=True)
    path = f"{folder}/_krishiv-probe-{uuid.uuid4().hex[:8]}"
    system.open_output_stream(path, None).close()
    with contextlib.suppress(FileNotFoundError):
        system.delete_file(path)


def _unreached(path: str, problem: str) -> EnvironmentSetupError:
    why = next((why for signs, why in _WHY if any(sign in problem for sign in signs)), "the namenode refuses")
    return EnvironmentSetupError(f"{path} cannot be reached: {why}", got=problem, hint=_HINT)
