"""What the steps of a network in all libraries have in common."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import model_zoo
from benchmarks.harness import Task

__all__ = ["CHECKED_STEPS", "ModelTask"]

#: Steps before times are taken, whose losses are compared. dnnops captures the third of them, and
#: replays the fourth.
CHECKED_STEPS = 4
#: Steps whose time on the host is measured.
LAUNCHED_STEPS = 7


class ModelTask(Task):
    """A training step, or inference with a batch, whose data are on the device.

    Subclasses compile in the constructor, or in `compile`, and define `run`, and for a GPU
    `synchronize`, `record`, `seconds_between` and `peak_mib`.

    Parameters
    ----------
    case : dict
        Case of ``benchmarks/models.py``.

    Attributes
    ----------
    compile_s : float
        Seconds that the library compiled before the first step.
    first_s : float
        Seconds of the first step.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.sizes = case, case["sizes"]
        self.model = model_zoo.MODELS[case["model"]]
        self.on_gpu = case["device"] == "cuda"
        self.trains = case["what"] == "training"
        self.batch = model_zoo.model_batch(self.model, self.sizes)
        self.compile_s = self.first_s = 0.0

    def compile(self) -> None:
        """Compile what selects kernels by time, so that nothing else may use the device."""

    def run(self) -> Any:
        """Launch a step, and return its loss or scores, still on the device."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""

    def fetched(self, result: Any) -> np.ndarray:
        """Copy what `run` returned to the host."""
        return np.asarray(result)

    def record(self) -> Any:
        """Return an event after what has been launched; on the CPU, the time."""
        return time.perf_counter()

    def seconds_between(self, start: Any, stop: Any) -> float:
        """Return the seconds between two events."""
        return stop - start

    def peak_mib(self) -> float | None:
        """Return the peak of device memory in a step; None on the CPU."""
        return None

    def call(self) -> None:
        self.run()
        self.synchronize()

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds of each step; no step waits for the one before."""
        events = [self.record()]
        for _ in range(calls):
            self.run()
            events.append(self.record())
        self.synchronize()
        return [self.seconds_between(a, b) for a, b in itertools.pairwise(events)]

    def results(self) -> dict[str, np.ndarray]:
        """Return the losses of the first steps, or the scores of the last of some inferences."""
        self.compile()
        start = time.perf_counter()
        found = [self.fetched(self.run())]
        self.first_s = time.perf_counter() - start
        found += [self.fetched(self.run()) for _ in range(CHECKED_STEPS - 1)]
        if self.trains:
            return {"losses": np.array(found, dtype="float64").reshape(CHECKED_STEPS)}
        return {"scores": found[-1].astype("float64")}

    def facts(self) -> dict[str, Any]:
        """Return what a row has beside the time of a step."""
        peak = self.peak_mib()
        return {
            "host_ms": 1e3 * statistics.median(self._launch() for _ in range(LAUNCHED_STEPS)),
            **({} if peak is None else {"peak_mib": peak}),
            "compile_s": self.compile_s,
            "first_s": self.first_s,
        }

    def _launch(self) -> float:
        """Return the host's seconds of a step that starts on an idle device."""
        self.synchronize()
        start = time.perf_counter()
        self.run()
        seconds = time.perf_counter() - start
        self.synchronize()
        return seconds
