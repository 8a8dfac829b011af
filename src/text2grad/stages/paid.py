"""`annotate` with an endpoint: a journal next to the records makes every answer cost money once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.chat.batch import read_answers, run_batch, write_requests
from text2grad.chat.client import OpenAIChat, Questions
from text2grad.chat.questions import Question
from text2grad.chat.settings import EndpointSettings
from text2grad.critics.canaries import canaries_path, canary_items
from text2grad.critics.prompted import PromptedCritic
from text2grad.data.records import write_feedback
from text2grad.data.responses import Item
from text2grad.errors import EXIT_BATCH_PENDING, EXIT_BUDGET, EXIT_SOME_RECORDS_FAILED, UsageError, UserError
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl, reading
from text2grad.page.quality import measure
from text2grad.stages.critics import prompted_critic
from text2grad.stages.run_folder import HELDOUT_FEEDBACK

MOST_MOVED = 0.5
"""The largest share of the canaries that a critic may misjudge."""


@dataclass(frozen=True)
class AnnotateOptions:
    """Command-line options of `annotate` that are not settings.

    All but `limit`, `start` (the policy to sample; "": the SFT policy) and `sheet` (of a workbook)
    apply to a critic behind an endpoint only. `canaries` None: canaries are judged, unless requests
    or answers are files.
    """

    plan: bool = False
    budget_usd: float | None = None
    limit: int | None = None
    resume: bool = True
    again: bool = False
    anchor: bool = False
    batch: bool = False
    requests: Path | None = None
    answers: Path | None = None
    canaries: bool | None = None
    start: str = ""
    sheet: str = ""

    @property
    def asks(self) -> bool:
        """True if a server is called now, so that a key may be needed."""
        return not self.plan and self.requests is None and self.answers is None

    @property
    def with_canaries(self) -> bool:
        """True if the critic has to judge canaries first."""
        return self.requests is None and self.answers is None if self.canaries is None else self.canaries


def refuse_endpoint_options(options: AnnotateOptions) -> None:
    """Refuse options for endpoints with a critic that has no endpoint.

    Raises:
        UsageError: such an option is set.
    """
    values, defaults = asdict(options), asdict(AnnotateOptions(limit=options.limit, start=options.start))
    flags = {"requests": "write-requests", "answers": "read-answers", "resume": "no-resume"}
    if options.canaries is False:
        flags["canaries"] = "no-canaries"
    unused = [f"--{flags.get(name, name.replace('_', '-'))}" for name in values if values[name] != defaults[name]]
    if unused:
        raise UsageError(f"{', '.join(unused)}: only for a chat model", "--annotate.critic prompted")


@dataclass(frozen=True)
class PaidJob:
    """A job that asks a chat model behind an endpoint, within the endpoint's budget.

    Every question is paid for once.
    """

    endpoint: EndpointSettings
    prompt: str
    options: AnnotateOptions

    def annotate(self, items: Sequence[Item], target: Path, heldout: Sequence[Item] = ()) -> dict[str, Any]:
        """Have every item judged once, and write the records to `target`.

        Records of the `heldout` items are written to another file in the same folder. Answers are
        first written to the journal `<target>.journal`. Whatever happens, they are kept, and the
        same command asks only the remaining questions.

        Returns:
            Outcomes and cost of the questions (`OpenAIChat.tally`), and counts of the records. The
            `exit_code` is 3 if some questions failed, 4 if the budget is spent, 75 if a batch is
            pending.

        Raises:
            UserError: every question would fail.
        """
        canaries = self._judge_canaries(target) if self.options.with_canaries else {}
        spent, budget = canaries.pop("canaries_spent", 0.0), self.endpoint.budget_usd
        if budget is not None:
            budget = max(0.0, budget - spent)
        journal = journal_of(target)
        if not self.options.resume:
            _set_aside(journal)
        with self._chat(journal, budget) as chat:
            critic = prompted_critic(chat, self.prompt, use_evidence=True)
            questions = partial(self._questions, critic, [*items, *heldout])
            try:
                done = self._ask(chat, critic, questions)
            finally:
                records, heldout_records = self._records(critic, items), self._records(critic, heldout)
                write_feedback(target, records)
                if heldout:
                    write_feedback(target.with_name(HELDOUT_FEEDBACK), heldout_records)
            tally = chat.tally(questions())
            return {
                **tally,
                **canaries,
                "records": len(records),
                **({"heldout_records": len(heldout_records)} if heldout else {}),
                "sent": chat.asker.sent,
                "left_out": sorted(chat.asker.questioner.refused),
                "price": chat.price_status,
                "journal": str(journal),
                "out": str(target),
                "exit_code": _exit_code(chat, tally, done),
            }

    def plan(self, items: Sequence[Item], target: Path) -> dict[str, Any]:
        """Return the cost of the remaining questions, without sending or writing anything."""
        journal = journal_of(target)
        stored = journal if journal.is_file() and self.options.resume else None
        with self._chat(stored, None) as chat:
            critic = prompted_critic(chat, self.prompt, use_evidence=True)
            return {"records": sum(map(self._is_question, items)), **chat.plan(self._questions(critic, items))}

    def _is_question(self, item: Item) -> bool:
        """True if the critic is asked about the item; with `--anchor`, if a comment needs marks."""
        return bool(item.comment) or not self.options.anchor

    def _questions(self, critic: PromptedCritic, items: Sequence[Item]) -> Iterator[Question]:
        return (critic.question(item.example, item.response) for item in items if self._is_question(item))

    def _records(self, critic: PromptedCritic, items: Sequence[Item]) -> list[Feedback]:
        """Return a record per answer so far, in the order of the items; others stay unchanged."""
        records: list[Feedback] = []
        for item in items:
            answered = list(critic.feedback([(item.example, item.response)])) if self._is_question(item) else []
            records += map(item.with_spans, answered)
            records += [item.original] if item.original is not None and not answered else []
        return records

    def _ask(self, chat: OpenAIChat, critic: PromptedCritic, questions: Questions) -> bool:
        """Ask the questions as the options require; return False while answers are pending."""
        options = self.options
        if options.requests is not None:
            count = write_requests(chat, questions, options.requests)
            _print_status(f"{count} requests written to {options.requests}: run them, then use --read-answers FILE")
            return not count
        if options.answers is not None:
            with reading(options.answers), options.answers.open(encoding="utf-8", errors="replace") as lines:
                read_answers(chat, questions, critic.verdict, lines)
            return True
        if options.batch:
            return not run_batch(chat, questions, critic.verdict, _print_status)
        chat.settle(questions(), critic.verdict)
        return True

    def _chat(self, journal: Path | None, budget: float | None) -> OpenAIChat:
        endpoint = self.endpoint.model_copy(update={"budget_usd": budget})
        return OpenAIChat(endpoint, journal, again=self.options.again, asks=self.options.asks, progress=True)

    def _judge_canaries(self, target: Path) -> dict[str, Any]:
        """Have the canaries judged, and return their counts and cost for the summary.

        A critic that misjudges more than `MOST_MOVED` of the canaries is refused. The same command
        asks about all canaries again, since the server may have been fixed.

        Raises:
            UserError: the critic misjudges too many canaries, or no answer is readable.
        """
        pairs = canary_items(self.prompt.rpartition(":")[2], self.options.anchor)
        canaries = [Item(*pair) for pair in pairs]
        path, options = canaries_path(target), self.options
        job = replace(self, options=AnnotateOptions(resume=options.resume, again=options.again, canaries=False))
        tally = job.annotate(canaries, path)
        figures = measure((), read_jsonl(path, Feedback))
        moved, judgements = figures["canaries_moved"], figures["canaries"]
        cure = f"read {path}; try another model or prompt, or --no-canaries"
        unreadable, misjudged = not judgements and not tally["pending"], moved > MOST_MOVED * judgements
        if unreadable or misjudged:
            _set_aside(journal_of(path))
        if unreadable:
            raise UserError("this critic gave no readable answer to any canary", cure)
        if misjudged:
            problem = f"{moved} of {judgements} canaries were misjudged"
            raise UserError(f"{problem}: this critic misses obvious faults, or obeys the answers", cure)
        if moved:
            _print_status(
                f"{moved} of {len(canaries)} canaries were misjudged: read {path} before you trust this critic"
            )
        return {
            "canaries": judgements,
            "canaries_moved": moved,
            "canaries_usd": tally["usd"],
            "canaries_spent": (tally["usd"] or 0.0) + (tally["usd_without_answer"] or 0.0),
            "canaries_out": str(path),
        }


def journal_of(target: Path) -> Path:
    """Return the path of the journal with the answers behind the records in `target`."""
    return target.with_name(target.name + ".journal")


def _exit_code(chat: OpenAIChat, tally: Mapping[str, float | None], done: bool) -> int:
    if not done:
        return EXIT_BATCH_PENDING
    if chat.asker.budget.reached:
        return EXIT_BUDGET
    return 0 if tally["ok"] == tally["requested"] and not tally["pending"] else EXIT_SOME_RECORDS_FAILED


def _set_aside(journal: Path) -> None:
    """Rename a journal, so that the job starts over without deleting paid answers."""
    if journal.is_file():
        number = next(n for n in range(1, 1_000_000) if not journal.with_name(f"{journal.name}.{n}").exists())
        journal.rename(journal.with_name(f"{journal.name}.{number}"))


def _print_status(line: str) -> None:
    print(line, file=sys.stderr)
