"""Text to tokens and back, from a model file's metadata.

- loading.py: `load_tokenizer(metadata)`, the entry point
- tokenizer.py: `Tokenizer`, and the interfaces of the three families
- vocabulary.py: tokens, types, scores; special tokens and their roles
- normalization.py: what becomes of a text before it is split
- special.py: special tokens in a text; added.py: their flags; ranges.py: where they count
- bytepair.py: byte-level BPE (pretokenizers.py: how texts are cut into words)
- sentencepiece.py: SentencePiece BPE
- wordpiece.py: BERT's WordPiece
- blocks.py: long texts in blocks; ascii.py: words of ASCII texts, faster
- merging.py: the merging that both kinds of BPE share, and the cache of merged words
- decoding.py: tokens to text, one by one
"""

from tampu.tokenizer.decoding import TRACE, IncrementalDecoder
from tampu.tokenizer.loading import load_tokenizer
from tampu.tokenizer.tokenizer import Tokenizer

__all__ = ["TRACE", "IncrementalDecoder", "Tokenizer", "load_tokenizer"]
