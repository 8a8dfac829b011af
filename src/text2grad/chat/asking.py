"""Ask a question with retries, fallbacks, a second attempt and a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Condition, Lock
from typing import Any

from text2grad.chat.api_errors import FALLBACKS
from text2grad.chat.base import Answer, Completion
from text2grad.chat.endpoint import LONGEST_WAIT, Endpoint
from text2grad.chat.journal import FAILURE_STATES, Journal, State
from text2grad.chat.pace import FIRST_PAUSE, Pace, retry_delay
from text2grad.chat.prices import Price, max_tokens_of, plausible_usage
from text2grad.chat.questions import Question, Questioner
from text2grad.chat.reply import Problem, ProblemKind, Reply
from text2grad.chat.settings import EndpointSettings
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Failure, FailureKind
from text2grad.json_text import storable

MAX_ANSWERS = 2
"""Answers to one question before it counts as failed."""
RETRIES = 5
"""Retries of a request that failed temporarily."""
RETRIES_AFTER_200 = 1
"""Retries of a request with status 200 but no answer, which may have been charged for."""
FAILURE_KINDS: Mapping[ProblemKind, FailureKind] = {
    "refused": "refused",
    "unfit": "unsupported",
    "too_long": "unsupported",
    "oversized": "invalid",
}
Line = dict[str, Any]
Outcome = Line | Problem | None
"""The journal line of the answer, the problem, or None if stopped."""
Verdict = Callable[[Question, Answer, bool], State | None]
"""(question, answer, is_last_attempt) -> the final state, or None to ask once more."""


def accept(question: Question, answer: Answer, last: bool) -> State | None:
    """Accept any answer without looking at its content."""
    return FAILURE_STATES[answer.kind] if isinstance(answer, Failure) else "ok"


def answer_of(line: Mapping[str, Any]) -> Answer:
    """Return the answer or failure in a line of the journal."""
    if line["is"] == "failure":
        return Failure(kind=line["kind"], message=line["message"])
    if line.get("refusal"):
        return Failure(kind="refused", message=line["refusal"], raw=storable(line["text"]))
    return Completion(text=line["text"], truncated=bool(line.get("truncated")), usage=line.get("usage", {}))


class Budget:
    """A budget in USD: a request is sent only if its most expensive answer fits.

    Requests without an answer that the server may still charge for, and answers of earlier runs
    without a known price, count at their maximum price.
    """

    def __init__(self, limit: float | None, price: Price | None, journal: Journal) -> None:
        self._limit, self._price, self._journal = limit, price, journal
        self._open: dict[str, float] = {}
        self._reserved = self._largest = 0.0
        self._changed = Condition()
        self.reached = False

    def reserve(self, question: str, usage: Mapping[str, float], wait: bool = True) -> bool:
        """Reserve the price of an answer with this usage; return False if it does not fit.

        With `wait`, first wait for open requests to release their reservations.
        """
        amount = 0.0 if self._price is None else self._price.cost(usage)
        with self._changed:
            self._largest = max(self._largest, amount)
            while self._exceeds_limit(amount):
                if not wait or not self._reserved or self.reached:
                    self.reached = True
                    return False
                self._changed.wait()
            self._open[question] = amount
            self._reserved += amount
            return True

    def _exceeds_limit(self, amount: float) -> bool:
        totals = self._journal.totals
        spent = totals.usd + totals.charged + totals.unpriced * self._largest
        return self._limit is not None and spent + self._reserved + amount > self._limit

    def release(self, question: str) -> None:
        """Release the reservation of a question, whose real price is in the journal."""
        with self._changed:
            self._reserved -= self._open.pop(question, 0.0)
            self._reserved = self._reserved if self._open else 0.0
            self._changed.notify_all()

    def charge(self, question: str, why: str) -> None:
        """Count the reservation of an open question as spent, because it may be charged for."""
        if amount := self._open.get(question):
            self._journal.charge(question, amount, why)

    def charge_open(self) -> None:
        """Count the reservations of all open questions as spent when the program stops."""
        for question in list(self._open):
            self.charge(question, "left open when the program was stopped")


class Asker:
    """Asks questions and settles them in the journal; safe to call from many threads.

    A capability that the server refuses is dropped from the job's requests and noted in the
    journal.

    Attributes:
        server_answers: the server has answered a request of this job.
        sent: the number of requests sent.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        endpoint: Endpoint,
        journal: Journal,
        price: Price | None,
        again: bool,
    ) -> None:
        self.endpoint, self.journal, self.price = endpoint, journal, price
        self._server = {"server": endpoint.name, "model": settings.model}
        previous = journal.notes.get("server")
        is_same_server = isinstance(previous, dict) and {**previous, **self._server} == previous
        default = ["max_tokens"] if endpoint.is_openai else []
        refused = previous.get("refused", []) if isinstance(previous, dict) and is_same_server else default
        self.questioner = Questioner(
            settings.model,
            settings.max_tokens,
            settings.temperature,
            frozenset(name for name in FALLBACKS if name in refused),
        )
        self._dropped: set[str] = set()
        self._fallback_lock = Lock()
        self.pace = Pace(settings.concurrency)
        self.budget = Budget(settings.budget_usd, price, journal)
        self.sent = 0
        self._again = again
        # With `again`, refused questions come first; another refusal then does not mean that the
        # request is wrong.
        self.server_answers = again and is_same_server

    def unsettled(self, questions: Iterable[Question]) -> Iterator[Question]:
        """Yield the questions to ask: new, exhausted and, with `again`, refused or invalid ones."""
        final = {"ok"} if self._again else {"ok", "refused", "invalid"}
        ids: set[str] = set()
        for question in questions:
            if question.id not in ids and self.journal.slot(question.id).state not in final:
                ids.add(question.id)
                yield question

    def settle(self, question: Question, verdict: Verdict) -> State | None:
        """Ask until there is an answer or a final failure; return None if stopped before.

        Raises:
            UserError: an error that affects every question: a wrong key, an unknown model, an
                unreachable server.
        """
        slot, state, answers = self.journal.slot(question.id), None, 0
        if slot.state is None and slot.offset >= 0:  # answered in an earlier run, but not judged
            answers = slot.answers
            state = self.judge(question, verdict, last=answers >= MAX_ANSWERS)
        while state is None and answers < MAX_ANSWERS:
            outcome = self._ask(question, answers)
            if outcome is None:
                break
            answers += 1
            line = self.keep(question.id, outcome, {}) if isinstance(outcome, Problem) else outcome
            state = self.judge(question, verdict, answers == MAX_ANSWERS, line)
        return state

    def judge(self, question: Question, verdict: Verdict, last: bool, line: Line | None = None) -> State | None:
        """Settle a question by its last line in the journal; return None to ask once more."""
        state = verdict(question, answer_of(line or self.journal.last(question.id)), last)
        if state is not None:
            self.journal.settle(question.id, state)
        return state

    def max_usage(self, question: Question) -> dict[str, float]:
        """Return the usage of the most expensive answer to a question."""
        options = self.questioner.options(question.schema, "json_schema" if question.schema else "text")
        texts = [*(message["content"] for message in question.messages), options]
        return max_tokens_of(texts, self.questioner.max_tokens)

    def keep(self, question: str, outcome: Reply | Problem, most: Mapping[str, float], batch: bool = False) -> Line:
        """Write an answer or failure to the journal and return its line.

        `usd` is null if the price is unknown. A missing or implausible token count is replaced by
        its maximum in `most`.
        """
        if isinstance(outcome, Problem):
            return self.journal.failure(question, FAILURE_KINDS.get(outcome.kind, "exhausted"), outcome.message)
        usage = plausible_usage(outcome.usage, most)
        usd = None if self.price is None else self.price.cost({**most, **usage}, batch)
        line: Line = {"text": outcome.text, "usage": usage, "usd": usd, "seconds": outcome.seconds}
        no_temperature = self.questioner.temperature is not None and "temperature" in self.questioner.refused
        line |= {"asked_without": ["temperature"]} if no_temperature else {}
        line |= {"truncated": True} if outcome.truncated else {}
        line |= {"refusal": outcome.refusal} if outcome.refusal else {}
        return self.journal.answer(question, line)

    def fall_back(self, problem: Problem, sent: Questioner, question: Question) -> bool:
        """Drop a refused capability from further requests; return False if none can be dropped."""
        with self._fallback_lock:
            if self.questioner != sent:
                return True  # another thread has changed the requests since this one was sent
            usable = problem.refused & self.questioner.capabilities(question) - self._dropped
            capability = next((name for name in FALLBACKS if name in usable), None)
            if capability is None:
                return False
            self._dropped.add(capability)
            self.questioner = replace(self.questioner, refused=self.questioner.without(capability))
            self._record_server()
        instead = FALLBACKS[capability].instead
        cure = f"using {instead} instead" if instead else "left out"
        warn_once(f"{self.endpoint.name} does not support {capability}: {cure}")
        return True

    def _record_server(self) -> None:
        server = {**self._server, "refused": sorted(self.questioner.refused)}
        if self.journal.notes.get("server") != server:
            self.journal.note("server", server)

    def _ask(self, question: Question, attempt: int) -> Outcome:
        """Send requests until there is an answer or a permanent problem."""
        waited, retry = 0.0, 0
        while True:
            questioner = self.questioner
            outcome = self._ask_once(question, questioner.request(question, attempt))
            if not isinstance(outcome, Problem):
                return outcome
            if self.fall_back(outcome, questioner, question):
                continue
            if outcome.kind == "fatal" or (outcome.kind in ("unfit", "unreachable") and not self.server_answers):
                raise UserError(outcome.message, outcome.cure)  # the server would refuse every question
            waited += outcome.wait or 0.0
            max_retries = min(RETRIES, RETRIES_AFTER_200) if outcome.status == 200 else RETRIES
            if not outcome.is_temporary or retry >= max_retries or waited > LONGEST_WAIT:
                return outcome
            if not self.pace.sleep(retry_delay(retry, outcome.wait)):
                return None
            retry += 1

    def _ask_once(self, question: Question, body: str) -> Outcome:
        """Send one request if its most expensive answer fits the budget, and store the result."""
        most = self.max_usage(question)
        if not self.budget.reserve(question.id, most):
            self.pace.stop()
            return None
        try:
            outcome = self._send(body)
            if isinstance(outcome, Reply):
                # The raw answer is written to the journal before it is parsed.
                line = self.keep(question.id, outcome, most)
                if not self.server_answers:
                    self.server_answers = True
                    self._record_server()
                return line
            if outcome is not None and outcome.may_cost:
                self.budget.charge(question.id, outcome.message)
            return outcome
        finally:
            self.budget.release(question.id)

    def _send(self, body: str) -> Reply | Problem | None:
        if not self.pace.enter():
            return None
        sent_at = time.monotonic()
        outcome: Reply | Problem | None = None
        try:
            self.sent += 1
            outcome = self.endpoint.ask(body)
        finally:
            self.pace.leave(isinstance(outcome, Reply))
        if isinstance(outcome, Problem) and (outcome.kind == "busy" or outcome.wait):
            self.pace.slow_down(sent_at, global_pause(outcome.wait))
        return outcome


def global_pause(wait: float | None) -> float:
    """Return for how many seconds all requests pause after a server asked for a wait.

    A wait that is too long only fails its question.
    """
    return FIRST_PAUSE if not wait or wait > LONGEST_WAIT else wait
