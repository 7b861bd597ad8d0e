"""Finding Java before Spark fails to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from krishiv_py.errors import EnvironmentSetupError

_PACKAGED: Final = (
    ("apt-get", "apt-get install -y openjdk-17-jre-headless"),
    ("dnf", "dnf install -y java-17-openjdk-headless"),
    ("microdnf", "microdnf install -y java-17-openjdk-headless"),
    ("zypper", "zypper install -y java-17-openjdk-headless"),
    ("apk", "apk add openjdk17-jre-headless"),
    ("pacman", "pacman -S --noconfirm jre17-openjdk-headless"),
    ("brew", "brew install openjdk@17"),
)
"""Package managers, and how each installs Java; those of a system come before those people add to it."""


def _hint() -> str:
    """Return what to type on the system at hand."""
    conda = "`conda install -c conda-forge openjdk=17`"
    packaged = next(((name, command) for name, command in _PACKAGED if shutil.which(name)), None)
    if packaged is None:
        return f"Hint: install a Java 17 or 21 ({conda} needs no rights), or set JAVA_HOME to one"
    name, command = packaged
    if name != "brew" and os.geteuid() != 0:
        if not shutil.which("sudo"):
            return f"Hint: install it with {conda}, or let an administrator run `{command}`; or set JAVA_HOME"
        command = f"sudo {command}"
    refreshed = "apt-get update" if name == "apt-get" else ""
    before = f"{'sudo ' if command.startswith('sudo') else ''}{refreshed} && " if refreshed else ""
    return f"Hint: install it with `{before}{command}` (or {conda}), or set JAVA_HOME"


def _version(java: str) -> str:
    """Return what a Java says of its version: in a file next to it, or else it is asked, which takes a tenth of a second."""
    with suppress(OSError, UnicodeDecodeError):
        noted = re.search(r'^JAVA_(VERSION=".*")', (Path(java).resolve().parent.parent / "release").read_text(), re.MULTILINE)
        if noted:
            return noted.group(1).replace("=", " ")
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def java_found() -> str | None:
    """Return the Java executable Spark will use, whatever its version; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return java if java and os.path.exists(java) else None


def require_java() -> str:
    """Return the Java executable Spark will use.

    Raises
    ------
    EnvironmentSetupError
        Naming the command that installs Java, when there is none or it is older than 17.
    """
    home, java = os.environ.get("JAVA_HOME"), java_found()
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise EnvironmentSetupError(f"no Java found (looked in {where}): Spark runs on the JVM and cannot start. {_hint()}")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', _version(java), re.IGNORECASE)
    major = int(match.group(1)) if match else 0
    if match and major < 17:
        raise EnvironmentSetupError(f"Java {major} found at {java}: Spark 4 needs Java 17 or newer. {_hint()}")
    return java
