"""The runtime library's table of timed selections, which needs no GPU."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytensor import config

from dnnops.plans import stored as stored_choices
from dnnops.plans.cache import CachedChoice, PlanCache, plan_cache
from dnnops.runtime.build import CUDNN, c_code_dir
from tests.plans.choices import DEVICE, case_of, plan_array, stored_plan

pytestmark = pytest.mark.needs("cudnn")

SOURCE = """
#include "gpu/conv/conv_choices.cpp"
namespace {
struct NamedPlan : dnnops::Plan {
  void execute(const dnnops::Launch &, dnnops::PointerPack &) override {}
};
}
extern "C" {
using namespace dnnops;
// Returns how many plans there are, -1 if nothing is known, and 100 more if they come from disk.
int64_t find(const ConvCase *conv, int device, StoredPlan *plans) {
  Handle handle;
  handle.device = device;
  const auto found = find_choice(*conv, handle);
  if (!found) return -1;
  std::copy(found->plans.begin(), found->plans.end(), plans);
  return static_cast<int64_t>(found->plans.size()) + 100 * found->from_disk;
}
void store(const ConvCase *conv, int device, const StoredPlan *plans, int64_t count,
           int64_t is_lasting) {
  Handle handle;
  handle.device = device;
  std::vector<TimedPlan> timed;
  for (int64_t i = 0; i < count; ++i) {
    auto plan = std::make_shared<NamedPlan>();
    plan->spec = plans[i].spec;
    plan->name = plans[i].name;
    plan->workspace = plans[i].workspace;
    timed.push_back({plan, plans[i].milliseconds});
  }
  store_choice(*conv, handle, timed, is_lasting);
}
void drop(const ConvCase *conv, int device) {
  Handle handle;
  handle.device = device;
  drop_choice(*conv, handle);
}
void statistics(CacheStatistics *now) { *now = choice_statistics(); }
void clear() { clear_choices(); }
void resize(int64_t capacity) { resize_choices(static_cast<size_t>(capacity)); }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The table, with the functions that only C++ may call."""
    folder = tmp_path_factory.mktemp("choices")
    (folder / "table.cpp").write_text(SOURCE)
    cxx, arguments, *_ = CUDNN.recipe
    visible = [argument for argument in arguments if argument != "-fvisibility=hidden"]
    include = f"-I{c_code_dir()}"
    subprocess.run(
        [cxx, *visible, "-O0", "-shared", "-fPIC", include, "table.cpp", "-o", "table.so"],
        cwd=folder,
        check=True,
    )
    return ctypes.CDLL(str(folder / "table.so"))


class Table:
    """Return the library's functions for Python."""

    def __init__(self, library: Any):
        self.library = library

    def find(self, case: Any, device: int = 0) -> tuple[list[tuple[bytes, float, int]], bool]:
        """Return names, times and workspaces, and whether they come from disk."""
        plans = plan_array(8)
        count = self.library.find(ctypes.byref(case), device, plans)
        from_disk = count >= 100
        found = plans[: max(0, count - 100 * from_disk)]
        return [(plan.name, plan.milliseconds, plan.workspace) for plan in found], from_disk

    def store(self, case: Any, *names: str, device: int = 0, is_lasting: bool = True) -> None:
        plans = [stored_plan(name, "forward", 1.0 + i, i) for i, name in enumerate(names)]
        given = plan_array(len(plans))
        given[:] = plans
        count, lasting = ctypes.c_int64(len(plans)), ctypes.c_int64(is_lasting)
        self.library.store(ctypes.byref(case), device, given, count, lasting)

    def drop(self, case: Any) -> None:
        self.library.drop(ctypes.byref(case), 0)

    @property
    def statistics(self) -> dict[str, int]:
        names = ("size", "capacity", "hits", "misses", "evictions")
        numbers = (ctypes.c_int64 * len(names))()
        self.library.statistics(numbers)
        return dict(zip(names, numbers, strict=True))


@pytest.fixture
def table(library: Any) -> Iterator[Table]:
    """Return the empty table, with nothing stored."""
    library.dnnops_cudnn_set_choice_storage(None, None)
    library.resize(ctypes.c_int64(4096))
    library.clear()
    yield Table(library)
    library.dnnops_cudnn_set_choice_storage(None, None)


@pytest.fixture
def cache(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanCache]:
    """Return the directory in which the table's selections are stored."""
    monkeypatch.setattr(stored_choices, "_describe_device", lambda device: {**DEVICE, "n": device})
    stored_choices.connect(table.library)
    with config.change_flags(dnn__conv__cache=str(tmp_path / "plans")):
        kept = plan_cache()
        assert kept is not None
        yield kept


ENGINE, FFT = ("engine7_k2=4", b"engine7_k2=4"), ("FFT", b"FFT")


def test_what_was_stored_is_found(table: Table):
    assert table.find(case_of()) == ([], False)
    table.store(case_of(), ENGINE[0], FFT[0])
    found = [(ENGINE[1], 1.0, 0), (FFT[1], 2.0, 1)]
    assert table.find(case_of()) == (found, False)
    assert table.find(case_of(), device=1) == ([], False)
    # Whichever thread, and whichever factors that have the same work done.
    assert table.find(case_of(handle=5, alpha=0.25)) == (found, False)
    assert table.find(case_of(beta=1)) == ([], False)
    table.store(case_of(beta=1), FFT[0])
    assert table.find(case_of(beta=-0.5, alpha=7)) == ([(FFT[1], 1.0, 0)], False)
    assert table.find(case_of(fixed_scalars=0, alpha=0)) == ([], False)
    assert table.statistics["size"] == 2
    table.store(case_of(), FFT[0])
    assert table.find(case_of()) == ([(FFT[1], 1.0, 0)], False)
    table.drop(case_of())
    assert table.find(case_of()) == ([], False)


def test_of_many_plans_the_fastest_are_kept(table: Table):
    names = [f"engine{i}" for i in range(20)]
    table.store(case_of(), *names)
    found, _ = table.find(case_of())
    assert [name.decode() for name, _, _ in found] == names[:8]


def test_the_table_is_bounded(table: Table):
    assert table.statistics["capacity"] == 4096
    table.library.resize(ctypes.c_int64(3))
    before = table.statistics
    cases = [case_of(groups=i) for i in range(1, 6)]
    for case in cases:
        table.store(case, FFT[0])
        table.find(cases[0])  # which keeps it young
    after = table.statistics
    assert after["size"] == 3
    assert after["evictions"] - before["evictions"] == 2
    assert after["hits"] - before["hits"] == 5
    assert [bool(table.find(case)[0]) for case in cases] == [True, False, False, True, True]


def test_a_new_process_finds_it_on_disk(table: Table, cache: PlanCache):
    table.store(case_of(), ENGINE[0], FFT[0])
    (entry,) = cache.entries()
    assert [plan.name for plan in entry.choice.plans] == [ENGINE[0], FFT[0]]
    table.library.clear()
    found = [(ENGINE[1], 1.0, 0), (FFT[1], 2.0, 1)]
    assert table.find(case_of(handle=3)) == (found, True)
    # It is in the table now: the disk is asked once.
    hits = cache.statistics["hits"]
    assert table.find(case_of()) == (found, True)
    assert cache.statistics["hits"] == hits == 1
    assert table.find(case_of(), device=1) == ([], False)


def test_what_is_not_lasting_stays_in_the_process(table: Table, cache: PlanCache):
    table.store(case_of(), ENGINE[0], is_lasting=False)
    assert table.find(case_of()) == ([(ENGINE[1], 1.0, 0)], False)
    assert list(cache.entries()) == []


def test_plans_that_can_be_built_no_more_are_dropped(table: Table, cache: PlanCache):
    table.store(case_of(), ENGINE[0])
    table.drop(case_of())
    assert list(cache.entries()) == []
    assert table.find(case_of()) == ([], False)


def test_a_choice_of_unknown_plans_is_none(table: Table, cache: PlanCache):
    table.store(case_of(), ENGINE[0])
    (entry,) = cache.entries()
    cache.store(entry.key, CachedChoice((("engine_of_tomorrow", 1, 0),)))
    table.library.clear()
    assert table.find(case_of()) == ([], False)
    assert table.statistics["size"] == 0


def test_more_plans_than_there_is_room_for(table: Table, cache: PlanCache):
    """Another version of dnnops may store such entries."""
    table.store(case_of(), ENGINE[0])
    (entry,) = cache.entries()
    cache.store(entry.key, CachedChoice(tuple((f"engine{i}", 1 + i, 0) for i in range(20))))
    table.library.clear()
    found, from_disk = table.find(case_of())
    assert from_disk
    assert [name.decode() for name, _, _ in found] == [f"engine{i}" for i in range(8)]


def test_threads(table: Table, cache: PlanCache):
    wrong = []

    def work(number: int) -> None:
        for i in range(50):
            case = case_of(groups=1 + i % 7)
            table.store(case, ENGINE[0], FFT[0])
            if i % 10 == number:
                table.library.clear()
            found, _ = table.find(case)
            if [name for name, _, _ in found] != [ENGINE[1], FFT[1]]:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(list(cache.entries())) == 7
