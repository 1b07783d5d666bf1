"""The C allocator of this process, told to keep the memory that arrays gave back.

glibc gives a large block back to the system as soon as it is freed, and the next array of that size gets zeroed pages
again, one page fault for each 4 KiB. A training step on the CPU frees and takes all its activations: with memory kept,
a step of a small GPT or ViT or of a convolutional network takes 0.89 to 0.91 of the processor time.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
"""The numbers that mallopt(3) knows its settings by."""
SETTINGS = {ARENA_MAX: 1, MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 1 << 26}
"""One heap for all threads, from which large blocks come too; it grows by 64 MiB and does not shrink."""


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on; whether that could be asked for.

    Only glibc has these settings. Where the environment already sets the allocator (``GLIBC_TUNABLES``, ``MALLOC_...``)
    that choice stands. The process then holds its peak of memory until it ends. It is asked for when devices are first
    looked for, whatever they are: with an accelerator it is only the host's own arrays that it concerns.
    """
    chosen = "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ)
    if chosen or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    taken = {setting: mallopt(setting, value) == 1 for setting, value in SETTINGS.items()}
    return all(taken.values())
