"""A client for OpenAI-compatible servers, with a journal, a budget and adaptive concurrency."""

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
"""A function that iterates the questions of a job; called several times, as they are not stored."""
PROGRESS_SECONDS = 5.0
MAX_FIRST_MISSES, MAX_FAILURES = 3, 20
"""Consecutive failures that stop a job.

The first limit counts questions without an answer before the server has given any; the second
counts questions without a useful answer.
"""
GUESSED_ANSWER, GUESSED_SECONDS = 300, 5.0
"""Assumed tokens and seconds of an answer before there are any to average over."""


class PaidAnswer(NamedTuple):
    """The answer to a settled question, from the journal.

    `usage`: tokens by name, and USD if known, of all answers that were paid for. `asked_without`:
    decoding options that the server did not accept.
    """

    answer: Answer
    usage: dict[str, float]
    asked_without: tuple[str, ...] = ()


class OpenAIChat:
    """A chat model behind an OpenAI-compatible server.

    Every answer is written to the journal before it is parsed, and a question with an answer in the
    journal is not asked again. The key is read from the environment and redacted from everything
    that a server sends.

    Args:
        settings: the model, its server, prices and limits.
        journal: the file of all answers; None: a temporary file.
        again: ask refused and unreadable questions once more.
        asks: False if no request will be sent, which needs no key.
        progress: report the progress of a long job on stderr.
        excess: the tokens by which a conversation is too long for the model, if the caller knows
            its tokenizer (`chat.base.LimitedChat`).

    Raises:
        UserError: OpenAI's service needs a key, a budget needs a price, or another process uses the
            journal. From methods that ask: 401, 403, 404, a redirection, an account without quota,
            or too many consecutive questions without an answer; no further requests are sent.
        Stopped: a signal was received. Open requests are awaited for as long as its `patience`.
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
        self._count_lock = Lock()
        self._failures = self._misses = 0  # consecutive questions without a useful answer, and without any

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the journal."""
        self.asker.endpoint.close()
        self.journal.close()

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Return one answer per conversation, with up to `settings.concurrency` open requests."""
        return self.answers([self.asker.questioner.question(turns) for turns in conversations], accept)

    def answers(self, questions: Sequence[Question], verdict: Verdict) -> list[Answer]:
        """Return the answers to all questions, in order.

        Raises:
            UserError: the budget does not allow all of them (exit code 4).
        """
        self.settle(questions, verdict)
        answers = [item.answer for item in map(self.paid_answer, questions) if item is not None]
        if len(answers) < len(questions):
            cure = "raise critic.prompted.budget_usd and run the same command again"
            raise UserError(f"the budget of {self.settings.budget_usd:g} USD is reached", cure, EXIT_BUDGET)
        return answers

    def paid_answer(self, question: Question) -> PaidAnswer | None:
        """Return the answer to a settled question; None if it is not settled."""
        if self.journal.slot(question.id).state is None:
            return None
        line = self.journal.last(question.id)
        usage: dict[str, float] = {}
        for answer in [line, *self.journal.earlier(question.id)]:
            usd = {"usd": answer["usd"]} if answer.get("usd") else {}
            for name, count in {**answer.get("usage", {}), **usd}.items():
                usage[name] = usage.get(name, 0.0) + count
        return PaidAnswer(answer_of(line), usage, tuple(map(str, line.get("asked_without", ()))))

    def settle(self, questions: Iterable[Question], verdict: Verdict) -> None:
        """Settle all open questions, one at a time until the server has answered one."""
        # An error of an earlier call stops the requests; the server may be back by now.
        if not self.asker.budget.reached and self.asker.pace.resume():
            self._failures = self._misses = 0
        with StopRequest():
            self._in_threads(_Queue(self.asker.unsettled(questions)), verdict)

    def plan(self, questions: Iterable[Question]) -> dict[str, Any]:
        """Estimate the cost of the remaining questions without sending anything.

        A token of the requests counts as 4 characters. Answers are assumed to be as long as the
        mean answer in the journal.
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
        """`known`, or the reason why the model's price is unknown."""
        return "known" if self.asker.price else f"unknown: {self.name} is not in the price file"

    def tally(self, questions: Iterable[Question]) -> dict[str, float | None]:
        """Count the distinct questions by state, and add up the cost of the journal.

        requested = ok + refused + invalid + exhausted; all others are pending. `usd` is None if the
        price of an answer is unknown. `usd_without_answer` is the maximum price of requests without
        an answer.
        """
        states = {question.id: self.journal.slot(question.id).state for question in questions}
        counts, totals = Counter(states.values()), self.journal.totals
        return {
            "requested": sum(counts[state] for state in STATES),
            **{state: counts[state] for state in STATES},
            "pending": counts[None],
            "usd": None if totals.unpriced else round(totals.usd, 6),
            "usd_without_answer": round(totals.charged, 6),
        }

    def _in_threads(self, queue: _Queue, verdict: Verdict) -> None:
        def run() -> None:
            try:
                self._work(queue, verdict)
            except BaseException as error:  # raised again by the main thread
                queue.error = queue.error or error
                self.asker.pace.stop()

        pool = [Thread(target=run, daemon=True) for _ in range(self.settings.concurrency)]
        for thread in pool:
            thread.start()
        reported_at = time.monotonic()
        for thread in pool:
            while thread.is_alive():
                thread.join(POLL_SECONDS)
                if (request := pending_stop()) is not None:
                    self._stop(pool, request)
                if self._progress and time.monotonic() - reported_at >= PROGRESS_SECONDS:
                    reported_at, totals = time.monotonic(), self.journal.totals
                    progress = f"{totals.answers} answers, {self.asker.pace.limit:.0f} at a time, ${totals.usd:.4f}"
                    print(progress, file=sys.stderr)
        if queue.error is not None:
            raise queue.error

    def _stop(self, pool: Sequence[Thread], request: StopRequest) -> NoReturn:
        """Send no further requests, and wait for the answers to open ones."""
        self.asker.pace.stop()
        print("waiting for open requests, so that no paid answer is lost", file=sys.stderr)
        for thread in pool:
            while thread.is_alive() and request.seconds_left > 0:
                thread.join(POLL_SECONDS)
        self.asker.budget.charge_open()
        raise Stopped(request.signal)

    def _work(self, queue: _Queue, verdict: Verdict) -> None:
        """Settle questions from the queue.

        Until the server has answered one, the lock of the queue is held, so that questions are
        asked one at a time and in order.
        """
        running = True
        while running and queue.error is None:
            with queue.lock:
                question = next(queue.questions, None)
                is_serial = not self.asker.server_answers
                if question is not None and is_serial:
                    running = self._settle(question, verdict)
            if question is None:
                return
            if not is_serial:
                running = self._settle(question, verdict)

    def _settle(self, question: Question, verdict: Verdict) -> bool:
        """Settle one question; return False if stopped before."""
        try:
            state = self.asker.settle(question, verdict)
            if state is not None:
                self._count(question, state)
        except BaseException:
            self.asker.pace.stop()  # before another thread sends its request
            raise
        return state is not None

    def _count(self, question: Question, state: State) -> None:
        """Count how a question ended.

        Raises:
            UserError: too many consecutive questions ended without a useful answer.
        """
        with self._count_lock:
            self._failures = 0 if state == "ok" else self._failures + 1
            self._misses = self._misses + 1 if state == "exhausted" else 0
            count = self._misses or self._failures
        limit = MAX_FAILURES
        if state == "exhausted":  # no answer, so nothing was paid
            answers = self.asker.server_answers
            limit = max(MAX_FAILURES, 2 * self.settings.concurrency) if answers else MAX_FIRST_MISSES
        if state != "ok" and count >= limit:
            raise UserError(*self._describe_failures(self.journal.last(question.id), count))

    def _describe_failures(self, line: Mapping[str, Any], count: int) -> tuple[str, str]:
        """Return message and cure after `count` consecutive failures, the last one in `line`."""
        answer = answer_of(line)
        cure = "use another model or prompt"
        if isinstance(answer, Failure):
            reason = answer.message
        elif answer.truncated:
            reason, cure = f"truncated at {self.settings.max_tokens} tokens", "raise critic.prompted.max_tokens"
        else:
            reason = f"the answer {answer.text[:60]!r}"
        cure = f"read the answers in {self.journal.path}; {cure}, or run again to ask the next questions"
        return f"{count} questions in a row without a useful answer; the last: {reason}", cure


class _Queue:
    """Questions that threads take while holding `lock`, and the first error of a thread."""

    def __init__(self, questions: Iterator[Question]) -> None:
        self.questions, self.lock = questions, Lock()
        self.error: BaseException | None = None
