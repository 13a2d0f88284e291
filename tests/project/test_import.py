"""The cost of importing dnnops in addition to PyTensor."""

from __future__ import annotations

import json
import subprocess
import sys

#: A module takes about 0.3 ms to import.
MOST_MODULES = 261


def test_nothing_else_is_imported():
    """Importing loads no other package, and no standard module that PyTensor does not need."""
    program = (
        "import json, sys, pytensor; before = set(sys.modules)\n"
        "import dnnops; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = json.loads(done.stdout)
    others = [name for name in modules if name.partition(".")[0] != "dnnops"]
    assert others == []
    commands = [name for name in modules if name.startswith("dnnops.cli.")]
    assert commands == []
    assert 100 < len(modules) <= MOST_MODULES
