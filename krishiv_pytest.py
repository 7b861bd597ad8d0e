"""A plugin of pytest: ``@pytest.mark.krishiv_check`` on a function that returns a plan, and the fixture ``krishiv_check``.

Every run of pytest loads it where the library is installed, so it stands alone and imports nothing of the library before a test
needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

_MARK = "krishiv_check"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("krishiv", "checks of plans of krishiv_py")
    group.addoption("--krishiv-cases", type=int, default=None, metavar="N", help="draw so many streams for each check")
    group.addoption("--krishiv-seed", type=int, default=None, metavar="N", help="draw the streams of this seed")
    group.addoption("--krishiv-replay", default=None, metavar="FILE", help="try only the stream of a file of .krishiv_check")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{_MARK}(**options): the function returns a plan, which krishiv_py.testing.check() tries with these options"
    )


@pytest.fixture(name=_MARK)
def _krishiv_check(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return ``krishiv_py.testing.check`` with the options of the command line."""
    return _checking(request.config)


def _checking(config: pytest.Config) -> Callable[..., Any]:
    def check(plan: Any, **options: Any) -> Any:
        from krishiv_py.testing import check as check_plan

        asked = {name: config.getoption(f"krishiv_{name}") for name in ("cases", "seed", "replay")}
        kept = {"keep": config.rootpath / ".krishiv_check"}
        return check_plan(plan, **{**kept, **options, **{name: value for name, value in asked.items() if value is not None}})

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item | pytest.Collector] | None:
    """Collect functions with the marker, whatever they are called."""
    marks = [mark for mark in getattr(obj, "pytestmark", []) if mark.name == _MARK]
    if not marks or not callable(obj) or isinstance(obj, type) or not isinstance(collector, (pytest.Module, pytest.Class)):
        return None
    return list(collector._genfunctions(name, obj))


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Check the plan that a function with the marker returns."""
    mark = pyfuncitem.get_closest_marker(_MARK)
    if mark is None:
        yield
        return
    function, plans = pyfuncitem.obj, list[Any]()

    def returned(**fixtures: Any) -> None:
        plans.append(function(**fixtures))

    pyfuncitem.obj = returned
    outcome = yield
    pyfuncitem.obj = function
    outcome.get_result()  # type: ignore[attr-defined]  # what pluggy sends is not typed
    report = _checking(pyfuncitem.config)(plans[0], **mark.kwargs)
    pyfuncitem.add_report_section("call", _MARK, str(report))
