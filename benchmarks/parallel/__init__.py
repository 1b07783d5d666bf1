"""Data-parallel training, measured: losses against one device, overhead, and memory.

    python -m benchmarks.parallel follow
    python -m benchmarks.parallel overhead
"""
