"""kvtide's kernels as torch operators, `torch.ops.kvtide.*`, for CPU and CUDA tensors, with meta kernels for torch.compile.

`append` writes tokens into pages; `attend` computes attention over pages, of heads or of latent vectors.

On a GPU the operators launch on torch's current stream and return at once. Indices are converted to int32 there, and their range is
not checked.
"""

from .attention import append, attend, attention_backend

__all__ = ["append", "attend", "attention_backend"]
