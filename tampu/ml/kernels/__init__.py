"""Matrix products and attention in C, faster than ggml's own; docs/kernels.md explains.

The library is compiled with the package. Where it is missing or made for another version of ggml,
and for operands that it does not support, ggml's own operations are used.
"""

from __future__ import annotations

from tampu.ml.kernels.library import KernelChoice, Kernels, find_kernels

__all__ = ["KernelChoice", "Kernels", "find_kernels"]
