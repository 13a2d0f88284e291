"""Run recurrent networks on a device, and compare them with references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from dnnops.gpu.rnn import GpuDnnRNNBackward, GpuDnnRNNForward, last_rnn_algorithm
from tests.gpu.device import host, make_node, on_gpu, poison, restrided, rounded
from tests.nnet.rnn.rnn_cases import RNNCase, run_op
from tests.oracle import RELATIVE_ERROR, UNIT

#: Standard deviation of a case's parameters.
CASE_SCALE = 0.5


#: Bound on the change of a ReLU's 16-bit input by rounding of its terms, which are a few units.
NEAR_ZERO = {"bfloat16": 2.0**-5, "float16": 2.0**-8, "float32": 2.0**-20, "float64": 2.0**-40}


def usual_scale(case: RNNCase) -> float:
    """Return a standard deviation typical of trained networks; larger ones amplify rounding."""
    return case.hidden_size**-0.5


def with_numbers(case: RNNCase, least: int) -> RNNCase | None:
    """Enlarge the batch until a last state has `least` numbers; None with fewer parameters.

    A bound on a norm bounds the usual rounding. Among few numbers, any may be several times that.
    """
    if case.forward.layout.param_size(case.input_size) < least:
        return None
    has = case.batch * case.forward.layout.output_size
    return replace(case, batch=case.batch * -(-least // has))


def relative_error(out: np.ndarray, reference: np.ndarray) -> float:
    """Return the norm of the difference, relative to the reference's or to 0.3 per element.

    Small results are often sums of large terms that cancel.
    """
    if reference.size == 0:
        return 0.0
    norm = max(np.linalg.norm(reference.ravel()), 0.3 * reference.size**0.5)
    return float(np.linalg.norm((out - reference).ravel()) / norm)


def check(out: Any, reference: np.ndarray, bound: float, words: str) -> None:
    """Check the relative error of a result."""
    out = host(out)
    assert out.shape == reference.shape, f"{words}: shape {out.shape}, not {reference.shape}"
    error = relative_error(out, reference)
    # Negated, so that NaN fails.
    assert error <= bound, (
        f"{words}: relative error {error:.3g} > {bound:.3g}; largest difference "
        f"{np.max(np.abs(out - reference)):.3g} at "
        f"{np.unravel_index(np.argmax(np.nan_to_num(np.abs(out - reference), nan=9e9)), out.shape)}"
        f" of {out.shape}, algorithm {last_rnn_algorithm()}"
    )


class Network:
    """A case with operands in a dtype, to be run on the device and with the oracle."""

    def __init__(self, case: RNNCase, dtype: str, scale: float | None = None):
        """Draw operands; `scale` replaces the standard deviation of the case's parameters."""
        self.case, self.dtype = case, dtype
        self.forward = GpuDnnRNNForward(**case.network)
        self.backward = GpuDnnRNNBackward(**case.network)
        operands = case.operands()
        if scale is not None:
            operands[0] = operands[0] * (scale / CASE_SCALE)
        self.operands = [rounded(a, dtype) if a.dtype.kind == "f" else a for a in operands]
        self.expected = run_op(case.forward, *self.operands)
        rng = np.random.default_rng(case.seed + 1)
        self.tops = [rounded(rng.standard_normal(e.shape), dtype) for e in self.expected[:-1]]

    def on_device(self, arrays: Any, rng: np.random.Generator | None = None) -> list[Any]:
        """Return arrays on the device, with random strides if `rng` is given; keep integers."""
        moved = [on_gpu(a, self.dtype) if a.dtype.kind == "f" else a for a in arrays]
        if rng is None:
            return moved
        return [
            restrided(rng, a) if getattr(a, "ndim", 0) == 3 and not isinstance(a, np.ndarray) else a
            for a in moved
        ]

    def run(self, op: Any, *operands: Any) -> list[Any]:
        poison()
        node, values = make_node(op, *operands)
        return run_node(node, values)

    def is_determined(self) -> bool:
        """Return whether results stay within the bounds if operands change by half of a last digit.

        Otherwise, no computation in the operands' dtype can be required to meet the bounds.
        """
        rng = np.random.default_rng(self.case.seed + 2)

        def changed(arrays: list[np.ndarray]) -> list[np.ndarray]:
            unit = UNIT[self.dtype]
            return [
                a * (1 + unit * rng.choice([-1, 1], a.shape)) if a.dtype.kind == "f" else a
                for a in arrays
            ]

        near = changed(self.operands)
        others = run_op(self.case.forward, *near)
        # Like `check`, give the gradients of plain units the output on which they depend.
        y = self.expected[0] if self.case.rnn_mode in ("rnn_relu", "rnn_tanh") else others[0]
        gradients = run_op(self.case.backward, *near, y, others[-1], *changed(self.tops))
        pairs = [
            *zip(others[:-1], self.expected, strict=False),
            *zip(gradients, self.expected_gradients(self.expected[0]), strict=True),
        ]
        return all(relative_error(a, b) <= RELATIVE_ERROR[self.dtype] for a, b in pairs)

    def words(self, name: str) -> str:
        return f"{name} of {self.case} in {self.dtype}"

    def check_forward(self, results: list[Any]) -> None:
        for name, out, ref in zip(("y", "hy", "cy"), results, self.expected[:-1], strict=False):
            check(out, ref, RELATIVE_ERROR[self.dtype], self.words(name))

    def expected_gradients(self, y: np.ndarray) -> list[np.ndarray]:
        """Return the oracle's gradients for a forward pass with the result `y`."""
        return run_op(self.case.backward, *self.operands, y, self.expected[-1], *self.tops)

    def likely_signs(self, gradients: list[Any], y: np.ndarray) -> np.ndarray:
        """Change ReLU outputs to zero, or from zero, if that matches the gradients better.

        Change only outputs so near zero that rounding decides. cuDNN's backward pass does not use
        the values that its forward pass has written.
        """
        layout = self.forward.layout
        biases = layout.pseudo_layers(self.case.input_size)[0].input_biases
        near = np.zeros(y.shape, bool)
        for shift in (NEAR_ZERO[self.dtype], -NEAR_ZERO[self.dtype]):
            moved = self.operands[0].copy()
            moved[biases:] += shift / 2  # there are two biases
            others = run_op(self.case.forward, moved, *self.operands[1:])[0]
            near |= (others > 0) != (y > 0)

        def error(y: np.ndarray) -> float:
            pairs = zip(gradients, self.expected_gradients(y), strict=False)
            return sum(relative_error(host(out), ref) ** 2 for out, ref in pairs)

        def flipped(y: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
            changed = y.copy()
            changed[at] = 0 if y[at] > 0 else 1e-30
            return changed

        least, places = error(y), list(zip(*np.nonzero(near), strict=True))
        while places:
            # The best first: the effect of a flip shows only after those with larger effects.
            found, at = min((error(flipped(y, at)), at) for at in places)
            if not found < least:
                break
            y, least = flipped(y, at), found
        return y

    def check_backward(self, gradients: list[Any], y: Any = None) -> None:
        y = self.expected[0] if y is None else host(y)

        def compare(y: np.ndarray) -> None:
            pairs = zip(gradients, self.expected_gradients(y), strict=False)
            for name, (out, ref) in zip(self.backward.results, pairs, strict=False):
                words = self.words(f"gradient with respect to {name}")
                check(out, ref, RELATIVE_ERROR[self.dtype], words)

        try:
            compare(y)
        except AssertionError:
            if self.case.rnn_mode != "rnn_relu" or self.case.num_layers > 1:
                raise
            compare(self.likely_signs(gradients, y))

    def check(self, rng: np.random.Generator | None = None) -> None:
        """Check both passes; operands may have random strides."""
        given = self.on_device(self.operands, rng)
        results = self.run(self.forward, *given)
        self.check_forward(results[:-1])
        gradients = self.run(
            self.backward, *given, results[0], results[-1], *self.on_device(self.tops, rng)
        )
        # The gradient of a plain unit depends on its output: on whether it is zero, or on 1 - y**2,
        # in which the rounding of y to 16 bits shows if y is near 1.
        y = results[0] if self.case.rnn_mode in ("rnn_relu", "rnn_tanh") else None
        self.check_backward(gradients, y)


def run_node(node: Apply, values: list[Any]) -> list[Any]:
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, storage)
    return [cell[0] for cell in storage]


def of_one_layer(case: RNNCase, dtype: str) -> RNNCase:
    """Rounding decides the sign of outputs near zero, and with it a ReLU's gradient.

    The oracle receives the signs of the last layer.
    """
    half = dtype in ("float16", "bfloat16")
    return replace(case, num_layers=1) if half and case.rnn_mode == "rnn_relu" else case
