"""Sessions for developers: ``python -m nox -l`` lists them, ``python -m nox -s tests`` runs one.

Everything runs in the environment nox itself is installed in, see README.md; ``scripts/check`` is what must pass.
"""

from __future__ import annotations

import sys

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["check"]


@nox.session
def check(session: nox.Session) -> None:
    """All that must pass: lint, contracts, types, tests, doctests."""
    session.run("scripts/check", *session.posargs, external=True, env={"PYTHON": sys.executable})


@nox.session
def lint(session: nox.Session) -> None:
    """Style; ``-- --fix`` mends what can be mended."""
    session.run("python", "-m", "ruff", "check", *session.posargs, ".")


@nox.session
def contracts(session: nox.Session) -> None:
    """Which room may import which."""
    session.run("lint-imports")


@nox.session
def typecheck(session: nox.Session) -> None:
    """``mypy --strict``, as configured in pyproject.toml."""
    session.run("python", "-m", "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite with doctests; ``-- -k late`` picks."""
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2", "--dist", "loadgroup"]))


@nox.session
def fast(session: nox.Session) -> None:
    """What needs no JVM."""
    session.run("python", "-m", "pytest", "-m", "not spark and not soak and not crash", *session.posargs)


@nox.session
def doctests(session: nox.Session) -> None:
    """The examples in docstrings."""
    session.run("python", "-m", "pytest", "--doctest-modules", "krishiv_py", *session.posargs)


@nox.session
def properties(session: nox.Session) -> None:
    """The property tests, each on 50 000 generated streams."""
    session.run("python", "-m", "pytest", "tests", "-m", "hypothesis and not spark", "-n", "2", *session.posargs,
                env={"KRISHIV_EXAMPLES": "50000"})


@nox.session
@nox.parametrize("engine", ["driver", "bounded", "streaming"])
def goldens(session: nox.Session, engine: str) -> None:
    """The golden cases on each engine; ``-- FILE`` for a file of your own."""
    session.run("python", "-m", "tests.goldens", "--engine", engine, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Throughput beside hand-written Spark."""
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Build the environments of other engines and measure them over the same files."""
    session.run("python", "-m", "benchmarks.envs")
    session.run("python", "-m", "benchmarks", "--peers", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Long runs: state and memory must level off."""
    session.run("python", "-m", "pytest", "tests", "-m", "soak", *session.posargs)


@nox.session
def crash(session: nox.Session) -> None:
    """Kill and restart: the output must be that of an uninterrupted run."""
    session.run("python", "-m", "pytest", "tests", "-m", "crash", *session.posargs)
