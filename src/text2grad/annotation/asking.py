"""All the requests of one question: retries, the rungs of the ladder, one second try, and the budget."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from text2grad.annotation.endpoint import LONGEST_WAIT, Endpoint, Problem, Reply, Trouble
from text2grad.annotation.pace import FIRST_PAUSE, Pace, pause
from text2grad.annotation.prices import Price, believable, most_tokens
from text2grad.annotation.questions import LADDER, Capability, Question, Questioner
from text2grad.annotation.verdicts import Reader, state_of
from text2grad.errors import UserError
from text2grad.feedback import FailureKind
from text2grad.journal import Journal, State

TRIES_OF_AN_ANSWER = 2
FAILURE_OF: Mapping[Trouble, FailureKind] = {"refused": "refused", "unfit": "unsupported", "oversized": "invalid"}
Outcome = dict[str, Any] | Problem | None
"""The line of the journal with the answer; why there is none; or None: stopped."""


class Budget:
    """What may still be spent. A request is sent only if even its dearest answer fits.

    Requests without an answer that the server may count all the same, and answers of earlier runs whose price is
    not known, are counted at their dearest.
    """

    def __init__(self, most: float | None, price: Price | None, journal: Journal) -> None:
        if most is not None and price is None:
            raise UserError("a budget needs the model's price", "add the model to the file of annotate.prices")
        self._most, self._price, self._journal = most, price, journal
        self._reserved = self._dearest = 0.0
        self._changed = Condition()
        self.reached = False

    def dearest(self, most: Mapping[str, float]) -> float:
        """USD of an answer with the usage `most`."""
        amount = 0.0 if self._price is None else self._price.cost(most)
        self._dearest = max(self._dearest, amount)
        return amount

    def _too_much(self, amount: float) -> bool:
        totals = self._journal.totals
        spent = totals.usd + totals.charged + totals.unpriced * self._dearest
        return self._most is not None and spent + self._reserved + amount > self._most

    def take(self, amount: float) -> bool:
        """Put `amount` aside, once open requests have left enough; False: it does not fit."""
        if self._most is None:
            return True
        with self._changed:
            while self._too_much(amount):
                if not self._reserved or self.reached:
                    self.reached = True
                    return False
                self._changed.wait()
            self._reserved += amount
            return True

    def fits(self, amount: float) -> bool:
        """Put `amount` aside for good, if it fits: what a batch asks at once cannot be taken back."""
        if self._too_much(amount):
            self.reached = True
            return False
        self._reserved += amount
        return True

    def give_back(self, amount: float) -> None:
        """What was put aside; the answer's real price is in the journal by now."""
        if self._most is not None:
            with self._changed:
                self._reserved = max(0.0, self._reserved - amount)
                if self._reserved < 1e-12:
                    self._reserved = 0.0
                self._changed.notify_all()


@dataclass
class Asker:
    """Has questions answered and settled in the journal; safe to call from many threads."""

    endpoint: Endpoint
    questioner: Questioner
    reader: Reader
    journal: Journal
    pace: Pace
    budget: Budget
    price: Price | None
    retries: int
    capability: Capability | None = None
    again: bool = False
    sent: int = field(default=0, init=False)

    def is_settled(self, question: Question) -> bool:
        """Whether nothing is left to ask: what was exhausted is asked again, the rest only with `again`."""
        return is_settled(self.journal.slot(question.id).state, self.again)

    def settle(self, question: Question) -> State | None:
        """Ask until there is an answer, or it is clear that there is none; None: stopped before that.

        Raises:
            UserError: what would fail every question: a wrong key, an unknown model, nobody there at the start.
        """
        slot = self.journal.slot(question.id)
        left = TRIES_OF_AN_ANSWER
        if slot.state is None and slot.offset >= 0:  # answered, and never judged
            left -= slot.answers
            if (state := self.judged(question, last=left <= 0)) is not None:
                return state
        for attempt in range(TRIES_OF_AN_ANSWER - left, TRIES_OF_AN_ANSWER):
            line = self._answered(question, attempt)
            if line is None:
                return None
            if (state := self.judged(question, attempt + 1 == TRIES_OF_AN_ANSWER, line)) is not None:
                return state
        return None

    def judged(self, question: Question, last: bool, line: Mapping[str, Any] | None = None) -> State | None:
        """Settle a question by its last line in the journal; None if a fresh answer is worth its price."""
        line = line or self.journal.last(question.id)
        judgement = self.reader.read(line, question.item.response)
        if line["is"] == "answer" and not last and self.reader.broken(judgement):
            return None
        state = state_of(self.reader.validated(judgement))
        self.journal.settle(question.id, state)
        return state

    def most(self, question: Question) -> dict[str, float]:
        """The usage of the dearest answer to a question."""
        schema = self.questioner.request_options(question, LADDER[0])
        texts = [*(message["content"] for message in question.messages), schema]
        return most_tokens(texts, self.questioner.decoding.max_tokens)

    def _answered(self, question: Question, attempt: int) -> dict[str, Any] | None:
        """Bring one answer, or the failure that stands for it, into the journal; None: stopped."""
        outcome = self._climb(question, attempt)
        if not isinstance(outcome, Problem):
            return outcome
        kind = FAILURE_OF.get(outcome.kind, "exhausted")
        return self.journal.failure(question.id, kind, outcome.message)

    def _climb(self, question: Question, attempt: int) -> Outcome:
        """Ask on the rung that is known to hold; while none is, on each from the top."""
        if self.capability is not None:
            known = self._retried(question, self.capability, attempt, self.retries)
            if not (isinstance(known, Problem) and known.kind == "unfit" and "response_format" in known.message):
                return known
            self.capability = None  # the server is not the one it was
        outcome: Outcome = None
        for rung in LADDER:
            outcome = self._retried(question, rung, attempt, self.retries if rung == LADDER[0] else 1)
            if isinstance(outcome, Problem) and outcome.kind == "unreachable":
                raise UserError(outcome.message, "is the server running? check critic.base_url")
            if isinstance(outcome, dict):
                self._found(rung)
            if not (isinstance(outcome, Problem) and outcome.kind in ("unfit", "broken")):
                break
        return outcome

    def _found(self, rung: Capability) -> None:
        self.capability = rung
        self.journal.note("capability", {"server": self.endpoint.name, "model": self.questioner.model, "is": rung})

    def _retried(self, question: Question, rung: Capability, attempt: int, retries: int) -> Outcome:
        body = self.questioner.request(question, rung, attempt)
        waited = 0.0
        for retry in range(retries + 1):
            outcome = self._asked(question, body)
            if not isinstance(outcome, Problem):
                return outcome
            if outcome.kind == "fatal":
                raise UserError(outcome.message, outcome.cure)
            waited += outcome.wait or 0.0
            if not outcome.passing or retry == retries or waited > LONGEST_WAIT:
                return outcome
            if outcome.kind == "unreachable" and self.capability is None:
                return outcome
            if not self.pace.sleep(pause(retry, outcome.wait)):
                return None
        return None

    def _asked(self, question: Question, body: str) -> Outcome:
        """Send one request, if its dearest answer fits, and keep what comes of it."""
        most = self.most(question)
        amount = self.budget.dearest(most)
        if not self.budget.take(amount):
            self.pace.stop()
            return None
        try:
            outcome = self._sent(body)
            if isinstance(outcome, Reply):
                # The raw answer goes to the journal before anybody reads it.
                return self.journal.answer(question.id, answer_line(outcome, self.price, most))
            if outcome is not None and outcome.may_cost and amount:
                self.journal.charge(question.id, amount, outcome.message)
            return outcome
        finally:
            self.budget.give_back(amount)

    def _sent(self, body: str) -> Reply | Problem | None:
        if not self.pace.enter():
            return None
        asked_at = time.monotonic()
        outcome: Reply | Problem | None = None
        try:
            self.sent += 1
            outcome = self.endpoint.ask(body)
        finally:
            self.pace.leave(isinstance(outcome, Reply))
        if isinstance(outcome, Problem) and (outcome.kind == "busy" or outcome.wait):
            self.pace.slow_down(asked_at, pause_for_all(outcome.wait))
        return outcome


def is_settled(state: State | None, again: bool) -> bool:
    """Whether a question in this state is not asked any more."""
    return state == "ok" or (state in ("refused", "invalid") and not again)


def pause_for_all(wait: float | None) -> float:
    """Seconds nobody sends after a server asked one request to wait. A wait that is too long ends that question
    alone: the others find out for themselves.
    """
    return FIRST_PAUSE if wait is None or wait > LONGEST_WAIT else wait


def answer_line(
    reply: Reply, price: Price | None, most: Mapping[str, float], batch: bool = False
) -> dict[str, Any]:
    """What the journal keeps of an answer; `usd` is null where the price is unknown.

    Of a count that the server does not give, or that cannot be, the `most` is paid.
    """
    usage = believable(reply.usage, most)
    usd = None if price is None else price.cost({**most, **usage}, batch)
    line: dict[str, Any] = {"text": reply.text, "usage": usage, "usd": usd, "seconds": reply.seconds}
    if reply.truncated:
        line["truncated"] = True
    if reply.refusal:
        line["refusal"] = reply.refusal
    return line
