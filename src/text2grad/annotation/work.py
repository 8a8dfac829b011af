"""The whole job: items in, every question settled, records out in the items' order. Items are never all held."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock, Thread

from text2grad.annotation.asking import Asker
from text2grad.annotation.items import Item
from text2grad.annotation.questions import Question, Questioner
from text2grad.annotation.verdicts import Reader
from text2grad.critics.votes import voted
from text2grad.errors import UserError
from text2grad.feedback import Critique, Failure, Feedback, Source
from text2grad.journal import STATES, Journal

Items = Callable[[], Iterable[Item]]
"""The items, from the start at each call: they are read more than once and never held."""
PROGRESS_SECONDS = 5.0


@dataclass
class Tally:
    """How the questions of a job stand. requested = ok + refused + invalid + exhausted; the rest is pending."""

    ended: Counter[str] = field(default_factory=Counter)
    pending: int = 0

    def summary(self, journal: Journal) -> dict[str, float | None]:
        """The figures of the job as a program reads them. `usd` is null where an answer's price is unknown;
        `usd_without_answer` is the dearest price of requests that had none.
        """
        usd = None if journal.totals.unpriced else round(journal.totals.usd, 6)
        counts: dict[str, float | None] = {state: self.ended[state] for state in STATES}
        return {
            "requested": sum(self.ended[state] for state in STATES),
            **counts,
            "pending": self.pending,
            "usd": usd,
            "usd_without_answer": round(journal.totals.charged, 6),
        }


def settle_all(asker: Asker, items: Items, threads: int) -> None:
    """Have every question settled that is not: alone until the server's capability is known, then by `threads`.

    Raises:
        UserError: a mistake that fails every question. What was answered by then is in the journal.
    """
    waiting = _Waiting(asker, items)
    try:
        if _know_capability(asker, waiting):
            _in_threads(asker, waiting, threads)
    finally:
        asker.endpoint.close()


def _know_capability(asker: Asker, waiting: _Waiting) -> bool:
    """Ask one question at a time until the server's capability is known; False: stopped before that."""
    misses = 0
    while asker.capability is None and (question := waiting.next()) is not None:
        state = asker.settle(question)
        if state is None:
            return False
        misses = misses + 1 if state == "exhausted" else 0
        if misses == 3:
            message = asker.journal.last(question.id)["message"]
            raise UserError(f"three questions in a row without an answer: {message}", "check the server, run again")
    return True


class _Waiting:
    """The questions still to be settled, each once, handed out to threads."""

    def __init__(self, asker: Asker, items: Items) -> None:
        self._guard = Lock()
        self._questions = self._open(asker, items)
        self.error: BaseException | None = None
        self.misses = 0

    @staticmethod
    def _open(asker: Asker, items: Items) -> Iterator[Question]:
        taken: set[str] = set()
        for item in items():
            for question in asker.questioner.questions(item):
                if question.id not in taken and not asker.is_settled(question):
                    taken.add(question.id)
                    yield question

    def next(self) -> Question | None:
        with self._guard:
            return next(self._questions, None)


def _in_threads(asker: Asker, waiting: _Waiting, threads: int) -> None:
    most_misses = max(20, 2 * threads)

    def work() -> None:
        try:
            while waiting.error is None and (question := waiting.next()) is not None:
                state = asker.settle(question)
                if state is None:
                    return
                waiting.misses = waiting.misses + 1 if state == "exhausted" else 0
                if waiting.misses >= most_misses:
                    message = asker.journal.last(question.id)["message"]
                    raise UserError(
                        f"{most_misses} questions in a row without an answer: {message}", "run again later"
                    )
        except BaseException as error:
            waiting.error = waiting.error or error
            asker.pace.stop()
        finally:
            asker.endpoint.close()

    pool = [Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in pool:
        thread.start()
    try:
        _watch(pool, asker)
    except KeyboardInterrupt:
        asker.pace.stop()
        print("waiting for the open requests, so that nothing paid is lost (Ctrl-C again: leave)", file=sys.stderr)
        for thread in pool:
            thread.join()
        raise
    if waiting.error is not None:
        raise waiting.error


def _watch(pool: list[Thread], asker: Asker) -> None:
    said = time.monotonic()
    for thread in pool:
        while thread.is_alive():
            thread.join(PROGRESS_SECONDS)
            if time.monotonic() - said >= PROGRESS_SECONDS:
                said = time.monotonic()
                totals = asker.journal.totals
                print(
                    f"{totals.answers} answers, {asker.pace.limit:.0f} at a time, ${totals.usd:.4f}",
                    file=sys.stderr,
                )


def settle_answered(asker: Asker, items: Items) -> None:
    """Settle what has an answer and was never judged, without asking: answers of a batch."""
    for item in items():
        for question in asker.questioner.questions(item):
            slot = asker.journal.slot(question.id)
            if slot.state is None and slot.offset >= 0:
                asker.judged(question, last=slot.answers > 1)


def tally(questioner: Questioner, items: Items, journal: Journal) -> Tally:
    """Count how the questions of the items stand, each once."""
    found = Tally()
    seen: set[str] = set()
    for item in items():
        for question in questioner.questions(item):
            if question.id in seen:
                continue
            seen.add(question.id)
            state = journal.slot(question.id).state
            if state is None:
                found.pending += 1
            else:
                found.ended[state] += 1
    return found


@dataclass(frozen=True)
class Recorder:
    """Makes the feedback records of a job out of its journal."""

    questioner: Questioner
    reader: Reader
    journal: Journal

    def records(self, items: Items) -> Iterator[Feedback]:
        """One record per item of which something is settled, in their order."""
        for item in items():
            record = self._record(item)
            if record is not None:
                yield record

    def _record(self, item: Item) -> Feedback | None:
        lines = [
            self.journal.last(question.id)
            for question in self.questioner.questions(item)
            if self.journal.slot(question.id).state is not None
        ]
        if not lines:
            return None
        read = [self.reader.read(line, item.response) for line in lines]
        kept = voted([self.reader.validated(judgement) for judgement in read])
        if item.human_feedback and isinstance(kept, Critique):
            kept = kept.model_copy(update={"text": item.human_feedback})
        record = Feedback.of(item.example, item.response, kept, self._source(item))
        usage: Counter[str] = Counter()
        for line in lines:
            usage.update(line.get("usage", {}))
            usage.update({"usd": line["usd"]} if line.get("usd") else {})
        return record.model_copy(update={"usage": dict(usage), "meta": {**record.meta, **_lost(kept, read)}})

    def _source(self, item: Item) -> Source:
        kind = "human" if item.human_feedback else "llm"
        version = self.questioner.prompt_for(item).version
        return Source(kind=kind, model=self.questioner.model, prompt_version=version)


def _lost(kept: Critique | Failure, read: list[Critique | Failure]) -> dict[str, object]:
    """What a record that was dropped for its quotes had: its quotes are counted like everybody's."""
    critiques = [judgement for judgement in read if isinstance(judgement, Critique)]
    if isinstance(kept, Critique) or not critiques:
        return {}
    return {
        "unmatched": sum(critique.quotes.unmatched for critique in critiques),
        "dropped_spans": sum(len(critique.spans) for critique in critiques),
        "lost": [quote for critique in critiques for quote in critique.lost],
    }
