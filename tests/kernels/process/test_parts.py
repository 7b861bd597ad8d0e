"""Keys of a step that are called in parts, so that not all of them are objects at a time: what comes of it is the same."""

from __future__ import annotations

import pytest

from krishiv_py.kernels.process import operator
from tests.examples import scaled
from tests.kernels.process import test_process, test_rounds


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_KEYS_AT_ONCE", 1)


@pytest.mark.parametrize("seed", range(scaled(40)))
def test_every_step_is_that_of_the_reference(seed: int) -> None:
    test_process.test_every_step_is_that_of_the_reference(seed)


@pytest.mark.parametrize("cut", [1, 2, 99])
def test_a_call_that_fails_is_undone(cut: int) -> None:
    test_process.test_p18_a_call_that_fails_is_undone(cut)


@pytest.mark.parametrize("cut", [1, 99])
def test_a_row_that_its_class_refuses_goes_to_the_late_output(cut: int) -> None:
    test_process.test_a_row_that_its_class_refuses_goes_to_the_late_output(cut)


def test_rows_that_are_refused_leave_whole() -> None:
    test_process.test_late_rows_that_are_refused_leave_whole_and_no_result_is_late()
    test_process.test_on_end_is_called_once_for_each_key_with_state()
    test_process.test_a_timer_that_fails_at_the_end_takes_no_other_with_it()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("few", [1, 99])
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_rounds_are_rows(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    test_rounds.test_p23_rounds_are_rows(seed, few, monkeypatch)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_rounds_that_refuse_or_fail_are_rows_that_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    test_rounds.test_rounds_that_refuse_are_rows_that_refuse(seed)
    test_rounds.test_rounds_that_fail_are_rows_that_fail(seed, 1, monkeypatch)
