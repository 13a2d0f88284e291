"""The check of cuDNN's attention engines."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.__main__ import main
from dnnops.cli.engines import Case, cases, wrong_results
from dnnops.errors import DnnNotSupportedError
from dnnops.nnet.attention.op import Attention, AttentionGrad

CASES = [
    Case("float16", 64, 64),
    Case("float16", 32, 96, mask=True),
    Case("float16", 100, 100, is_causal=True, depth=16),
    Case("float16", 20, 30, scale=-0.25),
]


def reference(case, given):
    """Compute a case in float64, and round the results."""
    operands = [given[o] for o in ("query", "key", "value", "mask") if o in given]
    parameters = (case.scale, case.is_causal, ("mask",) if case.mask else ())

    def run(op, *arrays):
        node = op.make_node(*arrays)
        storage = [[None] for _ in node.outputs]
        op.perform(node, arrays, storage)
        return [value for (value,) in storage]

    out, stats = run(Attention(*parameters), *operands)
    gradients = run(AttentionGrad(*parameters), *operands, out, stats, given["gout"])
    named = zip(("out", "dquery", "dkey", "dvalue"), [out, *gradients], strict=True)
    return {name: x.astype("float16").astype("float64") for name, x in named}


def test_right_engines():
    assert wrong_results(reference, CASES) == {}


def test_wrong_engines():
    def faulty(case, given):
        found = reference(case, given)
        if case.keys == 64 and case.offset < -88:
            found["dquery"] = np.full_like(found["dquery"], np.nan)
        elif case.mask:
            found["dvalue"] = found["dvalue"] * 1.05
        elif case.is_causal:
            raise DnnNotSupportedError("no engine")
        elif case.is_exact and case.keys == 30:
            # Equal weights must not be halved, which large scores that are rounded would do.
            found["dvalue"] = found["dvalue"] * 0.5
        return found

    found = wrong_results(faulty, CASES)
    assert {(case.keys, case.offset): problem for case, problem in found.items()} == {
        (64, -125): "dquery is not finite",
        (96, 0): "dvalue is wrong",
        (100, 0): "refused: no engine",
        (30, 0): "dvalue is wrong",
    }
    assert [case.is_exact for case in found] == [False, False, False, True]


def test_cases_contain_those_of_known_faults():
    all_cases = list(cases())
    assert len(all_cases) == len(set(all_cases))
    assert {(case.dtype, case.keys % 128, case.queries > 1) for case in all_cases} >= {
        (dtype, 64, several) for dtype in ("float16", "bfloat16") for several in (False, True)
    }


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]):
    from dnnops.gpu.library import cudnn_usable

    if cudnn_usable(0)[0]:
        pytest.skip("there is a GPU")
    assert main(["doctor", "--check-engines"]) == 1
    assert "the engines cannot be checked: " in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.slow
def test_engines_of_this_version(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--check-engines"]) == 0, capsys.readouterr().out
