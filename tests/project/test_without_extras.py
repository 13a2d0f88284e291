"""Without CuPy and ml_dtypes every module imports, and every graph is built and rewritten.

The tests run in processes that cannot import them, even if they are installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MISSING = """
import sys

ABSENT = {"cupy", "cupy_backends", "cupyx", "ml_dtypes", "jax", "torch"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

IMPORTS = """
import importlib
import pkgutil
import dnnops

names = [module.name for module in pkgutil.walk_packages(dnnops.__path__, "dnnops.")]
assert len(names) > 100, names
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Modules for the users of these libraries.
        assert error.name.partition(".")[0] in {"jax", "torch"}, (name, error)
"""

GRAPHS = """
import pytensor
import pytensor.tensor as pt
import dnnops
from dnnops import nnet
from dnnops.gpuarray import GpuArrayType
from pytensor.compile.aliasing import add_supervisor_to_fgraph
from pytensor.compile.io import In
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.type import TensorType
from pytensor.graph.traversal import explicit_graph_inputs, graph_inputs

pytensor.config.on_opt_error = "raise"
pytensor.config.floatX = "float32"

def families(where, dtype):
    def made(*shape):
        # Arrays of the host alone wouldn't be worth a transfer.
        cls = GpuArrayType if where == "GPU" else TensorType
        return pt.as_tensor_variable(cls(dtype, shape)())

    x, w, rows, gamma = made(*[None] * 4), made(*[None] * 4), made(None, None), made(1, None, 1, 1)
    query, steps, state = made(*[None] * 3, 64), made(*[None] * 3), made(2, None, 8)
    lengths, labels = pt.lvector(), pt.imatrix()
    scores = pt.special.softmax(rows, axis=1)
    return {
        "Conv": nnet.conv2d(x, w, border_mode="half"),
        "Pool": nnet.pool_2d(x, (2, 2), ignore_border=True),
        "Softmax": scores**2,
        "CrossEntropy": -pt.log(scores)[pt.arange(rows.shape[0]), lengths],
        "BatchNorm": nnet.batch_normalization_train(x, gamma, gamma, axes="spatial")[0],
        "Activation": nnet.elu(x),
        "LRN": nnet.local_response_normalization(x),
        "DivisiveNormalization": nnet.divisive_normalization(x, 5),
        "Attention": nnet.scaled_dot_product_attention(query, query, query, is_causal=True),
        "Dropout": nnet.dropout(x, 0.5, seed=1),
        "SpatialTransformer": nnet.spatial_transformer(x, made(None, 2, 3)),
        "CTC": nnet.ctc(steps, labels, lengths),
        "RNN": nnet.RNNBlock(dtype, 8, 2, "lstm").apply(rows[0], steps, state, state)[0],
    }

for where, dtype in [case.split(":") for case in sys.argv[1:]]:
    mode = get_mode("CVM").including("gpu") if where == "GPU" else get_mode(where)
    pytensor.config.dnn__enabled = "no_check" if where == "GPU" else "auto"
    for family, out in families(where, dtype).items():
        leaves = [v for v in explicit_graph_inputs([out]) if v.type.dtype == dtype]
        outputs = [out, *pytensor.grad(out.sum(dtype="float64"), leaves)]
        inputs = [v for v in graph_inputs(outputs) if not isinstance(v, Constant)]
        graph = FunctionGraph(inputs, outputs, clone=True)
        add_supervisor_to_fgraph(graph, [In(v) for v in graph.inputs], accept_inplace=True)
        mode.optimizer.rewrite(graph)
        ops = sorted({type(node.op).__name__ for node in graph.apply_nodes})
        print(where, dtype, family, *ops)
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MISSING + program, *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_imports():
    run(IMPORTS)


def test_every_graph_is_rewritten():
    prefixes = {
        "GPU:float16": "Gpu",
        "GPU:float32": "Gpu",
        "GPU:float64": "Gpu",
        "ONEDNN:float32": "OneDnn",
        "DNN:float32": "",
    }
    lines = [line.split() for line in run(GRAPHS, *prefixes).splitlines()]
    assert len(lines) == 13 * len(prefixes)
    for where, dtype, family, *ops in lines:
        prefix = prefixes[f"{where}:{dtype}"]
        assert any(op.startswith(prefix) for op in ops), (where, dtype, family, ops)
