"""Run each library in its own process, and time their tasks in turns."""

from __future__ import annotations

import importlib
import itertools
import math
import multiprocessing
import os
import re
import statistics
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

__all__ = [
    "BenchmarkError",
    "Measurement",
    "RemoteTask",
    "Session",
    "Settings",
    "Task",
    "Worker",
    "WorkerLostError",
    "beside",
    "check_agreement",
    "error_line",
    "measure",
    "measure_apart",
]

# If the medians of dnnops and PyTorch differ by less than this, or than the spread of the times,
# there are so many times as many turns: a few do not tell which is faster.
NEAR, TIMES_AS_MANY = 0.01, 4
# Seconds between turns: the OpenMP threads of the last process still spin for a while.
PAUSE_S = 0.02


class BenchmarkError(RuntimeError):
    """Raised when a worker fails, or libraries disagree about a result."""


class WorkerLostError(BenchmarkError):
    """Raised when a worker has ended or had to be killed."""


class Task:
    """Work to be timed, in the process that has its library.

    Subclasses define `call`, which returns when the work is done, or `times`.
    """

    def call(self) -> None:
        """Do the work once."""
        raise NotImplementedError

    def times(self, calls: int) -> list[float]:
        """Do the work several times.

        Parameters
        ----------
        calls : int
            Number of calls.

        Returns
        -------
        list of float
            Seconds of each call.
        """
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            self.call()
            seconds.append(time.perf_counter() - start)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays, by name, on which all libraries have to agree."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return facts about the task that the main process needs."""
        return {}

    def close(self) -> None:
        """Release resources that garbage collection would not."""


def _serve(
    connection: Connection, module_name: str, environment: dict[str, str], cores: Collection[int]
) -> None:
    """Answer requests until the other side hangs up; the main program of a worker."""
    # Before any library is loaded.
    os.environ.update(environment)
    if cores:
        os.sched_setaffinity(0, cores)
    module: Any = None
    tasks: dict[int, Task] = {}
    numbers = itertools.count()
    while True:
        try:
            verb, name, arguments = connection.recv()
        except EOFError:
            return
        try:
            if module is None:
                module = importlib.import_module(module_name)
            answer: Any = None
            if verb == "open":
                answer = next(numbers)
                tasks[answer] = module.make_task(*arguments)
            elif verb == "close":
                tasks.pop(name).close()
            elif verb == "call":
                answer = getattr(module, name)(*arguments)
            else:
                answer = getattr(tasks[name], verb)(*arguments)
            connection.send((True, answer))
        except Exception:
            connection.send((False, traceback.format_exc()))


class Worker:
    """A process with one library.

    Parameters
    ----------
    module : str
        Module of `benchmarks.peers` to run.
    environment : mapping, optional
        Environment variables in addition to those of this process.
    cores : collection of int, optional
        Processor cores that it may use; all by default.

    Attributes
    ----------
    limit_s : float or None
        Seconds to wait for an answer.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str] | None = None,
        cores: Collection[int] = (),
    ) -> None:
        self.module = module
        self.limit_s: float | None = None
        # A forked process would share the libraries that the parent has loaded.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(theirs, f"benchmarks.peers.{module}", dict(environment or {}), tuple(cores)),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def _request(self, verb: str, name: Any, *arguments: Any) -> Any:
        try:
            self._connection.send((verb, name, arguments))
            if not self._connection.poll(self.limit_s):
                self.kill()
                raise WorkerLostError(f"{self.module} did not answer within {self.limit_s:.0f} s")
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise WorkerLostError(
                f"the process of {self.module} ended with exit status {self._process.exitcode}"
            ) from None
        if not succeeded:
            raise BenchmarkError(f"in the process of {self.module}:\n{answer}")
        return answer

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the module in the process and return its result.

        Raises
        ------
        BenchmarkError
            If the function raises, or if the process dies.
        """
        return self._request("call", function, *arguments)

    def open(self, case: Mapping[str, Any]) -> RemoteTask:
        """Prepare a case in the process; raises as `call` does."""
        return RemoteTask(self, self._request("open", None, dict(case)))

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process, even if it is busy."""
        self._process.kill()
        self._process.join()
        self._connection.close()


@dataclass(frozen=True)
class RemoteTask:
    """A task in a worker, with the methods of `Task`."""

    worker: Worker
    number: int

    def times(self, calls: int) -> list[float]:
        return self.worker._request("times", self.number, calls)

    def results(self) -> dict[str, np.ndarray]:
        return self.worker._request("results", self.number)

    def facts(self) -> dict[str, Any]:
        return self.worker._request("facts", self.number)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call another method of the task."""
        return self.worker._request(method, self.number, *arguments)

    def close(self) -> None:
        """Close the task in the worker."""
        self.worker._request("close", self.number)


@dataclass(frozen=True)
class Settings:
    """Length of the measurements.

    Attributes
    ----------
    rounds : int
        Number of turns of each library.
    turn_s : float
        Approximate seconds per turn.
    max_calls : int
        Most calls in a turn.
    pause_s : float
        Seconds between turns.
    """

    rounds: int = 7
    turn_s: float = 0.4
    max_calls: int = 200
    pause_s: float = PAUSE_S


@dataclass
class Session:
    """The workers of one run, started when they are first needed, and its settings.

    Attributes
    ----------
    environment : dict
        Environment variables of the workers.
    settings : Settings
        Length of the measurements.
    small : bool
        Whether to use small sizes, for a quick check of the programs.
    versions : dict
        Versions of what workers that have ended have measured.
    """

    environment: dict[str, str]
    settings: Settings
    small: bool = False
    versions: dict[str, Any] = field(default_factory=dict)
    workers: dict[tuple[str, str], Worker] = field(default_factory=dict)

    def worker(self, module: str, purpose: str = "") -> Worker:
        """Return the process of a module of `benchmarks.peers`; each purpose has its own."""
        key = (module, purpose)
        if key not in self.workers:
            os.environ.update(self.environment)
            self.workers[key] = Worker(module)
        return self.workers[key]

    def end(self, module: str, purpose: str = "") -> None:
        """End a process and keep its versions; kill it if it does not answer."""
        worker = self.workers.pop((module, purpose), None)
        if worker is None:
            return
        try:
            self.versions |= worker.call("versions")
        except BenchmarkError:
            worker.kill()
        else:
            worker.stop()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.stop()
        self.workers.clear()


def beside(work: Mapping[Any, Callable[[], Any]], at_once: int | None = None) -> dict[Any, Any]:
    """Run calls of several workers at the same time.

    Parameters
    ----------
    work : mapping
        Calls by name, each to a different worker.
    at_once : int, optional
        Number of calls at the same time; all by default.

    Returns
    -------
    dict
        The result of each call, or the `BenchmarkError` that it raised, by the same names.
    """

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BenchmarkError as error:
            return error

    if not work:
        return {}
    with ThreadPoolExecutor(at_once or len(work)) as pool:
        return dict(zip(work, pool.map(attempt, work.values()), strict=True))


def error_line(error: BaseException | str) -> str:
    """Return the line that names the error, from a message that may contain a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    text = (named or lines or [type(error).__name__])[-1]
    return text.removeprefix("benchmarks.harness.BenchmarkError: ")[:300]


def check_agreement(
    results: Mapping[str, Mapping[str, np.ndarray]], tolerance: float, each: bool = False
) -> None:
    """Compare the results of libraries.

    Parameters
    ----------
    results : mapping
        Arrays by library, then by name. The first library is the reference.
    tolerance : float
        Largest relative difference, of an array's 2-norm or, with `each`, of each element.
    each : bool
        Whether each element has to agree.

    Raises
    ------
    BenchmarkError
        If results differ in shape or by more than `tolerance`, or are not finite.
    """
    (reference, expected), *others = results.items()
    for library, found in others:
        for name in sorted({*expected, *found}):
            if name not in expected or name not in found:
                raise BenchmarkError(f"{name}: only one of {reference} and {library} has it")
            a = np.asarray(expected[name], dtype="float64")
            b = np.asarray(found[name], dtype="float64")
            if a.shape != b.shape:
                raise BenchmarkError(
                    f"{name}: {reference} gives the shape {a.shape}, {library} {b.shape}"
                )
            if each:
                difference = float(np.max(np.abs(a - b) / np.abs(b)))
            else:
                difference = float(np.linalg.norm(a - b) / np.linalg.norm(b))
            # Negated, so that NaN fails.
            if not difference <= tolerance:
                raise BenchmarkError(
                    f"{name}: {reference} and {library} differ by {difference:.2g}, relatively; "
                    f"at most {tolerance:g} is expected"
                )


@dataclass(frozen=True)
class Measurement:
    """Seconds of every timed call, by library."""

    samples: dict[str, list[float]]

    def medians(self, unit: str) -> dict[str, float]:
        """Return the medians as entries of a row: ``NAME_unit``."""
        factor = {"s": 1, "ms": 1e3, "us": 1e6}[unit]
        return {
            f"{name}_{unit}": factor * statistics.median(seconds)
            for name, seconds in self.samples.items()
        }

    def joined(self, other: Measurement) -> Measurement:
        """Return all samples of this and another measurement of the same libraries."""
        return Measurement({name: own + other.samples[name] for name, own in self.samples.items()})

    def spread_pct(self) -> float:
        """Return the widest interquartile range of any library, in percent of its median."""
        widest = 0.0
        for seconds in self.samples.values():
            low, middle, high = np.percentile(seconds, (25, 50, 75))
            widest = max(widest, float(100 * (high - low) / middle))
        return round(widest, 1)


def measure(tasks: Mapping[str, RemoteTask], settings: Settings) -> Measurement:
    """Time tasks in turns, so that other load on the machine affects all of them.

    Parameters
    ----------
    tasks : mapping
        Tasks by the name of the library.
    settings : Settings
        Length of the measurements.

    Returns
    -------
    Measurement
        Times without the warm-up calls: two at first, and one at the beginning of each turn.
    """
    calls = {}
    for name, task in tasks.items():
        task.times(1)
        start = time.perf_counter()
        task.times(1)
        # The duration of a call, including the parts that are not timed.
        once = time.perf_counter() - start
        calls[name] = max(1, min(settings.max_calls, math.ceil(settings.turn_s / once)))
    samples: dict[str, list[float]] = {name: [] for name in tasks}
    order = list(tasks)
    for _ in range(settings.rounds):
        for name in order:
            time.sleep(settings.pause_s)
            samples[name] += tasks[name].times(1 + calls[name])[1:]
        order.append(order.pop(0))
    return Measurement(samples)


def measure_apart(tasks: Mapping[str, RemoteTask], settings: Settings) -> Measurement:
    """Time tasks in turns as `measure` does, but longer if dnnops and PyTorch are close.

    Parameters and result are those of `measure`. `tasks` must contain ``dnnops`` and ``torch``.
    """
    measurement = measure(tasks, settings)
    medians = measurement.medians("s")
    apart = abs(medians["torch_s"] / medians["dnnops_s"] - 1)
    if apart < max(NEAR, measurement.spread_pct() / 100):
        more = replace(settings, rounds=(TIMES_AS_MANY - 1) * settings.rounds)
        measurement = measurement.joined(measure(tasks, more))
    return measurement
