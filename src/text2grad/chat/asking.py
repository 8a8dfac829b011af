"""All requests of one question: retries, fallbacks, one second try, and the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Condition, Lock
from typing import Any

from text2grad.chat.api_errors import FALLBACKS
from text2grad.chat.base import Answer, Completion
from text2grad.chat.endpoint import LONGEST_WAIT, Endpoint
from text2grad.chat.journal import STATE_OF, Journal, State
from text2grad.chat.pace import FIRST_PAUSE, Pace, pause
from text2grad.chat.prices import Price, believable, most_tokens
from text2grad.chat.questions import Question, Questioner
from text2grad.chat.reply import Problem, Reply, Trouble
from text2grad.chat.settings import EndpointSettings
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Failure, FailureKind
from text2grad.json_text import storable

TRIES_OF_AN_ANSWER = 2
RETRIES = 5
"""Of a request that failed temporarily."""
RETRIES_OF_200 = 1
"""Of a request that was answered, and not with an answer: it may have been charged for."""
FAILURE_OF: Mapping[Trouble, FailureKind] = {
    "refused": "refused",
    "unfit": "unsupported",
    "too_long": "unsupported",
    "oversized": "invalid",
}
Line = dict[str, Any]
Outcome = Line | Problem | None
"""The journal line with the answer, the reason why it is missing, or None if stopped."""
Verdict = Callable[[Question, Answer, bool], State | None]
"""(question, answer, whether it is the last try) -> how the question has ended; None: ask once
more."""


def accept(question: Question, answer: Answer, last: bool) -> State | None:
    """Return the verdict on answers whose content does not matter."""
    return STATE_OF[answer.kind] if isinstance(answer, Failure) else "ok"


def answer_of(line: Mapping[str, Any]) -> Answer:
    """Return the answer in a line of the journal, or the failure that stands for it."""
    if line["is"] == "failure":
        return Failure(kind=line["kind"], message=line["message"])
    if line.get("refusal"):
        return Failure(kind="refused", message=line["refusal"], raw=storable(line["text"]))
    return Completion(text=line["text"], truncated=bool(line.get("truncated")), usage=line.get("usage", {}))


class Budget:
    """The remaining budget. A request is sent only if even its most expensive answer fits.

    Requests without an answer that the server may still charge for, and answers of earlier runs
    whose price is not known, are counted at their maximum price.
    """

    def __init__(self, most: float | None, price: Price | None, journal: Journal) -> None:
        self._most, self._price, self._journal = most, price, journal
        self._open: dict[str, float] = {}
        self._reserved = self._largest = 0.0
        self._changed = Condition()
        self.reached = False

    def reserve(self, question: str, usage: Mapping[str, float], wait: bool = True) -> bool:
        """Put the price of an answer with this usage aside for a question; False: it does not fit.

        With `wait`, it may fit once open requests have left enough.
        """
        amount = 0.0 if self._price is None else self._price.cost(usage)
        with self._changed:
            self._largest = max(self._largest, amount)
            while self._too_much(amount):
                if not wait or not self._reserved or self.reached:
                    self.reached = True
                    return False
                self._changed.wait()
            self._open[question] = amount
            self._reserved += amount
            return True

    def _too_much(self, amount: float) -> bool:
        totals = self._journal.totals
        spent = totals.usd + totals.charged + totals.unpriced * self._largest
        return self._most is not None and spent + self._reserved + amount > self._most

    def release(self, question: str) -> None:
        """Release what was put aside for a question; the answer's real price is in the journal."""
        with self._changed:
            self._reserved -= self._open.pop(question, 0.0)
            self._reserved = self._reserved if self._open else 0.0
            self._changed.notify_all()

    def charge(self, question: str, why: str) -> None:
        """Count what was put aside for an open question as spent: it has no answer, and may have a
        price."""
        if amount := self._open.get(question):
            self._journal.charge(question, amount, why)

    def charge_open(self, why: str) -> None:
        """Count what was put aside for all open questions as spent."""
        for question in list(self._open):
            self.charge(question, why)


class Asker:
    """Has questions answered and settled in the journal; safe to call from many threads.

    `server_answers`: it has answered a request of this job. `sent` counts requests. A capability
    that the server refuses is left out of the job's requests, once, and the journal remembers it.
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
        self._server = {"server": endpoint.name, "model": settings.model}
        noted = journal.notes.get("server")
        known = isinstance(noted, dict) and {**noted, **self._server} == noted
        usual = ["max_tokens"] if endpoint.is_openai else []
        refused = noted.get("refused", []) if isinstance(noted, dict) and known else usual
        self.questioner = Questioner(
            settings.model,
            settings.max_tokens,
            settings.temperature,
            frozenset(name for name in FALLBACKS if name in refused),
        )
        self._fallen: set[str] = set()
        self._adapting = Lock()
        self.pace = Pace(settings.concurrency)
        self.budget = Budget(settings.budget_usd, price, journal)
        self.sent = 0
        self._again = again
        # With `again`, refused questions come first: refused once more, they are no sign of a wrong
        # request.
        self.server_answers = again and known

    def unsettled(self, questions: Iterable[Question]) -> Iterator[Question]:
        """Yield those still to be asked, once: exhausted ones again, refused and invalid ones only
        with `again`."""
        settled = {"ok"} if self._again else {"ok", "refused", "invalid"}
        taken: set[str] = set()
        for question in questions:
            if question.id not in taken and self.journal.slot(question.id).state not in settled:
                taken.add(question.id)
                yield question

    def settle(self, question: Question, verdict: Verdict) -> State | None:
        """Ask until there is an answer or a final failure; None if stopped before that.

        Raises:
            UserError: a mistake that fails every question: a wrong key, an unknown model, an
                unreachable server.
        """
        slot, state, tries = self.journal.slot(question.id), None, 0
        if slot.state is None and slot.offset >= 0:  # answered, and never judged
            tries = slot.answers
            state = self.judge(question, verdict, last=tries >= TRIES_OF_AN_ANSWER)
        while state is None and tries < TRIES_OF_AN_ANSWER:
            outcome = self._ask(question, tries)
            if outcome is None:
                break
            tries += 1
            line = self.keep(question.id, outcome, {}) if isinstance(outcome, Problem) else outcome
            state = self.judge(question, verdict, tries == TRIES_OF_AN_ANSWER, line)
        return state

    def judge(self, question: Question, verdict: Verdict, last: bool, line: Line | None = None) -> State | None:
        """Settle a question by its last line in the journal; None if it should be asked again."""
        state = verdict(question, answer_of(line or self.journal.last(question.id)), last)
        if state is not None:
            self.journal.settle(question.id, state)
        return state

    def most(self, question: Question) -> dict[str, float]:
        """Return the usage of the most expensive answer to a question."""
        options = self.questioner.options(question.schema, "json_schema" if question.schema else "text")
        texts = [*(message["content"] for message in question.messages), options]
        return most_tokens(texts, self.questioner.max_tokens)

    def keep(self, question: str, outcome: Reply | Problem, most: Mapping[str, float], batch: bool = False) -> Line:
        """Bring an answer, or the failure that stands for it, into the journal, and return its
        line.

        `usd` is null where the price is unknown. Of a count that the server does not give, or that
        cannot be, the `most` is paid.
        """
        if isinstance(outcome, Problem):
            return self.journal.failure(question, FAILURE_OF.get(outcome.kind, "exhausted"), outcome.message)
        usage = believable(outcome.usage, most)
        usd = None if self.price is None else self.price.cost({**most, **usage}, batch)
        line: Line = {"text": outcome.text, "usage": usage, "usd": usd, "seconds": outcome.seconds}
        left_out = self.questioner.temperature is not None and "temperature" in self.questioner.refused
        line |= {"asked_without": ["temperature"]} if left_out else {}
        line |= {"truncated": True} if outcome.truncated else {}
        line |= {"refusal": outcome.refusal} if outcome.refusal else {}
        return self.journal.answer(question, line)

    def fall_back(self, problem: Problem, sent: Questioner, question: Question) -> bool:
        """True if what was refused can be asked without a capability, as the job is from then
        on."""
        with self._adapting:
            if self.questioner != sent:
                return True  # another thread was quicker
            usable = problem.refused & self.questioner.capabilities(question) - self._fallen
            capability = next((name for name in FALLBACKS if name in usable), None)
            if capability is None:
                return False
            self._fallen.add(capability)
            self.questioner = replace(self.questioner, refused=self.questioner.without(capability))
            self._note_server()
        instead = FALLBACKS[capability].instead
        warn_once(f"{self.endpoint.name} takes no {capability}: asked {f'for {instead}' if instead else 'without'}")
        return True

    def _note_server(self) -> None:
        note = {**self._server, "refused": sorted(self.questioner.refused)}
        if self.journal.notes.get("server") != note:
            self.journal.note("server", note)

    def _ask(self, question: Question, attempt: int) -> Outcome:
        """Ask until there is an answer, or a problem that does not pass."""
        waited, retry = 0.0, 0
        while True:
            questioner = self.questioner
            outcome = self._ask_once(question, questioner.request(question, attempt))
            if not isinstance(outcome, Problem):
                return outcome
            if self.fall_back(outcome, questioner, question):
                continue
            if outcome.kind == "fatal" or (outcome.kind in ("unfit", "unreachable") and not self.server_answers):
                raise UserError(outcome.message, outcome.cure)  # the server would refuse the next, too
            waited += outcome.wait or 0.0
            most = min(RETRIES, RETRIES_OF_200) if outcome.status == 200 else RETRIES
            if not outcome.passing or retry >= most or waited > LONGEST_WAIT:
                return outcome
            if not self.pace.sleep(pause(retry, outcome.wait)):
                return None
            retry += 1

    def _ask_once(self, question: Question, body: str) -> Outcome:
        """Send one request, if its most expensive answer fits the budget, and keep the result."""
        most = self.most(question)
        if not self.budget.reserve(question.id, most):
            self.pace.stop()
            return None
        try:
            outcome = self._send(body)
            if isinstance(outcome, Reply):
                # The raw answer is written to the journal before it is read.
                line = self.keep(question.id, outcome, most)
                if not self.server_answers:
                    self.server_answers = True
                    self._note_server()
                return line
            if outcome is not None and outcome.may_cost:
                self.budget.charge(question.id, outcome.message)
            return outcome
        finally:
            self.budget.release(question.id)

    def _send(self, body: str) -> Reply | Problem | None:
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


def pause_for_all(wait: float | None) -> float:
    """Return the seconds for which no request is sent after a server asked for a wait.

    A wait that is too long ends its own question only.
    """
    return FIRST_PAUSE if wait is None or wait > LONGEST_WAIT else wait
