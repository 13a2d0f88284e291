"""cuDNN's reasons against plans, in its texts; no library is asked."""

from __future__ import annotations

from dnnops.graph.plan import Plan, reason_of, reasons_by_engine

#: Parts of what cuDNN 9 writes about an error.
TEXT = """\
Reason: before any engine is named
{"engineId":0, "other": 1}
    Error: CUDNN_STATUS_NOT_SUPPORTED; Reason: !is_even(size)
    Error: CUDNN_STATUS_BAD_PARAM; Reason: a later one
{"engineId":12}
nothing about it
{"engineId":3}
Reason: first of 3
{"engineId":0}
Reason: again
"""


def test_the_first_reason_of_each_engine():
    assert reasons_by_engine(TEXT) == ["eng0: !is_even(size)", "eng3: first of 3"]
    assert reasons_by_engine("") == []


def test_the_reason_in_a_message():
    error = ValueError("CUDNN_STATUS_NOT_SUPPORTED\nReason: sizes are odd\nmore")
    assert reason_of(error) == "sizes are odd"
    assert reason_of(ValueError("one line\nanother")) == "one line"


def test_names_of_plans():
    assert Plan(4, {0: 1, 12: 3}, [], [], None).name == "eng4_k0=1_k12=3"
    assert Plan(0, {}, [], [], None).name == "eng0"
