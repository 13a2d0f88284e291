"""Tests with missing needs are skipped with the reason, and only those."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dnnops.errors import DnnUnavailableError
from tests import needs, skips

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.needs("here")
def test_here(): pass

@pytest.mark.needs("here", "away")
@pytest.mark.parametrize("i", range(2))
def test_away(i): assert False

@pytest.mark.parametrize("dtype", [pytest.param("a", marks=pytest.mark.needs("away")), "b"])
def test_dtype(dtype): assert dtype == "b"

def test_end():
    from tests.needs import require
    require("here")
    require("away")
    assert False

@pytest.mark.gpu
def test_gpu(): assert False

@pytest.mark.skip(reason="odd")
def test_odd(): assert False
"""


class Plugin:
    """Do what `tests/conftest.py` does."""

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        skips.add_option(parser)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "needs(name, ...): for this test")
        config.addinivalue_line("markers", "gpu: for this test")
        config.addinivalue_line("markers", "alone: for this test")
        config.pluginmanager.register(skips.SkipCounter(config))

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        skips.keep_skipped(config, items)
        needs.mark_missing(items)


def absent() -> str:
    raise DnnUnavailableError("a finder that failed")


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch):
    """Use a table with something that is there, something missing, no GPU, and a failing finder."""
    rows = {
        "here": lambda: "",
        "away": lambda: "it went: far away",
        "gpu": lambda: "none",
        "failing": absent,
    }
    needs.missing.cache_clear()
    monkeypatch.setattr(needs, "NEEDS", rows)
    yield rows
    needs.missing.cache_clear()


def run(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(text)
    return pytester.inline_run("-rs", "-p", "no:xdist", *arguments, plugins=[Plugin()])


def outcomes(result: pytest.HookRecorder) -> dict[str, str]:
    """Return the outcome of each test, and the reason if it was skipped."""
    found = {}
    for report in result.getreports("pytest_runtest_logreport"):
        name = report.nodeid.rpartition("::")[2]
        if report.skipped:
            found[name] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.when == "call":
            found[name] = report.outcome
    return found


def test_both_answers(pytester: pytest.Pytester):
    away = "needs away: it went: far away"
    assert outcomes(run(pytester, TESTS)) == {
        "test_here": "passed",
        "test_away[0]": away,
        "test_away[1]": away,
        "test_dtype[a]": away,
        "test_dtype[b]": "passed",
        "test_end": away,
        "test_gpu": "needs gpu: none",
        "test_odd": "odd",
    }


def test_gpu_is_selected_by_its_own_name(pytester: pytest.Pytester):
    assert list(outcomes(run(pytester, TESTS, "-m", "gpu"))) == ["test_gpu"]


def test_alone_among_other_processes(
    pytester: pytest.Pytester, table: dict[str, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
):
    table["one process"] = needs._one_process
    text = "import pytest\n@pytest.mark.alone\ndef test_it(): pass"
    for count, outcome in (
        ("1", "passed"),
        ("3", "needs one process: 2 other processes run tests; use -n 0"),
    ):
        needs.missing.cache_clear()
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", count)
        assert outcomes(run(pytester, text)) == {"test_it": outcome}
    needs.missing.cache_clear()
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT")
    assert outcomes(run(pytester, text)) == {"test_it": "passed"}


def test_unknown_needs_are_errors(pytester: pytest.Pytester):
    text = "import pytest\n@pytest.mark.needs('cudn')\ndef test_it(): pass"
    result = run(pytester, text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    with pytest.raises(needs.UnknownNeedError, match="does not know 'cudn'; it has"):
        needs.missing("cudn")


def test_a_finder_that_fails_is_not_an_answer(pytester: pytest.Pytester):
    text = "import pytest\n@pytest.mark.needs('failing')\ndef test_it(): pass"
    assert run(pytester, text).ret == pytest.ExitCode.INTERNAL_ERROR


def test_only_missing_needs_of_the_row_skip_tests(
    pytester: pytest.Pytester, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows, found = tmp_path / skips.ROWS, tmp_path / skips.FOUND
    rows.parent.mkdir()
    rows.write_text('{"bare": ["away", "gpu", "other"], "extra": ["away", "cudnn"]}')
    assert skips.main(["bare"], tmp_path) == 2
    run(pytester, TESTS)
    found.parent.mkdir(parents=True)
    found.write_text((pytester.path / skips.FOUND).read_text())
    assert json.loads(found.read_text()) == {"away": 4, "gpu": 1, "other": 1}
    assert skips.main(["bare"], tmp_path) == 0
    assert skips.main(["unknown"], tmp_path) == 2
    capsys.readouterr()
    assert skips.main(["extra"], tmp_path) == 1
    assert capsys.readouterr().err.splitlines() == [
        "gpu: may not be missing here, skipped: 1",
        "other: may not be missing here, skipped: 1",
    ]


def test_only_what_was_skipped_runs(
    pytester: pytest.Pytester, table: dict[str, Callable[[], str]], tmp_path: Path
):
    whole = "import pytest\n{}def test_in_skipped_file(): pass"
    pytester.makepyfile(test_whole=whole.format("pytest.skip('odd', allow_module_level=True)\n"))
    first = outcomes(run(pytester, TESTS))
    file = tmp_path / "skipped"
    file.write_text((pytester.path / skips.NAMES).read_text())
    needs.missing.cache_clear()
    table["away"] = lambda: ""
    pytester.makepyfile(test_whole=whole.format(""))
    found = outcomes(run(pytester, TESTS, "--only-skipped", str(file)))
    skipped = {name for name, result in first.items() if result != "passed"}
    assert set(found) == skipped | {"test_in_skipped_file"}
    assert found == {
        "test_away[0]": "failed",
        "test_away[1]": "failed",
        "test_dtype[a]": "failed",
        "test_end": "failed",
        "test_gpu": "needs gpu: none",
        "test_odd": "odd",
        "test_in_skipped_file": "passed",
    }
    # What was skipped again can be run by a third one.
    assert len(json.loads((pytester.path / skips.NAMES).read_text())) == 2


def test_a_wrong_list_of_skipped_tests_is_an_error(tmp_path: Path):
    file = tmp_path / "skipped"
    config = SimpleNamespace(getoption={"--only-skipped": file}.__getitem__)
    for content in (None, "[test"):
        if content:
            file.write_text(content)
        with pytest.raises(pytest.UsageError, match=r"^--only-skipped: "):
            skips.keep_skipped(config, [])
