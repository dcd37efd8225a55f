"""Teaches the vision tower to see before the language model has to talk about it.

Linear heads, thrown away afterwards, read colour, shape, place and count off the mean of the soft
tokens, and the contents of each of the nine cells off all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from tools.train_demo import batches, model, pictures, tokenizer
from tools.train_demo.optim import Optimizer
from tools.train_demo.skills import looking

_COLOURS = list(pictures.COLOURS)
_CELL = len(_COLOURS) + 1 + len(pictures.SHAPES) + 1
_ONE = (len(_COLOURS), len(pictures.SHAPES), len(pictures.POSITIONS))
COUNT = 96


class Heads(nn.Module):
    """What is read off the soft tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cells = nn.Linear(size * tokenizer.IMAGE_TOKENS, 9 * _CELL)
        self.whole = nn.Linear(size, sum(_ONE) + 4)

    def forward(self, soft: Tensor, scenes: list[list[pictures.Shape]]) -> Tensor:
        """The loss of reading these scenes."""
        cells = self.cells(soft.flatten(1)).view(-1, 9, _CELL)
        colours = torch.zeros(len(scenes), 9, dtype=torch.long, device=soft.device)
        shapes = torch.zeros_like(colours)
        for i, scene in enumerate(scenes):
            for s in scene:
                colours[i, s.position] = 1 + _COLOURS.index(s.colour)
                shapes[i, s.position] = 1 + pictures.SHAPES.index(s.shape)
        split = len(_COLOURS) + 1
        loss = f.cross_entropy(cells[..., :split].flatten(0, 1), colours.flatten())
        loss = loss + f.cross_entropy(cells[..., split:].flatten(0, 1), shapes.flatten())
        *one, count = self.whole(soft.mean(1)).split([*_ONE, 4], dim=-1)
        counts = torch.tensor([len(scene) for scene in scenes], device=soft.device)
        loss = loss + f.cross_entropy(count, counts)
        alone = counts == 1
        firsts = [scene[0] for scene in scenes if len(scene) == 1]
        truths = (
            [_COLOURS.index(s.colour) for s in firsts],
            [pictures.SHAPES.index(s.shape) for s in firsts],
            [s.position for s in firsts],
        )
        if not firsts:
            return loss
        for logits, truth in zip(one, truths, strict=True):
            loss = loss + f.cross_entropy(
                logits[alone], torch.tensor(truth, dtype=torch.long, device=soft.device)
            )
        return loss


def warm_up(
    demo: model.Demo,
    heads: Heads,
    seed: int,
    seconds: float,
    average: Callable[[list[nn.Parameter], float], float],
    say: Callable[[str], None],
) -> None:
    """Train tower and projector for some seconds.

    Args:
        demo: The model; its language part stays as it is.
        heads: What reads the tower; they are trained too.
        seed: Of the pictures.
        seconds: By the wall clock.
        average: Averages gradients, and a number, over processes.
        say: Logs a line.
    """
    rng = random.Random(seed)
    device = demo.language_model.norm.weight.device
    taught = nn.ModuleList([demo.vision_tower, demo.multi_modal_projector, heads])
    params = list(taught.parameters())
    optimizer = Optimizer(taught)
    start, part, step = time.time(), 0.0, 0
    while part < 1:
        scenes = [looking.trained_scene(rng) for _ in range(COUNT)]
        pixels = batches.pixels([pictures.draw(rng, scene) for scene in scenes]).to(device)
        pixels = pixels + 0.04 * torch.randn_like(pixels)
        loss = heads(demo.multi_modal_projector(demo.vision_tower(pixels)), scenes)
        torch.autograd.backward(loss)
        part = average(params, (time.time() - start) / seconds)
        optimizer.step(min(1.0, (step + 1) / 20, 2 * max(0.02, 1 - part)))
        taught.zero_grad()
        step += 1
        if step % 20 == 0:
            say(f"tower step {step} part {part:.3f} loss {loss.item():.3f}")
    demo.zero_grad()
