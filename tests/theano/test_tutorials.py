"""The programs of the Deep Learning Tutorials, on small data that these tests make.

``make test-tutorials TUTORIALS=path/to/DeepLearningTutorials/code`` runs them.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.needs import TUTORIALS
from tests.theano.suites.data import write_atis, write_imdb, write_mnist, write_nottingham
from tests.theano.suites.suite import run, suite

pytestmark = [pytest.mark.needs("tutorials", "sklearn"), pytest.mark.slow]

ERROR = r"validation error ([\d.]+) %"
#: Programs by name: what is called, a pattern of the numbers that it prints, and whether they fall.
#: The pattern of some has the layer as its first group. An energy-based model prints a likelihood.
PROGRAMS = {
    "logistic_sgd": ("sgd_optimization_mnist(n_epochs=5, batch_size=50)", ERROR, True),
    "logistic_cg": ("cg_optimization_mnist(n_epochs=5)", ERROR, True),
    "mlp": ("test_mlp(n_epochs=4, n_hidden=100)", ERROR, True),
    "convolutional_mlp": (
        "evaluate_lenet5(n_epochs=4, nkerns=[4, 6], batch_size=50)",
        ERROR,
        True,
    ),
    "dA": ("test_dA(training_epochs=3)", r"epoch \d+, cost +([\d.]+)", True),
    "cA": ("test_cA(training_epochs=3)", r"reconstruction cost +([\d.]+)", True),
    "SdA": (
        "test_SdA(pretraining_epochs=2, training_epochs=4, batch_size=50)",
        r"layer (\d), epoch \d+, cost ([\d.]+)",
        True,
    ),
    # Each step measures the likelihood of the next pixel. After 14 epochs of 56 steps, it has
    # measured all 784, and the 15th measures those of the first again.
    "rbm": (
        "test_rbm(training_epochs=15, n_chains=2, n_samples=1, n_hidden=50)",
        r"cost is +(-[\d.]+)",
        False,
    ),
    "DBN": (
        "test_DBN(pretraining_epochs=1, training_epochs=4, batch_size=50)",
        ERROR,
        True,
    ),
    "rnnrbm": ("test_rnnrbm(num_epochs=4)", r"Epoch \d+/\d+\n([-\d.]+)", False),
    "lstm": (
        "train_lstm(dim_proj=16, max_epochs=8, n_words=110, dispFreq=1, validFreq=20)",
        r"Cost +([\d.]+)",
        True,
    ),
    "rnnslu": (
        "main(dict(fold=3, data='atis', lr=0.1, verbose=1, decay=True, win=3, nhidden=20, seed=345,"
        " emb_dimension=10, nepochs=3, savemodel=False))",
        r"valid F1 ([\d.]+) best test",
        False,
    ),
    "hmc.test_hmc": ("test_hmc()", "", True),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, tmp_path: Path):
    if program == "rnnslu" and not shutil.which("perl"):
        pytest.skip("rnnslu scores its results with a script in Perl")
    replace(suite("tutorials"), source=str(TUTORIALS)).copy(tmp_path)
    (tmp_path / "data").mkdir()
    write_mnist(tmp_path / "data" / "mnist.pkl.gz", train=1120, test=600)
    write_imdb(tmp_path / "data" / "imdb.pkl", train=160, test=40)
    write_atis(tmp_path / "data" / "atis.fold3.pkl.gz", train=60, test=20)
    write_nottingham(tmp_path, songs=3)
    call, pattern, falls = PROGRAMS[program]
    script = tmp_path / "code" / "program.py"
    script.write_text(f"import {program} as program\n\nprogram.{call}\n")
    done = run(tmp_path / "code", script.name, flags="floatX=float32,linker=cvm")
    assert done.returncode == 0, done.stdout + done.stderr
    if not pattern:
        return
    series: dict[str, list[float]] = {}
    for found in re.finditer(pattern, done.stdout):
        *layer, number = found.groups()
        series.setdefault("".join(layer), []).append(float(number))
    assert series, done.stdout
    for numbers in series.values():
        assert len(numbers) > 1, done.stdout
        assert (numbers[-1] < numbers[0]) is falls, done.stdout
