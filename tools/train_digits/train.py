"""Trains the model of digits from nothing: ``python -m tools.train_digits.train --out DIR``.

What is computed follows from the seed and the number of pools, not from the clock. A run that was
stopped goes on from DIR/state.pt; espeak-ng, which keeps a state from one sound to the next, then
makes sounds that differ by a few samples.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as f
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.train_demo.optim import Optimizer
from tools.train_digits import data, model, tokenizer
from tools.train_digits.batches import IGNORED, NOTHING, POOL, SIZE, Batch, Source

_SAVED = 4  # pools
_COUNTING = 2  # layers of the text model after which the digits so far are counted


def rate_at(part: float, step: int) -> float:
    """Return the learning rate's share: warm-up, plateau, straight to zero."""
    return 0.6 * min(1.0, (step + 1) / 30, max(0.02, (1.0 - part) / 0.5))


def most_at(part: float) -> int:
    """Return how many digits a sound has at most: few at the beginning."""
    return min(data.MOST_DIGITS, 2 + int(part * 30))


class Heads(nn.Module):
    """What is read off the layers while they are trained, and thrown away afterwards.

    The encoder's positions say which digit is spoken, those of the text model also how many there
    were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Linear(model.WIDTH, NOTHING + 1)
        self.counts = nn.Linear(model.WIDTH, data.MOST_DIGITS + 1)
        self.words = nn.Linear(model.WIDTH, NOTHING + 1)


class Trainer:
    """The state of a run."""

    def __init__(self, out: Path, seed: int, pools: int) -> None:
        """Begin, or go on from `out`."""
        self.out, self.seed, self.pools = out, seed, pools
        torch.manual_seed(seed)
        self.tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        self.model: Any = model.build(self.tokenizer.get_vocab_size())
        self.model.to(memory_format=torch.channels_last)  # convolutions take half the time
        self.heads = Heads()
        self.optimizer = Optimizer(nn.ModuleList([self.model, self.heads]))
        self.done = 0
        if (out / "state.pt").exists():
            self._load(torch.load(out / "state.pt"))

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load(state["optimizer"])
        self.done = state["pools"]

    def save(self) -> None:
        """Write the state to go on from."""
        state = {
            "model": self.model.state_dict(), "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state(), "pools": self.done, "seed": self.seed,
        }  # fmt: skip
        torch.save(state, self.out / "state.new")
        (self.out / "state.new").replace(self.out / "state.pt")

    def losses(self, b: Batch) -> tuple[list[Tensor], float]:
        """Return the losses of the answers and of each head, and the share of right answers."""
        inner = self.model.model
        heard = inner.audio_tower(input_features=b.sounds, input_features_mask=b.sounds_mask)
        features = heard.last_hidden_state
        places = b.ids == self.model.config.audio_token_id
        embedded = inner.get_input_embeddings()(b.ids).masked_scatter(
            places.unsqueeze(-1), inner.multi_modal_projector(features)
        )
        found = inner.language_model(
            inputs_embeds=embedded, attention_mask=b.mask, output_hidden_states=True
        )
        labels = b.labels[:, 1:]
        learnt = labels != IGNORED
        logits = self.model.lm_head(found.last_hidden_state[:, :-1][learnt])
        wrong = torch.zeros(len(labels)).index_add(
            0, learnt.nonzero()[:, 0], (logits.argmax(-1) != labels[learnt]).float()
        )
        inside = found.hidden_states[_COUNTING][places]
        losses = [
            f.cross_entropy(logits, labels[learnt]),
            f.cross_entropy(self.heads.digits(features), b.digits),
            f.cross_entropy(self.heads.counts(inside), b.counts),
            f.cross_entropy(self.heads.words(inside), b.digits),
        ]
        return losses, float((wrong == 0).float().mean())

    def run(self, batches: Iterator[Batch]) -> None:
        """Train with the rest of the pools."""
        began, first, count = time.time(), self.done, POOL // SIZE
        while self.done < self.pools:
            part = self.done / self.pools
            totals = torch.zeros(5)
            for index in range(count):
                (answers, *heads), right = self.losses(next(batches))
                torch.autograd.backward(answers + (1 - 0.7 * part) * sum(heads))
                self.optimizer.step(rate_at(part, self.done * count + index))
                self.model.zero_grad()
                self.heads.zero_grad()
                totals += torch.tensor([*(loss.item() for loss in (answers, *heads)), right])
            self.done += 1
            pace = (time.time() - began) / (self.done - first)
            line = "answers {:.4f} digits {:.4f} counts {:.4f} words {:.4f} right {:.3f}"
            self._say(
                f"pool {self.done}/{self.pools} {line.format(*(totals / count).tolist())} "
                f"{pace:.1f} s a pool"
            )
            if self.done % _SAVED == 0 or self.done == self.pools:
                self.save()

    def _say(self, line: str) -> None:
        print(line, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def export(self, folder: Path) -> None:
        """Write the model as a checkpoint of Hugging Face's."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        tokenizer.save(self.tokenizer, folder)
        heard = {"feature_extractor_type": "Qwen3ASRFeatureExtractor", "feature_size": model.BINS}
        (folder / "preprocessor_config.json").write_text(json.dumps(heard, indent=2) + "\n")


def _fill(queue: Any, out: Path, seed: int, pools: range) -> None:
    """Put the batches of pools into a queue."""
    source = Source(Tokenizer.from_file(str(out / "tokenizer.json")), seed)
    for number in pools:
        for each in source.pool(number, most_at(number / pools.stop)):
            queue.put(
                pickle.dumps(each)
            )  # the queue's own way of tensors needs this process to live


def main() -> None:
    """Parse the command line, train and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="for the state, log and result")
    parser.add_argument("--pools", type=int, default=200, help=f"of {POOL} conversations")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "tokenizer.json").exists():
        tokenizer.save(tokenizer.train(), args.out)
    trainer = Trainer(args.out, args.seed, args.pools)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(2 * POOL // SIZE)
    rest = range(trainer.done, args.pools)
    speaking = context.Process(target=_fill, args=(queue, args.out, args.seed, rest), daemon=True)
    speaking.start()
    trainer.run(pickle.loads(each) for each in iter(queue.get, None))
    speaking.join()
    trainer.export(args.out / "digits")


if __name__ == "__main__":
    main()
