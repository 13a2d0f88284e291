"""Ask cuDNN for plans for a GPU that is described to it, without a GPU.

``python -m tests.plans.described_device`` reads configurations, a JSON list, and writes the result
for each. It has to be a separate process, because cuDNN's engines are linked with the driver's
library. Without a driver, the loader has to find a stub in its place.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

#: The device properties that cuDNN needs.
H200 = {
    "maxGridSize": [2**31 - 1, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 132,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 150_000_000_000,
    "smClockRateKHz": 1_980_000,
    "memClockRateKHz": 3_201_000,
    "memoryBusWidth": 6144,
    "l2CacheSize": 62_914_560,
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "deviceName": "NVIDIA H200",
}

# Kernels are compiled, but loading them is only simulated.
_GIVES_HANDLES = (
    *("ModuleLoadData", "ModuleGetFunction", "LibraryLoadData", "LibraryGetKernel"),
    "KernelGetFunction",
)
_DOES_NOTHING = (
    *("CtxGetCurrent", "CtxGetLimit", "CtxPopCurrent", "CtxPushCurrent", "DeviceGet"),
    *("DeviceGetCount", "GetErrorName", "GetErrorString", "KernelSetAttribute"),
    *("LaunchCooperativeKernel", "LaunchKernel", "LaunchKernelEx", "LibraryLoadFromFile"),
    *("LibraryUnload", "LinkAddData", "LinkComplete", "LinkCreate", "LinkDestroy"),
    *("ModuleUnload", "OccupancyMaxPotentialClusterSize", "StreamGetCtx"),
    *("TensorMapEncodeIm2col", "TensorMapEncodeTiled"),
)


def _stand_in(directory: Path) -> None:
    """Compile a library with stubs of the driver functions that cuDNN's engines use."""
    lines = [f"int cu{name}(void) {{ return 0; }}" for name in _DOES_NOTHING]
    lines += [f"int cu{name}(void **h) {{ *h = (void *)16; return 0; }}" for name in _GIVES_HANDLES]
    lines.append("int cuDriverGetVersion(int *v) { *v = 13000; return 0; }")
    lines.append("int cuKernelGetAttribute(int *v) { *v = 0; return 0; }")
    source = directory / "cuda.c"
    source.write_text("\n".join(lines))
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source)]
    subprocess.run([*command, "-o", str(directory / "libcuda.so.1")], check=True)


def _environment(directory: Path) -> dict[str, str]:
    """Return the environment of a process in which cuDNN's engines can be loaded."""
    environment = dict(os.environ)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        _stand_in(directory)
        former = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(directory), former)))
    return environment


@contextmanager
def described_process(directory: Path) -> Iterator[Callable[..., Any]]:
    """Yield a function that calls another one, with arguments, in a process without a GPU.

    Functions, arguments and results are pickled, and exceptions are raised here.
    """
    before = dict(os.environ)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        os.environ.update(_environment(directory))
        try:
            pool.submit(os.getpid).result()  # starts the process
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield lambda function, *args: pool.submit(function, *args).result()


def plans_of(configurations: list[dict[str, Any]], directory: Path) -> list[dict[str, Any]]:
    """Return descriptions of plans for configurations, from another process.

    ``op`` is ``"attention"`` (the default), described by `describe`, or ``"conv"``, by
    `describe_conv`.
    """
    environment = _environment(directory)
    finished = subprocess.run(
        [sys.executable, "-m", "tests.plans.described_device"],
        input=json.dumps(configurations),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


def describe(
    gradient: bool = False,
    dtype: str = "float16",
    batch: int = 2,
    heads: tuple[int, int] = (4, 4),
    lengths: tuple[int, int] = (128, 128),
    depths: tuple[int, int] = (64, 64),
    heads_inside: bool = False,
    is_causal: bool = False,
    optional: tuple[str, ...] = (),
    deterministic: bool = False,
    with_stats: bool = True,
    **keywords: Any,
) -> dict[str, str]:
    """Return a plan's description, or the reason why there is none.

    `heads` and `lengths` are those of queries, and of keys and values. `depths` are those of
    queries and keys, and of values. ``heads_inside`` selects operands with heads after positions.
    """
    from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
    from dnnops.runtime.build import CUDNN
    from tests.gpu.calls import call, device_tensor

    def array(n: int, count: int, rows: int, depth: int) -> Any:
        if not heads_inside:
            return device_tensor((n, count, rows, depth), dtype)
        strides = (rows * count * depth, depth, count * depth, 1)
        return device_tensor((n, count, rows, depth), dtype, strides)

    inputs = [array(batch, heads[0], lengths[0], depths[0])]
    inputs += [array(batch, heads[1], lengths[1], depth) for depth in depths]
    given = {
        "mask": device_tensor((batch, 1, lengths[0], lengths[1]), "bool"),
        "query_lengths": device_tensor((batch,), "int64"),
        "key_lengths": device_tensor((batch,), "int64"),
        "state": np.zeros(2, np.int64),
    }
    inputs += [given[operand] for operand in optional]
    op: Any = GpuDnnAttention(None, is_causal, optional, with_stats=with_stats, **keywords)
    if gradient:
        op = GpuDnnAttentionGrad(
            None, is_causal, optional, is_deterministic=deterministic, **keywords
        )
        out = array(batch, heads[0], lengths[0], depths[1])
        inputs += [out, device_tensor((batch, heads[0], lengths[0]), "float32"), out]
    outputs = call("dnnops_cudnn_attention_shape", op, inputs, [device_tensor((1,))] * 3)
    results = [
        device_tensor(tuple(x.shape[: x.ndim]), dtype if i != 1 or gradient else "float32")
        for i, x in enumerate(outputs[: len(op.results)])
    ]
    text = ctypes.create_string_buffer(1 << 12)
    described = [
        x if not isinstance(x, np.ndarray) else device_tensor((2,), "int64") for x in inputs
    ]
    words = op.words
    status = CUDNN.library.dnnops_cudnn_attention_plan(
        json.dumps(H200).encode(),
        ctypes.c_void_p(words.ctypes.data),
        (type(described[0]) * len(described))(*described),
        (type(described[0]) * len(results))(*results),
        text,
        ctypes.c_int64(len(text)),
    )
    if status:
        return {"reason": CUDNN.library.dnnops_last_error().decode()}
    return {"plan": text.value.decode()}


def describe_conv(
    dtype: str = "bfloat16",
    image: tuple[int, ...] = (8, 64, 56, 56),
    filters: tuple[int, ...] = (64, 64, 3, 3),
    vector_dtype: str | None = None,
    formats: tuple[str, str] = ("channels_last", "channels_last"),
    epilogue: dict[str, Any] | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Return the names of the plans proposed for a convolution, or the reason why there are none.

    `formats` are those of the images and of the filters, and `epilogue` has parameters of
    `GpuDnnConvActivation`. Images are padded to keep their size.
    """
    from dnnops.gpu.conv import GpuDnnConv
    from dnnops.gpu.fused.conv_activation import GpuDnnConvActivation
    from dnnops.runtime.build import CUDNN
    from tests.gpu.calls import call, channels_last, device_tensor, host_tensor

    makers = {"channels_last": channels_last, "contiguous": device_tensor}
    of_images, of_filters = (makers[name] for name in formats)
    keywords = {"border_mode": "half", "ndim": len(image) - 2, **keywords}
    op: Any = GpuDnnConv(**keywords)
    if epilogue is not None:
        op = GpuDnnConvActivation(**epilogue, **keywords)
    alpha = np.array(1.0)
    inputs = [of_images(image, dtype), of_filters(filters, dtype), host_tensor(alpha)]
    (out,) = call("dnnops_cudnn_conv_shape", GpuDnnConv(**keywords), inputs)
    shape = tuple(out.shape[: out.ndim])
    vector = (1, shape[1], *(1,) * (len(shape) - 2))
    for part in getattr(op, "parts", ()):
        addend = of_images(shape, dtype)
        inputs.append(addend if part == "addend" else device_tensor(vector, vector_dtype or dtype))
    text, workspace = ctypes.create_string_buffer(1 << 14), ctypes.c_int64()
    words, result = op.words, of_images(shape, dtype)
    status = CUDNN.library.dnnops_cudnn_conv_proposals(
        json.dumps(H200).encode(),
        ctypes.c_void_p(words.ctypes.data),
        (type(inputs[0]) * len(inputs))(*inputs),
        ctypes.byref(result),
        text,
        ctypes.c_int64(len(text)),
        ctypes.byref(workspace),
    )
    if status:
        return {"reason": CUDNN.library.dnnops_last_error().decode()}
    return {"plans": text.value.decode().split(), "workspace": workspace.value}


_KINDS = {"attention": describe, "conv": describe_conv}

if __name__ == "__main__":
    found = []
    for configuration in json.load(sys.stdin):
        kind = _KINDS[configuration.pop("op", "attention")]
        found.append(kind(**configuration))
    print(json.dumps(found))
