"""The same requests as a file: for the batch API (half price, answers within a day) or for
`vllm run-batch`.

Between submitting and collecting, the journal holds the batch's id and nothing else is kept. A note
is written before a batch is submitted, and the batch carries its tag: a crash in between does not
pay for a second one.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from text2grad.chat.api_errors import classify
from text2grad.chat.asking import Verdict
from text2grad.chat.client import OpenAIChat, Questions
from text2grad.chat.endpoint import LONGEST_MESSAGE, Endpoint
from text2grad.chat.reply import Problem, Reply
from text2grad.errors import UserError
from text2grad.json_text import ExcessiveJSONError, from_json
from text2grad.jsonl import writing

if TYPE_CHECKING:
    from openai import OpenAI

MOST_REQUESTS, MOST_BYTES = 50_000, 150_000_000
"""Of one batch: the service takes 50,000 requests and 200 MB."""
PENDING = ("validating", "in_progress", "finalizing", "cancelling")
TAG = "text2grad"
_CUSTOM_ID = re.compile(r'"custom_id":\s*"([0-9a-f]{64})"')


class NoOutputError(UserError):
    """No line of a file is a line of a batch's output."""


def write_requests(chat: OpenAIChat, questions: Questions, file: Path, add: bool = False) -> int:
    """Write the remaining questions, as many as one batch and the budget allow, and return their
    number.

    With `add`, after those that the file already holds; they count towards the limits of the batch.
    """
    before = file.read_text(encoding="ascii") if add and file.is_file() else ""
    held, size = before.count("\n"), len(before)
    count, asker = held, chat.asker
    temporary = file.with_name(file.name + ".partial")
    with writing(file), temporary.open("w", encoding="ascii") as out:
        out.write(before)
        for question in asker.unsettled(questions()):
            head = json.dumps({"custom_id": question.id, "method": "POST", "url": "/v1/chat/completions"})
            attempt = chat.journal.slot(question.id).answers
            body = asker.questioner.request(question, attempt)
            line = f'{head[:-1]}, "body": {body}}}\n'
            full = count == MOST_REQUESTS or size + len(line) > MOST_BYTES
            if full or not asker.budget.reserve(question.id, asker.most(question), wait=False):
                break
            out.write(line)
            count, size = count + 1, size + len(line)
    with writing(file):
        temporary.replace(file)
    return count - held


def read_answers(chat: OpenAIChat, questions: Questions, verdict: Verdict, lines: Iterable[str]) -> int:
    """Bring the answers of a batch into the journal, settle them, and return how many were new.

    Answers that the journal already has, and answers to other questions, are ignored. A line
    that cannot be read leaves only its own question unanswered (`invalid` if the line says which).

    Raises:
        NoOutputError: no line is a line of a batch's output.
    """
    asked = {question.id: question for question in questions()}
    sent = chat.asker.questioner
    count, bad, good = 0, 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        result = _outcome(chat.asker.endpoint, line)
        if result is None:
            bad = bad or number
            continue
        good += 1
        id, outcome = result
        slot = chat.journal.slot(id)
        if id in asked and not slot.answers and slot.state in (None, "exhausted"):
            if isinstance(outcome, Problem):
                chat.asker.fall_back(outcome, sent, asked[id])  # for the next batch
            chat.asker.keep(id, outcome, chat.asker.most(asked[id]), batch=True)
            count += 1
    if bad and not good:
        raise NoOutputError(f"line {bad} is not one of a batch's output", "give the file the batch wrote")
    if bad:
        print(f"line {bad} is not one of a batch's output: its question is asked again", file=sys.stderr)
    for id, question in asked.items():
        slot = chat.journal.slot(id)
        if slot.state is None and slot.offset >= 0:  # answered, and never judged
            chat.asker.judge(question, verdict, last=slot.answers > 1)
    return count


def _outcome(endpoint: Endpoint, line: str) -> tuple[str, Reply | Problem] | None:
    """Read a line's request, and its answer or the reason it is missing; None if it is not batch
    output."""
    try:
        row = from_json(line)
        id, response = str(row["custom_id"]), row.get("response") or {}
        body, status = response.get("body") or {}, response.get("status_code")
        if row.get("error") or status not in (200, None) or not body.get("choices"):
            error = classify(row.get("error") or body or f"status {status}")
            return id, Problem("broken", endpoint.redact(error.message)[:LONGEST_MESSAGE], refused=error.refused)
    except ExcessiveJSONError as error:
        id_match = _CUSTOM_ID.search(line)
        return (id_match[1], Problem("oversized", f"the answer is not read: {error.msg}")) if id_match else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return id, endpoint.reply_of(body)


def run_batch(chat: OpenAIChat, questions: Questions, verdict: Verdict, say: Callable[[str], None]) -> bool:
    """Collect the batch that was submitted, or submit one; True while one is pending.

    Raises:
        UserError: the service failed the batch, or refused the request.
    """
    import openai

    endpoint, journal = chat.asker.endpoint, chat.journal
    # Local servers take any key, but the SDK insists on one.
    service = openai.OpenAI(api_key=endpoint.key or "none", base_url=endpoint.url, max_retries=5)
    try:
        with closing(service):
            if tag := journal.notes.get("submitting"):  # by a process that died before it could write down the id
                newest = [] if journal.notes.get("batch") else service.batches.list(limit=100).data
                batch = next((batch for batch in newest if (batch.metadata or {}).get(TAG) == tag), None)
                if batch is not None:
                    journal.note("batch", {"id": batch.id})
                journal.note("submitting", None)
            if journal.notes.get("batch") and not _collect(chat, service, questions, verdict, say):
                return True
            return _submit(chat, service, questions, say)
    except openai.APIError as error:
        message = endpoint.redact(classify(error.body).message if error.body else str(error))[:LONGEST_MESSAGE]
        cure = "check the key, the model and critic.prompted.base_url, run again"
        raise UserError(f"the batch API answered: {message}", cure) from None


def _collect(
    chat: OpenAIChat, service: OpenAI, questions: Questions, verdict: Verdict, say: Callable[[str], None]
) -> bool:
    """Read the answers of the batch; False while it is pending.

    Raises:
        UserError: the service failed it.
    """
    id = chat.journal.notes["batch"]["id"]
    batch = service.batches.retrieve(id)
    if batch.status in PENDING:
        say(f"batch {id}: {batch.status}")
        return False
    files = filter(None, (batch.output_file_id, batch.error_file_id))
    # Split at line breaks only: JSON may hold other ones.
    lines = (line for file in files for line in service.files.content(file).text.split("\n"))
    try:
        read_answers(chat, questions, verdict, lines)
    except NoOutputError:
        say(f"batch {id} has no readable output: its questions are asked again")
    chat.journal.note("batch", None)
    if batch.status == "failed":
        raise UserError(f"the service failed batch {id}", "see its page for the reason, run again")
    return True


def _submit(chat: OpenAIChat, service: OpenAI, questions: Questions, say: Callable[[str], None]) -> bool:
    """Submit what is still to be asked; False if that is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests.jsonl"
        count = write_requests(chat, questions, file)
        if not count:
            return False
        tag = uuid4().hex
        chat.journal.note("submitting", tag)
        batch = service.batches.create(
            input_file_id=service.files.create(file=file, purpose="batch").id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={TAG: tag},
        )
    chat.journal.note("batch", {"id": batch.id, "requests": count})
    chat.journal.note("submitting", None)
    say(f"batch {batch.id}: {count} requests submitted; run the same command again to collect them")
    return True
