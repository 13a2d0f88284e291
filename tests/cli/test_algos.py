"""Test ``python -m dnnops algos``: its table, JSON, and messages about wrong arguments."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnnops.__main__ import main
from dnnops.cli import algos_report
from dnnops.flag_values import ALGORITHM_WORDS
from dnnops.gpu.conv import GpuDnnConv
from dnnops.plans import ConvPlan, FlagChoice, Survey
from dnnops.plans.cases import GpuCase
from tests.needs import missing

SHAPES = ["--input", "2,16,14,14", "--filter", "32,16,3,3"]
CPU = ["--device", "cpu"]

Output = pytest.CaptureFixture[str]


def columns(line: str) -> list[str]:
    return re.split(r"\s{2,}", line)


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the printed tables of plans by title."""
    found, titles = [], None
    for line in text.splitlines():
        if re.match(r"plan +(no\. +)?API ", line):
            titles = re.findall(r"x best|\S+", line)
            found.append([])
        elif not line:
            titles = None
        elif titles:
            found[-1].append(dict(zip(titles, columns(line), strict=False)))
    return found


def test_the_table(capsys: Output):
    assert main(["algos", *SHAPES, *CPU, "--pad", "half"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert re.match(r"cpu: .+, \d+ threads?, oneDNN \d+\.\d+\.\d+$", lines[0])
    assert (
        "forward: float32, image 2x16x14x14, filters 32x16x3x3, output 2x32x14x14, pad half, "
        "3.61 MFLOP"
    ) in lines
    (rows,) = tables(out)
    times = [float(row["ms"]) for row in rows]
    assert times == sorted(times)
    assert rows[0]["x best"] == "1.00"
    expected = {"x64:gemm:jit", "ref:any"} | (set() if missing("avx512") else {"winograd"})
    assert expected <= {row["plan"] for row in rows}
    for row in rows:
        ratio, rate = float(row["x best"]), float(row["GFLOP/s"])
        assert ratio == pytest.approx(float(row["ms"]) / times[0], rel=0.02, abs=0.01)
        assert rate == pytest.approx(3.61268 / float(row["ms"]), rel=0.02)
        assert re.fullmatch(r"\d+(\.\d)? (B|KiB|MiB)", row["workspace"])
    assert "onednn.conv.algo would choose (it is auto now)" in lines
    assert re.search(r"^jit:\S+ +(auto, )?direct$", out, re.MULTILINE)
    # Nothing is padded to a width or cut off.
    assert all(line == line.rstrip() for line in lines)
    assert "…" not in out


def test_rejected_plans_are_listed(capsys: Output):
    assert main(["algos", "--input", "2,6,9", "--filter", "4,6,3", *CPU, "--no-time"]) == 0
    out = capsys.readouterr().out
    axes = "it requires two spatial axes"
    avx512 = "the library was compiled for a processor without AVX-512"
    lines = (
        f"winograd   {avx512}\ndepthwise  {axes}"
        if missing("avx512")
        else f"winograd, depthwise  {axes}"
    )
    assert f"\ncannot be run: 3\n{lines}\n" in out
    (rows,) = tables(out)
    assert "ms" not in rows[0]
    assert "winograd" not in [row["plan"] for row in rows]


def test_all_directions_and_parameters(capsys: Output):
    arguments = ["--input", "2x6x11x9", "--filter", "8x3x3x2", "--pad", "0:2,1", "--stride", "2,1"]
    arguments += ["--dilation", "1,2", "--groups", "2", "--no-flip", "--direction", "all"]
    assert main(["algos", *arguments, "--memory-format", "channels_last", *CPU]) == 0
    out = capsys.readouterr().out
    said = [line for line in out.splitlines() if ", image 2x6x11x9" in line]
    assert [line.partition(":")[0] for line in said] == [
        "forward",
        "backward_data",
        "backward_filter",
    ]
    for line in said:
        assert line.endswith(
            "filters 8x3x3x2, output 2x8x6x9, pad 0:2,1, stride 2,1, dilation 1,2, 2 groups, "
            "correlation, channels_last, 31.1 kFLOP"
        )
    assert len(tables(out)) == 3
    assert out.count("cpu: ") == 1


def test_json(capsys: Output):
    arguments = [*SHAPES, *CPU, "--pad", "1", "--direction", "all", "--json"]
    assert main(["algos", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    directions = report.pop("directions")
    assert report.pop("library").endswith("oneDNN " + report_version())
    assert report == {
        "device": "cpu",
        "dtype": "float32",
        "memory_format": "contiguous",
        "border_mode": [[1, 1], [1, 1]],
        "subsample": [1, 1],
        "filter_flip": True,
        "filter_dilation": [1, 1],
        "num_groups": 1,
        "settings": {},
    }
    names = ["forward", "backward_data", "backward_filter"]
    assert [direction["direction"] for direction in directions] == names
    for direction, name in zip(directions, names, strict=True):
        rows = direction.pop("plans")
        choices = direction.pop("choices")
        assert direction == {
            "direction": name,
            "input_shape": [2, 16, 14, 14],
            "filter_shape": [32, 16, 3, 3],
            "output_shape": [2, 32, 14, 14],
            "flops": 2 * 2 * 32 * 14 * 14 * 16 * 9,
            "remark": "",
            "flag": "onednn.conv.algo",
            "flag_value": "auto",
            "energy_reason": "",
        }
        listed = [row["name"] for row in rows]
        assert {value: choice["plan"] in listed for value, choice in choices.items()} == {
            "auto": True,
            "direct": True,
        }
        assert all(choice["reason"] == "" for choice in choices.values())
        assert rows[0]["relative"] == 1
        for row in rows:
            assert set(row) == {
                *ConvPlan.__dataclass_fields__,
                "relative",
                "tflops",
            }
            assert row["direction"] == name
            assert row["api"] in ("onednn", "dnnops")
            if row["time_ms"] is None:
                assert row["reason"] or row["notes"]
                assert row["relative"] is None
                assert row["tflops"] is None
            else:
                assert row["tflops"] == pytest.approx(direction["flops"] / row["time_ms"] / 1e9)
                assert row["relative"] == pytest.approx(row["time_ms"] / rows[0]["time_ms"])


def report_version() -> str:
    from dnnops.runtime.find import find_onednn

    return find_onednn().version_text


def test_json_without_times(capsys: Output):
    assert main(["algos", *SHAPES, *CPU, "--json", "--no-time"]) == 0
    (direction,) = json.loads(capsys.readouterr().out)["directions"]
    for row in direction["plans"]:
        assert (row["time_ms"], row["relative"], row["tflops"]) == (None, None, None)


def test_energy_on_the_cpu(capsys: Output):
    assert main(["algos", *SHAPES, *CPU, "--energy"]) == 0
    out = capsys.readouterr().out
    assert "no energy was measured: only NVIDIA GPUs report how much energy they use" in out
    assert "mJ" not in tables(out)[0][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "2,16,14"], "must have the same number of entries"),
        (["--input", "2,16"], "input_shape must be 3 to 5 integers"),
        (["--input", "1,2,3,4,5,6"], "input_shape must be 3 to 5 integers"),
        (["--input", "2,16,14,fourteen"], "--input must be integers separated by commas"),
        (["--input", "2,16,0,14"], "--input: numbers must be at least 1"),
        (["--input=-2,16,14,14"], "--input: numbers must be at least 1; got '-2,16,14,14'"),
        (["--filter", "32,15,3,3"], "the image has 16 channels, but filters of 15 channels"),
        (["--filter", "32,16,33,3"], "larger than the padded image"),
        (["--pad", "-1"], "--pad must be valid, half, full, or nonnegative integers"),
        (["--pad", "same"], "--pad must be valid, half, full, or nonnegative"),
        (["--pad", "1,2,3"], "tuple of 2 ints or pairs"),
        (["--stride", "0"], "--stride: numbers must be at least 1"),
        (["--stride", "1,1,1"], "subsample must have 2 entries"),
        (["--dilation", "x"], "--dilation must be integers"),
        (["--groups", "3"], "num_groups 3 does not divide the 16 input channels"),
        (["--groups", "2,2"], "--groups must be one integer"),
        (["--dtype", "float8"], "dtype must be one of bfloat16, float16, float32, float64; got"),
        (["--dtype", "float16"], "pass dtype float32"),
        (
            ["--direction", "sideways"],
            "--direction must be one of forward, backward_data, backward",
        ),
        (["--memory-format", "NHWC"], "memory_format must be one of contiguous, channels_last"),
        (["--device", "tpu"], "flag device: 'tpu' is not accepted. Give one of: cpu, cuda"),
        (["--no-time", "--energy"], "--energy runs the plans, which --no-time forbids"),
        (["--precision", "float64"], "precision 'float64' is not available on the CPU"),
        (["--allow-tf32"], "allow_tf32=True is a cuDNN setting"),
        (["--workspace-limit", "many"], "flag dnn.conv.workspace_limit: 'many' is not accepted"),
    ],
)
def test_wrong_arguments(capsys: Output, arguments: list[str], words: str):
    assert main(["algos", *SHAPES, *CPU, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dnnops algos: ")
    assert err.count("\n") == 1
    assert words in err


def test_missing_arguments(capsys: Output):
    for arguments in ([], ["--input", "1,2,3,4"], [*SHAPES, "--colour"]):
        with pytest.raises(SystemExit) as stop:
            main(["algos", *arguments])
        assert stop.value.code == 2
    capsys.readouterr()


def test_a_device_that_is_not_there(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dnnops.gpu.library.cudnn_status", lambda device: f"no cuda{device}")
    assert main(["algos", *SHAPES, "--device", "cuda7"]) == 1
    assert capsys.readouterr().err == ("dnnops algos: cuDNN cannot be used on cuda7: no cuda7\n")


# -- a GPU's plans, made up ----------------------------------------------------------------

UNSUPPORTED = "CUDNN_STATUS_NOT_SUPPORTED from cudnnBackendFinalize: the engine is for other GPUs"


def gpu_plan(name: str, api: str, number: int, **others: Any) -> ConvPlan:
    return ConvPlan(name, "forward", api, number, **others)


def gpu_survey(**changes: Any) -> Survey:
    case = GpuCase(
        op=GpuDnnConv(ndim=2, border_mode=3),
        direction="forward",
        input_shape=(64, 128, 112, 112),
        filter_shape=(128, 128, 7, 7),
        dtype="float32",
        memory_format="contiguous",
        device="cuda0",
    )
    long = "engine1_k2=1_k5=0_k14=3_k18=0_k22=1_k23=0"
    plans = [
        gpu_plan(
            "FFT_TILING",
            "legacy",
            5,
            workspace_bytes=2 << 30,
            deterministic=True,
            math_type="DEFAULT_MATH",
            time_ms=3.637,
            energy_mj=1634.2,
        ),
        gpu_plan(
            long,
            "graph",
            1,
            workspace_bytes=0,
            deterministic=False,
            notes=("tensor_core", "reduced_precision_reduction"),
            time_ms=35.6,
        ),
        gpu_plan("IMPLICIT_GEMM", "legacy", 0, workspace_bytes=512, deterministic=True),
        *(gpu_plan(f"engine{i}", "graph", i, reason=UNSUPPORTED) for i in (11, 12, 13)),
        gpu_plan("WINOGRAD", "legacy", 6, reason="it requires 3 x 3 filters"),
    ]
    choices = dict.fromkeys(ALGORITHM_WORDS, FlagChoice("FFT_TILING"))
    choices["small"] = choices["none"] = FlagChoice("IMPLICIT_GEMM")
    choices["winograd"] = FlagChoice("", "no plan of this kind\nfits")
    return Survey(**{"case": case, "plans": plans, "choices": choices, **changes})


def test_a_gpus_table(capsys: Output):
    algos_report.print_survey(gpu_survey())
    out = capsys.readouterr().out
    (rows,) = tables(out)
    assert rows[0] == {
        "plan": "FFT_TILING",
        "no.": "5",
        "API": "legacy",
        "ms": "3.637",
        "x best": "1.00",
        "TFLOP/s": "354",
        "mJ": "1634",
        "workspace": "2.0 GiB",
        "determ.": "yes",
        "math": "DEFAULT_MATH",
    }
    assert re.search(r"_k23=0 +1 +graph +35\.600 +9\.79 +36\.2 +0 B +no +tensor core; reduced", out)
    assert re.search(r"^IMPLICIT_GEMM +0 +legacy +512 B +yes$", out, re.MULTILINE)
    # One line for all plans that fail in the same way.
    assert re.search(rf"^engine11, engine12, engine13 +{UNSUPPORTED}$", out, re.MULTILINE)
    assert "\ncannot be run: 4\n" in out
    assert "\ndnn.conv.algo_fwd would choose (it is guess_once now)\n" in out
    assert re.search(r"^FFT_TILING +large, fft, .*, time_once, time_on_shape_change$", out, re.M)
    assert re.search(r"^IMPLICIT_GEMM +none, small$", out, re.MULTILINE)
    assert re.search(r"^no plan +winograd: no plan of this kind fits$", out, re.MULTILINE)


def test_settings_of_cudnn_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GpuCase, "library", lambda self: "cuDNN")
    plain = gpu_survey()
    assert algos_report.as_json([plain])["settings"] == {
        "precision": "as_input_f32",
        "allow_tf32": False,
        "deterministic": False,
        "workspace_limit": "auto",
    }
    assert algos_report.describe(plain.case).endswith("pad 3, 1.29 TFLOP")
    settings = {
        "precision": "float32",
        "allow_tf32": True,
        "deterministic": True,
        "workspace_limit": 1 << 20,
    }
    case = replace(plain.case, op=GpuDnnConv(ndim=2, border_mode=3, **settings))
    assert algos_report.as_json([replace(plain, case=case)])["settings"] == settings
    words = "precision float32, TF32 allowed, deterministic plans only, workspace up to 1.0 MiB"
    assert algos_report.describe(case).endswith(f"pad 3, {words}, 1.29 TFLOP")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200])
def test_a_terminals_width_is_kept(capsys: Output, monkeypatch: pytest.MonkeyPatch, width: int):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    algos_report.print_survey(gpu_survey())
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= width
    # On the narrowest it takes several lines itself.
    paragraphs = [" ".join(lines.split()) for lines in re.split(r"\n(?=a wider)|\n\n", out)]
    hint = "a wider terminal also shows: "
    hidden = [text.removeprefix(hint) for text in paragraphs if text.startswith(hint)]
    assert (not hidden) == (width >= 160)
    # What was left out is told, and everything else is whole.
    titles = {"plan", "ms", "TFLOP/s", "mJ", "workspace", "x best", "determ.", "API", "notes"}
    titles |= {"no.", "math"}
    header = next(line for line in out.splitlines() if line.startswith("plan "))
    assert set(re.findall(r"x best|\S+", header)) == titles - set(
        hidden[0].split(", ") if hidden else ()
    )
    assert "…" not in out
    for name in ("FFT_TILING", "IMPLICIT_GEMM"):
        assert re.search(rf"^{name} ", out, re.MULTILINE)


def test_numbers_of_thousands_of_digits(capsys: Output):
    long = "9" * 5000
    for option, text in (("--input", f"{long},3,8,8"), ("--pad", long), ("--stride", long)):
        assert main(["algos", *SHAPES, *CPU, option, text]) == 2
        assert capsys.readouterr().err.startswith(f"dnnops algos: {option} must be")


def test_nothing_can_be_run(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    refused = [plan for plan in gpu_survey().plans if plan.reason]
    monkeypatch.setattr("dnnops.plans.survey", lambda case, **_: Survey(case, refused, {}, ""))
    assert main(["algos", *SHAPES, *CPU]) == 1
    out = capsys.readouterr().out
    assert "\nno plan can be run\n" in out
    assert UNSUPPORTED in out
    assert main(["algos", *SHAPES, *CPU, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["directions"][0]["choices"] == {}


def test_remarks_are_printed(capsys: Output):
    found = gpu_survey()
    remark = "cuDNN is not used with padding that differs before and after an axis"
    case = GpuCase(**{**found.case.__dict__, "remark": remark})
    algos_report.print_survey(Survey(case, found.plans, {}, "cuda0 doesn't tell"))
    lines = capsys.readouterr().out.splitlines()
    assert remark in lines
    assert "no energy was measured: cuda0 doesn't tell" in lines


# -- the program ---------------------------------------------------------------------------


def test_progress_is_for_terminals(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["algos", *SHAPES, *CPU, "--json"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "forward" in err
    assert re.search(r"\d+/\d+", err)


def test_in_a_pipe():
    done = subprocess.run(
        [sys.executable, "-m", "dnnops", "algos", *SHAPES, *CPU, "--dtype", "float64"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    (rows,) = tables(done.stdout)
    assert [row["plan"] for row in rows] == ["gemm (BLAS)"]
    assert "plans" not in done.stderr


@pytest.mark.gpu
def test_on_a_gpu(capsys: Output):
    arguments = ["--input", "8,64,28,28", "--filter", "64,64,3,3", "--pad", "1"]
    arguments += ["--dtype", "float16", "--memory-format", "channels_last", "--direction", "all"]
    assert main(["algos", *arguments, "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    assert "cuDNN 9." in out.splitlines()[0]
    assert len(tables(out)) == 3
    assert {row["API"] for rows in tables(out) for row in rows} >= {"legacy", "graph"}
    assert main(["algos", *arguments, "--device", "cuda", "--json", "--no-time"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [d["flag"] for d in report["directions"]] == [
        "dnn.conv.algo_fwd",
        "dnn.conv.algo_bwd_data",
        "dnn.conv.algo_bwd_filter",
    ]
    for direction in report["directions"]:
        assert set(direction["choices"]) == set(ALGORITHM_WORDS)
        assert direction["choices"]["time_once"] == {"plan": None, "reason": "nothing was timed"}
