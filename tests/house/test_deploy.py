"""The manifest is one that Kubernetes' own schema takes; the image's entrypoint starts what it is given, or an executor."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from krishiv_py.cli.main import parser
from krishiv_py.cli.run import load

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"
OBJECTS = list(yaml.safe_load_all(MANIFEST.read_text()))
IN_PROCESS = list(yaml.safe_load_all(MANIFEST.with_name("kubernetes.in-process.yaml").read_text()))


@pytest.mark.parametrize("manifest", [*OBJECTS, *IN_PROCESS], ids=lambda manifest: str(manifest["kind"]))
def test_an_object_of_the_manifest_follows_the_schema(manifest: dict[str, object]) -> None:
    kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_a_word_the_schema_does_not_know_is_refused() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**OBJECTS[0], "meta": {}}, "1.32", strict=True)


EXECUTOR = {
    "SPARK_HOME": "/opt/spark home",
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-Da=b c",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod",
}
"""What Spark puts into an executor's pod."""


def entered(tmp_path: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the entrypoint, with a ``java`` that prints its arguments, one a line."""
    java = tmp_path / "java"
    java.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\nexit 3\n")
    java.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **variables}
    called = ["bash", str(MANIFEST.with_name("entrypoint")), *command]
    return subprocess.run(called, env=environment, capture_output=True, text=True, check=False)


def test_the_entrypoint_runs_the_command_it_is_given(tmp_path: Path) -> None:
    done = entered(tmp_path, "java", "a b", "executor")
    assert (done.returncode, done.stdout) == (3, "a b\nexecutor\n"), "its exit code too"


def test_the_entrypoint_starts_an_executor_from_the_variables_of_spark(tmp_path: Path) -> None:
    done = entered(tmp_path, "executor", **EXECUTOR)
    given = done.stdout.splitlines()
    assert given[:4] == ["-Dspark.driver.port=7078", "-Da=b c", "-Xms1g", "-Xmx1g"]
    assert given[4:6] == ["-cp", "/opt/spark/conf:/opt/spark home/jars/*"]
    named = dict(zip(given[7::2], given[8::2], strict=True))
    assert named == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }


def test_an_executor_without_its_variables_is_no_silent_start(tmp_path: Path) -> None:
    lacking = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    done = entered(tmp_path, "executor", **lacking)
    assert done.returncode != 0 and "SPARK_DRIVER_URL" in done.stderr and not done.stdout


UNIT = MANIFEST.with_name("orders.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_one_that_systemd_takes() -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_leaves_the_job_nothing_that_it_does_not_need() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]  # an exposure of 2.0 at the most, of 10


@pytest.mark.parametrize("file", ["orders.service", "Containerfile.in-process", "kubernetes.in-process.yaml"])
def test_the_command_of_an_example_is_one_that_krishiv_takes(file: str) -> None:
    """The arguments behind ``krishiv run`` are parsed, and the job is in the folder."""
    text = MANIFEST.with_name(file).read_text()
    if file == "orders.service":
        [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
        given = shlex.split(line.partition(" run ")[2])
    elif file.endswith(".yaml"):
        [pod] = [one["spec"]["template"]["spec"] for one in IN_PROCESS if one["kind"] == "StatefulSet"]
        given = pod["containers"][0]["args"]
    else:
        given = json.loads(text[text.index('["/opt/job') :].replace("\\\n", ""))
    parsed = parser().parse_args(["run", *given])
    assert (parsed.engine, parsed.profile, parsed.metrics_port) == ("in-process", "single-node-durable", 9000)
    path, _, function = parsed.job.partition(":")
    assert callable(load(f"{MANIFEST.with_name(Path(path).name)}:{function}")[1])


def test_the_job_of_the_examples_runs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"user": "a", "at": moment, "amount": 2} for moment in (0, 1_000, 80_000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in/a.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "krishiv_py", "run", f"{MANIFEST.with_name('orders.py')}:orders", "--until-idle"],
        env={**os.environ, "JOB_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [written] = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(written).select(["count", "sum_amount"]).to_pylist() == [{"count": 2, "sum_amount": 4}]
