"""The convolution suite, without a GPU: its cases, data, rows and programs."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks import conv_data, conv_suite
from benchmarks.conv_cases import (
    CASES,
    DIRECTIONS,
    LAYOUTS,
    PRECISIONS,
    README_CASE,
    row_key,
    rows_in_order,
    small_cases,
    units,
)
from benchmarks.conv_measure import (
    DeadlinePassedError,
    Gpu,
    SuiteSettings,
    calls_and_gates,
    cores_of,
    environment,
)
from benchmarks.conv_rows import (
    draw_suite,
    geometric_mean,
    losses,
    merge,
    misses,
    plan_kind,
    ratio,
    read_rows,
    summary,
    why,
)
from benchmarks.harness import BenchmarkError, WorkerLostError
from tests.needs import missing


def make_row(number: int = 0, **values: Any) -> dict[str, Any]:
    case, direction, precision, layout = rows_in_order(CASES)[number]
    row = {"case": case.words, "direction": direction, "precision": precision, "layout": layout}
    times = {"time_ms": 1.0, "guess_ms": 1.0, "torch_ms": 1.3, "jax_ms": 1.2, "plan": "engine1"}
    return {**row, **times, "choose_s": 0.5, "error": 1e-6, "all_s": 1.0, "reasons": {}, **values}


# -- cases -----------------------------------------------------------------------------------


def test_there_are_enough_distinct_cases_of_every_origin():
    assert len({case.words for case in CASES}) == len(CASES)
    assert 60 <= len(CASES) <= 62
    assert README_CASE in CASES
    assert README_CASE.image_shape == (64, 128, 112, 112)
    counts = Counter(case.network for case in CASES)
    assert counts["ResNet-50"] == 23
    assert counts["VGG-16"] == 9
    assert counts["MobileNet"] + counts["MobileNetV2"] == 6
    assert counts["3-d U-Net"] == 5
    assert counts["DeepLab"] == 3
    assert counts["ResNeXt-50"] == 4
    assert counts["DeepBench"] == 9
    assert {case.stride[0] for case in CASES if case.groups == case.channels > 1} == {1, 2}


@pytest.mark.parametrize("case", [*CASES, *small_cases()], ids=lambda case: case.words)
def test_geometry_is_that_of_the_abstract_op(case):
    from dnnops.nnet.conv.op import Conv

    op = Conv(
        ndim=len(case.size),
        border_mode=case.pad,
        subsample=case.stride,
        filter_dilation=case.dilation,
        num_groups=case.groups,
    )
    assert tuple(op.check_shapes(case.image_shape, case.filters_shape)) == case.output_shape


def test_order_has_every_row_once_and_each_beginning_is_a_sample():
    rows = rows_in_order(CASES)
    combinations = len(DIRECTIONS) * len(PRECISIONS) * len(LAYOUTS)
    assert len(set(rows)) == len(rows) == len(CASES) * combinations
    assert rows == rows_in_order(CASES)
    parts = units(rows)
    assert [row for unit in parts for row in unit] == rows
    assert {len(unit) for unit in parts} == {len(PRECISIONS) * len(LAYOUTS)}
    places = [place for place, unit in enumerate(parts) if unit[0][0] == README_CASE]
    assert len(places) == 3
    assert all(0.4 < place / len(parts) < 0.6 for place in places)
    everywhere = Counter(case.network for case in CASES)
    for count in (46, 92, 137):
        seen = Counter(unit[0][0].network for unit in parts[:count])
        for network in set(everywhere) - {README_CASE.network}:
            assert abs(seen[network] - everywhere[network] * 3 * count / len(parts)) < 2
        directions = Counter(unit[0][1] for unit in parts[:count])
        assert min(directions.values()) > 0.2 * count


def test_shards_are_apart_and_make_up_all_rows():
    parts = [conv_suite.selected(conv_suite.parse(["--shard", f"{i}/3"]), []) for i in range(3)]
    assert min(map(len, parts)) > 0
    assert all(len(unit) == len(PRECISIONS) * len(LAYOUTS) for p in parts for unit in units(p))
    keys = [(row[0].words, *row[1:]) for part in parts for row in part]
    assert len(set(keys)) == len(keys) == len(rows_in_order(CASES))


@pytest.mark.parametrize("shard", ["3/3", "-1/2", "2", "a/b"])
def test_impossible_shards_are_refused(shard, capsys):
    with pytest.raises(SystemExit):
        conv_suite.parse([f"--shard={shard}"])
    assert "--shard" in capsys.readouterr().err


def test_selection_by_words_and_without_what_is_known():
    args = conv_suite.parse(["--only", "resnet", "forward", "float16"])
    rows = conv_suite.selected(args, [])
    assert len(rows) == 2 * 23 * 2  # bfloat16 has the word in it, too
    done = [make_row(), {**make_row(1), "reasons": {"jax": "no"}}]
    everything = len(rows_in_order(CASES))
    assert len(conv_suite.selected(conv_suite.parse([]), done)) == everything - 2
    assert len(conv_suite.selected(conv_suite.parse(["--retry"]), done)) == everything - 1


def test_losses_are_measured_a_second_time_and_not_a_third(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [make_row(0, time_ms=2.0), make_row(1), make_row(2, time_ms=3.0, remeasured=True)]
    rows.append(make_row(9, time_ms=2.0))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = conv_suite.parse(["--retry-losses", str(file)])

    def keys(done):
        return [(row[0].words, *row[1:]) for row in conv_suite.selected(args, done)]

    assert keys(rows) == [row_key(rows[0]), row_key(rows[3])]
    assert keys([*rows, {**rows[0], "remeasured": True}]) == [row_key(rows[3])]


# -- data ------------------------------------------------------------------------------------


def test_values_look_normal_and_differ_between_operands():
    first = conv_data.values(np, 100_000, conv_data.operand_seed("image", 0), 1.0, "float32")
    second = conv_data.values(np, 100_000, conv_data.operand_seed("filters", 0), 1.0, "float32")
    assert abs(first.mean()) < 0.02
    assert abs(first.std() - 1.155) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.02


@pytest.mark.needs("ml_dtypes")
def test_bfloat16_is_rounded_to_nearest_even():
    import ml_dtypes

    exact = conv_data.values(np, 10_000, 1, 1.0, "float32")
    rounded = conv_data.values(np, 10_000, 1, 1.0, "bfloat16")
    np.testing.assert_array_equal(
        rounded, exact.astype(ml_dtypes.bfloat16).view(np.uint16), strict=True
    )


def test_sketch_estimates_the_relative_difference(monkeypatch):
    x = conv_data.values(np, 70_001, 1, 1.0, "float32")
    noise = 1e-3 * conv_data.values(np, 70_001, 2, 1.0, "float32")
    found = conv_data.difference(conv_data.sketch(np, x + noise), conv_data.sketch(np, x))
    assert found == pytest.approx(1e-3, rel=0.3)
    whole = conv_data.sketch(np, x)
    monkeypatch.setattr(conv_data, "CHUNK", 1 << 12)
    np.testing.assert_allclose(conv_data.sketch(np, x), whole, rtol=1e-12)
    x[5] = np.nan
    assert math.isnan(conv_data.difference(conv_data.sketch(np, x), whole))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_numpys(layout):
    order = (0, 2, 3, 1) if layout == "channels_last" else (0, 1, 2, 3)
    array = np.empty(tuple((2, 3, 5, 7)[axis] for axis in order), "float32")
    array = array.transpose([order.index(axis) for axis in range(4)])
    assert conv_data.strides_of((2, 3, 5, 7), layout, 4) == array.strides


def test_rings_exceed_the_cache_unless_they_are_too_many():
    assert conv_data.ring_size(1 << 30) == 1
    assert conv_data.ring_size(50 << 20) * (50 << 20) >= 160 << 20
    assert conv_data.ring_size(1) == 64


@pytest.mark.needs("torch or jax")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_libraries_make_and_sum_up_the_same_numbers(dtype, monkeypatch):
    monkeypatch.setattr(conv_data, "CHUNK", 1 << 10)
    seed, count, scale = conv_data.operand_seed("output", 5), 5000, 2.0**-3
    ours = conv_data.values(np, count, seed, scale, dtype)
    expected = conv_data.sketch(np, ours)
    bits = ours.view(np.uint32 if dtype == "float32" else np.uint16)
    compared = 0
    if not missing("torch"):
        import torch

        from benchmarks.peers import conv_torch

        theirs = conv_torch.values(count, seed, scale, dtype, "cpu")
        signed = torch.int32 if dtype == "float32" else torch.int16
        np.testing.assert_array_equal(theirs.view(signed).numpy().view(bits.dtype), bits)
        np.testing.assert_allclose(conv_torch.sketch(theirs), expected, rtol=1e-12)
        compared += 1
    if not missing("jax"):
        from benchmarks.peers import conv_jax

        theirs = conv_jax.values((count,), np.uint32(seed), np.float32(scale), dtype)
        np.testing.assert_array_equal(np.asarray(theirs).view(bits.dtype), bits)
        np.testing.assert_allclose(conv_jax.sketch(theirs), expected, rtol=1e-9)
        compared += 1
    assert compared


# -- what dnnops' C functions get ------------------------------------------------------------


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_operands_as_cudnn_gets_them(layout, direction):
    from benchmarks.peers import conv_dnnops, conv_turns
    from dnnops.runtime.build import CUDNN
    from dnnops.runtime.op import raise_status

    library = CUDNN.library
    for case in CASES:
        described = {
            **case.description(),
            "direction": direction,
            "precision": "bfloat16",
            "layout": layout,
            "device": "cuda",
            "algo": "guess_on_shape_change",
        }
        read, written = conv_turns.operands_of(described)
        words = conv_dnnops.make_op(described).words
        inputs = [conv_dnnops.operand_words(described, name, 4096) for name in read]
        sizes = np.array(described[f"{written}_shape"][2:], "int64")
        alpha = np.ones(())
        if direction != "forward":
            inputs.append(conv_dnnops.tensor_words(sizes.ctypes.data, "int64", sizes.shape, [8]))
        inputs.append(conv_dnnops.tensor_words(alpha.ctypes.data, "float64", (), ()))
        inputs = np.array(inputs, "int64")
        expected = conv_dnnops.operand_words(described, written, 0)
        output, context = np.zeros(len(expected), "int64"), np.zeros(3, "int64")
        arguments = (context, words, inputs, output)
        pointers = [conv_dnnops.ctypes.c_void_p(array.ctypes.data) for array in arguments]
        raise_status(CUDNN, library.dnnops_cudnn_conv_shape(*pointers))
        assert output[1:11].tolist() == expected[1:11], case.words


# -- rows ------------------------------------------------------------------------------------


def test_ratios_are_to_the_faster_peer_that_there_is():
    assert ratio(make_row()) == pytest.approx(1.2)
    assert ratio(make_row(jax_ms=None)) == pytest.approx(1.3)
    assert ratio(make_row(jax_ms=None, torch_ms=None)) is None
    assert ratio(make_row(time_ms=None)) is None
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1)
    assert math.isnan(geometric_mean([]))


def test_losses_are_listed_worst_first_and_a_missing_time_is_one():
    rows = [make_row(0), make_row(1, time_ms=2.0), make_row(2, time_ms=None), make_row(3)]
    rows[2]["reasons"] = {"time": "DnnNotSupportedError: no"}
    assert losses(rows) == [rows[2], rows[1]]
    assert why(rows[2]) == "DnnNotSupportedError: no"
    assert losses([make_row(time_ms=None, torch_ms=None, jax_ms=None)]) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"torch_ms": 0.5, "torch_backend": "CudaDepthwise2d"}, "CudaDepthwise2d"),
        ({"torch_ms": 0.5, "torch_backend": "Cudnn"}, "another plan"),
        ({"jax_ms": 0.5, "jax_plan": "engine1"}, "same plan"),
        ({"jax_ms": 0.5, "jax_plan": "engine4_k2=1"}, "XLA runs engine4_k2=1"),
        ({"jax_ms": 0.5, "jax_plan": ""}, "own kernel"),
        ({"jax_ms": 0.5, "jax_plan": "engine1", "jax_others": 2.0}, "runs engine1 with 2 kernels"),
        (
            {"jax_ms": 0.5, "jax_plan": "engine1", "jax_others": 2.0, "plan": "engine1_contiguous"},
            "same plan in less time with 2 kernels",
        ),
        ({"jax_ms": 0.5, "guess_ms": 0.5, "guess_plan": "gemm1"}, "gemm1, which guess_* takes"),
        (
            {"jax_ms": 0.5, "jax_plan": "engine4", "error": 1e-6, "jax_error": 8e-4},
            "differs from PyTorch's by 8.0e-04, dnnops' by 1.0e-06",
        ),
    ],
)
def test_losses_say_why(values, words):
    assert words in why(make_row(**values))


@pytest.mark.parametrize(
    ("plan", "kind", "name", "memory_format"),
    [
        ("engine7_k2=4_k12=-1", "graph API", "engine7_k2=4_k12=-1", ""),
        ("engine0_channels_last", "graph API", "engine0", "channels last"),
        ("engine67_k2=9_as_forward", "graph API", "engine67_k2=9", "a forward convolution"),
        ("gemm20_k1=17", "cuBLASLt", "gemm20_k1=17", ""),
        ("gemm20_k1=17_contiguous", "cuBLASLt", "gemm20_k1=17", "contiguous"),
        ("depthwise1_k0=8", "depthwise kernels", "depthwise1_k0=8", ""),
        ("FFT_TILING_FMA_MATH", "legacy API", "FFT_TILING_FMA_MATH", ""),
        ("ALGO_1_channels_last", "legacy API", "ALGO_1", "channels last"),
        (None, "", "", ""),
    ],
)
def test_names_of_plans_say_whose_they_are(plan, kind, name, memory_format):
    found = plan_kind(plan)
    assert kind in found[0]
    assert bool(kind) == bool(found[0])
    assert found[1:] == (name, memory_format)


def readme_row(**values: Any) -> dict[str, Any]:
    place = {"precision": "float32", "layout": "contiguous", "direction": "forward"}
    return {**make_row(), "case": README_CASE.words, **place, **values}


def test_misses_name_every_goal():
    good = [readme_row(torch_ms=9.0, jax_ms=2.0), *(make_row(i) for i in range(5))]
    assert misses(good) == []
    bad = misses([readme_row(torch_ms=1.01, jax_ms=1.0, guess_ms=2.0, error=0.1)])
    words = " ".join(bad)
    assert "not 1.1" in words
    assert "not 0.95" in words
    assert "not 8" in words
    assert "not 1.9" in words
    assert "error 0.1" in words
    assert any("not 8" in miss for miss in misses([*good[1:], readme_row(torch_ms=7.9)]))
    assert misses([*good, readme_row(torch_ms=7.9, layout="channels_last")]) == []
    assert any("1 rows are below" in miss for miss in misses([make_row(time_ms=9.0)]))
    assert any("not finite" in miss for miss in misses([make_row(error="not finite")]))


def test_summary_counts_and_averages():
    lines = {words: (count, figure) for words, count, figure in summary([make_row(), make_row(1)])}
    assert lines["time_*, times as fast as the faster peer (1.1 wanted)"] == (2, "1.200")
    assert lines["time_*, times as fast as PyTorch"] == (2, "1.300")
    assert lines["guess_*, times as fast as PyTorch (0.95 wanted)"] == (2, "1.300")
    assert lines["rows below 0.95 of the faster peer (0 wanted)"] == (2, "0")
    assert lines["rows measured a second time"] == (2, "0")
    assert lines["rows for which time_* takes an engine of cuDNN's graph API"] == (2, "2")


def test_files_of_rows_are_merged_and_half_lines_left_out(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(
        json.dumps({"machine": {"gpu": "H"}}) + "\n" + json.dumps(make_row()) + '\n{"case": "x'
    )
    second.write_text(json.dumps(make_row(time_ms=5.0)) + "\n" + json.dumps(make_row(1)) + "\n")
    machine, rows = read_rows([first, second])
    assert machine == {"gpu": "H"}
    assert len(rows) == 2
    assert {row["time_ms"] for row in rows} == {5.0, 1.0}
    assert merge(rows[::-1]) == rows


def test_second_measurements_replace_first_ones():
    first, second = make_row(), make_row(time_ms=9.0, remeasured=True)
    assert merge([first, second]) == merge([second, first]) == [second]
    third = {**second, "time_ms": 1.0}
    assert merge([second, third]) == [third]


@pytest.mark.needs("matplotlib")
def test_merged_files_become_the_benchmark_with_reasons_of_losses(tmp_path, capsys):
    rows = [make_row(0), make_row(1, time_ms=3.0, jax_plan="engine7")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert conv_suite.main(["--merge", str(file), "--output", str(tmp_path)]) == 1
    written = json.loads((tmp_path / "conv_suite.json").read_text())
    assert sorted(row.get("why", "") for row in written["rows"]) == ["", "XLA runs engine7"]
    assert (tmp_path / "conv_suite.png").read_bytes()[:4] == b"\x89PNG"
    assert "1 rows are below" in capsys.readouterr().err


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("slow", [0, 3, 100])
def test_picture_shows_losses_however_many(slow):
    rows = [make_row(i, time_ms=2.0 if i < slow else 0.5 + i / 1000) for i in range(300)]
    assert len(losses(rows)) == slow
    figure = draw_suite("title", rows)
    *above, below = figure.get_axes()
    assert len(above) == bool(slow)
    for axes in above:
        assert f"{slow} of 300" in axes.get_title(loc="left")
        assert len(axes.patches) == min(40, slow)
    assert f"All 300 rows, {slow} of them below" in below.get_title(loc="left")
    assert len(below.get_xticks()) == len(PRECISIONS) * len(LAYOUTS)


# -- programs --------------------------------------------------------------------------------


class FakeTask:
    def __init__(self, name: str, fails: bool = False):
        self.name, self.fails = name, fails

    def facts(self) -> dict[str, Any]:
        return {"seconds": 1e-3, "prepare_s": 0.1, "sketch": [1.0, 2.0], "sets": 2, "plan": "p"}

    def times(self, calls: int) -> list[float]:
        if self.fails:
            raise BenchmarkError("RuntimeError: CUDA error: gone")
        return [{"conv_dnnops": 1e-3}.get(self.name, 2e-3)]

    def ask(self, method: str, *arguments: Any) -> Any:
        if method == "turn":
            calls, gates = arguments
            return self.times(calls) * gates
        return {"waits": 0, "slope": 1e-3, "warm": []}[method]

    def close(self) -> None:
        pass


class FakeWorker:
    started: ClassVar[list[str]]

    def __init__(self, module: str, environment: Any, cores: Any):
        self.module, self.limit_s = module, None
        self.started.append(module)

    def call(self, function: str, *arguments: Any) -> Any:
        return {self.module: "1"} if function == "versions" else None

    def open(self, case: dict[str, Any]) -> FakeTask:
        return FakeTask(self.module)

    def stop(self) -> None:
        pass

    kill = stop


@pytest.fixture
def worker_class():
    class Fresh(FakeWorker):
        started: ClassVar[list[str]] = []

    return Fresh


def measured(worker_class, **settings: Any) -> dict[str, Any]:
    with Gpu(0, SuiteSettings("", **settings), worker_class) as gpu:
        return gpu.measure(*rows_in_order(CASES)[0])


def test_a_row_has_what_the_documentation_shows(worker_class):
    row = measured(worker_class, slopes=True)
    assert row["time_ms"] == row["guess_ms"] == 1.0
    assert row["torch_ms"] == row["jax_ms"] == 2.0
    assert row["error"] == row["jax_error"] == 0.0
    assert row["reasons"] == {}
    assert row["calls"] == 2
    assert row["gates"] == 1
    assert row["rounds"] == 5
    assert "remeasured" not in row
    assert set(row["open_s"]) == {"time", "guess", "torch", "jax"}
    assert row["jax_slope_ms"] == 1.0
    assert sorted(worker_class.started) == ["conv_dnnops", "conv_jax", "conv_torch"]
    json.dumps(row, allow_nan=False)


def test_a_second_measurement_says_so_and_has_more_rounds(worker_class):
    row = measured(worker_class, again=True)
    assert row["remeasured"] is True
    assert row["rounds"] == 15


def test_unsupported_cases_are_none_with_the_reason(worker_class):
    def refuse(self, case):
        if self.module == "conv_jax":
            raise BenchmarkError("in it:\nTraceback\nNotImplementedError: no such convolution\n")
        return FakeTask(self.module)

    worker_class.open = refuse
    row = measured(worker_class)
    assert row["jax_ms"] is None
    assert row["reasons"] == {"jax": "NotImplementedError: no such convolution"}
    assert row["torch_ms"] == 2.0
    assert worker_class.started.count("conv_jax") == 1


def test_a_library_that_fails_while_timed_is_started_again(worker_class):
    worker_class.open = lambda self, case: FakeTask(self.module, self.module == "conv_torch")
    with Gpu(0, SuiteSettings(""), worker_class) as gpu:
        first = gpu.measure(*rows_in_order(CASES)[0])
        gpu.measure(*rows_in_order(CASES)[1])
    assert first["torch_ms"] is None
    assert "CUDA error" in first["reasons"]["torch"]
    assert first["time_ms"] == 1.0
    assert worker_class.started.count("conv_torch") == 2
    assert worker_class.started.count("conv_dnnops") == 1


def test_a_row_that_the_deadline_cuts_off_is_not_written(worker_class):
    def lost(self, case):
        raise WorkerLostError("no answer")

    worker_class.open = lost
    with pytest.raises(DeadlinePassedError):
        measured(worker_class, deadline=0.0)


def test_work_goes_on_where_a_file_ends(worker_class, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    arguments = ["--small", "--rows", str(file), "--gpus", "2"]

    def make_gpu(number, settings):
        return Gpu(number, settings, worker_class)

    conv_suite.measure(conv_suite.parse([*arguments, "--count", "10"]), make_gpu)
    conv_suite.measure(conv_suite.parse([*arguments, "--count", "25"]), make_gpu)
    machine, rows = read_rows([file])
    assert machine["gpus"] == 2
    keys = [row_key(json.loads(line)) for line in file.read_text().splitlines() if "case" in line]
    assert len(keys) == len(set(keys)) == len(rows) == 25
    assert "15 rows to measure, 10 known" in capsys.readouterr().out


def test_a_gpu_that_fails_leaves_the_rows_to_others(worker_class, tmp_path):
    broken = threading.Event()

    class Broken(Gpu):
        def measure(self, *row):
            broken.set()
            raise OSError("fell off the bus")

    class Patient(Gpu):
        def measure(self, *row):
            assert broken.wait(timeout=60)
            time.sleep(0.01)  # until the other one has given back what it had begun
            return super().measure(*row)

    settings = SuiteSettings("")
    gpus = [Patient(0, settings, worker_class), Broken(1, settings, worker_class)]
    with (tmp_path / "rows").open("w") as file:
        writer = conv_suite.Writer(file, 24)
        rows = rows_in_order(small_cases())[:24]
        problems = conv_suite.work_through(gpus, rows, writer, math.inf)
    assert ["fell off the bus" in problem for problem in problems] == [True]
    # Of the unit that it had begun, the others measure the rest.
    assert len(writer.rows) == 23


@pytest.mark.parametrize(
    ("seconds", "depthwise", "expected"),
    [
        (1.0, False, (1, 1)),
        (1e-3, False, (2, 1)),
        (2e-4, False, (8, 2)),
        (2e-4, True, (4, 3)),
        (1e-6, False, (8, 3)),
    ],
)
def test_turns_take_about_two_milliseconds(seconds, depthwise, expected):
    assert calls_and_gates(seconds, depthwise) == expected


def test_gpus_share_the_processors_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(10, 26)))
    parts = [cores_of(gpu, 4) for gpu in range(4)]
    assert [len(part) for part in parts] == [4] * 4
    assert sorted(core for part in parts for core in part) == list(range(10, 26))
    assert len(cores_of(3, 9)) == 16


def test_each_process_sees_one_gpu_and_leaves_memory_to_others(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("PYTENSOR_FLAGS", "cxx=g++")
    assert environment("conv_torch", "cuda", 1)["CUDA_VISIBLE_DEVICES"] == "6"
    jax = environment("conv_jax", "cuda", 0)
    assert jax["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environment("conv_dnnops", "cuda", 0)["PYTENSOR_FLAGS"] == "cxx=g++,dnn__conv__cache=off"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment("conv_torch", "cuda", 3)["CUDA_VISIBLE_DEVICES"] == "3"


def described(case, direction: str, precision: str, layout: str, timer: str) -> dict[str, Any]:
    words = {"direction": direction, "precision": precision, "layout": layout}
    others = {"terms": case.terms(direction), "device": "cpu", "timer": timer, "calls": 3}
    return {**case.description(), **words, **others}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", small_cases(), ids=lambda case: case.network)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_peers_compute_the_same(case, layout, direction, timer):
    from benchmarks.peers import conv_dnnops, conv_torch

    modules: list[Any] = [conv_dnnops]
    if not missing("jax"):
        from benchmarks.peers import conv_jax

        modules.append(conv_jax)
    asked = described(case, direction, "float32", layout, timer)
    task = conv_torch.make_task(asked)
    expected = task.facts()["sketch"]
    assert task.times(3)[0] > 0
    for module in modules:
        task = module.make_task(asked)
        facts = task.facts()
        assert conv_data.difference(facts["sketch"], expected) < 1e-5, module.__name__
        assert task.times(3)[0] > 0
        assert math.isfinite(task.slope(3))
        task.close()


@pytest.mark.needs("torch", "jax")
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_peers_compute_the_same_in_half_precision(precision, direction, timer):
    from benchmarks.peers import conv_jax, conv_torch

    asked = described(small_cases()[0], direction, precision, "channels_last", timer)
    found = [module.make_task(asked).facts()["sketch"] for module in (conv_torch, conv_jax)]
    assert conv_data.difference(*found) < 1e-2


@pytest.mark.needs("jax")
def test_jax_computes_each_convolution_by_itself_and_copies_nothing(timer):
    from benchmarks.peers import conv_jax

    asked = described(small_cases()[0], "forward", "float32", "contiguous", timer)
    task = conv_jax.make_task({**asked, "calls": 5})
    text = task.chain.as_text()
    entry = text[text.index("\nENTRY") :]
    assert entry.count(" convolution(") == 5
    assert entry.count('"timer_fence_call"') == 4
    # Only what the donated operands are; XLA on the CPU moves axes around by fusions.
    assert " copy(" not in entry


@pytest.mark.needs("jax")
def test_rows_that_differ_in_the_layout_share_operands(timer):
    from benchmarks.peers import conv_jax
    from benchmarks.peers.conv_turns import OPERANDS

    asked = [
        described(small_cases()[0], "forward", precision, layout, timer)
        for precision, layout in (("float32", "channels_last"), ("tf32", "contiguous"))
    ]
    first = conv_jax.make_task(asked[0])
    made = first.arrays
    before = first.sketch
    first.times(3)
    first.close()
    second = conv_jax.make_task(asked[1])
    assert second.arrays is made
    second.times(3)
    second.close()
    # Neither turns nor closing have changed them.
    assert conv_jax.make_task(asked[0]).sketch == before
    other = described(small_cases()[0], "backward_data", "float32", "contiguous", timer)
    assert conv_jax.make_task(other).arrays is not made
    conv_jax.clear()
    assert OPERANDS.get(None, list) == []


@pytest.mark.needs("jax")
@pytest.mark.parametrize("frontend", ["true", "false"])
def test_names_of_xlas_algorithms_are_those_of_plans(frontend):
    from benchmarks.peers.conv_jax import plan_of

    text = (
        '"cudnn_conv_backend_config":{"activation_mode":"kNone","conv_result_scale":1,"algorithm":'
        '{"algo_id":"28","math_type":"DEFAULT_MATH","tuning_knobs":{"3":"0","2":"5"},'
        f'"is_cudnn_frontend":{frontend},"workspace_size":"0"}},"leakyrelu_alpha":0}}}}'
    )
    assert plan_of(text) == "engine28_k2=5_k3=0"
    assert plan_of('"algorithm": {"math_type":"DEFAULT_MATH"}') == "engine0"
    assert plan_of('custom_call_target="__cublas$gemm"') == "__cublas$gemm"
    assert plan_of("") == ""
