"""A file of the classes that Spark's JVM has loaded and checked before: with it the next start is shorter (docs/running.md).

Made by ``krishiv warm`` and used when it is there. The JVM maps it into memory and checks by itself that it fits; a name of its
own for each Java, Spark and set of jars keeps it from having to complain.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import warnings
import zlib
from pathlib import Path
from typing import Any, Final

import pyspark

SWITCH: Final = "KRISHIV_CLASS_ARCHIVE"
"""``off`` in this environment variable: no archive is used. ``auto``: a session that finds none has it made."""
_PIECE: Final = 1 << 22


def archive_path(java: str) -> Path:
    """Return where the archive for this Java and the installed Spark is, or would be."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home, "krishiv_py", f"classes-{_key(java)}.jsa")


def archive_options(java: str) -> str:
    """Options of the JVM that use the archive; none where there is no whole one, or others could have written it."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return ""
    try:
        path = archive_path(java)
        if not _is_ours(path) or not _is_ours(path.parent):
            return ""
        whole = checksum_path(path).read_text() == checksum(path)  # a JVM does not look, and dies of a changed byte
    except (OSError, RuntimeError):  # no such file, or no home
        return ""
    if not whole:
        warnings.warn(f"{path} is damaged, and is not used. Hint: make it again with `krishiv warm`", stacklevel=2)
        return ""
    if set(str(path)) & set('"\\'):
        return ""
    return f' "-XX:SharedArchiveFile={path}" -Xlog:cds*=off'


def running_jvm() -> subprocess.Popen[bytes]:
    """Return the process of the JVM that this process has started."""
    context: Any = pyspark.SparkContext
    process: subprocess.Popen[bytes] = context._gateway.proc
    return process


def checksum_path(archive: Path) -> Path:
    """Return where the checksum of an archive is."""
    return archive.with_suffix(".crc")


def tried_path(archive: Path) -> Path:
    """Return where it is noted that a session has begun to make an archive."""
    return archive.with_suffix(".tried")


def checksum(path: Path) -> str:
    """Size and CRC-32 of a file."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return f"{size} {crc:08x}"


def _is_ours(path: Path) -> bool:
    """Return what is in it is run: only its owner may have written it."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _key(java: str) -> str:
    place = Path(java).resolve()
    release = place.parent.parent / "release"
    said = [str(place), release.read_text() if release.is_file() else str(place.stat().st_mtime_ns), pyspark.__version__]
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")
    for jar in sorted(jars.glob("*.jar")):
        of_jar = jar.stat()
        said.append(f"{jar} {of_jar.st_size} {of_jar.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
