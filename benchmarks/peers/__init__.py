"""Code that runs in the workers: one module per library and device.

Each module has ``make_task(case)``, which prepares a case, and ``versions()``, which returns the
versions of what is measured. The main process calls other functions by name.
"""
