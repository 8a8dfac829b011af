"""The same requests as a file: for the batch API (half price, answers within a day) or for `vllm run-batch`.

Between submitting and collecting, the journal holds the batch's id and nothing else is kept. A note is written
before a batch is submitted, and the batch carries its tag: a crash in between does not pay for a second one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from text2grad.annotation.asking import Asker, answer_line
from text2grad.annotation.endpoint import OPENAI_URL, Reply, key_for
from text2grad.annotation.questions import Capability, Question
from text2grad.annotation.work import Items, settle_answered
from text2grad.errors import UserError

MOST_REQUESTS, MOST_BYTES = 50_000, 150_000_000
"""Of one batch: the service takes 50,000 requests and 200 MB."""
PENDING = ("validating", "in_progress", "finalizing", "cancelling")
TAG = "text2grad"


class Service(Protocol):
    """The batch API, as far as it is needed."""

    def submit(self, file: Path, tag: str) -> str:
        """Upload the requests and start a batch; its id."""
        ...

    def find(self, tag: str) -> str | None:
        """The id of the batch that carries a tag."""
        ...

    def status(self, id: str) -> str:
        """The service's word for how the batch stands."""
        ...

    def results(self, id: str) -> Iterator[str]:
        """Lines of its output and error files."""
        ...


def request_line(asker: Asker, question: Question, capability: Capability) -> str:
    """One request of a batch file."""
    attempt = asker.journal.slot(question.id).answers
    head = json.dumps({"custom_id": question.id, "method": "POST", "url": "/v1/chat/completions"})
    return f'{head[:-1]}, "body": {asker.questioner.request(question, capability, attempt)}}}\n'


def write_requests(asker: Asker, items: Items, file: Path, capability: Capability = "json_schema") -> int:
    """Write what is still to be asked, as much as one batch and the budget allow; how many requests."""
    count = size = 0
    taken: set[str] = set()
    temporary = file.with_name(file.name + ".partial")
    with temporary.open("w", encoding="ascii") as out:
        for item in items():
            for question in asker.questioner.questions(item):
                if question.id in taken or asker.is_settled(question):
                    continue
                line = request_line(asker, question, capability)
                amount = asker.budget.dearest(question, asker.questioner.decoding.max_tokens)
                if count == MOST_REQUESTS or size + len(line) > MOST_BYTES or not asker.budget.fits(amount):
                    break
                taken.add(question.id)
                out.write(line)
                count, size = count + 1, size + len(line)
    temporary.replace(file)
    return count


def read_answers(asker: Asker, items: Items, lines: Iterable[str], batch: bool) -> int:
    """Bring the answers of a batch into the journal and settle them; how many were new.

    An answer the journal has, and one to a question that is none of these items', is left aside.

    Raises:
        UserError: a line is not one of a batch's output.
    """
    asked = {question.id for item in items() for question in asker.questioner.questions(item)}
    count = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        id, outcome = _outcome(asker, number, line)
        slot = asker.journal.slot(id)
        if id not in asked or slot.state in ("ok", "refused", "invalid") or slot.answers:
            continue
        if isinstance(outcome, Reply):
            asker.journal.answer(id, answer_line(outcome, asker.price, batch))
        else:
            asker.journal.failure(id, "exhausted", outcome)
        count += 1
    settle_answered(asker, items)
    return count


def _outcome(asker: Asker, number: int, line: str) -> tuple[str, Reply | str]:
    """A line's request, and its answer or why there is none."""
    try:
        row = json.loads(asker.endpoint.redact(line))
        id, response = str(row["custom_id"]), row.get("response") or {}
        body, status = response.get("body") or {}, response.get("status_code")
        if row.get("error") or status not in (200, None) or not body.get("choices"):
            error = row.get("error") or body.get("error") or f"status {status}"
            return id, " ".join(str(error).split())[:300]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"line {number} is not one of a batch's output", "give the file the batch wrote") from error
    reply = asker.endpoint.reply_of(body)
    return id, reply if isinstance(reply, Reply) else reply.message


def run_batch(asker: Asker, items: Items, service: Service, say: Callable[[str], None]) -> bool:
    """Collect the batch that was submitted, or submit one; True while one is pending.

    Raises:
        UserError: the service failed the batch.
    """
    journal = asker.journal
    _find_unnoted(asker, service)
    waiting: dict[str, Any] | None = journal.notes.get("batch")
    if waiting:
        status = service.status(waiting["id"])
        if status in PENDING:
            say(f"batch {waiting['id']}: {status}")
            return True
        read_answers(asker, items, service.results(waiting["id"]), batch=True)
        journal.note("batch", None)
        if status == "failed":
            raise UserError(f"the service failed batch {waiting['id']}", "see its page for the reason, run again")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests.jsonl"
        count = write_requests(asker, items, file)
        if not count:
            return False
        tag = uuid4().hex
        journal.note("submitting", tag)
        id = service.submit(file, tag)
    journal.note("batch", {"id": id, "requests": count})
    journal.note("submitting", None)
    say(f"batch {id}: {count} requests submitted; run the same command again to collect them")
    return True


def _find_unnoted(asker: Asker, service: Service) -> None:
    """A batch that was submitted by a process that died before it could write down its id."""
    tag = asker.journal.notes.get("submitting")
    if tag and not asker.journal.notes.get("batch"):
        id = service.find(tag)
        if id:
            asker.journal.note("batch", {"id": id})
    if tag:
        asker.journal.note("submitting", None)


class OpenAIBatches:
    """The batch API of OpenAI and of servers that have one.

    Raises:
        UserError: from every method, what the service says against it.
    """

    def __init__(self, base_url: str | None, timeout: float) -> None:
        import openai

        url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        # Servers at home take any key, but the SDK insists on one.
        key = key_for(str(urlsplit(url).hostname)) or "none"
        self._client = openai.OpenAI(api_key=key, base_url=url, timeout=timeout, max_retries=5)

    def submit(self, file: Path, tag: str) -> str:
        """Upload, then create."""

        def call() -> str:
            uploaded = self._client.files.create(file=file, purpose="batch")
            batch = self._client.batches.create(
                input_file_id=uploaded.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={TAG: tag},
            )
            return str(batch.id)

        return _called(call)

    def find(self, tag: str) -> str | None:
        """Look through the newest hundred."""
        page = _called(lambda: self._client.batches.list(limit=100))
        return next((str(b.id) for b in page.data if (b.metadata or {}).get(TAG) == tag), None)

    def status(self, id: str) -> str:
        """As the service says it."""
        return str(_called(lambda: self._client.batches.retrieve(id)).status)

    def results(self, id: str) -> Iterator[str]:
        """Answers, then errors."""
        batch = _called(lambda: self._client.batches.retrieve(id))
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id:
                yield from self._text(file_id).splitlines()

    def _text(self, file_id: str) -> str:
        return str(_called(lambda: self._client.files.content(file_id).text))


T = TypeVar("T")


def _called(call: Callable[[], T]) -> T:
    import openai

    try:
        return call()
    except openai.APIStatusError as error:
        raise UserError(
            f"the batch API answered {error.status_code}", "check the key, the model and the URL"
        ) from None
    except openai.APIConnectionError:
        raise UserError("no answer from the batch API", "check critic.base_url, run again") from None
