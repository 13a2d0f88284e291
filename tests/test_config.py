"""The flags: names, values, sources, and the warnings of PyTensor about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytensor import config

from dnnops.config import FLAGS, flag_value, register_flags
from dnnops.errors import DnnValueError
from dnnops.flag_values import Flag

BY_NAME = {flag.name: flag for flag in FLAGS}


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_flags()


def read_in_process(names: list[str], flags: str = "", rc: Path | None = None) -> dict:
    """Import dnnops in a new process, and return values of flags and warnings."""
    program = (
        "import json, sys, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    from dnnops.config import flag_value, quiet_unknown_flag_warnings, register_flags\n"
        "    with quiet_unknown_flag_warnings():\n"
        "        import pytensor\n"
        "    register_flags()\n"
        "result = {name: flag_value(name) for name in sys.argv[1:]}\n"
        "messages = [str(w.message) for w in caught if 'recognise' in str(w.message)]\n"
        "print(json.dumps([result, messages]))\n"
    )
    environment = dict(os.environ, PYTENSOR_FLAGS=flags, PYTENSORRC=str(rc or os.devnull))
    done = subprocess.run(
        [sys.executable, "-c", program, *names],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    values, messages = json.loads(done.stdout)
    return {"values": values, "messages": messages}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_is_registered_and_described(flag: Flag):
    param = config._config_var_dict[flag.key]
    assert param.doc == flag.doc
    assert param.in_c_key == flag.in_c_key
    assert flag.doc.endswith(".")
    assert flag.values.describe()


def test_registering_twice_changes_nothing():
    with config.change_flags(dnn__conv__algo_fwd="fft"):
        before = config._config_var_dict["dnn__conv__algo_fwd"]
        register_flags()
        assert config._config_var_dict["dnn__conv__algo_fwd"] is before
        assert config.dnn__conv__algo_fwd == "fft"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("device", "cuda", "cuda"),
        ("device", "cuda12", "cuda12"),
        ("dnn.enabled", True, "True"),
        ("dnn.enabled", "no_check", "no_check"),
        ("dnn.allow_tf32", "1", True),
        ("dnn.allow_tf32", "true", True),
        ("dnn.allow_tf32", False, False),
        ("dnn.base_path", "~/cudnn", os.path.expanduser("~/cudnn")),
        ("dnn.conv.algo_fwd", "time_once", "time_once"),
        ("dnn.conv.algo_fwd", 3, "3"),
        ("dnn.conv.algo_fwd", "engine7_k2=4_k11=-1", "engine7_k2=4_k11=-1"),
        ("dnn.conv.algo_bwd_filter", "ALGO_WINOGRAD_NONFUSED", "ALGO_WINOGRAD_NONFUSED"),
        ("dnn.conv.cache", "off", "off"),
        ("dnn.conv.cache", "~/plans", os.path.expanduser("~/plans")),
        ("dnn.conv.algo_fwd", "gemm66_k1=20", "gemm66_k1=20"),
        ("dnn.conv.algo_fwd", "FFT_FMA_MATH", "FFT_FMA_MATH"),
        ("dnn.conv.time_limit", "0.5", 0.5),
        ("dnn.conv.time_limit", 3, 3.0),
        ("dnn.conv.time_limit", "1e-3", 0.001),
        ("dnn.mixed_precision", "off", "off"),
        ("dnn.mixed_precision", "bfloat16", "bfloat16"),
        ("dnn.mixed_precision", "float16", "float16"),
        ("dnn.conv.workspace_limit", "auto", "auto"),
        ("dnn.conv.workspace_limit", 4096, 4096),
        ("dnn.conv.workspace_limit", "512MB", 512_000_000),
        ("dnn.conv.workspace_limit", "2GiB", 2 << 30),
        ("dnn.conv.workspace_limit", "1.5 kib", 1536),
        ("dnn.conv.workspace_limit", "0", 0),
    ],
)
def test_accepted_values(name: str, given: object, expected: object):
    with config.change_flags(**{BY_NAME[name].key: given}):
        assert flag_value(name) == expected
        assert type(flag_value(name)) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "listed"),
    [
        ("device", "gpu", "cuda0"),
        ("device", "cuda-1", "cuda0"),
        ("dnn.enabled", "yes", "no_check"),
        ("dnn.allow_tf32", "maybe", "True"),
        ("dnn.conv.algo_fwd", "quick", "time_on_shape_change"),
        ("dnn.conv.algo_bwd_data", "engine", "engine7_k2=4"),
        ("dnn.conv.precision", "float8", "as_input_f32"),
        ("dnn.conv.time_limit", "0", "seconds, more than 0"),
        ("dnn.conv.time_limit", "-1", "seconds, more than 0"),
        ("dnn.conv.time_limit", "nan", "seconds, more than 0"),
        ("dnn.conv.time_limit", "inf", "seconds, more than 0"),
        ("dnn.conv.time_limit", "2 s", "seconds, more than 0"),
        ("dnn.conv.workspace_limit", "-1", "512MB"),
        ("dnn.conv.workspace_limit", "3 parsecs", "512MB"),
        ("dnn.conv.workspace_limit", "8388608TiB", "512MB"),
        ("dnn.cuda_graph", "", "auto"),
        ("dnn.mixed_precision", "True", "off, bfloat16, float16"),
        ("dnn.mixed_precision", "float32", "off, bfloat16, float16"),
    ],
)
def test_refused_values(name: str, given: str, listed: str):
    before = flag_value(name)
    with (
        pytest.raises(DnnValueError) as error,
        config.change_flags(**{BY_NAME[name].key: given}),
    ):
        pass
    assert str(error.value).startswith(f"flag {name}: {given!r} is not accepted")
    assert listed in str(error.value)
    assert flag_value(name) == before


def test_one_flag_sets_both_backward_algorithms_unless_they_are_set():
    data, filters = "dnn.conv.algo_bwd_data", "dnn.conv.algo_bwd_filter"
    assert (flag_value(data), flag_value(filters)) == ("guess_once", "guess_once")
    with config.change_flags(dnn__conv__algo_bwd="fft"):
        assert (flag_value(data), flag_value(filters)) == ("fft", "fft")
        with config.change_flags(dnn__conv__algo_bwd_data="deterministic"):
            assert (flag_value(data), flag_value(filters)) == ("deterministic", "fft")
        # After the inner change, the flag follows again and is not fixed at its old value.
        with config.change_flags(dnn__conv__algo_bwd="winograd"):
            assert (flag_value(data), flag_value(filters)) == ("winograd", "winograd")
    assert (flag_value(data), flag_value(filters)) == ("guess_once", "guess_once")


def test_names_with_dots_and_with_underscores_from_the_environment():
    read = read_in_process(
        ["device", "dnn.conv.algo_fwd", "dnn.conv.algo_bwd_data", "dnn.conv.workspace_limit"],
        "device=cuda1,dnn.conv.algo_fwd=time_once,dnn__conv__algo_bwd=fft,"
        "dnn.conv.workspace_limit=1MiB",
    )
    assert read["values"] == {
        "device": "cuda1",
        "dnn.conv.algo_fwd": "time_once",
        "dnn.conv.algo_bwd_data": "fft",
        "dnn.conv.workspace_limit": 1 << 20,
    }
    assert read["messages"] == []


def test_only_the_flags_of_dnnops_are_kept_from_being_called_unknown():
    read = read_in_process([], "dnn.conv.algo_fwd=fft,dnn.conv.algo_fwdx=fft,dnn=1")
    assert sorted(message.rsplit(" ", 1)[1] for message in read["messages"]) == [
        "dnn",
        "dnn.conv.algo_fwdx",
    ]


def test_configuration_file_with_both_kinds_of_sections(tmp_path: Path):
    rc = tmp_path / "pytensorrc"
    rc.write_text(
        "[global]\ndevice = cuda2\n"
        "[dnn]\nbase_path = /opt/%%cudnn\n"
        "[dnn.conv]\nalgo_fwd = large\nalgo_bwd = deterministic\n"
        "[dnn__conv]\nprecision = float32\n"
    )
    names = [
        "device",
        "dnn.base_path",
        "dnn.conv.algo_fwd",
        "dnn.conv.algo_bwd_filter",
        "dnn.conv.precision",
    ]
    assert list(read_in_process(names, rc=rc)["values"].values()) == [
        "cuda2",
        "/opt/%cudnn",
        "large",
        "deterministic",
        "float32",
    ]
    # The environment takes precedence over the file, whichever spelling each uses.
    for spelling in ("dnn.conv.algo_fwd", "dnn__conv__algo_fwd"):
        read = read_in_process(["dnn.conv.algo_fwd"], f"{spelling}=none", rc)
        assert read["values"] == {"dnn.conv.algo_fwd": "none"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("dnn.conv.algo_fwd=quick", "flag dnn.conv.algo_fwd: 'quick' is not accepted"),
        ("dnn.verbose=True,dnn__verbose=False", "two spellings of one flag"),
    ],
)
def test_bad_environment_is_an_error(flags: str, message: str):
    with pytest.raises(AssertionError, match=message):
        read_in_process([], flags)


def run_with_own_variable(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"PYTENSOR_FLAGS": "", "PYTENSORRC": os.devnull} | environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )


@pytest.mark.parametrize("imports", ["import pytensor, dnnops", "import dnnops, pytensor"])
def test_a_variable_of_its_own_warns_in_no_order_of_imports(imports: str):
    program = (
        f"{imports}\nfrom pytensor import config\n"
        "print(config.dnn__conv__algo_fwd, config.dnn__allow_tf32, config.onednn__conv__algo)"
    )
    flags = "dnn.conv.algo_fwd=time_once,dnn__allow_tf32=True"
    done = run_with_own_variable(program, DNNOPS_FLAGS=flags)
    assert (done.stdout, done.stderr) == ("time_once True auto\n", "")


def test_both_variables_may_set_a_flag_to_the_same():
    also = run_with_own_variable(
        "import dnnops, pytensor; print(pytensor.config.dnn__conv__algo_fwd)",
        DNNOPS_FLAGS="dnn.conv.algo_fwd=time_once,dnn__allow_tf32=True",
        PYTENSOR_FLAGS="dnn.conv.algo_fwd=time_once",
    )
    assert (also.stdout, also.stderr) == ("time_once\n", "")


@pytest.mark.parametrize(
    ("own", "shared", "message"),
    [
        ("dnn.conv.algo=fft", "", "has no flag dnn.conv.algo; did you mean dnn.conv.algo_fwd?"),
        (
            "floatX=float32",
            "",
            "DNNOPS_FLAGS: dnnops has no flag floatX; set PyTensor's flags in",
        ),
        ("dnn.enabled=sometimes", "", "flag dnn.enabled: 'sometimes' is not accepted"),
        ("dnn.enabled=True", "dnn.enabled=False", "but dnn.enabled=False is also set"),
        ("dnn.enabled=True", "dnn__enabled=False", "but dnn__enabled=False is also set"),
    ],
)
def test_a_bad_variable_of_its_own_is_an_error(own: str, shared: str, message: str):
    done = run_with_own_variable("import dnnops", DNNOPS_FLAGS=own, PYTENSOR_FLAGS=shared)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_default_cache_lies_beside_the_compiledir():
    assert Path(BY_NAME["dnn.conv.cache"].default()).parent == config.compiledir.parent
