"""Matrix products and attention in C, faster than ggml's own; docs/kernels.md explains.

The library is compiled with the package. Where it is missing, or made for another ggml, and for
whatever it does not know, ggml's own operations do the work.
"""

from __future__ import annotations

from tampu.ml.kernels.library import KernelChoice, Kernels, find_kernels

__all__ = ["KernelChoice", "Kernels", "find_kernels"]
