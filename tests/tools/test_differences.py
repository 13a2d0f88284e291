"""Comparing texts section by section."""

from __future__ import annotations

from tests.differences import difference


def test_difference():
    golden = "## a\none\ntwo\n## b\nthree\n"
    assert difference(golden, golden) == ""
    assert (
        difference(golden, "## a\none\n2\n## b\nthree\n") == "## a\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    )
    assert difference(golden, "## a\none\ntwo\n") == "## b\n@@ -1 +0,0 @@\n-three"
    assert difference("", "## c\n") == "## c"
