"""All requests of one question: retries, ladder of capabilities, one second try, and the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Condition, Lock
from typing import Any

from text2grad.chat.base import Answer, Completion
from text2grad.chat.complaint import LIMITS
from text2grad.chat.endpoint import LONGEST_WAIT, Endpoint
from text2grad.chat.journal import STATE_OF, Journal, State
from text2grad.chat.pace import FIRST_PAUSE, Pace, pause
from text2grad.chat.prices import Price, believable, most_tokens
from text2grad.chat.questions import LADDER, Capability, Form, Question, Questioner
from text2grad.chat.reply import Problem, Reply, Trouble
from text2grad.chat.settings import EndpointSettings
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Failure, FailureKind, storable

TRIES_OF_AN_ANSWER = 2
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
"""(question, answer, whether it is the last try) -> how the question has ended; None: ask once more."""


def accept(question: Question, answer: Answer, last: bool) -> State | None:
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
    not known, are counted at their maximum price.
    """

    def __init__(self, most: float | None, price: Price | None, journal: Journal) -> None:
        self._most, self._price, self._journal = most, price, journal
        self._reserved = self._largest = 0.0
        self._changed = Condition()
        self.reached = False

    def maximum(self, most: Mapping[str, float]) -> float:
        """USD of an answer with the usage `most`."""
        amount = 0.0 if self._price is None else self._price.cost(most)
        self._largest = max(self._largest, amount)
        return amount

    def _too_much(self, amount: float) -> bool:
        totals = self._journal.totals
        spent = totals.usd + totals.charged + totals.unpriced * self._largest
        return self._most is not None and spent + self._reserved + amount > self._most

    def reserve(self, amount: float, wait: bool = True) -> bool:
        """Put `amount` aside; with `wait`, once open requests have left enough. False: it does not fit."""
        with self._changed:
            while self._too_much(amount):
                if not wait or not self._reserved or self.reached:
                    self.reached = True
                    return False
                self._changed.wait()
            self._reserved += amount
            return True

    def release(self, amount: float) -> None:
        """Release the reserved amount; the answer's real price is in the journal."""
        with self._changed:
            left = self._reserved - amount
            self._reserved = left if left >= 1e-12 else 0.0
            self._changed.notify_all()


class Asker:
    """Has questions answered and settled in the journal; safe to call from many threads.

    `capability` is the rung of the ladder that is known to hold at this server, None while none is.
    `server_answers`: it has answered a request of this job. `sent` counts requests.
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
        self._here = {"server": endpoint.name, "model": settings.model}
        self.questioner = Questioner(settings.model, *decoding, form=self._first_form())
        self._forms = {self.questioner.form}
        self._adapting = Lock()
        self.pace = Pace(settings.concurrency)
        self.budget = Budget(settings.budget_usd, price, journal)
        self.sent = 0
        self._open: dict[str, float] = {}
        self._retries, self._grounded, self._again = settings.retries, settings.grounded, again
        noted = journal.notes.get("capability")
        rungs = (rung for rung in ("grammar", *LADDER) if noted == {**self._here, "is": rung})
        self.capability: Capability | None = next(rungs, None)
        # With `again`, refused questions come first: refused once more, they are no sign of a wrong request.
        self.server_answers = again and self.capability is not None

    def _first_form(self) -> Form:
        """The form that this server was found to take, else the usual one of its kind."""
        noted = self.journal.notes.get("form")
        if isinstance(noted, dict) and {**noted, **self._here} == noted and noted.get("limit") in LIMITS:
            return Form(noted["limit"], bool(noted.get("temperature")))
        return Form(LIMITS[1]) if self.endpoint.is_openai else Form()

    def ladder(self, question: Question) -> tuple[Capability, ...]:
        """The ways to ask it, the strictest first."""
        free = LADDER if question.schema else LADDER[-1:]
        return ("grammar", *free) if self._grounded and question.about else free

    def knows_how(self, question: Question) -> bool:
        """Whether it is known which way the server takes."""
        ladder = self.ladder(question)
        return len(ladder) == 1 or self.capability in ladder

    def unsettled(self, questions: Iterable[Question]) -> Iterator[Question]:
        """Those still to be asked, each once: exhausted ones again, refused and invalid ones only with `again`."""
        settled = {"ok"} if self._again else {"ok", "refused", "invalid"}
        taken: set[str] = set()
        for question in questions:
            if question.id not in taken and self.journal.slot(question.id).state not in settled:
                taken.add(question.id)
                yield question

    def settle(self, question: Question, verdict: Verdict) -> State | None:
        """Ask until there is an answer or a final failure; None if stopped before that.

        Raises:
            UserError: a mistake that fails every question: a wrong key, an unknown model, an unreachable server.
        """
        slot, state, tries = self.journal.slot(question.id), None, 0
        if slot.state is None and slot.offset >= 0:  # answered, and never judged
            tries = slot.answers
            state = self.judge(question, verdict, last=tries >= TRIES_OF_AN_ANSWER)
        while state is None and tries < TRIES_OF_AN_ANSWER:
            outcome = self._climb(question, tries)
            if outcome is None:
                break
            tries += 1
            line = self.keep(question.id, outcome, {}) if isinstance(outcome, Problem) else outcome
            state = self.judge(question, verdict, tries == TRIES_OF_AN_ANSWER, line)
        return state

    def give_up(self) -> None:
        """Charge for the open requests, at their maximum price: their answers are not awaited."""
        for question, amount in list(self._open.items()):
            self.journal.charge(question, amount, "left open when the program was stopped")

    def judge(self, question: Question, verdict: Verdict, last: bool, line: Line | None = None) -> State | None:
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
        """Bring an answer, or the failure that stands for it, into the journal. Its line.

        `usd` is null where the price is unknown. Of a count that the server does not give, or that cannot be, the
        `most` is paid.
        """
        if isinstance(outcome, Problem):
            return self.journal.failure(question, FAILURE_OF.get(outcome.kind, "exhausted"), outcome.message)
        usage = believable(outcome.usage, most)
        usd = None if self.price is None else self.price.cost({**most, **usage}, batch)
        line: Line = {"text": outcome.text, "usage": usage, "usd": usd, "seconds": outcome.seconds}
        left_out = self.questioner.temperature is not None and not self.questioner.form.temperature
        line |= {"asked_without": ["temperature"]} if left_out else {}
        line |= {"truncated": True} if outcome.truncated else {}
        line |= {"refusal": outcome.refusal} if outcome.refusal else {}
        return self.journal.answer(question, line)

    def _climb(self, question: Question, attempt: int) -> Outcome:
        """Ask on the rung known to work; until one is known, try each from the top."""
        ladder, known = self.ladder(question), self.knows_how(question)
        rungs = (self.capability,) if self.capability in ladder else ladder
        outcome: Outcome = None
        for rung in rungs:
            outcome = self._ask(question, rung, attempt, self._retries if rung == rungs[0] else 1)
            if not known:
                self._note_rung(rung, ladder[0], outcome)
            if known or not (isinstance(outcome, Problem) and outcome.may_be_the_form):
                break
        if not isinstance(outcome, Problem):
            return outcome
        if known and len(ladder) > 1 and outcome.about_the_form:  # the server is not the one it was
            self.capability = None
            return self._climb(question, attempt)
        if outcome.kind == "unfit" and not self.server_answers:  # it would refuse the next, too
            raise UserError(outcome.message, outcome.cure)
        return outcome

    def _note_rung(self, rung: Capability, strictest: Capability, outcome: Outcome) -> None:
        """Remember the first rung on which the server answers."""
        if isinstance(outcome, Problem) and outcome.kind == "unreachable":
            raise UserError(outcome.message, "is the server running? check critic.prompted.base_url")
        if isinstance(outcome, dict):
            self.capability = rung
            self.journal.note("capability", {**self._here, "is": rung})
            if rung != strictest:
                warn_once(f"{self.endpoint.name} takes no {strictest}: it is asked for {rung}")

    def adapt(self, problem: Problem, asked: Form) -> bool:
        """Whether what was refused can be asked in another form, which is then the form of the job."""
        with self._adapting:
            now = self.questioner.form
            if now != asked:
                return True  # another thread was quicker
            unsent = {"temperature"} if self.questioner.temperature is None else set()
            form = now.without(problem.options - unsent)
            if form in self._forms:
                return False
            self._forms.add(form)
            self.questioner = replace(self.questioner, form=form)
            self.journal.note("form", {**self._here, "limit": form.limit, "temperature": form.temperature})
        if form.limit != now.limit:
            warn_once(f"{self.endpoint.name} takes {form.limit}, not {now.limit}: it is asked so from now on")
        if form.temperature != now.temperature:
            warn_once(f"{self.endpoint.name} takes no temperature: it draws at its own, which the records say")
        return True

    def _ask(self, question: Question, rung: Capability, attempt: int, retries: int) -> Outcome:
        waited, retry = 0.0, 0
        while True:
            form = self.questioner.form
            outcome = self._ask_once(question, self.questioner.request(question, rung, attempt))
            if not isinstance(outcome, Problem):
                return outcome
            if outcome.kind == "fatal":
                raise UserError(outcome.message, outcome.cure)
            if outcome.kind == "unfit" and self.adapt(outcome, form):
                continue
            waited += outcome.wait or 0.0
            most = min(retries, RETRIES_OF_200) if outcome.status == 200 else retries
            if not outcome.passing or retry >= most or waited > LONGEST_WAIT:
                return outcome
            if outcome.kind == "unreachable" and not self.knows_how(question):
                return outcome
            if not self.pace.sleep(pause(retry, outcome.wait)):
                return None
            retry += 1

    def _ask_once(self, question: Question, body: str) -> Outcome:
        """Send one request, if its most expensive answer fits the budget, and keep the result."""
        most = self.most(question)
        amount = self.budget.maximum(most)
        if not self.budget.reserve(amount):
            self.pace.stop()
            return None
        if amount:
            self._open[question.id] = amount
        try:
            outcome = self._send(body)
            if isinstance(outcome, Reply):
                self.server_answers = True
                # The raw answer is written to the journal before it is read.
                return self.keep(question.id, outcome, most)
            if outcome is not None and outcome.may_cost and amount:
                self.journal.charge(question.id, amount, outcome.message)
            return outcome
        finally:
            self._open.pop(question.id, None)
            self.budget.release(amount)

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
    """Seconds for which no request is sent after a server asked for a wait.

    A wait that is too long ends its own question only.
    """
    return FIRST_PAUSE if wait is None or wait > LONGEST_WAIT else wait
