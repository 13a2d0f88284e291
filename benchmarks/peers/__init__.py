"""What runs in the workers: one module for each library and device.

Each has ``make_task(case)``, which prepares what a case asks for, and ``versions()``, which names
what was measured. Other functions are called by name.
"""
