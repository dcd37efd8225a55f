"""Trains the demo model from nothing: ``python -m tools.train_demo.train --out DIR --minutes 90``.

On a CPU each of two processes runs on one thread and they average their gradients; on CUDA there
is one process. The learning rate follows the wall clock, so that the run ends when it should.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as f
from tokenizers import Tokenizer
from torch import nn

from tools.train_demo import batches, data, model, start, tokenizer, warmup
from tools.train_demo.optim import Optimizer

TOKENS = 2048
CHECKED = 64
BASE_MIX = {"vision": 1.0, "add": 1.0, "json": 0.6, "tool": 0.7, "recall": 0.6, "chat": 0.2}
MISTAKE_MIX = {"vision": 3.0, "add": 3.0, "json": 1.5, "tool": 1.5, "recall": 1.5, "chat": 0.5}


def rate_at(part: float, step: int) -> float:
    """The learning rate's share at a part of the time: warm-up, plateau, straight to zero."""
    return min(1.0, (step + 1) / 60, max(0.0, (1.0 - part) / 0.2))


def longest_at(part: float) -> int:
    """How long recall texts may be at a part of the time."""
    return int(80 + 570 * min(1.0, max(0.0, (part - 0.08) / 0.4)))


class Trainer:
    """The state of one process of a run."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.args, self.rank, self.world = args, rank, world
        self.out = Path(args.out)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(args.seed)
        self.tok = Tokenizer.from_file(str(self.out / "tokenizer.json"))
        self.shape = model.Shape(**json.loads((self.out / "shape.json").read_text()))
        self.skills = data.SKILLS if self.shape.sees else data.TEXT_SKILLS
        self.model = model.Demo(self.tok.get_vocab_size(), self.shape).to(self.device)
        self.optimizer = Optimizer(self.model)
        self.heads = warmup.Heads(self.shape.hidden).to(self.device)
        self.heads_adam = torch.optim.Adam(self.heads.parameters(), lr=2e-3)
        self.step, self.tokens, self.spent = 0, 0, 0.0
        self.accuracy: dict[str, float] = {}
        state_file = self.out / "state.pt"
        if state_file.exists():
            self._load(torch.load(state_file, map_location=self.device))
        elif args.start:
            start.copy_weights(Path(args.start), self.model.language_model)
        self.source = batches.Source(self.tok, args.seed + 1000 * self.step + rank, TOKENS)
        self.source.mixture = {skill: BASE_MIX[skill] for skill in self.skills}
        if self.accuracy:
            self._remix(self.accuracy)
        self.checks = self._checks()
        self.start = time.time() - self.spent

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load(state["optimizer"])
        self.accuracy = state["accuracy"]
        if "heads" in state:
            self.heads.load_state_dict(state["heads"])
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["spent"]

    def _checks(self) -> dict[str, list[batches.Row]]:
        out = {}
        for skill in self.skills[self.rank :: self.world]:
            examples = data.held_out(skill, CHECKED, 0)
            out[skill] = [
                batches.row(
                    self.tok, [*e.messages, {"role": "assistant", "content": e.answer}], e.tools,
                    only_last=True,
                )
                for e in examples
            ]  # fmt: skip
        return out

    def part(self) -> float:
        """How much of the time is over."""
        minutes: float = self.args.minutes
        return (time.time() - self.start) / (minutes * 60)

    def loss(self, b: batches.Batch, part: float) -> torch.Tensor:
        """The loss on what the model says, and early on a little on the prompts."""
        pixels = None if b.pixels is None else b.pixels.to(self.device)
        if pixels is not None:
            pixels = pixels + 0.04 * torch.randn_like(pixels)
        ids = b.ids.to(self.device)
        hidden = self.model(ids, b.soft.to(self.device), pixels)[:, :-1]
        weights, after = b.answers[:, 1:].to(self.device), ids[:, 1:]
        prompts = 0.1 * (1 - part / 0.25)
        seeing = 0.5 * (1 - part)
        said = weights > 0
        each = f.cross_entropy(self.model.logits(hidden[said]), after[said], reduction="none")
        loss = (each * weights[said]).sum() / weights.sum()
        if b.scenes and seeing > 0:
            loss = loss + seeing * self.heads(self.model.seen, b.scenes)
        if prompts > 0:
            rest = ~said & (after != 0) & ~b.soft[:, 1:].to(self.device)
            loss = loss + prompts * f.cross_entropy(self.model.logits(hidden[rest]), after[rest])
        return loss

    def _average(self, params: list[nn.Parameter], part: float) -> float:
        """Average gradients, and the clock, over the processes."""
        for p in params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if self.world == 1:
            return part
        grads = [p.grad for p in params if p.grad is not None]
        flat = torch.cat([g.view(-1) for g in grads] + [torch.tensor([part])])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for g in grads:
            g.copy_(flat[at : at + g.numel()].view_as(g))
            at += g.numel()
        return float(flat[-1])

    @torch.no_grad()
    def check(self) -> dict[str, float]:
        """The share of held-out answers that greedy writing would get right."""
        right = torch.zeros(len(self.skills))
        for skill, rows in self.checks.items():
            for i in range(0, len(rows), 16):
                some = rows[i : i + 16]
                b = batches.batch(self.tok, some, max(len(r.ids) for r in some))
                pixels = None if b.pixels is None else b.pixels.to(self.device)
                ids = b.ids.to(self.device)
                hidden = self.model(ids, b.soft.to(self.device), pixels)[:, :-1]
                hit = self.model.logits(hidden).argmax(-1) == ids[:, 1:]
                fine = (hit | (b.answers[:, 1:] == 0).to(self.device)).all(1)
                right[self.skills.index(skill)] += float(fine.sum()) / len(rows)
        if self.world > 1:
            dist.all_reduce(right)
        return dict(zip(self.skills, right.tolist(), strict=True))

    def save(self, accuracy: dict[str, float]) -> None:
        """Write the state to go on from (the first process does)."""
        if self.rank:
            return
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state(),
            "heads": self.heads.state_dict(),
            "step": self.step, "tokens": self.tokens, "spent": time.time() - self.start,
            "seed": self.args.seed, "accuracy": accuracy,
        }  # fmt: skip
        torch.save(state, self.out / "state.new")
        (self.out / "state.new").replace(self.out / "state.pt")

    def say(self, text: str) -> None:
        """Log a line (the first process does)."""
        if self.rank:
            return
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def _remix(self, accuracy: dict[str, float]) -> None:
        """Give more room to the skills that make mistakes (or follow OUT/mix.json)."""
        wanted = self.out / "mix.json"
        if wanted.exists():
            self.source.mixture = json.loads(wanted.read_text())
            return
        self.source.mixture = {
            s: 0.5 * BASE_MIX[s] + MISTAKE_MIX[s] * min(0.5, 1 - accuracy[s]) for s in self.skills
        }

    def run(self) -> None:
        """Train until the time is over."""
        seconds = self.args.see if self.step else self.args.minutes * 60 * 0.05
        if seconds and self.shape.sees:
            warmup.warm_up(
                self.model, self.heads, self.args.seed + 1000 * self.step + self.rank, seconds,
                self._average, self.say,
            )  # fmt: skip
        checked, mean, part = time.time(), 0.0, self.part()
        began, before = time.time(), self.tokens
        for b in self.source:
            self.source.longest = longest_at(part)
            loss = self.loss(b, part)
            torch.autograd.backward(loss)
            mean += 0.03 * (loss.item() - mean)
            taught: list[nn.Module] = [self.model, self.heads] if self.shape.sees else [self.model]
            params = [p for each in taught for p in each.parameters()]
            part = self._average(params, self.part())
            self.optimizer.step(rate_at(part, self.step))
            self.heads_adam.step()
            self.model.zero_grad()
            self.heads.zero_grad()
            self.step += 1
            self.tokens += b.ids.numel() * self.world
            if self.step % 20 == 0:
                speed = (self.tokens - before) / (time.time() - began)
                self.say(f"step {self.step} part {part:.3f} loss {mean:.4f} {speed:.0f} tokens/s")
            due = torch.tensor([float(time.time() - checked > 300 or part >= 1)])
            if self.world > 1:
                dist.broadcast(due, 0)
            if due:
                accuracy = self.check()
                self._remix(accuracy)
                self.save(accuracy)
                self.say(" ".join(f"{s} {a:.3f}" for s, a in accuracy.items()))
                checked = time.time()
            if part >= 1:
                return


def _work(rank: int, args: argparse.Namespace, world: int) -> None:
    torch.set_num_threads(1)
    if args.compile:
        model.compile_norm()
    if world > 1:
        meet = f"file://{Path(args.out).resolve()}/rendezvous-{os.getppid()}"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    Trainer(args, rank, world).run()
    if world > 1:
        dist.destroy_process_group()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder for the state, the log and the result")
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="on a CPU")
    parser.add_argument("--see", type=float, default=0, help="seconds more for the tower first")
    parser.add_argument("--compile", action="store_true", help="compile the norms")
    parser.add_argument("--start", default="", help="model file to take vocabulary and weights of")
    parser.add_argument("--layers", type=int, default=model.Shape.layers)
    parser.add_argument("--hidden", type=int, default=model.Shape.hidden)
    parser.add_argument("--inner", type=int, default=model.Shape.inner, help="feed-forward size")
    parser.add_argument("--heads", type=int, default=model.Shape.heads)
    parser.add_argument("--groups", type=int, default=model.Shape.groups, help="heads of keys")
    parser.add_argument("--period", type=int, default=model.Shape.period, help="the last is global")
    parser.add_argument("--text-only", action="store_true", help="without pictures")
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        tok = start.vocabulary(Path(args.start)) if args.start else tokenizer.train(args.seed)
        tokenizer.save(tok, out)
    if not (out / "shape.json").exists():
        shape = model.Shape(
            args.layers, args.hidden, args.inner, args.heads, args.groups, args.period,
            sees=not args.text_only,
        )  # fmt: skip
        (out / "shape.json").write_text(json.dumps(dataclasses.asdict(shape)) + "\n")
    if torch.cuda.is_available() or args.processes == 1:
        _work(0, args, 1)
    else:
        context = multiprocessing.get_context("spawn")
        ranks = range(args.processes)
        workers = [context.Process(target=_work, args=(r, args, args.processes)) for r in ranks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        (out / f"rendezvous-{os.getpid()}").unlink(missing_ok=True)
        if any(worker.exitcode for worker in workers):
            raise SystemExit("a process of the training failed")


if __name__ == "__main__":
    main()
