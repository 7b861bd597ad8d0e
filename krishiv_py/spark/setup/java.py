"""Finding Java before Spark fails to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from krishiv_py.errors import EnvironmentSetupError

_HINT = (
    "Hint: install it with `apt-get install -y openjdk-17-jre-headless` (Debian, Ubuntu), `brew install openjdk@17` (macOS) "
    "or `conda install -c conda-forge openjdk=17`, or set JAVA_HOME"
)


def require_java() -> str:
    """The Java executable Spark will use.

    Raises
    ------
    EnvironmentSetupError
        Naming the command that installs Java, when there is none or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise EnvironmentSetupError(f"no Java found (looked in {where}): Spark runs on the JVM and cannot start. {_HINT}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)(?:\.(\d+))?', shown)
    major = int(found.group(1)) if found else 0
    if found and major < 17:
        raise EnvironmentSetupError(f"Java {major} found at {java}: Spark 4 needs Java 17 or newer. {_HINT}")
    return java
