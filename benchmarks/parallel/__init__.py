"""Data-parallel training, measured: losses against one device, overhead, and the models.

    python -m benchmarks.parallel follow
    python -m benchmarks.parallel overhead
    python -m benchmarks.parallel models
"""
