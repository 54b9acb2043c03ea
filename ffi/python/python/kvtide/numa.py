"""The NUMA node on which an engine wants the daemon's host memory."""

from __future__ import annotations

import logging

from ._native import gpu_numa_node
from .errors import Error

logger = logging.getLogger(__name__)


def of_engine(device: str, index: int | None) -> int | None:
    """Return the node nearest to an engine's GPU, by torch's type and index of the device.

    None: the engine computes on CPUs, or the system does not tell. The daemon then takes the node of the CPUs to which the process is
    bound.
    """
    if device != "cuda":
        return None
    try:
        return gpu_numa_node(index or 0)
    except Error as error:
        logger.warning(
            "kvtide: cannot find the NUMA node of cuda:%s, so host memory may be far from it: %s. To choose a node, bind the engine's"
            " process to its CPUs (numactl --cpunodebind)",
            index,
            error,
        )
        return None
