"""One side of a workload in a process of its own, which runs so many steps for each number on its standard input.

    python -m benchmarks.worker W1 antegrad

Each side has its own process, so that neither gets threads or an allocator that another has set up. It answers with one
line of JSON: first what building took, then the loss, the seconds and the processor's seconds of each run.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from benchmarks.sides import side
from benchmarks.workloads import WORKLOADS


def main() -> None:
    name, kind = sys.argv[1:]
    started = time.perf_counter()
    running = side(kind, WORKLOADS[name])
    flops = running.product_flops() if hasattr(running, "product_flops") else None
    _say(build=time.perf_counter() - started, flops=flops)
    for line in sys.stdin:
        started, processor = time.perf_counter(), time.process_time()
        loss = running.run(int(line))
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _say(loss=loss, seconds=seconds, processor=processor, peak=peak)


def _say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
