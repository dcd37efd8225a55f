"""How many tokens of offline requests are computed beside live streams.

A token of an offline request that is computed in the same step as those of live requests makes the
step longer. While live requests decode, offline requests get a share of the time that these steps
take without them. Times are measured: that of steps with live requests alone now and then, and of
the others what one token more costs. So the same share is many tokens on a GPU and few on a CPU.

This is a token bucket (Turner, "New directions in communications", IEEE Communications Magazine
24(10), 1986) of seconds: each step fills it by the share, and offline tokens are paid from it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

from tampu.runner.batch import BatchPart
from tampu.runner.sequence import Sequence

SHARE = 0.2
"""What offline requests may add to the time of steps in which live requests decode."""

ALONE_EVERY = 16
"""How many steps with offline requests there are at most between two without."""

_ROUNDING = 1 + 1e-6  # a share that is exactly two tokens is two, whatever the last bit of a time
_SAMPLES = 3  # their median is used, so one that took long for another reason changes nothing


class OfflinePace:
    """Decides how many tokens of offline requests are in a step in which live requests decode."""

    def __init__(self) -> None:
        """Know no times yet."""
        self._alone: dict[int, deque[float]] = {}  # seconds of steps with live rows alone
        self._ages: dict[int, int] = {}  # steps since one with this number of live rows alone
        self._costs: deque[float] = deque(maxlen=_SAMPLES)
        self._saved_s = 0.0
        self._last = 1
        self._last_turn = 0  # the number of the offline request that decoded last beside a live one

    def allowance(self, live: int) -> int:
        """Return how many tokens of offline requests the next step may compute.

        Args:
            live: the number of live requests that decode in the step, at least 1.
        """
        self._ages[live] = self._ages.get(live, ALONE_EVERY) + 1
        if self._ages[live] > ALONE_EVERY:
            self._ages[live] = 0
            return 0
        if not (self._alone and self._costs):
            return 1  # to learn what it costs; live prompts may keep all steps from being alone
        share_s, cost_s = SHARE * self._nearest(live)[1], self._cost_s
        most_s = share_s if cost_s <= share_s else share_s + cost_s  # to save for one token
        self._saved_s = min(self._saved_s + share_s, most_s)
        if self._saved_s < cost_s:
            return 0
        most = 2 * self._last  # a cost that was measured as too small has a small effect
        self._last = min(int(self._saved_s / cost_s * _ROUNDING), most) if cost_s else most
        return self._last

    def take_turns(self, decoding: list[Sequence], allowed: int | None) -> list[Sequence]:
        """Return the sequences that decode in the next step, at most `allowed` offline ones.

        These are the next ones after those of the last step, in the order of their numbers.
        """
        rows = [s for s in decoding if s.is_offline]
        if allowed is None or len(rows) <= allowed:
            return decoding
        rows.sort(key=lambda s: (s.number <= self._last_turn, s.number))
        self._last_turn = rows[allowed - 1].number
        return [s for s in decoding if not s.is_offline] + rows[:allowed]

    def planned(self, parts: Iterable[BatchPart]) -> None:
        """Pay for the offline tokens of a step that is computed while live requests decode."""
        live, tokens, _ = _counted(parts)
        self._saved_s -= tokens * self._cost_s
        if self._alone and not live:  # a step of its own, for which the live requests wait
            self._saved_s -= self._nearest(1)[1]

    def computed(self, parts: Iterable[BatchPart], seconds: float) -> None:
        """Learn from the time of a step."""
        live, tokens, has_live_prompt = _counted(parts)
        if has_live_prompt:
            return
        if live and not tokens:
            self._alone.setdefault(live, deque(maxlen=_SAMPLES)).append(seconds)
            self._ages[live] = 0
        elif self._alone:
            rows, alone_s = self._nearest(live)
            if (more := live + tokens - rows) > 0:
                self._costs.append((seconds - alone_s) / more)

    def _nearest(self, live: int) -> tuple[int, float]:
        """Return the time of steps with this number of live rows alone, or the next known one."""
        rows = min(self._alone, key=lambda known: abs(known - live))
        return rows, statistics.median(self._alone[rows])

    @property
    def _cost_s(self) -> float:
        """What one token more costs."""
        return max(statistics.median(self._costs), 0.0) if self._costs else 0.0


def _counted(parts: Iterable[BatchPart]) -> tuple[int, int, bool]:
    """Return the live rows that decode, the offline tokens, and whether live prompts are there."""
    live = tokens = 0
    has_live_prompt = False
    for part in parts:
        if part.sequence.is_offline:
            tokens += part.count
        elif part.is_prefill:
            has_live_prompt = True
        else:
            live += 1
    return live, tokens, has_live_prompt
