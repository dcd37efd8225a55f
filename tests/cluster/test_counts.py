"""What replicas count, and how it is shown."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tampu.cluster.counts import Counting, ReplicaCounts, show_counts
from tampu.engine.questions import Decisions
from tampu.engine.requests import Decided, Embedded
from tampu.runner.events import BatchCounts, Done, TextDelta, Usage

LABELS = ("model", "replica", "kind")


def test_a_replica_counts_tokens_batches_and_crashes() -> None:
    counting = Counting()
    counting.requests += 3
    counting.reply(TextDelta("a"))
    counting.reply(Done("stop", Usage(prompt_tokens=7, cached_tokens=5, generated_tokens=3)))
    counting.reply(Embedded(b"", 0, 11))
    counting.reply(Decided(Decisions((), 13, 2)))
    counting.computed(BatchCounts(4, 9))
    counting.computed(BatchCounts(1, 1))
    counting.crashed("demo")
    assert counting.now("r", 8, 2, 6) == ReplicaCounts(
        replica="r", slots=8, running=2, prefixes=6, requests=3, batches=5, crashes=1,
        prompt_tokens=31, cached_tokens=7, generated_tokens=3,
    )  # fmt: skip


def test_each_replica_has_its_own_rows() -> None:
    counts = [
        ReplicaCounts(replica="x", slots=8, running=1, prompt_tokens=5),
        ReplicaCounts(replica="y", slots=4, crashes=2, generated_tokens=9),
    ]
    text = show_counts({"demo": counts, "other": ()}).decode()
    rows = {
        (sample.name, *map(sample.labels.get, LABELS)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert rows["tampu_replica_slots", "demo", "x", None] == 8
    assert rows["tampu_replica_running", "demo", "x", None] == 1
    assert rows["tampu_replica_crashes_total", "demo", "y", None] == 2
    assert rows["tampu_replica_tokens_total", "demo", "x", "prompt"] == 5
    assert rows["tampu_replica_tokens_total", "demo", "y", "generated"] == 9
    assert {labels[1] for labels in rows} == {"demo"}
