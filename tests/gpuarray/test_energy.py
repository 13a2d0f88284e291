"""Energy from NVML's counter, with a simulated counter and clock."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dnnops.errors import DnnNotSupportedError, DnnUnavailableError
from dnnops.gpuarray import energy
from dnnops.gpuarray.energy import EnergyMeter

BUS_ID = "0000:3B:00.0"


class NVMLError(Exception):
    pass


class FakeGpu:
    """A board whose counter advances from time to time, and work of known time and power.

    Attributes
    ----------
    watts : float
        Power of the work.
    period : float
        Seconds between two updates of the counter.
    """

    def __init__(self, watts: float = 500.0, period: float = 0.1, counts: bool = True):
        self.watts, self.period, self.counts = watts, period, counts
        self.now, self.calls = 1000.0, 0
        self.milliseconds = 0.0

    def pynvml(self) -> Any:
        def handle(bus_id: str) -> str:
            if bus_id != BUS_ID:
                raise NVMLError(f"no device {bus_id}")
            return "the handle"

        def total_energy(handle: str) -> int:
            assert handle == "the handle"
            if not self.counts:
                raise NVMLError("Not Supported")
            moves = math.floor(self.now / self.period) if self.period else 0
            return round(1000 * self.watts * moves * self.period)

        return SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByPciBusId=handle,
            nvmlDeviceGetTotalEnergyConsumption=total_energy,
        )

    def run(self, repeats: int) -> None:
        self.calls += repeats
        self.now += repeats * self.milliseconds / 1000

    def install(self, monkeypatch: pytest.MonkeyPatch, bus_id: str = BUS_ID) -> FakeGpu:
        """Replace NVML, CUDA and the clock."""

        @contextmanager
        def on_device(device: int) -> Iterator[Any]:
            runtime = SimpleNamespace(deviceGetPCIBusId=lambda number: bus_id)
            yield SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))

        monkeypatch.setitem(sys.modules, "pynvml", self.pynvml())
        monkeypatch.setattr(energy, "on_device", on_device)
        monkeypatch.setattr(energy.time, "perf_counter", lambda: self.now)
        return self


@pytest.mark.parametrize("period", [0.02, 0.1])
@pytest.mark.parametrize("milliseconds", [0.005, 0.3, 3.6, 36.0, 700.0])
@pytest.mark.parametrize("watts", [90.0, 700.0])
def test_millijoules_are_power_times_time(monkeypatch, watts, milliseconds, period):
    gpu = FakeGpu(watts, period).install(monkeypatch)
    gpu.milliseconds = milliseconds
    started = gpu.now
    measured = EnergyMeter(0).millijoules(gpu.run, milliseconds)
    # Each end of the measurement may be off by the time between two readings of the counter.
    slack = 2 * max(milliseconds, energy.READING_INTERVAL_MS) / 1000 / energy.SECONDS
    assert measured == pytest.approx(watts * milliseconds, rel=min(slack, 0.5))
    assert energy.SECONDS <= gpu.now - started < energy.SECONDS + 0.5 + 6 * milliseconds / 1000


def test_a_wrong_idea_of_the_time_costs_no_accuracy(monkeypatch):
    gpu = FakeGpu(300.0).install(monkeypatch)
    gpu.milliseconds = 2.0
    for guess in (0.2, 1.0, 8.0):
        assert EnergyMeter(0).millijoules(gpu.run, guess) == pytest.approx(600.0, rel=0.12)


def test_a_counter_that_stands_still(monkeypatch):
    gpu = FakeGpu(period=0).install(monkeypatch)
    gpu.milliseconds = 1.0
    with pytest.raises(DnnNotSupportedError, match=r"counter of cuda2 did not move in [23]\.\d s"):
        EnergyMeter(2).millijoules(gpu.run, 1.0)


def test_a_device_without_a_counter(monkeypatch):
    FakeGpu(counts=False).install(monkeypatch)
    with pytest.raises(DnnNotSupportedError, match="energy counter of cuda1: Not Supported"):
        EnergyMeter(1)


def test_the_device_is_found_by_its_bus(monkeypatch):
    FakeGpu().install(monkeypatch, bus_id="0000:AF:00.0")
    with pytest.raises(DnnNotSupportedError, match=r"NVML cannot find cuda0: no device 0000:AF"):
        EnergyMeter(0)


def test_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DnnUnavailableError, match="pip install nvidia-ml-py"):
        EnergyMeter(0)


def test_a_missing_driver(monkeypatch):
    gpu = FakeGpu().install(monkeypatch)

    def refuse() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    nvml = gpu.pynvml()
    nvml.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(DnnUnavailableError, match="NVML Shared Library Not Found"):
        EnergyMeter(0)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.needs("pynvml")
def test_on_a_gpu():
    import cupy

    x = cupy.ones((4096, 4096), "float32")

    def run(repeats: int) -> None:
        for _ in range(repeats):
            x @ x
        cupy.cuda.Device().synchronize()

    run(3)
    try:
        meter = EnergyMeter(0)
    except DnnNotSupportedError as error:
        pytest.skip(str(error))
    first = meter.millijoules(run, 3.0)
    # 137 GFLOP take milliseconds and hundreds of watts on any GPU that counts.
    assert 50 < first < 50_000
    assert meter.millijoules(run, 3.0) == pytest.approx(first, rel=0.5)
