"""Libraries of Theano's time and Theano's own tests, from their source distributions.

``make test-slow`` runs a sample that each commit draws anew. ``make test-keras`` and its siblings
run everything. They set ``DNNOPS_TEST_SUITE_ARGUMENTS``, further arguments of the pytest that runs
a suite, such as ``-k conv``. ``DNNOPS_TEST_SUITE_FLAGS`` replaces the suite's ``THEANO_FLAGS``.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.oracle import SEED
from tests.theano.suites.data import write_mnist
from tests.theano.suites.suite import run, run_tests, suite

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("lasagne", marks=pytest.mark.needs("Lasagne")),
        pytest.param("keras", marks=pytest.mark.needs("Keras")),
        pytest.param("theano", marks=pytest.mark.needs("Theano")),
    ],
)
def test_suite(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one = suite(name)
    arguments = os.environ.get("DNNOPS_TEST_SUITE_ARGUMENTS")
    results = run_tests(
        one,
        tmp_path,
        *shlex.split(arguments or ""),
        flags=os.environ.get("DNNOPS_TEST_SUITE_FLAGS", one.flags),
        seed=SEED if arguments is None else -1,
    )
    with capsys.disabled():
        print(f"\n{results}")
    assert not list(results.surprises()), results.output
    assert results.passed, results.output
    if arguments == "" or not one.sample:
        assert len(results.passed) >= one.passed


@pytest.mark.needs("Lasagne", "sklearn")
def test_mnist_example_of_lasagne(tmp_path: Path):
    """The convolutional network learns, on handwritten digits in MNIST's size and file format."""
    suite("lasagne").copy(tmp_path)
    write_mnist(tmp_path / "mnist.pkl.gz", train=1000, test=500)
    # Its random numbers need a seed.
    (tmp_path / "sitecustomize.py").write_text("import numpy as np\n\nnp.random.seed(1)\n")
    done = run(tmp_path, "examples/mnist.py", "cnn", "6", flags="floatX=float32,linker=cvm")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"training loss:\s+(\S+)", done.stdout)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.02
    (accuracy,) = re.findall(r"test accuracy:\s+(\S+) %", done.stdout)
    assert float(accuracy) > 15
