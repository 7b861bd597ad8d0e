"""Names, imports, sizes and docstrings of the package."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import krishiv_py
from krishiv_py import errors
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import KeyedUntimedStream, TimedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.session import Session

PACKAGE = Path(krishiv_py.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}
STAGES = (Session, Stream, KeyedUntimedStream, TimedStream, KeyedStream, WindowedStream, ResultStream)


@pytest.mark.parametrize("name", ["krishiv_py", "krishiv_py.testing"])
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    listed: list[str] = module.__all__
    assert listed == sorted(listed)
    assert len(set(listed)) == len(listed)
    imported = {n for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v) and n != "annotations"}
    assert set(listed) == imported


def test_a_star_import_brings_the_aggregates_and_says_how_to_call_pythons_own() -> None:
    """Left out, ``sum("a")`` would be Python's, whose error says nothing of this library."""
    taken: dict[str, Any] = {}
    exec("from krishiv_py import *", taken)
    for name in ("sum", "min", "max"):
        assert taken[name]("x").func == name
        for args in (([1, 2],), (1, 2), ((n for n in (1, 2)),)):
            with pytest.raises(errors.KrishivError, match=rf"Hint: .*{name}\(\"\w+\"\).*builtins\.{name}\(\.\.\.\)"):
                taken[name](*args)


@pytest.mark.parametrize("name", ["krishiv_py", "krishiv_py.testing", "krishiv_py.session"])
def test_importing_loads_nothing_heavy(name: str) -> None:
    assert set(loaded_by(f"import {name}")) & {"pyspark", "py4j", "pandas", "grpc", "matplotlib", "tqdm"} == set()


LATER = ("krishiv_py.kernels", "krishiv_py.planner", "krishiv_py.spark", "krishiv_py.sql", "pyarrow.compute", "sqlglot")
"""What the builder loads when a stream is made, and most of what it would cost to load it with the package."""


def loaded_by(program: str) -> list[str]:
    """The modules that are there after a program in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_importing_the_package_loads_only_the_builder() -> None:
    late = [module for module in loaded_by("import krishiv_py") if module.startswith(LATER)]
    assert [module for module in late if not (ROOT / module.replace(".", "/") / "__init__.py").exists()] == []


def test_a_stream_without_text_needs_no_sql_parser() -> None:
    program = (
        "import pyarrow as pa; from krishiv_py import col, count; from krishiv_py.testing import Driver, stream_of; "
        "s = stream_of(pa.schema([('at', pa.int64())])).filter(col('at') > 0).watermark('at', 0); "
        "Driver(s.tumbling_window(10).agg(count())).send([{'at': 1}])"
    )
    actual = loaded_by(program)
    assert "krishiv_py.kernels.registry" in actual
    assert [m for m in actual if m.startswith(("sqlglot", "krishiv_py.sql"))] == []


def lazy_names(tree: ast.Module) -> dict[str, str]:
    """Names given by ``lazy(...)``, each with its module."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    return {
        ast.unparse(n.targets[0]): ast.literal_eval(n.value.args[0])
        for n in calls
        if isinstance(n.value, ast.Call) and ast.unparse(n.value.func) == "lazy"
    }


def checked_names(tree: ast.Module) -> dict[str, str]:
    """Names a type checker sees: those imported under ``if TYPE_CHECKING``, each with its module or attribute."""
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    imports = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    return {a.asname or a.name: f"{n.module}.{a.name}" for n in imports for a in n.names}


def test_what_is_loaded_later_is_what_type_checkers_see() -> None:
    lazy = {file: lazy_names(tree) for file, tree in TREES.items() if not file.endswith("/lazy.py")}
    assert any(lazy.values())
    assert [f for f, names in lazy.items() if not names.items() <= checked_names(TREES[f]).items()] == []
    for module in {module for names in lazy.values() for module in names.values()}:
        importlib.import_module(module)


def test_what_is_loaded_later_is_used() -> None:
    unused = [
        f"{file}: {name}"
        for file, tree in TREES.items()
        for name in lazy_names(tree)
        if not any(
            isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == name for n in ast.walk(tree)
        )
        and f"import {name} as {name}\n" not in (ROOT / file).read_text()  # handed on
    ]
    empty = [
        f"{file}:{n.lineno}"
        for file, tree in TREES.items()
        for n in tree.body
        if isinstance(n, ast.If) and len(n.body) == 1 and isinstance(n.body[0], ast.Pass)
    ]
    assert unused + empty == []


def test_own_package_is_imported_at_the_top_only() -> None:
    """An import inside a function hides a circle."""
    inside = [
        f"{file}:{node.lineno}"
        for file, tree in TREES.items()
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if (isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("krishiv_py")))
        or (isinstance(node, ast.Import) and any(a.name.startswith("krishiv_py") for a in node.names))
    ]
    assert inside == []


def test_every_error_says_what_to_do() -> None:
    """Its text is made of parts, so that all errors are written in one way, and one of the parts is a hint."""
    kinds = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, errors.KrishivError)}
    without = []
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args):
                continue
            what = node.args[0]
            if isinstance(what, ast.JoinedStr) and isinstance(what.values[-1], ast.FormattedValue):
                continue  # it names the place of another error, whose hint it ends with
            written = isinstance(what, (ast.Constant, ast.JoinedStr)) and "Hint: " not in ast.unparse(what)
            if written and not any(k.arg == "hint" for k in node.keywords):
                without.append(f"{file}:{node.lineno}")
    assert without == []


def public() -> Iterator[tuple[str, Any]]:
    """What a user calls: everything in ``__all__``, and the methods of the stages."""
    for name in (*krishiv_py.__all__, "max", "min", "sum"):
        thing = getattr(krishiv_py, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            yield name, thing
        if inspect.isclass(thing):
            yield from methods(thing)
    for stage in STAGES:
        if stage.__name__ not in krishiv_py.__all__:
            yield from methods(stage)


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Its public methods, inherited ones too."""
    for name, method in inspect.getmembers(cls, inspect.isroutine):
        own = (getattr(method, "__module__", None) or "").startswith("krishiv_py")
        if own and not name.startswith("_"):
            yield f"{cls.__name__}.{name}", method


PUBLIC = dict(public())


def test_public_things_are_documented() -> None:
    first = {name: (inspect.getdoc(thing) or "").partition("\n")[0].rstrip() for name, thing in PUBLIC.items()}
    assert [name for name, line in first.items() if not line.endswith((".", ":", "``", "?"))] == []


def parameters(thing: Callable[..., Any]) -> list[str]:
    return [n for n, p in inspect.signature(thing).parameters.items() if n not in ("self", "cls") and not n.startswith("_")]


def undocumented(thing: Callable[..., Any]) -> list[str]:
    """Return the parameters that are neither in backquotes nor in a numpydoc section, unless another method is referred to."""
    doc = inspect.getdoc(thing) or ""
    if re.search(r"(See|for) :meth:", doc.partition("\n")[0]):
        return []
    section = doc.partition("Parameters\n----------\n")[2]
    named = {p for line in re.findall(r"^(\S.*?) : ", section, re.M) for p in line.replace("*", "").split(", ")}
    return [p for p in parameters(thing) if p not in named and f"`{p}`" not in doc]


def test_parameters_are_documented() -> None:
    routines = {name: thing for name, thing in PUBLIC.items() if inspect.isroutine(thing)}
    assert {name: actual for name, thing in routines.items() if (actual := undocumented(thing))} == {}


def returns(function: ast.FunctionDef) -> bool:
    """Whether a function has a value for its caller at once: a generator yields, and a step that gives nothing acts."""
    own: list[ast.AST] = list(function.body)
    for node in own:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            own.extend(ast.iter_child_nodes(node))
    is_generator = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own)
    return not is_generator and not (isinstance(function.returns, ast.Constant) and function.returns.value is None)


def test_a_docstring_says_return_only_of_what_returns() -> None:
    functions = [(file, node) for file, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    said = [(file, node) for file, node in functions if (ast.get_docstring(node) or "").startswith("Return ")]
    assert len(said) > 1_000
    assert [f"{file}:{node.lineno} {node.name}" for file, node in said if not returns(node)] == []


OF_OTHERS = {"jobs.py", "file.py", "json.py", "traceback.py", "py4j/java_gateway.py"}
"""Files that texts name and that are not of this repository: of Python, of Spark, and of users."""


def test_files_that_texts_name_are_there() -> None:
    """A comment that names a file which was merged into another one leads nowhere."""
    there = [f"/{path.relative_to(ROOT)}" for room in (PACKAGE, ROOT / "examples") for path in room.rglob("*.py")]
    gone = {
        (str(path.relative_to(ROOT)), name)
        for path in FILES
        for name in re.findall(r"(?<![\w/.-])(?:\w+/)*\w+\.py\b", path.read_text())
        if name not in OF_OTHERS and not any(file.endswith(f"/{name}") for file in there)
    }
    assert gone == set()


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_paths_of_the_map_of_the_house_are_there(page: str) -> None:
    spans = re.findall(r"(?<!`)`([\w/.]+)`(?!`)", (ROOT / page).read_text())
    paths = [span for span in spans if span.endswith((".py", "/")) or span.partition("/")[0] in ("krishiv_py", "tests")]
    assert len(paths) > 10
    assert [p for p in paths if not any((base / p).exists() for base in (ROOT, PACKAGE, ROOT / "docs"))] == []


def drawn_tree(text: str) -> dict[str, str]:
    """Child → parent, from the drawing in a docstring."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        actual = re.match(r"^([\s│├└─]*)(\w+Error|KrishivError)\b", line)
        if not actual:
            continue
        depth = len(actual.group(1))
        while path and path[-1][0] >= depth:
            path.pop()
        if path:
            parents[actual.group(2)] = path[-1][1]
        path.append((depth, actual.group(2)))
    return parents


def test_the_exception_tree_is_as_drawn() -> None:
    classes = {n: c for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, errors.KrishivError)}
    real = {n: c.__bases__[0].__name__ for n, c in classes.items() if c is not errors.KrishivError}
    assert drawn_tree(errors.__doc__ or "") == real


def test_the_builtin_next_to_each_exception_is_as_drawn() -> None:
    for name, builtin in re.findall(r"(\w+Error) .*\(also (\w+)\)", errors.__doc__ or ""):
        assert issubclass(getattr(errors, name), getattr(builtins, builtin)), name


def test_the_readme_shows_the_quickstart() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Quickstart\n")[2]
    shown = re.search(r"```python\n(.*?)```", section, re.S)
    assert shown is not None
    assert shown.group(1) in (ROOT / "examples" / "quickstart.py").read_text()


def test_what_pyspark_needs_at_run_time_is_installed_with_the_library() -> None:
    # PySpark declares neither, but refuses mapInArrow and transformWithState without them.
    (declared,) = re.findall(r"^spark = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert {"pandas", "protobuf", "pyspark"} == set(re.findall(r'^ +"([\w-]+)', declared, re.M))


def test_no_line_of_the_docs_is_too_long() -> None:
    """Outside of tables, whose rows cannot be divided, and of what ``benchmarks.report`` writes."""
    long = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        written = re.sub(r"<!-- figures: begin.*?<!-- figures: end", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        long += [(path.name, line) for line in written.splitlines() if len(line) > 160 and not line.startswith("|")]
    assert long == []


KNOWS_KINDS = (
    "api/",
    "sql/",
    "kernels/windows/",
    "kernels/joins/",
    "kernels/changes/windowed.py",
    "kernels/dedup",
    "plan/joins.py",
    "plan/windows/",
    "__init__.py",
    "compat.py",
    "windows.py",
)
SHARED_OF_OPERATIONS = {"windows.window"}


def test_an_operation_is_called_and_not_distinguished_by_its_class() -> None:
    """Only those who make operations, and the operators of a kind, know the class of a window, a join or deduplication."""
    knowing = {}
    for file, tree in TREES.items():
        imported = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        of_plan = {m.removeprefix("krishiv_py.plan.") for m in imported if m.startswith("krishiv_py.plan.")}
        kinds = {m for m in of_plan if m.startswith("windows.") or m in ("dedup", "joins")} - SHARED_OF_OPERATIONS
        if kinds and not file.removeprefix("krishiv_py/").startswith(KNOWS_KINDS):
            knowing[file] = kinds
    assert knowing == {}


QUESTIONS = ("What", "Whether", "How", "Which", "Where", "When", "Who", "Whose", "Why")


def test_a_docstring_is_a_sentence_and_no_indirect_question() -> None:
    """It says what is returned, held or done: "Return the ...", "Holds ...", not "What ..." or "Whether ..."."""
    texts = [
        (f"{file}:{node.lineno}", node.value.value)
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    assert len(texts) > 4_000, "docstrings, also those of constants and attributes"
    assert [place for place, text in texts if text.split(None, 1)[:1] and text.split()[0] in QUESTIONS] == []


def test_documented_parameters_are_parameters() -> None:
    """A section "Parameters" of a function lists arguments that it has: a rename takes them along."""
    unknown = []
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            section = re.search(r"^Parameters\n-+\n(.*?)(?:\n\n[A-Z]\w+\n-+\n|\Z)", ast.get_docstring(node) or "", re.S | re.M)
            listed = re.findall(r"^([\w*, ]+?) : ", section[1], re.M) if section else []
            names = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            named = {name.strip(" *") for entry in listed for name in entry.split(",")}
            unknown += [f"{file}:{node.lineno} {name}" for name in sorted(named - names)]
    assert unknown == []


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names with an underscore in front that are read of, or set on, an object; what Python itself names is not among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr")
        ):
            constant = node.args[1]
            name = constant.value if isinstance(constant, ast.Constant) and isinstance(constant.value, str) else ""
        else:
            continue
        if re.match(r"_[A-Za-z]", name):
            yield node.lineno, name


def own_private_names() -> set[str]:
    """Names with an underscore in front that this package gives: to functions, classes, fields and what is set on ``self``."""
    own: set[str] = {"_exit"}  # os._exit
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    return own


INTERNALS = "krishiv_py/spark/internals.py"


def test_private_names_of_pyspark_are_in_one_file() -> None:
    own = own_private_names()
    foreign = {
        file: [f"{line}: {name}" for line, name in private_names(tree) if name not in own] for file, tree in TREES.items()
    }
    assert len(foreign.pop(INTERNALS)) > 10
    of_spark = {file: names for file, names in foreign.items() if names and file.startswith("krishiv_py/spark/")}
    assert of_spark == {}
    named = {name for _, name in private_names(TREES[INTERNALS])}
    elsewhere = {(file, name) for file, tree in TREES.items() if file != INTERNALS for _, name in private_names(tree)}
    assert {(file, name) for file, name in elsewhere if name in named and name not in own} == set()
