"""Write requests to a file, for the batch API (half price, within a day) or `vllm run-batch`.

Between submitting and collecting, only the batch's id is kept, in the journal. Before a batch is
submitted, its tag is noted there, so that a crash in between does not pay for a second batch.
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
from text2grad.chat.asking import MAX_ANSWERS, Verdict
from text2grad.chat.client import OpenAIChat, Questions
from text2grad.chat.endpoint import LONGEST_MESSAGE, Endpoint
from text2grad.chat.reply import Problem, Reply
from text2grad.errors import UserError
from text2grad.json_text import ExcessiveJSONError, from_json
from text2grad.jsonl import whole_file

if TYPE_CHECKING:
    from openai import OpenAI

MOST_REQUESTS, MOST_BYTES = 50_000, 150_000_000
"""Limits of one batch; those of the service are 50,000 requests and 200 MB."""
PENDING = ("validating", "in_progress", "finalizing", "cancelling")
TAG = "text2grad"
_CUSTOM_ID = re.compile(r'"custom_id":\s*"([0-9a-f-]{64})"')


class NoOutputError(UserError):
    """A file has no line of batch output."""


def custom_id(question: str, attempt: int) -> str:
    """Return the id of a request in a batch, of 64 characters: the question's, and its attempt."""
    suffix = f"-{attempt}" if attempt else ""
    return question[: len(question) - len(suffix)] + suffix


def write_requests(chat: OpenAIChat, questions: Questions, file: Path) -> int:
    """Write the remaining questions, up to the batch limits and the budget; return their number."""
    count, size, asker = 0, 0, chat.asker
    with whole_file(file, encoding="ascii") as out:
        for question in asker.unsettled(questions()):
            attempt = chat.journal.slot(question.id).answers
            id = custom_id(question.id, attempt)
            head = json.dumps({"custom_id": id, "method": "POST", "url": "/v1/chat/completions"})
            body = asker.questioner.request(question, attempt)
            line = f'{head[:-1]}, "body": {body}}}\n'
            is_full = count == MOST_REQUESTS or size + len(line) > MOST_BYTES
            if is_full or not asker.budget.reserve(question.id, asker.max_usage(question), wait=False):
                break
            out.write(line)
            count, size = count + 1, size + len(line)
    return count


def read_answers(chat: OpenAIChat, questions: Questions, verdict: Verdict, lines: Iterable[str]) -> int:
    """Write the answers of a batch to the journal, settle them, and return the number of new ones.

    Answers to other requests, and answers that the journal already has, are ignored. An unreadable
    line leaves its question unanswered, or `invalid` if the line contains the id of its request.

    Raises:
        NoOutputError: no line is batch output.
    """
    unsettled = list(chat.asker.unsettled(questions()))
    requested = {custom_id(each.id, chat.journal.slot(each.id).answers): each for each in unsettled}
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
        if question := requested.pop(id, None):
            if isinstance(outcome, Problem):
                chat.asker.fall_back(outcome, sent, question)  # for the next batch
            chat.asker.keep(question.id, outcome, chat.asker.max_usage(question), batch=True)
            count += 1
    if bad and not good:
        raise NoOutputError(f"line {bad} is not batch output", "give the output file of the batch")
    if bad:
        print(f"line {bad} is not batch output: its question is asked again", file=sys.stderr)
    for question in unsettled:
        slot = chat.journal.slot(question.id)
        if slot.state is None and slot.offset >= 0:  # answered, but not judged
            chat.asker.judge(question, verdict, last=slot.answers >= MAX_ANSWERS)
    return count


def _outcome(endpoint: Endpoint, line: str) -> tuple[str, Reply | Problem] | None:
    """Parse a line into a request's id and a reply or problem; None if it is not batch output."""
    try:
        row = from_json(line)
        id, response = str(row["custom_id"]), row.get("response") or {}
        body, status = response.get("body") or {}, response.get("status_code")
        if row.get("error") or status not in (200, None) or not body.get("choices"):
            error = classify(row.get("error") or body or f"status {status}")
            return id, Problem("broken", endpoint.redact(error.message)[:LONGEST_MESSAGE], refused=error.refused)
    except ExcessiveJSONError as error:
        id_match = _CUSTOM_ID.search(line)
        return (id_match[1], Problem("oversized", f"the answer is too large: {error.msg}")) if id_match else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return id, endpoint.reply_of(body)


def run_batch(chat: OpenAIChat, questions: Questions, verdict: Verdict, report: Callable[[str], None]) -> bool:
    """Collect the submitted batch, or submit one; return True while a batch is pending.

    Raises:
        UserError: the batch failed, or the service refused the request.
    """
    import openai

    endpoint, journal = chat.asker.endpoint, chat.journal
    # Local servers take any key, but the SDK insists on one.
    service = openai.OpenAI(api_key=endpoint.key or "none", base_url=endpoint.url, max_retries=5)
    try:
        with closing(service):
            if tag := journal.notes.get("submitting"):  # the process died before it noted the id of the batch
                newest = [] if journal.notes.get("batch") else service.batches.list(limit=100).data
                batch = next((batch for batch in newest if (batch.metadata or {}).get(TAG) == tag), None)
                if batch is not None:
                    journal.note("batch", {"id": batch.id})
                journal.note("submitting", None)
            if journal.notes.get("batch") and not _collect(chat, service, questions, verdict, report):
                return True
            return _submit(chat, service, questions, report)
    except openai.APIError as error:
        message = endpoint.redact(classify(error.body).message if error.body else str(error))[:LONGEST_MESSAGE]
        cure = "check the key, the model and critic.prompted.base_url, then run again"
        raise UserError(f"the batch API answered: {message}", cure) from None


def _collect(
    chat: OpenAIChat, service: OpenAI, questions: Questions, verdict: Verdict, report: Callable[[str], None]
) -> bool:
    """Read the answers of the batch; return False while it is pending."""
    id = chat.journal.notes["batch"]["id"]
    batch = service.batches.retrieve(id)
    if batch.status in PENDING:
        report(f"batch {id}: {batch.status}")
        return False
    files = filter(None, (batch.output_file_id, batch.error_file_id))
    # Not splitlines: JSON may contain other line separators.
    lines = (line for file in files for line in service.files.content(file).text.split("\n"))
    try:
        read_answers(chat, questions, verdict, lines)
    except NoOutputError:
        report(f"batch {id} has no readable output: its questions are asked again")
    chat.journal.note("batch", None)
    if batch.status == "failed":
        raise UserError(f"batch {id} failed", "see its page for the reason, then run again")
    return True


def _submit(chat: OpenAIChat, service: OpenAI, questions: Questions, report: Callable[[str], None]) -> bool:
    """Submit the remaining questions; return False if all are settled."""
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
    report(f"batch {batch.id}: {count} requests submitted; run the same command again to collect them")
    return True
