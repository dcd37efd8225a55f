"""From logits to a token: what a request may ask for, the sampler and log-probabilities.

Works on NumPy arrays of logits and token ids, without models, batches or text.
"""

from __future__ import annotations

from tampu.sampling.logprobs import top_logprobs
from tampu.sampling.options import SamplingOptions
from tampu.sampling.sampler import Sampler

__all__ = ["Sampler", "SamplingOptions", "top_logprobs"]
