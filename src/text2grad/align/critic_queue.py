"""Queue questions to a critic: timeouts, retries, and one batch for many rollouts.

All requests run in one event loop in a separate thread. A caller may therefore be synchronous, or
have an event loop that ends at any time, and a caller that stops waiting does not affect others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import cache
from threading import Thread
from typing import Any

from text2grad.errors import InvalidCritique, UserError
from text2grad.feedback import Critic, Critique, Example, Failure, Judgement

Question = tuple[Example, str]
"""An example, and the response to judge."""
CriticFunction = Callable[[Example, str], Judgement | Awaitable[Judgement]]
MERGE_SECONDS = 0.02
"""Time that an idle critic waits for more rollouts before it starts a batch."""


class CriticQueue:
    """Questions to a critic or to a function, answered in the order of arrival.

    A `Critic` has one open request at a time; questions that arrive meanwhile form its next batch,
    of at most `max_in_flight`. A function is called with one question, `max_in_flight` calls at a
    time. A request that raises is sent again up to `retries` times. After that its questions are
    asked one by one, so that an unanswerable question fails alone. A request that takes more than
    `timeout` seconds is abandoned and fails.
    """

    def __init__(self, critic: Critic | CriticFunction, timeout: float, retries: int, max_in_flight: int) -> None:
        if isinstance(critic, type) or not (callable(critic) or callable(getattr(critic, "critique", None))):
            name = f"the class {critic.__name__}" if isinstance(critic, type) else f"a {type(critic).__name__}"
            cure = "pass an object with `critique`, or a function of an example and a response"
            raise UserError(f"{name} is not a critic", cure)
        self._critic: Any = critic
        self._is_function = not hasattr(critic, "critique")
        self._timeout, self._retries, self._max_in_flight = timeout, retries, max_in_flight
        self._waiting: list[tuple[Question, asyncio.Future[Judgement]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(max_in_flight)

    def submit(self, questions: Sequence[Question]) -> Future[list[Judgement]]:
        """Return a future of one judgement per question, a failure where the critic gave none.

        The future raises a `UserError` of the critic: such a mistake concerns every question.
        """
        return asyncio.run_coroutine_threadsafe(self._judge(questions), _event_loop())

    async def _judge(self, questions: Sequence[Question]) -> list[Judgement]:
        if self._is_function:
            return await asyncio.gather(*(self._ask_function(question) for question in questions))
        loop = asyncio.get_running_loop()
        judgements: list[asyncio.Future[Judgement]] = [loop.create_future() for _ in questions]
        self._waiting += zip(questions, judgements, strict=True)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return await asyncio.gather(*judgements)

    async def _work(self) -> None:
        """Ask all waiting questions, batch after batch."""
        await asyncio.sleep(MERGE_SECONDS)
        while self._waiting:
            batch = self._waiting[: self._max_in_flight]
            del self._waiting[: len(batch)]
            try:
                judgements = await self._ask([question for question, _ in batch])
            except Exception as error:  # a critic may raise anything, which its callers get
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), judgement in zip(batch, judgements, strict=True):
                if not future.done():  # done: its rollout was cancelled
                    future.set_result(judgement)

    async def _ask_function(self, question: Question) -> Judgement:
        async with self._slots:
            (judgement,) = await self._ask([question])
            return judgement

    async def _ask(self, questions: Sequence[Question]) -> list[Judgement]:
        problem: Exception | None = None
        for _ in range(1 + self._retries):
            limit = asyncio.timeout(self._timeout)
            try:
                async with limit:
                    return await self._answers(questions)
            except Exception as error:  # a critic may raise anything: ask again, then return a Failure
                if isinstance(error, UserError) and not isinstance(error, InvalidCritique):
                    raise
                if limit.expired():
                    failure = Failure(kind="exhausted", message=f"no critique within {self._timeout:g} s")
                    return [failure] * len(questions)
                problem = error
        if len(questions) > 1:
            return [judgement for question in questions for judgement in await self._ask([question])]
        return [Failure(kind="exhausted", message=f"the critic raised {type(problem).__name__}: {problem}")]

    async def _answers(self, questions: Sequence[Question]) -> list[Judgement]:
        if self._is_function:
            ((example, response),) = questions
            return [_judgement(await _call(self._critic, example, response))]
        examples, responses = map(list, zip(*questions, strict=True))
        answers = await _call(self._critic.critique, examples, responses)
        if len(answers) != len(questions):
            raise ValueError(f"{len(answers)} judgements for {len(questions)} responses")
        return [_judgement(answer) for answer in answers]


def _judgement(answer: object) -> Judgement:
    if isinstance(answer, Critique | Failure):
        return answer
    message = f"the critic returned a {type(answer).__name__}, not a Critique or a Failure"
    return Failure(kind="invalid", message=message)


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Await a coroutine function; call any other function in a thread, and await what it returns.

    A thread cannot be stopped: after a timeout it is abandoned and its result ignored.
    """
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(*arguments)
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not result.done():  # done: the caller was cancelled
            set_outcome(value)

    def run() -> None:
        try:
            value = function(*arguments)
        except BaseException as error:
            # A future refuses StopIteration, and SystemExit in this thread must not end the loop.
            can_raise = isinstance(error, Exception) and not isinstance(error, StopIteration)
            problem = error if can_raise else RuntimeError(repr(error))
            loop.call_soon_threadsafe(settle, result.set_exception, problem)
        else:
            loop.call_soon_threadsafe(settle, result.set_result, value)

    Thread(target=run, daemon=True).start()
    value = await result
    return await value if inspect.isawaitable(value) else value


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all queues of this process, which runs until the process ends."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    return loop
