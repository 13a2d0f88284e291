"""Lasagne 0.1, unchanged: its tests, and its example of MNIST.

The tests run without C code, because compiling would take most of the time. The example runs as a
user would run it.
"""

from __future__ import annotations

import gzip
import os
import pickle
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tests.needs import LASAGNE

pytestmark = [pytest.mark.needs("Lasagne"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
#: Tests that fail, and why; there are none.
FAILURES: dict[str, str] = {}
#: Least number of tests that pass on a machine without a GPU.
PASSED = 485
#: Lasagne's reasons to skip tests: layers that need a GPU, or cuda-convnet.
SKIPPED = (
    r"(lasagne\.layers\.)?(cuda_convnet|corrmm|dnn|cuDNN) not available|got empty parameter set"
)


def run(folder: Path, *arguments: str, flags: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, folder, LASAGNE, Path(__file__).parent))),
        "THEANO_FLAGS": flags,
        "THEANORC": str(folder / "theanorc"),
        "DNNOPS_FLAGS": "",
    }
    return subprocess.run(
        [sys.executable, "-m", "dnnops", "theano", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_lasagnes_tests(tmp_path: Path):
    shutil.copytree(LASAGNE / "lasagne" / "tests", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run(
        tmp_path,
        *("-m", "pytest", "-c", "pytest.ini", "-p", "lasagne_plugin", "-p", "no:cacheprovider"),
        *("--quiet", "--tb=short", "--junitxml=results.xml", "tests"),
        flags="mode=FAST_COMPILE",
    )
    assert (tmp_path / "results.xml").exists(), done.stdout + done.stderr
    cases = ElementTree.parse(tmp_path / "results.xml").findall(".//testcase")
    assert cases, done.stdout + done.stderr

    def names(*kinds: str) -> set[str]:
        return {
            f"{case.get('classname')}.{case.get('name')}"
            for case in cases
            if any(case.find(kind) is not None for kind in kinds)
        }

    assert names("failure", "error") == set(FAILURES), done.stdout
    reasons = {skip.get("message") or "" for case in cases for skip in case.findall("skipped")}
    assert not [reason for reason in reasons if not re.match(SKIPPED, reason)]
    assert len(cases) - len(names("failure", "error", "skipped")) >= PASSED


@pytest.mark.needs("sklearn")
def test_mnist_example(tmp_path: Path):
    """The convolutional network learns, on handwritten digits in MNIST's size and file format."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    larger = np.kron(digits.images[order] / 16, np.ones((3, 3)))
    images = np.pad(larger, ((0, 0), (2, 2), (2, 2))).astype("float32").reshape(-1, 28 * 28)
    labels = digits.target[order]
    train, test = (images[:1000], labels[:1000]), (images[-500:], labels[-500:])
    with gzip.open(tmp_path / "mnist.pkl.gz", "wb") as file:
        pickle.dump((train, test, test), file)
    # Its import of pkg_resources has to be helped, and its random numbers need a seed.
    (tmp_path / "sitecustomize.py").write_text(
        "import lasagne_plugin\nimport numpy as np\n\nnp.random.seed(1)\n"
    )
    done = run(
        tmp_path,
        *(str(LASAGNE / "examples" / "mnist.py"), "cnn", "6"),
        flags="floatX=float32,linker=cvm",
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"training loss:\s+(\S+)", done.stdout)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.02
    (accuracy,) = re.findall(r"test accuracy:\s+(\S+) %", done.stdout)
    assert float(accuracy) > 15
