"""Graphs that were stored before: the format stays as it is in ``stored_graphs.json``.

``python -m tests.graph.test_stored_graphs`` writes that file, for a new version of the format.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnops import graph as cudnn
from tests.graph.planning import declared

STORED = Path(__file__).with_name("stored_graphs.json")
NAMES = ("conv_bias_relu", "batchnorm", "sdpa_with_lengths", "max_pool", "scaled")


@pytest.mark.parametrize("name", NAMES)
def test_stored_graphs(name):
    stored = json.loads(STORED.read_text())[name]
    graph, _ = declared(name)
    assert json.loads(graph.serialize()) == stored
    read = cudnn.pygraph()
    read.deserialize(json.dumps(stored).encode())
    graph.validate()
    assert str(read) == str(graph)


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {declared(name)[0].serialize().decode()}" for name in NAMES)
    STORED.write_text("{" + ",\n".join(lines) + "}\n")
