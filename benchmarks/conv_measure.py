"""Measure rows of the convolution suite on one GPU, with one process per library."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.conv_cases import ConvCase
from benchmarks.conv_data import difference
from benchmarks.harness import (
    BenchmarkError,
    Measurement,
    RemoteTask,
    Worker,
    WorkerLostError,
    error_line,
)
from benchmarks.report import Row

__all__ = [
    "DeadlinePassedError",
    "Gpu",
    "SuiteSettings",
    "calls_and_gates",
    "cores_of",
    "environment",
]

#: Shortest turn in milliseconds, as far as the most calls and gates allow.
_TURN_MS = 2.0
#: Most calls behind one gate, and most gates in a turn. XLA builds a plan for each call that it
#: compiles; some of cuDNN's plans for depthwise convolutions take 0.13 s.
_MAX_CALLS, _MAX_DEPTHWISE_CALLS = 8, 4
_MAX_GATES = 3
#: Seconds a library may take for one answer, including selecting plans and compiling.
_LIMIT_S = 90.0
_START_LIMIT_S = 300.0
#: Seconds that a row may continue after the deadline.
_GRACE_S = 20.0
#: Spread in percent above which a row gets more rounds, and the most times as many.
_WIDE_PCT = 4.0
_MORE_ROUNDS = 3
#: How many times as many rounds a second measurement of a row has.
_AGAIN_ROUNDS = 3
#: A process whose error contains one of these cannot use its GPU any longer.
_FATAL = ("CUDA error", "illegal", "launch failure", "cudaError", "CUDA_ERROR", "EXECUTION_FAILED")

_ALGOS = {"time": "time_on_shape_change", "guess": "guess_on_shape_change"}
_MODULES = {
    "time": "conv_dnnops",
    "guess": "conv_dnnops",
    "torch": "conv_torch",
    "jax": "conv_jax",
}


class DeadlinePassedError(BenchmarkError):
    """Raised when there is no time left to finish a row."""


@dataclass(frozen=True)
class SuiteSettings:
    """Settings of the measurements.

    Attributes
    ----------
    timer : str
        Path of the library that `device_timer` built.
    device : str
        ``cuda``, or ``cpu`` for a quick check.
    rounds : int
        Minimum number of turns of each library.
    slopes : bool
        Whether to measure with the host's clock too, for comparison.
    deadline : float
        Time of `time.monotonic` at which to stop.
    gpus : int
        Number of GPUs that share the processor's cores.
    again : bool
        Whether this is a second measurement, which has more rounds and is marked as such.
    """

    timer: str
    device: str = "cuda"
    rounds: int = 5
    slopes: bool = False
    deadline: float = math.inf
    gpus: int = 1
    again: bool = False


def environment(module: str, device: str, gpu: int) -> dict[str, str]:
    """Return environment variables of a library's process.

    Parameters
    ----------
    module : str
        Module of `benchmarks.peers`.
    device : str
        ``cuda`` or ``cpu``.
    gpu : int
        The GPU that the process can use, counted among those visible to this process.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = visible[gpu] if len(visible) > gpu and visible[gpu] else str(gpu)
    variables = {"CUDA_VISIBLE_DEVICES": number if device == "cuda" else ""}
    # Nothing that is timed runs on the CPU, and idle threads would spin.
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    variables |= dict.fromkeys(threads, "1")
    if module == "conv_jax":
        variables |= {
            "JAX_PLATFORMS": device,
            # Three processes share the GPU's memory.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Without command buffers, kernels and custom calls run in order. XLA's CUDA graphs may
            # run kernels concurrently.
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer=",
        }
    if module == "conv_dnnops":
        flags = [os.environ.get("PYTENSOR_FLAGS", ""), "dnn__conv__cache=off"]
        variables["PYTENSOR_FLAGS"] = ",".join(flag for flag in flags if flag)
    return variables


def cores_of(gpu: int, gpus: int) -> tuple[int, ...]:
    """Return the cores for the processes of a GPU, which no other GPU's processes use.

    Return all cores if there are fewer than two for each GPU.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus
    return tuple(cores[gpu * share : (gpu + 1) * share] if share >= 2 else cores)


def calls_and_gates(seconds: float, depthwise: bool) -> tuple[int, int]:
    """Return how many calls to time at once, given the seconds of one, and how often in a turn."""
    wanted = math.ceil(_TURN_MS / 1e3 / seconds)
    calls = max(1, min(_MAX_DEPTHWISE_CALLS if depthwise else _MAX_CALLS, wanted))
    return calls, max(1, min(_MAX_GATES, math.ceil(wanted / calls)))


@dataclass
class Gpu:
    """The processes on one GPU, started when they are first needed and restarted if they die.

    Attributes
    ----------
    number : int
        Number of the GPU.
    settings : SuiteSettings
        Settings of the measurements.
    start_worker : callable
        Returns a `Worker`, given a module, environment variables and cores.
    """

    number: int
    settings: SuiteSettings
    start_worker: Callable[[str, Mapping[str, str], tuple[int, ...]], Worker] = Worker
    workers: dict[str, Worker] = field(default_factory=dict)

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.stop()
        self.workers.clear()

    def worker(self, module: str) -> Worker:
        """Return the process of a library, with the remaining time as its limit."""
        left = self.settings.deadline + _GRACE_S - time.monotonic()
        if left <= 0:
            raise DeadlinePassedError("the deadline has passed")
        if module not in self.workers:
            settings = self.settings
            variables = environment(module, settings.device, self.number)
            cores = cores_of(self.number, settings.gpus)
            self.workers[module] = self.start_worker(module, variables, cores)
        self.workers[module].limit_s = min(_LIMIT_S, left)
        return self.workers[module]

    def versions(self) -> dict[str, Any]:
        """Return the versions of the libraries and facts about the machine."""
        workers = {module: self.worker(module) for module in dict.fromkeys(_MODULES.values())}

        def ask(module: str) -> dict[str, Any]:
            # The first one compiles the runtime library.
            workers[module].limit_s = _START_LIMIT_S
            try:
                return workers[module].call("versions", self.settings.device)
            except BenchmarkError as error:
                self._lost(module)
                return {f"{module}_missing": error_line(error)}

        # Importing takes seconds, so the libraries do it at the same time.
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(ask, workers))
        return {key: value for answer in found for key, value in answer.items()}

    def _lost(self, module: str) -> None:
        if module in self.workers:
            self.workers.pop(module).kill()

    def _attempt(self, name: str, reasons: dict[str, str], work: Callable[[], Any]) -> Any:
        """Run `work`; if it fails for this library, store the reason and return None."""
        module = _MODULES[name]
        try:
            return work()
        except DeadlinePassedError:
            raise
        except BenchmarkError as error:
            if time.monotonic() > self.settings.deadline:
                raise DeadlinePassedError(str(error)) from error
            text = error_line(error)
            reasons[name] = text
            if isinstance(error, WorkerLostError) or any(word in text for word in _FATAL):
                self._lost(module)
            elif module in self.workers:
                self._attempt(name, {}, lambda: self.worker(module).call("clear"))
        return None

    def measure(self, case: ConvCase, direction: str, precision: str, layout: str) -> Row:
        """Measure one row.

        Parameters
        ----------
        case : ConvCase
            The convolution.
        direction, precision, layout : str
            As in `conv_cases`.

        Returns
        -------
        dict
            The row. Entries that a library cannot measure are None, and ``reasons`` says why.

        Raises
        ------
        DeadlinePassedError
            If the deadline passes before the row is complete.
        """
        start = time.perf_counter()
        settings = self.settings
        words = {"direction": direction, "precision": precision, "layout": layout}
        described = {
            **case.description(),
            **words,
            "terms": case.terms(direction),
            "device": settings.device,
            "timer": settings.timer,
        }
        reasons: dict[str, str] = {}
        tasks: dict[str, RemoteTask] = {}
        facts: dict[str, dict[str, Any]] = {}
        opened: dict[str, float] = {}

        def prepare(name: str, **more: Any) -> None:
            def work() -> dict[str, Any]:
                tasks[name] = self.worker(_MODULES[name]).open({**described, **more})
                return tasks[name].facts()

            begun = time.perf_counter()
            found = self._attempt(name, reasons, work)
            opened[name] = round(time.perf_counter() - begun, 3)
            if found is None:
                tasks.pop(name, None)
            else:
                facts[name] = found

        # In sequence: while a library times its plans, no other may use the GPU.
        prepare("time", algo=_ALGOS["time"])
        prepare("guess", algo=_ALGOS["guess"])
        prepare("torch")
        known = [found["seconds"] for found in facts.values()]
        depthwise = case.groups == case.channels > 1
        calls, gates = calls_and_gates(min(known, default=_TURN_MS / 1e3), depthwise)
        prepare("jax", calls=calls)
        prepared = time.perf_counter()

        def warm(task: RemoteTask) -> list[float]:
            return task.ask("warm", calls)

        def turn(task: RemoteTask) -> list[float]:
            return task.ask("turn", calls, gates)

        self._turns(tasks, reasons, warm, 1)
        rounds = settings.rounds * (_AGAIN_ROUNDS if settings.again else 1)
        samples = self._turns(tasks, reasons, turn, rounds)
        for _ in range(_MORE_ROUNDS - 1):
            if Measurement(samples).spread_pct() <= _WIDE_PCT:
                break
            more = self._turns(tasks, reasons, turn, rounds)
            samples = {name: samples[name] + seconds for name, seconds in more.items()}
        row: Row = {"case": case.words, **words}
        medians = Measurement(samples).medians("ms")
        ours = facts.get("time", {}) if "time" in samples else {}
        guess = facts.get("guess", {}) if "guess" in samples else {}
        others = {name: facts[name] if name in samples else {} for name in ("torch", "jax")}
        row |= {
            "time_ms": medians.get("time_ms"),
            "plan": ours.get("plan"),
            "guess_ms": medians.get("guess_ms"),
            "guess_plan": guess.get("plan"),
            "torch_ms": medians.get("torch_ms"),
            "jax_ms": medians.get("jax_ms"),
            "choose_s": ours.get("prepare_s"),
            "guess_s": guess.get("prepare_s"),
            "torch_s": others["torch"].get("prepare_s"),
            "jax_s": others["jax"].get("prepare_s"),
            "workspace": ours.get("workspace"),
            "spread_pct": Measurement(samples).spread_pct() if samples else None,
            **_errors(facts),
            "torch_backend": others["torch"].get("backend"),
            "jax_plan": others["jax"].get("plan"),
            "jax_others": others["jax"].get("others"),
            "jax_timer": others["jax"].get("timer"),
            "calls": calls,
            "gates": gates,
            "sets": max((found["sets"] for found in facts.values()), default=None),
            "rounds": max((len(seconds) for seconds in samples.values()), default=0) // gates,
        }
        if settings.again:
            row["remeasured"] = True
        if settings.slopes:
            for name in samples:
                slope = self._attempt(name, reasons, lambda t=tasks[name]: t.ask("slope", calls))
                row[f"{name}_slope_ms"] = slope and 1e3 * slope
        for name, task in tasks.items():
            if found := self._attempt(name, reasons, lambda t=task: (t.ask("waits"), t.close())):
                row["waits"] = row.get("waits", 0) + found[0]
        row["reasons"] = reasons
        row["open_s"] = opened
        row["measure_s"] = round(time.perf_counter() - prepared, 3)
        row["all_s"] = round(time.perf_counter() - start, 3)
        return _rounded(row)

    def _turns(
        self,
        tasks: dict[str, RemoteTask],
        reasons: dict[str, str],
        turn: Callable[[RemoteTask], list[float]],
        rounds: int,
    ) -> dict[str, list[float]]:
        """Run tasks in turns; a task that fails is left out from then on."""
        samples: dict[str, list[float]] = {name: [] for name in tasks}
        order = list(tasks)
        for _ in range(rounds):
            for name in tuple(order):
                found = self._attempt(name, reasons, lambda t=tasks[name]: turn(t))
                if found is None:
                    # The worker may have been restarted since.
                    lost = [key for key in order if _MODULES[key] == _MODULES[name]]
                    for key in lost:
                        reasons.setdefault(key, reasons[name])
                        order.remove(key)
                        del samples[key], tasks[key]
                    break
                samples[name] += found
            order = order[1:] + order[:1]
        return samples


def _errors(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return differences relative to PyTorch's result, or to JAX's if PyTorch has none."""
    reference = next((name for name in ("torch", "jax") if name in facts), None)
    found: dict[str, Any] = {}
    for name, key in (("time", "error"), ("guess", "guess_error"), ("jax", "jax_error")):
        found[key] = None
        if reference and name in facts and name != reference:
            error = difference(facts[name]["sketch"], facts[reference]["sketch"])
            # JSON cannot represent NaN.
            found[key] = error if math.isfinite(error) else "not finite"
    return found


def _rounded(row: Row) -> Row:
    return {
        key: float(f"{value:.5g}") if isinstance(value, float) else value
        for key, value in row.items()
    }
