"""The threads of the CPU's kernels: torch's own, of its OpenMP runtime.

Threads of a second pool would compete with torch's for the processors, because those spin for a while after each operation.
`torch.set_num_threads` and OMP_NUM_THREADS set the number for both.
"""

from __future__ import annotations

import ctypes
import logging

import torch

from kvtide import _native

logger = logging.getLogger("kvtide")


def share() -> None:
    """Compute with torch's threads. Log a warning if torch has no OpenMP: then one thread computes."""
    # In the order of the dynamic linker: a preloaded runtime replaces that of torch.
    for library in (ctypes.CDLL(None), ctypes.CDLL(torch._C.__file__)):
        try:
            found = (library.GOMP_parallel, library.omp_get_max_threads)
        except AttributeError:
            continue
        parallel, max_threads = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found)
        return _native.use_openmp(parallel, max_threads)
    logger.warning("kvtide: this torch has no OpenMP runtime with GOMP_parallel; attention on the CPU uses one thread")
