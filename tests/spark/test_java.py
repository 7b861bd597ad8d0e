"""Without Java the error names what to type on the system at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.spark.setup import jvm
from krishiv_py.spark.setup.jvm import require_java


@pytest.mark.parametrize(
    ("has", "user", "expected"),
    [
        ({"apt-get"}, 0, "with `apt-get update && apt-get install -y openjdk-17"),
        ({"apt-get", "sudo"}, 1000, "with `sudo apt-get update && sudo apt-get install -y openjdk-17"),
        ({"apt-get"}, 1000, "conda-forge openjdk=17`, or let an administrator run `apt-get install"),
        ({"dnf"}, 0, "with `dnf install -y java-17"),
        ({"apk", "brew"}, 0, "with `apk add openjdk17"),
        ({"brew", "sudo"}, 1000, "with `brew install openjdk@17`"),
        (set(), 0, "install a Java 17 or 21"),
    ],
)
def test_the_command_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch, has: set[str], user: int, expected: str) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in has else None)
    with pytest.raises(EnvironmentSetupError, match="no Java found") as raised:
        require_java()
    assert expected in str(raised.value)


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match=r"JAVA_HOME=.*set JAVA_HOME"):
        require_java()


@pytest.mark.parametrize(
    ("noted", "works"), [('JAVA_VERSION="21.0.2"', True), ('X="1"\nJAVA_VERSION="11.0.1"', False), ("", False)]
)
def test_its_version_is_read_next_to_it_or_requested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noted: str, works: bool
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin/java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    (tmp_path / "release").write_text(noted)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if works:
        assert require_java() == str(java)
        return
    with pytest.raises(EnvironmentSetupError, match=r"Java (11|1) found at .*Spark 4 needs Java 17"):
        require_java()


@pytest.mark.parametrize(
    ("errors", "prints", "reason"),
    [
        ("", "Error occurred during initialization of VM\nToo small maximum heap\n", "Too small maximum heap"),
        ("Error occurred during initialization of VM\nToo small maximum heap\n", "", "Too small maximum heap"),
        ("NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1k\n", "Error occurred during initialization of VM\nA\nB\n", "A"),
        (
            "Unrecognized VM option 'Foo'\nError: Could not create the Java Virtual Machine.\n",
            "",
            "Unrecognized VM option 'Foo'",
        ),
        ("x VM warning: old\n", "Error occurred during initialization of VM\nA\n", "A"),
        ("x VM warning: old\n", "", "x VM warning: old"),
        ("No manifest: /no.jar\n", "Error occurred during initialization of VM\nagent\n", "No manifest: /no.jar; agent"),
        ('Exception in thread "main" java.lang.X: y\n', "Error occurred during initialization of VM\nA\n", "java.lang.X: y"),
        ("a failure\n", "chatter of spark-env.sh\n", "a failure"),
        ("", "last words\n", "last words"),
        ("", "\n", "it ended without a word"),
        ("", "no library x, with error: password=hunter22\n", "no library x, with error: password=[redacted]"),
        ("y" * 900, "", "y" * 400 + "…"),
        ("y" * 390 + " password=" + "hunter22" * 9, "", "y" * 390 + " password=…"),
    ],
)
def test_the_last_words_of_a_jvm(errors: str, prints: str, reason: str) -> None:
    said = [text.encode().splitlines(keepends=True) for text in (errors, prints)]
    assert jvm._reason(*said) == reason


AGAIN = """
from krishiv_py import Session
options = "driver.extraJavaOptions"
tried = [
    ("nonsense", "a", "b"), ("local[x]", "a", "b"), ("local[1]", "driver.memory", "zz"),
    ("local[1]", options, "-Xms400g"),
    ("local[1]", options, "-agentlib:nosuch=password=hunter22"), ("local[1]", "a", "b"),
]
for master, key, value in tried:
    try:
        with Session.builder().master(master).config("spark." + key, value).get_or_create() as session:
            print(session.spark.range(3).count())
            session.spark.sparkContext._jvm.java.lang.System.out.println("printed by Java")
    except RuntimeError as problem:
        print(type(problem).__name__, str(problem).splitlines())
"""


@pytest.mark.slow
def test_what_spark_does_not_take_is_reported_and_the_next_session_begins() -> None:
    names = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")  # of these Java tells first, and they are not the reason
    given = {**os.environ, **dict.fromkeys(names, "-Dof.the=user")}
    run = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=180, env=given)
    wanted = ("EnvironmentSetupError", "3", "printed by Java")
    first, second, third, heap, agent, *last = [line for line in run.stdout.splitlines() if line.startswith(wanted)]
    assert "EnvironmentSetupError ['Spark could not be started on nonsense (got: " in first and "Master must" in first, (
        run.stderr
    )
    assert "could not be started on local[x]" in second and "Could not parse Master URL" in second
    assert "Invalid maximum heap size" in third and "Traceback" not in run.stderr
    assert "(got: Initial heap size set to a larger value than the maximum heap size)" in heap
    assert "(got: Could not find agent library nosuch" in agent and "hunter22" not in agent, "printed on standard output"
    assert last == ["3", "printed by Java"], "what Java prints is passed on"


def test_a_jvm_that_cannot_begin_says_why_in_the_end() -> None:
    said = [
        b'Exception in thread "main" java.lang.ExceptionInInitializerError',
        b"\tat org.apache.spark.Some.thing(Some.scala:1)",
        b"Caused by: java.net.UnknownHostException: box: box: Name or service not known",
        b"\t... 3 more",
        b"Caused by: java.net.UnknownHostException: box: Name or service not known",
    ]
    wanted = "java.lang.ExceptionInInitializerError; caused by java.net.UnknownHostException: box: Name or service not known"
    assert jvm._reason(said, []) == wanted
    assert jvm._reason(said[:2], []) == "java.lang.ExceptionInInitializerError"
