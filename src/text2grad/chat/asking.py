"""All the requests of one question: retries, the rungs of the ladder, one second try, and the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Condition
from typing import Any

from text2grad.chat.base import Answer, Completion
from text2grad.chat.endpoint import LONGEST_WAIT, Endpoint, Problem, Reply, Trouble
from text2grad.chat.journal import STATE_OF, Journal, State
from text2grad.chat.pace import FIRST_PAUSE, Pace, pause
from text2grad.chat.prices import Price, believable, most_tokens
from text2grad.chat.questions import LADDER, Capability, Question, Questioner
from text2grad.chat.settings import EndpointSettings
from text2grad.errors import UserError
from text2grad.feedback import Failure, FailureKind, storable

TRIES_OF_AN_ANSWER = 2
FAILURE_OF: Mapping[Trouble, FailureKind] = {"refused": "refused", "unfit": "unsupported", "oversized": "invalid"}
Line = dict[str, Any]
Outcome = Line | Problem | None
"""The journal line with the answer, the reason why it is missing, or None if stopped."""
Verdict = Callable[[Question, Answer, bool], State | None]
"""(question, answer, whether it is the last try) -> how the question has ended; None: ask once more."""


def as_it_came(question: Question, answer: Answer, last: bool) -> State | None:
    """The verdict on answers whose content does not matter."""
    return STATE_OF[answer.kind] if isinstance(answer, Failure) else "ok"


def answer_of(line: Mapping[str, Any]) -> Answer:
    """The answer in a line of the journal, or the failure that stands for it."""
    if line["is"] == "failure":
        return Failure(kind=line["kind"], message=line["message"])
    if line.get("refusal"):
        return Failure(kind="refused", message=line["refusal"], raw=storable(line["text"]))
    return Completion(text=line["text"], truncated=bool(line.get("truncated")), usage=line.get("usage", {}))


class Budget:
    """The remaining budget. A request is sent only if even its most expensive answer fits.

    Requests without an answer that the server may still charge for, and answers of earlier runs whose price is
    not known, are counted at their dearest.
    """

    def __init__(self, most: float | None, price: Price | None, journal: Journal) -> None:
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
        """Release the reserved amount; the answer's real price is in the journal."""
        if self._most is not None:
            with self._changed:
                self._reserved = max(0.0, self._reserved - amount)
                if self._reserved < 1e-12:
                    self._reserved = 0.0
                self._changed.notify_all()


class Asker:
    """Has questions answered and settled in the journal; safe to call from many threads.

    `capability` is the rung of the ladder that is known to hold at this server, None while none is. `sent` counts
    requests.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        endpoint: Endpoint,
        journal: Journal,
        price: Price | None,
        again: bool = False,
    ) -> None:
        self.endpoint, self.journal, self.price = endpoint, journal, price
        decoding = (settings.max_tokens, settings.temperature)
        self.questioner = Questioner(settings.model, *decoding, new_limit_name=endpoint.is_openai)
        self.pace = Pace(settings.concurrency)
        self.budget = Budget(settings.budget_usd, price, journal)
        self.sent = 0
        self._retries, self._grounded, self._again = settings.retries, settings.grounded, again
        self.capability = self._noted(journal.notes.get("capability"))

    def _noted(self, note: Any) -> Capability | None:
        """The rung that an earlier run found at this server, with this model."""
        known = note if isinstance(note, dict) else {}
        same = (known.get("server"), known.get("model")) == (self.endpoint.name, self.questioner.model)
        return known["is"] if same and known.get("is") in ("grammar", *LADDER) else None

    def ladder(self, question: Question) -> tuple[Capability, ...]:
        """The ways to ask it, the strictest first."""
        free = LADDER if question.schema else LADDER[-1:]
        return ("grammar", *free) if self._grounded and question.about else free

    def knows_how(self, question: Question) -> bool:
        """Whether it is known which way the server takes."""
        ladder = self.ladder(question)
        return len(ladder) == 1 or self.capability in ladder

    def is_settled(self, question: Question) -> bool:
        """Whether nothing is left to ask: exhausted questions are asked again, others only with `again`."""
        state = self.journal.slot(question.id).state
        return state == "ok" or (state in ("refused", "invalid") and not self._again)

    def settle(self, question: Question, verdict: Verdict) -> State | None:
        """Ask until there is an answer or a final failure; None if stopped before that.

        Raises:
            UserError: a mistake that fails every question: a wrong key, an unknown model, an unreachable server.
        """
        slot = self.journal.slot(question.id)
        left = TRIES_OF_AN_ANSWER
        if slot.state is None and slot.offset >= 0:  # answered, and never judged
            left -= slot.answers
            if (state := self.judged(question, verdict, last=left <= 0)) is not None:
                return state
        for attempt in range(TRIES_OF_AN_ANSWER - left, TRIES_OF_AN_ANSWER):
            line = self._answered(question, attempt)
            if line is None:
                return None
            last = attempt + 1 == TRIES_OF_AN_ANSWER
            if (state := self.judged(question, verdict, last, line)) is not None:
                return state
        return None

    def judged(self, question: Question, verdict: Verdict, last: bool, line: Line | None = None) -> State | None:
        """Settle a question by its last line in the journal; None if it should be asked again."""
        state = verdict(question, answer_of(line or self.journal.last(question.id)), last)
        if state is not None:
            self.journal.settle(question.id, state)
        return state

    def most(self, question: Question) -> dict[str, float]:
        """The usage of the most expensive answer to a question."""
        options = self.questioner.options(question.schema, LADDER[0] if question.schema else "text")
        texts = [*(message["content"] for message in question.messages), options]
        return most_tokens(texts, self.questioner.max_tokens)

    def keep(self, question: str, outcome: Reply | Problem, most: Mapping[str, float], batch: bool = False) -> Line:
        """Bring an answer, or the failure that stands for it, into the journal. Its line."""
        if isinstance(outcome, Problem):
            return self.journal.failure(question, FAILURE_OF.get(outcome.kind, "exhausted"), outcome.message)
        return self.journal.answer(question, answer_line(outcome, self.price, most, batch))

    def _answered(self, question: Question, attempt: int) -> Line | None:
        """Write one answer, or the failure in its place, to the journal; None if stopped."""
        outcome = self._climb(question, attempt)
        return self.keep(question.id, outcome, {}) if isinstance(outcome, Problem) else outcome

    def _climb(self, question: Question, attempt: int) -> Outcome:
        """Ask on the rung known to work; until one is known, try each from the top."""
        ladder = self.ladder(question)
        if self.knows_how(question):
            rung = self.capability if self.capability in ladder else ladder[0]
            known = self._retried(question, rung, attempt, self._retries)
            if len(ladder) == 1 or not _is_about_the_form(known):
                return known
            self.capability = None  # the server is not the one it was
        outcome: Outcome = None
        for rung in ladder:
            outcome = self._retried(question, rung, attempt, self._retries if rung == ladder[0] else 1)
            if isinstance(outcome, Problem) and outcome.kind == "unreachable":
                raise UserError(outcome.message, "is the server running? check critic.prompted.base_url")
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
            if outcome.kind == "unreachable" and not self.knows_how(question):
                return outcome
            if not self.pace.sleep(pause(retry, outcome.wait)):
                return None
        return None

    def _asked(self, question: Question, body: str) -> Outcome:
        """Send one request, if its most expensive answer fits the budget, and keep the result."""
        most = self.most(question)
        amount = self.budget.dearest(most)
        if not self.budget.take(amount):
            self.pace.stop()
            return None
        try:
            outcome = self._sent(body)
            if isinstance(outcome, Reply):
                # The raw answer is written to the journal before it is read.
                return self.keep(question.id, outcome, most)
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


def _is_about_the_form(outcome: Outcome) -> bool:
    """Whether a server refused to hold its answer to a form."""
    if not isinstance(outcome, Problem) or outcome.kind != "unfit":
        return False
    return any(name in outcome.message for name in ("response_format", "structured_outputs"))


def pause_for_all(wait: float | None) -> float:
    """Seconds nobody sends after a server asked one request to wait. A wait that is too long ends that question
    alone: the others find out for themselves.
    """
    return FIRST_PAUSE if wait is None or wait > LONGEST_WAIT else wait


def answer_line(reply: Reply, price: Price | None, most: Mapping[str, float], batch: bool = False) -> Line:
    """What the journal keeps of an answer; `usd` is null where the price is unknown.

    Of a count that the server does not give, or that cannot be, the `most` is paid.
    """
    usage = believable(reply.usage, most)
    usd = None if price is None else price.cost({**most, **usage}, batch)
    line: Line = {"text": reply.text, "usage": usage, "usd": usd, "seconds": reply.seconds}
    if reply.truncated:
        line["truncated"] = True
    if reply.refusal:
        line["refusal"] = reply.refusal
    return line
