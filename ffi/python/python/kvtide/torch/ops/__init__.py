"""kvtide's kernels as torch operators, `torch.ops.kvtide.*`, for CPU and CUDA tensors, with meta kernels for torch.compile.

- `attention`: append tokens to pages; attention over pages, whole or in passes, over heads or latent vectors
- `blocks`: copy blocks of keys and values between an engine's own tensors and pages, in any layout
- `tables`: int32 block tables and miss bits from a lane's table

On a GPU the operators launch on torch's current stream and return at once. Indices are converted to int32 there. Attention does not
check their range. The other operators check it on the device: an index out of range is a device-side assertion, as in torch.
"""

from .attention import append, attend, attention_backend
from .blocks import copy_blocks, gather, layers_of, scatter
from .tables import block_tables

__all__ = [
    "append",
    "attend",
    "attention_backend",
    "block_tables",
    "copy_blocks",
    "gather",
    "layers_of",
    "scatter",
]
