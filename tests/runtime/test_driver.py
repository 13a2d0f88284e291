"""Say what is missing if no device can be used."""

from __future__ import annotations

import sys

import pytensor
import pytensor.tensor as pt
import pytest

import dnnops
from dnnops.errors import DnnUnavailableError
from dnnops.gpuarray.device import on_device
from dnnops.runtime import driver

CASES = [
    (None, False, "there is no NVIDIA GPU in this machine"),
    (None, True, "NVIDIA's driver is not installed"),
    ((12, 4), True, "CuPy cannot be imported .*: pip install 'dnnops\\[cuda12\\]'"),
    ((13, 0), True, "CuPy cannot be imported .*: pip install 'dnnops\\[cuda13\\]'"),
]


@pytest.mark.parametrize(("version", "has_device", "message"), CASES)
def test_without_cupy(monkeypatch: pytest.MonkeyPatch, version, has_device: bool, message: str):
    """CuPy is asked for only if there is a GPU with a driver."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(driver, "driver_cuda_version", lambda: version)
    monkeypatch.setattr(driver, "has_nvidia_device", lambda: has_device)
    message = f"cuda1 cannot be used: {message}"
    with pytest.raises(DnnUnavailableError, match=message) as caught, on_device(1):
        pass
    assert ("CuPy" in str(caught.value)) == (version is not None)
    assert "python -m dnnops doctor" in str(caught.value)


def test_an_error_of_cupy_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "driver_cuda_version", lambda: (13, 0))
    reason = driver.why_no_device(RuntimeError("cudaErrorInvalidDevice: invalid device ordinal"))
    assert reason.startswith("cudaErrorInvalidDevice: invalid device ordinal; ")


@pytest.mark.needs("no gpu")
def test_a_mode_that_needs_a_gpu():
    x = pt.fvector("x")
    if driver.driver_cuda_version() is not None:
        pytest.skip("there is a driver")
    with pytest.raises(DnnUnavailableError, match=r"there is no NVIDIA GPU|driver is not"):
        pytensor.function([x], x + 1, mode="CUDNN")
    assert not dnnops.dnn_available()
    assert "CuPy" not in dnnops.dnn_available.msg
