"""Records of what a critic says, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from text2grad.chat.journal import STATE_OF, STATES
from text2grad.critics.program import outcome_counts
from text2grad.data.records import write_feedback
from text2grad.data.responses import Item, Items
from text2grad.eval.metrics import mean
from text2grad.feedback import Critic, Failure, Feedback, judgements_of
from text2grad.stages.run.summary import Summary, inlined

AT_A_TIME = 8192
"""Items that a critic is shown at once: what they say is held until all of them are judged."""


@dataclass(frozen=True, kw_only=True)
class PairsSummary(Summary):
    """Preference pairs that were made, of held-out prompts too, and what gave none by the reason."""

    pairs: int
    heldout_pairs: int | None = None
    unpaired: Mapping[str, int]
    pairs_out: str


@dataclass(frozen=True, kw_only=True)
class JudgedSummary(Summary):
    """How the judgements of a critic that costs nothing ended, and the records that were written."""

    requested: int
    ended: Mapping[str, int] = inlined()
    usd: float = 0.0
    records: int
    heldout_records: int | None = None
    kept_records: int
    spans: int
    failed_records: int
    mean_score: float
    outcomes: Mapping[str, int] | None = None
    pairs: Mapping[str, Any] = inlined()
    out: str


@dataclass
class Tally:
    """What became of the records that were written."""

    ended: Counter[str] = field(default_factory=Counter)
    scores: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    spans: int = 0
    kept: int = 0

    def noted(self, records: Iterable[Feedback]) -> Iterator[Feedback]:
        """The records, as they are counted."""
        for record in records:
            said = record.judgement()
            self.ended[STATE_OF[said.kind] if isinstance(said, Failure) else "ok"] += 1
            self.scores += [record.score] if record.score is not None else []
            self.outcomes.update(outcome_counts([record]))
            self.spans += len(record.spans)
            yield record

    def summary(self, out: Path, others: Tally | None = None, pairs: PairsSummary | None = None) -> JudgedSummary:
        """What a stage reports; the figures of `others` are in the counts of how judgements ended."""
        ended = self.ended + (others.ended if others else Counter[str]())
        outcomes = self.outcomes + (others.outcomes if others else Counter[str]())
        return JudgedSummary(
            requested=ended.total(),
            ended={state: ended[state] for state in STATES},
            records=self.ended.total(),
            heldout_records=others.ended.total() if others else None,
            kept_records=self.kept,
            spans=self.spans,
            failed_records=ended.total() - ended["ok"],
            mean_score=mean(self.scores),
            outcomes=dict(outcomes.most_common()) or None,
            pairs=pairs.as_dict() if pairs else {},
            out=str(out),
        )


def criticise(critic: Critic, items: Items, target: Path, replaces: str = "") -> Tally:
    """Have a critic that answers at once judge all items; `replaces` as in `write_feedback`."""
    tally = Tally()
    _, tally.kept = write_feedback(target, tally.noted(judged(critic, items())), replaces)
    return tally


def judged(critic: Critic, items: Iterable[Item]) -> Iterator[Feedback]:
    """The records of what a critic says, in the order of the items."""
    waiting = iter(items)
    while chunk := list(islice(waiting, AT_A_TIME)):
        said = judgements_of(critic, [item.example for item in chunk], [item.response for item in chunk])
        for item, judgement in zip(chunk, said, strict=True):
            yield Feedback.of(item.example, item.response, judgement, critic.source)
