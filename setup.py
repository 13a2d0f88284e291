"""Compiles the CPU's runtime library into the wheel; all else is in setup.cfg.

Without a compiler or oneDNN's headers the package is built all the same: the library is then
compiled when it is first used.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

_PACKAGE = Path(__file__).resolve().parent / "dnnops"


def _without_dependencies() -> None:
    """Make ``dnnops.runtime`` importable without ``dnnops/__init__.py``, which needs PyTensor."""
    package = types.ModuleType("dnnops")
    package.__path__ = [str(_PACKAGE)]
    sys.modules["dnnops"] = package


class BuildRuntime(build_ext):
    """Compiles the library once for each level of x86-64; in a checkout for this machine's."""

    def run(self) -> None:
        _without_dependencies()
        from dnnops.errors import DnnUnavailableError
        from dnnops.runtime.build import ONEDNN
        from dnnops.runtime.compiling import compile_library, is_intact
        from dnnops.runtime.prebuilt import LEVELS, PREBUILT_DIR, prebuilt_name, supported_levels

        in_place = self.inplace or getattr(self, "editable_mode", False)
        directory = PREBUILT_DIR if in_place else Path(self.build_lib, "dnnops", PREBUILT_DIR.name)
        levels = supported_levels()[:1] if in_place else tuple(LEVELS) * bool(supported_levels())
        self.made: list[str] = []
        try:
            libraries = ONEDNN.find()
            for level in levels:
                target = directory / prebuilt_name(ONEDNN.name, level, ONEDNN.source_hash)
                if not is_intact(target):
                    directory.mkdir(parents=True, exist_ok=True)
                    compile_library(
                        target,
                        ONEDNN.sources,
                        os.environ.get("CXX") or "g++",
                        [f"-march={level}", *ONEDNN.arguments(libraries)],
                        ONEDNN.link_arguments(libraries, rpath=False),
                    )
                self.made += [str(target), f"{target}.sha256"]
        except (DnnUnavailableError, OSError) as error:
            self.warn(f"the runtime library will be compiled at its first use: {error}")

    def get_outputs(self) -> list[str]:
        return list(getattr(self, "made", ()))

    def get_source_files(self) -> list[str]:
        return []


class PlatformWheel(bdist_wheel):
    """Names a wheel after its platform, and no version of Python: the library calls none."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildRuntime, "bdist_wheel": PlatformWheel},
    # It has no sources of its own, but makes setuptools run build_ext.
    ext_modules=[Extension("dnnops.lib", sources=[])],
)
