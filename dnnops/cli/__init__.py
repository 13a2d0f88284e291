"""The commands of ``python -m dnnops``, one module each.

A command's module offers ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``, whose result
is the exit status. Importing it must be cheap: what a command needs is imported when it runs.
"""

from __future__ import annotations
