"""One client for every OpenAI-compatible server: journalled, budgeted, paced."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple, NoReturn, Self

from text2grad.chat.asking import Asker, Verdict, accept, answer_of
from text2grad.chat.base import Answer, Conversation
from text2grad.chat.endpoint import Endpoint
from text2grad.chat.journal import STATES, Journal, State
from text2grad.chat.prices import CHARACTERS_PER_TOKEN, read_prices
from text2grad.chat.questions import Question
from text2grad.chat.settings import EndpointSettings
from text2grad.errors import EXIT_BUDGET, UsageError, UserError
from text2grad.feedback import Failure, Overlap
from text2grad.signals import POLL_SECONDS, Stopped, StopRequest, pending_stop

Questions = Callable[[], Iterable[Question]]
"""The questions of a job, from the start at each call: they are read more than once and never all
held."""
PROGRESS_SECONDS = 5.0
MISSES_AT_FIRST, MOST_FAILURES = 3, 20
"""Questions in a row without an answer before the server has given one, and without a useful answer
later, after which a job stops."""
GUESSED_ANSWER, GUESSED_SECONDS = 300, 5.0
"""Tokens of an answer, and what it takes, where nothing has been answered yet to tell from."""


class PaidAnswer(NamedTuple):
    """What the journal has of a settled question.

    `usage`: tokens by name, and USD where it is known, of all the answers that were paid for.

    `asked_without`: what of the decoding the server did not take, and decided itself.
    """

    answer: Answer
    usage: dict[str, float]
    asked_without: tuple[str, ...] = ()


class OpenAIChat:
    """A chat model behind an OpenAI-compatible server.

    Every answer goes to the journal before it is read, and a question that is answered there is not
    asked again; without a place for it the journal is forgotten at the end. The key is read from
    the environment and goes nowhere else: it is redacted from everything a server sends. With
    `again`, what was refused or unreadable is asked once more; `asks` False needs no key.
    `progress` says on stderr how far a long job is. `excess` counts the tokens by which a
    conversation is too long for the model, where the caller knows its tokenizer
    (`chat.base.LimitedChat`).

    Args:
        settings: the server, its model, and the limits of requests.
        journal: the file of all questions and answers.

    Raises:
        UserError: there is no key for OpenAI itself; a budget without a price; another process has
            the journal. From the methods that ask: 401, 403, 404, a redirection, an account without
            quota, or too many questions in a row without an answer. Requests that have not started
            by then are not sent.
        Stopped: a signal came. Requests that are open by then are awaited as long as it is patient.
    """

    overlap: Overlap = "helps"

    def __init__(
        self,
        settings: EndpointSettings,
        journal: Path | None = None,
        *,
        again: bool = False,
        asks: bool = True,
        progress: bool = False,
        excess: Callable[[Conversation], int] = lambda conversation: 0,
    ) -> None:
        if not settings.model:
            raise UsageError("no model to ask", "--critic.prompted.model NAME")
        self.name, self.settings, self.excess = settings.model, settings, excess
        endpoint = Endpoint(settings.base_url, asks=asks)
        price = read_prices(settings.prices).get(settings.model)
        if settings.budget_usd is not None and price is None:
            cure = "add the model to the file of critic.prompted.prices"
            raise UserError("a budget needs the model's price", cure)
        self.journal = Journal.open(journal) if journal else Journal.temporary()
        self.asker = Asker(settings, endpoint, self.journal, price, again)
        self._progress = progress
        self._counting = Lock()
        self._failures = self._misses = 0  # questions in a row without use, and without an answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the journal."""
        self.asker.endpoint.close()
        self.journal.close()

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Ask for all conversations at once, `settings.concurrency` at a time."""
        return self.answers([self.asker.questioner.question(turns) for turns in conversations], accept)

    def answers(self, questions: Sequence[Question], verdict: Verdict) -> list[Answer]:
        """The answers to all questions, in their order.

        Raises:
            UserError: the budget does not allow one of them (exit code 4).
        """
        self.settle(questions, verdict)
        paid = [self.paid_answer(question) for question in questions]
        answers = [each.answer for each in paid if each is not None]
        if len(answers) < len(paid):
            cure = "raise critic.prompted.budget_usd and run the same command again"
            raise UserError(f"the budget of {self.settings.budget_usd:g} USD is reached", cure, EXIT_BUDGET)
        return answers

    def paid_answer(self, question: Question) -> PaidAnswer | None:
        """The answer to a question that is settled; None if it is not."""
        if self.journal.slot(question.id).state is None:
            return None
        line = self.journal.last(question.id)
        usage: dict[str, float] = {}
        for paid in [line, *self.journal.earlier(question.id)]:
            usd = {"usd": paid["usd"]} if paid.get("usd") else {}
            for name, count in {**paid.get("usage", {}), **usd}.items():
                usage[name] = usage.get(name, 0.0) + count
        return PaidAnswer(answer_of(line), usage, tuple(map(str, line.get("asked_without", ()))))

    def settle(self, questions: Iterable[Question], verdict: Verdict) -> None:
        """Have every question settled that is not: one by one until the server has answered one.

        Raises:
            UserError: see the class; `MOST_FAILURES` questions in a row had no useful answer.
        """
        with StopRequest():
            self._in_threads(_Queue(self.asker.unsettled(questions)), verdict)

    def plan(self, questions: Iterable[Question]) -> dict[str, Any]:
        """Cost of the remaining questions: tokens at 4 characters each of the requests as they will
        be sent.

        The length of answers is the mean of those in the journal. Nothing is sent.
        """
        settings, totals, price = self.settings, self.journal.totals, self.asker.price
        answer, seconds = float(min(GUESSED_ANSWER, settings.max_tokens)), GUESSED_SECONDS
        if totals.answers:
            answer, seconds = totals.completion_tokens / totals.answers, totals.seconds / totals.answers
        requests = characters = 0
        for question in self.asker.unsettled(questions):
            requests += 1
            characters += sum(len(message["content"]) for message in question.messages)
        prompt_tokens = math.ceil(characters / CHARACTERS_PER_TOKEN)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": round(requests * answer)}
        return {
            "requests": requests,
            **usage,
            "usd": round(price.cost(usage), 4) if price else None,
            "usd_batch": round(price.cost(usage, batch=True), 4) if price else None,
            "usd_paid_so_far": round(totals.usd, 6),
            "minutes": round(requests * seconds / settings.concurrency / 60, 2),
            "price": self.price_status,
            "spent_now": 0,
        }

    @property
    def price_status(self) -> str:
        """Tell whether the model's price is known."""
        return "known" if self.asker.price else f"unknown: {self.name} is not in the price file"

    def tally(self, questions: Iterable[Question]) -> dict[str, float | None]:
        """How the questions stand, each once, and what the journal has cost.

        requested = ok + refused + invalid + exhausted; the rest is pending. `usd` is null where an
        answer's price is unknown; `usd_without_answer` is the highest possible price of requests
        that had none.
        """
        states = {question.id: self.journal.slot(question.id).state for question in questions}
        ended, totals = Counter(states.values()), self.journal.totals
        return {
            "requested": sum(ended[state] for state in STATES),
            **{state: ended[state] for state in STATES},
            "pending": ended[None],
            "usd": None if totals.unpriced else round(totals.usd, 6),
            "usd_without_answer": round(totals.charged, 6),
        }

    def _in_threads(self, queue: _Queue, verdict: Verdict) -> None:
        def run() -> None:
            try:
                self._work(queue, verdict)
            except BaseException as error:
                queue.error = queue.error or error
                self.asker.pace.stop()

        pool = [Thread(target=run, daemon=True) for _ in range(self.settings.concurrency)]
        for thread in pool:
            thread.start()
        shown_at = time.monotonic()
        for thread in pool:
            while thread.is_alive():
                thread.join(POLL_SECONDS)
                if (request := pending_stop()) is not None:
                    self._stop(pool, request)
                if self._progress and time.monotonic() - shown_at >= PROGRESS_SECONDS:
                    shown_at, totals = time.monotonic(), self.journal.totals
                    _say(f"{totals.answers} answers, {self.asker.pace.limit:.0f} at a time, ${totals.usd:.4f}")
        if queue.error is not None:
            raise queue.error

    def _stop(self, pool: Sequence[Thread], request: StopRequest) -> NoReturn:
        """Send nothing more, and wait for the answers that are on their way."""
        self.asker.pace.stop()
        _say("waiting for the open requests, so that nothing paid is lost")
        for thread in pool:
            while thread.is_alive() and request.seconds_left > 0:
                thread.join(POLL_SECONDS)
        self.asker.budget.charge_open("left open when the program was stopped")
        raise Stopped(request.signal)

    def _work(self, queue: _Queue, verdict: Verdict) -> None:
        """Settle questions: one at a time, in their order, until the server has answered one."""
        going = True
        while going and queue.error is None:
            with queue.lock:
                question = next(queue.questions, None)
                alone = not self.asker.server_answers
                if question is not None and alone:
                    going = self._settle(question, verdict)
            if question is None:
                return
            if not alone:
                going = self._settle(question, verdict)

    def _settle(self, question: Question, verdict: Verdict) -> bool:
        """Settle one question; False if stopped before that."""
        try:
            state = self.asker.settle(question, verdict)
            if state is not None:
                self._count(question, state)
        except BaseException:
            self.asker.pace.stop()  # before another thread sends its request
            raise
        return state is not None

    def _count(self, question: Question, state: State) -> None:
        """Note how a question ended.

        Raises:
            UserError: too many in a row ended without use, or without an answer, for which nothing
                is paid.
        """
        with self._counting:
            self._failures = 0 if state == "ok" else self._failures + 1
            self._misses = self._misses + 1 if state == "exhausted" else 0
            count = self._misses or self._failures
        most = max(MOST_FAILURES, 2 * self.settings.concurrency) if self.asker.server_answers else MISSES_AT_FIRST
        if state != "ok" and count >= (most if state == "exhausted" else MOST_FAILURES):
            raise UserError(*self._end_of(self.journal.last(question.id), count))

    def _end_of(self, line: Mapping[str, Any], count: int) -> tuple[str, str]:
        """Return the message and the cure after `count` failures in a row, of which `line` is the
        last."""
        answer = answer_of(line)
        cure = "another model or prompt"
        if isinstance(answer, Failure):
            reason = answer.message
        elif answer.truncated:
            reason, cure = f"cut at {self.settings.max_tokens} tokens", "raise critic.prompted.max_tokens"
        else:
            reason = f"an answer that reads {answer.text[:60]!r}"
        cure = f"read the answers in {self.journal.path}; {cure}, or run again to ask the next"
        return f"{count} questions in a row without a useful answer, the last: {reason}", cure


class _Queue:
    """Questions that threads take while they hold `lock`, and the first error of a thread."""

    def __init__(self, questions: Iterator[Question]) -> None:
        self.questions, self.lock = questions, Lock()
        self.error: BaseException | None = None


def _say(line: str) -> None:
    print(line, file=sys.stderr)
