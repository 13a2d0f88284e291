"""C modules of a graph are compiled in parallel, and PyTensor uses them as its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from pytensor import config
from pytensor.link.c.cmodule import GCC_compiler, get_lib_extension

from dnnops.runtime import ahead

SCRIPT = """
    import json, os, sys, threading
    import numpy as np, pytensor, pytensor.tensor as pt
    from pytensor.link.c.cmodule import GCC_compiler
    compiled = []
    original = GCC_compiler.compile_str
    def watched(*args, **kwargs):
        if kwargs.get("module_name"):  # not PyTensor's own extension
            compiled.append(threading.current_thread() is threading.main_thread())
        return original(*args, **kwargs)
    GCC_compiler.compile_str = staticmethod(watched)
    import dnnops
    os.sched_getaffinity = lambda pid: set(range(CORES))
    x, y = pt.vectors("xy")
    outputs = [x + y, x.sum(), x[::2]]
    f = pytensor.function([x, y], outputs, mode="ONEDNN")
    results = f([1.0, 2.0, 4.0], [1.0, 1.0, 3.0])
    print(json.dumps([compiled, [r.tolist() for r in results]]))
"""


def start(compiledir: Path, cores: int = 2, cxx: str = "") -> subprocess.Popen[str]:
    # The runtime library, which is no module of PyTensor, takes most of a minute to compile.
    shared = Path(config.compiledir) / "dnnops"
    own = compiledir / Path(config.compiledir).name / "dnnops"
    if not own.exists():
        shared.mkdir(parents=True, exist_ok=True)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.symlink_to(shared)
    flags = f"base_compiledir={compiledir},floatX=float64" + (f",cxx={cxx}" if cxx else "")
    flags += f",gcc__cxxflags={config.gcc__cxxflags}"
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT).replace("CORES", str(cores))],
        env={**os.environ, "PYTENSOR_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[list[bool], list]:
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return json.loads(stdout)


def run(compiledir: Path, **options) -> tuple[list[bool], list]:
    return finish(start(compiledir, **options))


@pytest.mark.slow
def test_modules_are_compiled_in_threads_and_kept(tmp_path):
    expected = [[2.0, 3.0, 7.0], 7.0, [1.0, 4.0]]
    in_main_thread, results = run(tmp_path)
    assert results == expected
    assert in_main_thread.count(False) >= 3
    assert not any(in_main_thread)
    in_main_thread, results = run(tmp_path)
    assert results == expected
    assert not in_main_thread


@pytest.mark.slow
def test_processes_that_start_together_compile_each_module_once(tmp_path):
    together = [finish(process) for process in [start(tmp_path) for _ in range(2)]]
    assert all(results == [[2.0, 3.0, 7.0], 7.0, [1.0, 4.0]] for _, results in together)
    alone, _ = run(tmp_path / "alone")
    assert sum(len(compiled) for compiled, _ in together) == len(alone) >= 3


@pytest.mark.slow
def test_one_core_compiles_as_pytensor_does(tmp_path):
    in_main_thread, results = run(tmp_path, cores=1)
    assert results[1] == 7.0
    assert len(in_main_thread) >= 3
    assert all(in_main_thread)


def test_compilation_that_fails_is_left_to_pytensor(tmp_path, monkeypatch):
    """PyTensor then reports the error, and a failed first attempt does not fail the second."""
    attempts = []

    def compile_str(**arguments):
        attempts.append(arguments["location"])
        if len(attempts) == 1:
            raise RuntimeError("not today")
        return "module"

    monkeypatch.setattr(ahead, "_original", compile_str)
    arguments = {**dict.fromkeys(ahead._ARGUMENTS, "same"), "preargs": ["-O2"]}
    location = tmp_path / "module"
    location.mkdir()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(ahead._compile, arguments, tmp_path / "ahead")
        monkeypatch.setitem(ahead._pending, ahead._identity(arguments), job)
        assert ahead._compile_str(**arguments, location=str(location)) == "module"
    assert attempts == [str(tmp_path / "ahead"), str(location)]


def test_a_damaged_module_of_another_process_is_compiled_again(tmp_path, monkeypatch):
    """As a power failure leaves it: PyTensor's own modules are made again, too."""
    source, location = tmp_path / "source", tmp_path / "location"
    for folder in (source, location):
        folder.mkdir()
    (source / f"same.{get_lib_extension()}").touch()
    arguments = dict.fromkeys(ahead._ARGUMENTS, "same")
    job: Future[Path] = Future()
    job.set_result(source)
    monkeypatch.setattr(ahead, "_original", lambda **arguments: "module")
    monkeypatch.setitem(ahead._pending, ahead._identity(arguments), job)
    assert ahead._compile_str(**arguments, location=str(location)) == "module"


def test_a_module_is_awaited_before_pytensor_locks_its_cache(monkeypatch):
    """Another process must not wait for this one's compilation to look for a module of its own."""
    finished = threading.Event()

    def module_from_key(cache, key, linker):
        return finished.is_set()

    monkeypatch.setattr(ahead, "_original_module_from_key", module_from_key)
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setitem(ahead._pending_keys, "key", pool.submit(_finish_later, finished))
        assert ahead._module_from_key(None, "another key", None) is False
        assert ahead._module_from_key(None, "key", None) is True


def _finish_later(finished: threading.Event) -> None:
    time.sleep(0.2)
    finished.set()
    raise RuntimeError("PyTensor compiles again")


def test_other_callers_of_the_compiler_are_not_affected(monkeypatch):
    calls = []
    monkeypatch.setattr(ahead, "_original", lambda *args, **kwargs: calls.append((args, kwargs)))
    ahead._compile_str("name", "code", location="nowhere")
    ahead._compile_str(module_name="name", src_code="code", location="nowhere", py_module=False)
    assert len(calls) == 2
    assert callable(GCC_compiler.compile_str)
