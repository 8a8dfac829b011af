"""The same requests as a file: for the batch API (half price, answers within a day) or for `vllm run-batch`.

Between submitting and collecting, the journal holds the batch's id and nothing else is kept. A note is written
before a batch is submitted, and the batch carries its tag: a crash in between does not pay for a second one.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from text2grad.annotation.asking import FAILURE_OF, Asker, answer_line
from text2grad.annotation.endpoint import LONGEST_MESSAGE, OPENAI_URL, Problem, Reply, key_for
from text2grad.annotation.questions import Capability, Question
from text2grad.annotation.secrets import redactor
from text2grad.annotation.work import Items, settle_answered
from text2grad.errors import UserError
from text2grad.feedback import ExcessiveJSONError, from_json, writing

MOST_REQUESTS, MOST_BYTES = 50_000, 150_000_000
"""Of one batch: the service takes 50,000 requests and 200 MB."""
PENDING = ("validating", "in_progress", "finalizing", "cancelling")
TAG = "text2grad"
_CUSTOM_ID = re.compile(r'"custom_id":\s*"([0-9a-f]{64})"')


class NoOutputError(UserError):
    """No line of a file is one of a batch's output."""


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


def write_requests(
    asker: Asker, items: Items, file: Path, capability: Capability = "json_schema", add: bool = False
) -> int:
    """Write what is still to be asked, as much as one batch and the budget allow; how many requests.

    With `add`, after those that the file already holds; they count towards the limits of the batch.
    """
    before = file.read_text(encoding="ascii") if add and file.is_file() else ""
    held, size = before.count("\n"), len(before)
    count = held
    taken: set[str] = set()
    temporary = file.with_name(file.name + ".partial")
    with writing(file), temporary.open("w", encoding="ascii") as out:
        out.write(before)
        for item in items():
            for question in asker.questioner.questions(item):
                if question.id in taken or asker.is_settled(question):
                    continue
                line = request_line(asker, question, capability)
                amount = asker.budget.dearest(asker.most(question))
                if count == MOST_REQUESTS or size + len(line) > MOST_BYTES or not asker.budget.fits(amount):
                    break
                taken.add(question.id)
                out.write(line)
                count, size = count + 1, size + len(line)
    with writing(file):
        temporary.replace(file)
    return count - held


def read_answers(asker: Asker, items: Items, lines: Iterable[str], batch: bool) -> int:
    """Bring the answers of a batch into the journal and settle them; how many were new.

    An answer the journal has, and one to a question that is none of these items', is left aside. One line that
    cannot be read keeps nothing else from being read: its question stays unanswered (`invalid` if it says which).

    Raises:
        NoOutputError: no line is one of a batch's output.
    """
    asked = {question.id: asker.most(question) for item in items() for question in asker.questioner.questions(item)}
    count, bad, good = 0, 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        found = _outcome(asker, line)
        if found is None:
            bad = bad or number
            continue
        good += 1
        id, outcome = found
        slot = asker.journal.slot(id)
        if id not in asked or slot.state in ("ok", "refused", "invalid") or slot.answers:
            continue
        if isinstance(outcome, Reply):
            asker.journal.answer(id, answer_line(outcome, asker.price, asked[id], batch))
        else:
            asker.journal.failure(id, FAILURE_OF.get(outcome.kind, "exhausted"), outcome.message)
        count += 1
    if bad and not good:
        raise NoOutputError(f"line {bad} is not one of a batch's output", "give the file the batch wrote")
    if bad:
        print(f"line {bad} is not one of a batch's output: its question is asked again", file=sys.stderr)
    settle_answered(asker, items)
    return count


def _outcome(asker: Asker, line: str) -> tuple[str, Reply | Problem] | None:
    """A line's request, and its answer or why there is none; None where it is no line of a batch's output."""
    try:
        row = from_json(line)
        id, response = str(row["custom_id"]), row.get("response") or {}
        body, status = response.get("body") or {}, response.get("status_code")
        if row.get("error") or status not in (200, None) or not body.get("choices"):
            error = row.get("error") or body.get("error") or f"status {status}"
            return id, Problem("broken", " ".join(asker.endpoint.redact(str(error)).split())[:LONGEST_MESSAGE])
    except ExcessiveJSONError as error:
        asked = _CUSTOM_ID.search(line)
        return (asked[1], Problem("oversized", f"the answer is not read: {error.msg}")) if asked else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return id, asker.endpoint.reply_of(body)


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
        try:
            read_answers(asker, items, service.results(waiting["id"]), batch=True)
        except NoOutputError:
            say(f"the output of batch {waiting['id']} is none: its questions are asked again")
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
        self._redact = redactor(key)
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

        return self._named(_called(call))

    def find(self, tag: str) -> str | None:
        """Look through the newest hundred."""
        page = _called(lambda: self._client.batches.list(limit=100))
        found = next((str(b.id) for b in page.data if (b.metadata or {}).get(TAG) == tag), None)
        return found and self._named(found)

    def _named(self, id: str) -> str:
        """An id as it may be written down and shown."""
        if self._redact(id) != id or not id.isprintable():
            raise UserError("the batch API names a batch by the key", "check critic.base_url")
        return id

    def status(self, id: str) -> str:
        """As the service says it."""
        return self._redact(str(_called(lambda: self._client.batches.retrieve(id)).status))

    def results(self, id: str) -> Iterator[str]:
        """Answers, then errors."""
        batch = _called(lambda: self._client.batches.retrieve(id))
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id:
                yield from self._text(file_id).split("\n")  # JSON may hold other line breaks

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
