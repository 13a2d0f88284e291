"""The programs of examples/ and README.rst behave as the documentation says."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytensor
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.rst").read_text() if (ROOT / "README.rst").exists() else ""


def run(*arguments: str) -> str:
    path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        # Processes of pytest-xdist have 80 columns, in which tables fold names.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    # PyTensor logs these lines about a BLAS that it does not need here.
    assert "BLAS" not in done.stderr
    return done.stdout


def output(name: str) -> str:
    """Return what an example prints, from the build of the documentation if that stored it."""
    stored = Path(os.environ.get("DNNOPS_EXAMPLE_OUTPUTS", "not given"), f"{name}.txt")
    return stored.read_text(encoding="utf-8") if stored.exists() else run(f"examples/{name}")


def blocks(start: str) -> list[str]:
    """Return indented blocks of the README that follow a line with a part that matches `start`."""
    found = re.findall(rf"{start}\n\n((?:(?:    .*)?\n)+)", README)
    return [textwrap.dedent(block).strip() for block in found]


def test_the_readmes_graphs_are_what_the_example_prints():
    printed = run("examples/graph.py")
    before, after = re.fullmatch(r"before:\n(.*)\n\nafter:\n(.*)", printed.strip(), re.S).groups()
    graphs = [block for block in blocks("::") if "[id A]" in block]
    assert graphs == [before, after]


def test_the_landing_page_shows_library_calls():
    before, after = run("examples/landing.py").split("\n\n")
    assert not re.search("OneDnn|GpuDnn", before)
    for name in ("Softmax", "Pool", "Conv"):
        assert f"{name}{{" in before
        assert re.search(rf"(OneDnn|GpuDnn){name}{{", after)


@pytest.mark.slow
def test_explanation_of_a_training_step():
    printed = run("examples/explain.py")
    assert re.match(r"train: \d+ nodes, \S+ ms a call \(median of 5\), peak memory", printed)
    for name in ("Conv", "Pool", "MaxPoolGrad", "ConvGradWeights"):
        assert re.search(rf"^ *\d+  (OneDnn|GpuDnn){name} .* (oneDNN|cuDNN) ", printed, re.M), name


@pytest.mark.slow
def test_layers_learn():
    printed = run("examples/layers.py")
    assert int(re.search(r"accuracy (\d+)%", printed)[1]) > 90


def test_quickstart_learns():
    printed = run("examples/quickstart.py")
    first, last = re.search(r"loss (\S+) at first, (\S+) after", printed).groups()
    assert float(last) < float(first) / 10


@pytest.mark.slow
def test_recurrent_network_learns():
    costs = [float(cost) for cost in re.findall(r"steps: (\S+)", output("recurrent.py"))]
    assert len(costs) == 3
    assert costs[-1] < costs[0] / 10


SERVICE = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from fastapi.testclient import TestClient
from examples.serving import app, predict
client = TestClient(app)
rows = np.random.default_rng(0).standard_normal((60, 2, 4)).astype("float32")
def ask(x):
    return client.post("/predict", json={"rows": x.tolist()}).json()
with ThreadPoolExecutor(6) as pool:
    answers = list(pool.map(ask, rows))
wrong = sum(not np.allclose(answer, predict(x)) for x, answer in zip(rows, answers))
print("wrong", wrong, "of", len(answers))
"""


def test_the_readmes_program_runs():
    (program,) = blocks(r"\.\. code-block:: python")
    run("-c", program)


@pytest.mark.needs("fastapi")
def test_a_service_answers_its_threads():
    printed = run("-c", SERVICE)
    assert printed.split() == ["wrong", "0", "of", "60"]


@pytest.mark.slow
@pytest.mark.needs("sklearn")
def test_digits_are_classified():
    accuracies = re.findall(r"test accuracy (\S+)", run("examples/digits.py"))
    assert len(accuracies) == 4
    assert float(accuracies[-1]) > 0.96


@pytest.mark.slow
def test_lstm_remembers():
    accuracies = re.findall(r"accuracy (\S+)", output("lstm.py"))
    assert len(accuracies) == 3
    assert float(accuracies[-1]) > 0.9


@pytest.mark.slow
def test_attention_model_finds_the_angle_that_matters():
    printed = output("attention_model.py")
    first, second = re.search(r"first angle: (\S+), of the second: (\S+)", printed).groups()
    assert float(first) > 4 * float(second)
    assert 0.08 < float(re.search(r"noise: (\S+)", printed)[1]) < 0.15


#: Options that make a training program small, and a factor by which the mean loss falls from the
#: first tenth of the steps to the last. With seeds 0 to 3, they fall to 0.57, 0.77, 0.12 and 0.69.
SMALL = {
    "resnet50": ("--steps 40 --batch 16 --width 4", 0.7),
    "lstm_lm": ("--steps 400 --batch 16 --width 32 --length 16", 0.85),
    "transformer": ("--steps 200 --batch 32 --width 32 --length 4", 0.5),
    "vae": ("--steps 200 --batch 32 --width 8 --latent 4", 0.8),
}


@pytest.mark.slow
@pytest.mark.needs("sklearn", "matplotlib")
@pytest.mark.parametrize("name", SMALL)
def test_training_programs_learn(name, tmp_path):
    options, factor = SMALL[name]
    output = tmp_path / "curve.png"
    printed = run(f"examples/{name}.py", *options.split(), "--output", str(output))
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+),", printed)]
    assert len(losses) == 10
    assert losses[-1] < factor * losses[0]
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.needs("sklearn", "matplotlib")
def test_a_seed_determines_the_training(tmp_path):
    # The autoencoder uses random numbers of NumPy and of PyTensor.
    options = ("--device", "cpu", "--steps", "10", "--output", str(tmp_path / "curve.png"))
    first, again, other = (
        run("examples/vae.py", *options, "--seed", seed) for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


@pytest.fixture(scope="module")
def training() -> ModuleType:
    spec = importlib.util.spec_from_file_location("training", ROOT / "examples/training.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Dataclasses look up their module.
        patch.setitem(sys.modules, "training", module)
        spec.loader.exec_module(module)
    return module


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "0"), "argument --steps: '0' is not a positive integer"),
        (("--batch", "many"), "argument --batch: 'many' is not a positive integer"),
        (("--seed", "-1"), "argument --seed: '-1' is not a non-negative integer"),
        (("--device", "tpu"), "argument --device: invalid choice: 'tpu'"),
        (("--output", "absent/curve.png"), "argument --output: there is no folder absent"),
        (("--output", "curve.xyz"), "argument --output: curve.xyz must end in .pdf, .png or .svg"),
        (("--device", "cuda"), "argument --device: no device today"),
    ],
)
def test_options_are_checked(training, monkeypatch, capsys, arguments, message):
    def unavailable():
        return False

    unavailable.msg = "no device today"
    monkeypatch.setattr(training, "dnn_available", unavailable)
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    with pytest.raises(SystemExit) as exit_:
        training.parse(training.options("Train.", steps=1, batch=1, output=Path("curve.png")))
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_options_name_a_missing_matplotlib(training, monkeypatch, capsys):
    monkeypatch.setattr(training.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit):
        training.parse(training.options("Train.", steps=1, batch=1, output=Path("curve.png")))
    assert "the picture needs matplotlib: pip install 'dnnops[demo]'" in capsys.readouterr().err


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(
    ("device", "available", "mode", "on_gpu"),
    [
        ("auto", False, "DNN", False),
        ("auto", True, "DNN", True),
        ("cpu", True, "ONEDNN", False),
        ("cuda", True, "CUDNN", True),
    ],
)
def test_the_device_is_chosen(training, monkeypatch, device, available, mode, on_gpu):
    calls = []
    monkeypatch.setattr(training, "dnn_available", lambda: available)
    monkeypatch.setattr(training, "put_shared_on_gpu", calls.append)
    monkeypatch.setattr(sys, "argv", ["program", "--device", device])
    args = training.parse(training.options("Train.", steps=1, batch=1, output=Path("curve.png")))
    assert args.mode == mode
    assert calls == [on_gpu]


@pytest.fixture
def interrupts():
    """Let SIGINT raise KeyboardInterrupt, even if the tests were started in the background."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("last", [0, 3, 7])
def test_an_interrupt_keeps_the_curve(training, tmp_path, capsys, last, interrupts):
    calls = []

    def step():
        if len(calls) == last:
            signal.raise_signal(signal.SIGINT)
        calls.append(1)
        return 1.0

    curve = training.run(20, step, "accuracy", lambda: 0.5)
    assert curve.losses == [1.0] * last
    assert curve.measured == [(n, 0.5) for n in (2, 4, 6) if n <= last]
    assert f"interrupted after {last} steps" in capsys.readouterr().out
    training.draw(tmp_path / "curve.png", curve)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_optimizers_follow_their_formulas(training):
    start, rate, steps = np.array([1.0, -2.0], dtype="float32"), 0.1, 4

    def after_two_steps(optimizer):
        p = pytensor.shared(start.copy())
        updates = optimizer((p**2).sum(), [p], rate, steps)
        function = pytensor.function([], updates=updates, mode="FAST_COMPILE")
        function(), function()
        assert p.get_value().dtype == "float32"
        return p.get_value()

    # The rate is 0.1 in the first step and 0.075 in the second.
    p, v = start.astype("float64"), 0.0
    for r in (0.1, 0.075):
        v = 0.9 * v - r * 2 * p
        p = p + v
    np.testing.assert_allclose(after_two_steps(training.momentum), p, rtol=1e-6)

    p, mean, square = start.astype("float64"), 0.0, 0.0
    for n, r in ((1, 0.1), (2, 0.075)):
        mean, square = 0.9 * mean + 0.1 * 2 * p, 0.999 * square + 0.001 * (2 * p) ** 2
        p = p - r * (mean / (1 - 0.9**n)) / np.sqrt(square / (1 - 0.999**n))
    # 1 - 0.999 has four digits in float32.
    np.testing.assert_allclose(after_two_steps(training.adam), p, rtol=1e-4)


@pytest.mark.slow
def test_algorithms_are_listed_and_forced():
    listed, selected, used = output("algorithms.py").split("\n\n")
    assert re.search(r"^winograd +.* ms$|^jit\S* +.* ms$", listed, re.M)
    plans = dict(re.findall(r"algo=(\S+) selects (\S+)", selected))
    assert set(plans) >= {"auto", "direct"}
    assert plans["direct"] in used


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("forced_algorithms", "supported: "),
        ("rnn_block", "parameters of a layer: [("),
        ("convert", "(0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)\n  (1): nn.ReLU"),
    ],
)
def test_programs_of_the_documents(name, words):
    """Those of cuDNN's C API and of its graphs need a GPU, and are tested with them."""
    assert words in run(f"examples/seeds/{name}.py")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda p: p.name)
def test_every_example_is_on_a_page(path):
    pages = (ROOT / "docs").rglob("*.rst")
    name = path.relative_to(ROOT / "examples").as_posix()
    shown = re.compile(rf"literalinclude:: (\.\./)+examples/{re.escape(name)}\n")
    assert any(shown.search(page.read_text()) for page in pages)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/benchmarks").glob("*.json")), ids=lambda p: p.stem
)
def test_every_benchmark_is_on_its_page(path):
    page = (ROOT / "docs" / "benchmarks.rst").read_text()
    assert f".. benchmark:: {path.stem}\n" in page
