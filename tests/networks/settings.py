"""Random settings of a compiled function."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from tests.needs import missing

__all__ = ["DEVICES", "PRECISIONS", "Settings", "random_settings"]

#: Where networks run: on the CPU with oneDNN; on a GPU; or as rewritten for a GPU, with each device
#: Op computed by the abstract Op that it stands for.
DEVICES = ("cpu", "cuda", "rewritten")

#: Precisions by device, with their weights.
PRECISIONS: dict[str, dict[str, int]] = {
    "cpu": {"float32": 3, "float64": 1},
    "cuda": {"float32": 3, "tf32": 2, "float16": 2, "bfloat16": 2, "float64": 1},
    "rewritten": {"float64": 3, "float32": 1, "float16": 2, "bfloat16": 2},
}

#: Tags and names of passes that a mode may leave out.
PASSES = (
    "fusion",
    "inplace",
    "conv_merge",
    "channels_last",
    "gpu_batchnorm_activation",
    "recognize_gpu_batchnorm",
    "recognize_batchnorm",
    "recognize_relu",
    "cudnn_attention",
    "cudnn_cross_entropy",
    "cudnn_softmax",
    "gpu_norms",
    "gpu_write_out",
    "gpu_horizontal_fusion",
    "gpu_pool_sum",
    "gpu_inplace_elemwise",
    "onednn_attention",
    "onednn_cross_entropy",
    "elemwise_to_cpu",
    "dense_gradients",
    "separate_scales",
)


@dataclass(frozen=True)
class Settings:
    """How a network is compiled and called.

    Attributes
    ----------
    precision : str
        A key of `tests.oracle.RELATIVE_ERROR`. 16 bits are ``dnn.mixed_precision``.
    cuda_graph : str
        The flag ``dnn.cuda_graph``.
    without : tuple of str
        Passes that the mode leaves out.
    static : bool
        Whether the types of inputs and parameters state their shapes.
    on_device : bool
        Whether the inputs of a function on a GPU are device arrays.
    channels_last : bool
        Whether images that are given are channels-last.
    optimizer : {'', 'sgd', 'momentum', 'adam'}
        How the function updates the parameters.
    """

    precision: str = "float32"
    cuda_graph: str = "auto"
    without: tuple[str, ...] = ()
    static: bool = True
    on_device: bool = False
    channels_last: bool = False
    optimizer: str = ""

    @property
    def dtype(self) -> str:
        """The dtype of the graph."""
        return "float64" if self.precision == "float64" else "float32"

    @property
    def flags(self) -> dict[str, Any]:
        """Flags of PyTensor while the function is compiled."""
        is_half = self.precision in ("float16", "bfloat16")
        return {
            "dnn__cuda_graph": self.cuda_graph,
            "dnn__allow_tf32": self.precision == "tf32",
            "dnn__mixed_precision": self.precision if is_half else "off",
        }

    def __str__(self) -> str:
        return " ".join(f"{name}={value!r}" for name, value in asdict(self).items())

    def simpler(self) -> list[Settings]:
        """Return settings of which one parameter has its default, to find which ones matter."""
        found = []
        for parameter in fields(self):
            value, default = getattr(self, parameter.name), parameter.default
            if parameter.name == "without":
                choices = [tuple(n for n in value if n != name) for name in value]
            else:
                choices = [default] if value != default else []
            found += [Settings(**{**asdict(self), parameter.name: new}) for new in choices]
        return found


def random_settings(seed: int, device: str) -> Settings:
    """Draw settings.

    Parameters
    ----------
    seed : int
        Seed; half of all even ones leave out no pass.
    device : {'cpu', 'cuda', 'rewritten'}
        Where the network runs.
    """
    rng = np.random.default_rng((seed, 5))
    weights = PRECISIONS[device]
    if missing("ml_dtypes"):
        weights = {name: weight for name, weight in weights.items() if name != "bfloat16"}
    shares = np.array(list(weights.values()))
    precision = str(rng.choice(list(weights), p=shares / shares.sum()))
    left_out = rng.random(len(PASSES)) < (0.15 if rng.integers(2) else 0)
    return Settings(
        precision=precision,
        cuda_graph=("auto", "auto", "False")[rng.integers(3)],
        without=tuple(name for name, out in zip(PASSES, left_out, strict=True) if out),
        static=bool(rng.integers(2)),
        on_device=bool(rng.integers(2)),
        channels_last=bool(rng.integers(2)),
        optimizer=("", "", "sgd", "momentum", "adam")[rng.integers(5)],
    )
