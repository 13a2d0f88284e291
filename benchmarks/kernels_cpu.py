"""Cases of ``python -m benchmarks.kernels cpu``, with their data; needs only NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.rnn_data import cpu_cases

__all__ = ["CASES", "arrays"]

SEED = 50


def arrays(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Draw the operands of a case: `x`, `top` for a gradient, and what else its kind needs."""
    rng = np.random.default_rng(SEED)
    shape, dtype = tuple(case["shape"]), case.get("dtype", "float32")
    found = {"x": rng.standard_normal(shape).astype(dtype)}
    match case["kind"]:
        case "cross_entropy":
            found["labels"] = rng.integers(0, shape[1], shape[0])
        case "ctc":
            found["labels"] = rng.integers(1, shape[2], (shape[1], case["length"])).astype("int32")
        case "batchnorm":
            found |= {name: rng.random(shape[1], "float32") for name in ("gamma", "beta")}
        case "attention":
            found |= {name: rng.standard_normal(shape).astype(dtype) for name in ("key", "value")}
        case "sampler":
            turn = np.array([[0.9, -0.2], [0.2, 0.9]])
            points = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in shape[:1:-1]]), -1)
            grid = np.broadcast_to(points @ turn.T, (shape[0], *points.shape))
            found["grid"] = np.ascontiguousarray(grid, dtype=dtype)
        case "conv":
            filters = (case["filters"], shape[1], 3, 3)
            found["filters"] = rng.standard_normal(filters).astype(dtype)
        case "add_rows":
            found["rows"] = rng.standard_normal((case["rows"], shape[1])).astype(dtype)
            found["indices"] = rng.integers(0, shape[0], case["rows"])
    if case["kind"] == "pool":
        shape = (*shape[:2], *((n - case["window"]) // case["stride"] + 1 for n in shape[2:]))
    found["top"] = rng.standard_normal(shape).astype(dtype)
    return found


def _case(
    kernel: str, kind: str, words: str, shape: tuple[int, ...], **more: Any
) -> dict[str, Any]:
    gradient = more.get("gradient", False)
    size = "x".join(map(str, shape))
    name = f"{words} {size}{', and gradient' if gradient else ''}".strip()
    settings = {"libraries": ("dnnops", "PyTorch"), "tolerance": 1e-4, **more}
    return {"kernel": kernel, "kind": kind, "case": name, "shape": shape, **settings}


WITH_ONEDNN = ("dnnops", "oneDNN", "PyTorch")
BOTH = (False, True)


def _cases() -> list[dict[str, Any]]:
    cases = [
        _case("activation", "activation", mode, (64, 64, 56, 56), mode=mode, libraries=WITH_ONEDNN)
        for mode in ("tanh", "sigmoid")
    ]
    cases += [
        _case("softmax", kind, kind, shape, libraries=libraries)
        for kind, libraries in (("softmax", WITH_ONEDNN), ("log_softmax", WITH_ONEDNN[::2]))
        for shape in ((100000, 10), (4096, 1000))
    ]
    cases += [
        _case("cross_entropy", "cross_entropy", "", shape, gradient=True, tolerance=1e-3)
        for shape in ((128, 1000), (4096, 1000), (100000, 10))
    ]
    cases += [
        _case(
            "ctc_loops",
            "ctc",
            f"labels of {length},",
            shape,
            length=length,
            gradient=True,
            tolerance=1e-3,
        )
        for shape, length in (((50, 32, 30), 15), ((200, 16, 100), 40))
    ]
    cases += [
        _case(
            "dropout",
            "dropout",
            "",
            shape,
            gradient=gradient,
            libraries=("dnnops", "PyTorch") if gradient else ("dnnops", "PyTorch", "NumPy"),
        )
        for shape in ((128, 1000), (64, 64, 56, 56))
        for gradient in BOTH
    ]
    cases += [
        _case("batchnorm_loops", "batchnorm", "", shape, gradient=gradient, libraries=WITH_ONEDNN)
        for shape in ((64, 64, 56, 56), (32, 256, 14, 14))
        for gradient in BOTH
    ]
    cases += [
        _case(
            "pool_loops",
            "pool",
            f"{mode} {window}x{window}/{stride},",
            shape,
            mode=mode,
            window=window,
            stride=stride,
            gradient=gradient,
            libraries=WITH_ONEDNN,
        )
        for mode, window, stride, shape in (
            ("max", 3, 2, (32, 64, 113, 113)),
            ("max", 2, 2, (32, 64, 56, 56)),
            ("average", 7, 1, (32, 512, 7, 7)),
        )
        for gradient in BOTH
    ]
    cases += [
        _case(kernel, kind, "", (32, 96, 55, 55), gradient=gradient)
        for kernel, kind in (("lrn", "lrn"), ("divisive_normalization", "divisive"))
        for gradient in BOTH
    ]
    cases += [
        _case("sampler_loops", "sampler", "", shape, gradient=gradient)
        for shape in ((32, 16, 64, 64), (16, 3, 224, 224))
        for gradient in BOTH
    ]
    cases += [
        _case(
            "double_product" if dtype == "float64" else "attention",
            "attention",
            f"{dtype},",
            shape,
            dtype=dtype,
            gradient=gradient,
        )
        for dtype, shape in (("float32", (4, 8, 512, 64)), ("float64", (4, 8, 512, 64)))
        for gradient in BOTH
    ]
    cases += [
        _case(
            "winograd",
            "conv",
            f"{filters} filters of 3x3,",
            shape,
            filters=filters,
            libraries=("dnnops", "oneDNN"),
        )
        for shape, filters in (((32, 64, 56, 56), 64), ((32, 256, 14, 14), 256))
    ]
    cases += [
        _case(
            "conv_blas",
            "conv",
            "64 filters of 3x3, float64,",
            (8, 64, 56, 56),
            filters=64,
            dtype="float64",
        ),
        _case(
            "half_cast",
            "half_cast",
            "from float16,",
            (1 << 22,),
            dtype="float16",
            libraries=("dnnops", "PyTorch", "NumPy"),
        ),
        _case(
            "half_cast",
            "half_cast",
            "to float16,",
            (1 << 22,),
            libraries=("dnnops", "PyTorch", "NumPy"),
        ),
        _case(
            "sum",
            "channel_sum",
            "over all axes but the channels,",
            (32, 64, 56, 56),
            libraries=("dnnops", "PyTorch", "NumPy"),
        ),
        _case(
            "sum",
            "pixel_sum",
            "over pixels,",
            (8, 16, 64, 64),
            libraries=("dnnops", "PyTorch", "NumPy"),
        ),
        _case(
            "add_rows",
            "add_rows",
            "1024 rows to",
            (256, 128),
            rows=1024,
            libraries=("dnnops", "PyTorch", "NumPy"),
        ),
    ]
    for sizes in cpu_cases():
        if sizes["layers"] > 1:
            continue
        libraries = ("dnnops", "oneDNN", "PyTorch")[:: 1 if sizes["mode"] == "lstm" else 2]
        for training, what in enumerate(("forward", "forward and gradients")):
            settings = {"kernel": "rnn_loops", "kind": "rnn", "tolerance": 1e-3}
            words = sizes["case"].replace(", 1 layer", "").replace(", float32", "")
            settings |= {"case": f"{words}, {what}", "libraries": libraries}
            cases.append({**sizes, **settings, "training": bool(training)})
    return cases


CASES = _cases()
