"""Test copies of the operands of matrix products on the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.emulation.test_replay import compiled


@pytest.mark.needs("cudnn")
def test_products_of_copied_operands(tmp_path):
    emulated = Path(__file__).with_name("host_cublaslt.cpp")
    program = compiled(
        tmp_path / "form", "host_product_form.cpp", "gpu/products/product_form.cpp", emulated
    )
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
