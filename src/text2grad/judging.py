"""`annotate` over an endpoint: responses from a file or from the policy, judged once each through the journal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from text2grad.annotation.asking import Asker, Budget, is_settled
from text2grad.annotation.batch import OpenAIBatches, read_answers, run_batch, write_requests
from text2grad.annotation.canaries import canaries_path, canary_items
from text2grad.annotation.endpoint import Endpoint
from text2grad.annotation.items import check_items, read_items
from text2grad.annotation.pace import Pace
from text2grad.annotation.prices import Price, price_of, tokens_of, unknown_price
from text2grad.annotation.questions import LADDER, Decoding, Prompt, Questioner
from text2grad.annotation.verdicts import Reader
from text2grad.annotation.work import Items, Recorder, settle_all, tally
from text2grad.config import Config
from text2grad.critics.noise import noisy_spans
from text2grad.errors import EXIT_BATCH_PENDING, EXIT_BUDGET, EXIT_SOME_RECORDS_FAILED, UsageError, UserError
from text2grad.feedback import Feedback, read_jsonl, write_jsonl
from text2grad.journal import Journal, Slot, Totals
from text2grad.report.quality import Quality, tokenize_by
from text2grad.tasks.base import load_task, prompt_version, read_prompt

GROUND = "ground"
TESTED = {"code": "code_tested", "code_plain": "code_plain_tested"}
"""Prompts that show what came of the tests, by those that do not."""
GUESSED_ANSWER = 300
"""Tokens of a critique, where nothing has been answered yet to tell from."""
GUESSED_SECONDS = 5.0


@dataclass(frozen=True)
class JudgingOptions:
    """What the command line says beside the settings: how far to go this time.

    `canaries` None: wherever an endpoint is asked now, not where requests or answers are a file. `add_requests`:
    the file of requests keeps those it holds.
    """

    plan: bool = False
    budget_usd: float | None = None
    limit: int | None = None
    resume: bool = True
    again: bool = False
    ground: bool = False
    batch: bool = False
    requests: Path | None = None
    answers: Path | None = None
    canaries: bool | None = None
    add_requests: bool = False

    @property
    def asks(self) -> bool:
        """Whether a server is asked now, so that a key may be needed."""
        return not self.plan and self.requests is None and self.answers is None

    @property
    def with_canaries(self) -> bool:
        """Whether the judge is tried on canaries first."""
        return self.requests is None and self.answers is None if self.canaries is None else self.canaries


def judge_file(config: Config, responses: Path, out: Path | None, options: JudgingOptions) -> dict[str, Any]:
    """Have the responses of a file judged; see `judge`."""
    return judge(config, lambda: read_items(responses, options.limit, options.ground), out, options)


def judge(config: Config, items: Items, out: Path | None, options: JudgingOptions) -> dict[str, Any]:
    """Have every item judged once, and write the records to `out` (by default `feedback.jsonl` of the run).

    Answers go to the journal beside `out` first (`<out>.journal`). Whatever happens, what was answered is kept and
    the same command asks only for the rest. `exit_code` of the summary: 3 not all ok, 4 budget, 75 batch pending.

    Raises:
        UserError: an item is bad (before anything is asked), or a mistake that fails every question.
    """
    target = out or config.run.folder / "feedback.jsonl"
    price = price_of(config.critic.model, config.annotate.prices)
    questioner = _questioner(config, options.asks)
    count = check_items(items(), config.annotate.max_characters)
    if not count:
        raise UserError("there are no responses to judge", "check the file")
    place = target.with_name(target.name + ".journal")
    if options.plan:
        return {"records": count, **_plan(config, questioner, items, price, place, options)}
    known: dict[str, Any] = {}
    if options.with_canaries:
        known = judge_canaries(config, target, options)
        options = replace(options, canaries=False, budget_usd=left(options.budget_usd, known.pop("canaries_spent")))
    if not options.resume:
        _set_aside(place)
    with Journal.open(place) as journal:
        asker = _asker(config, questioner, journal, price, options)
        try:
            done = _asked(config, asker, items, options)
        finally:
            written = _write(target, _noisy(config, Recorder(questioner, asker.reader, journal).records(items)))
        summary = tally(questioner, items, journal).summary(journal)
        return {
            **summary,
            **known,
            "records": written,
            "sent": asker.sent,
            "capability": asker.capability,
            "price": "known" if price else unknown_price(config.critic.model, config.annotate.prices),
            "journal": str(place),
            "out": str(target),
            "exit_code": _exit_code(asker, summary, done),
        }


def judge_canaries(config: Config, target: Path, options: JudgingOptions) -> dict[str, Any]:
    """Have the canaries judged into a file beside `target`: how many, how many have moved, and what they cost.

    Raises:
        UserError: more of them have moved than `annotate.moved_canaries`, or none of them could be judged: what
            this judge says of other responses is not worth its price.
    """
    found = canary_items(config.critic.prompt or load_critic_prompt(config))
    own = JudgingOptions(budget_usd=options.budget_usd, resume=options.resume, again=options.again, canaries=False)
    place = canaries_path(target)
    critic = config.critic.model_copy(update={"noise": None})  # noise would move them
    summary = judge(config.model_copy(update={"critic": critic}), lambda: found, place, own)
    quality = Quality(tokenize_by(None), lambda model, usage: None)
    for record in read_jsonl(place, Feedback):
        quality.add_canary(record)
    moved, judged = quality.counts["canaries_moved"], quality.counts["canaries"]
    _refuse_judge(config, moved, judged, bool(summary["pending"]), place)
    if moved:
        _say(f"{moved} of {len(found)} canaries moved: read {place} before you trust this judge")
    return {
        "canaries": judged,
        "canaries_moved": moved,
        "canaries_usd": summary["usd"],
        "canaries_spent": spent_of(summary),
        "canaries_out": str(place),
    }


def _refuse_judge(config: Config, moved: int, judged: int, pending: bool, place: Path) -> None:
    cure = f"read {place}; another model or prompt, or --no-canaries"
    if not judged and not pending:
        raise UserError("this judge gave no readable answer to any canary", cure)
    if moved > config.annotate.moved_canaries * judged:
        raise UserError(f"{moved} of {judged} canaries moved: this judge misses plain faults, or obeys them", cure)


def spent_of(summary: Mapping[str, Any]) -> float:
    """USD that a job has used of its budget: answers, and requests that may cost without one."""
    return float((summary["usd"] or 0.0) + summary["usd_without_answer"])


def left(budget: float | None, spent: float | None) -> float | None:
    """What is left of a budget."""
    return None if budget is None else max(0.0, budget - (spent or 0.0))


def _asked(config: Config, asker: Asker, items: Items, options: JudgingOptions) -> bool:
    """Ask as the options say; False while answers are still to come from elsewhere."""
    if options.requests is not None:
        count = write_requests(asker, items, options.requests, add=options.add_requests)
        more = " more" if options.add_requests else ""
        _say(f"{count}{more} requests in {options.requests}: run them, then --read-answers FILE")
        return not count
    if options.answers is not None:
        with _opened(options.answers) as lines:
            read_answers(asker, items, lines, batch=True)
        return True
    if options.batch:
        service = OpenAIBatches(config.critic.base_url, config.annotate.timeout)
        return not run_batch(asker, items, service, _say)
    settle_all(asker, items, config.critic.concurrency)
    return True


def _exit_code(asker: Asker, summary: dict[str, float | None], done: bool) -> int:
    if not done:
        return EXIT_BATCH_PENDING
    if asker.budget.reached:
        return EXIT_BUDGET
    return 0 if summary["ok"] == summary["requested"] and not summary["pending"] else EXIT_SOME_RECORDS_FAILED


def _questioner(config: Config, asks: bool) -> Questioner:
    critic, annotate = config.critic, config.annotate
    if not critic.model:
        raise UsageError("no model to ask", "--critic.model NAME")
    judge = critic.prompt or load_critic_prompt(config)
    endpoint = Endpoint(critic.base_url, annotate.timeout, asks=asks)
    return Questioner(
        critic.model,
        Decoding(critic.max_tokens, annotate.temperature, annotate.votes),
        Prompt(read_prompt(judge), prompt_version(judge)),
        Prompt(read_prompt(GROUND), prompt_version(GROUND)),
        new_limit_name=endpoint.is_openai,
        tested=Prompt(read_prompt(TESTED[judge]), prompt_version(TESTED[judge])) if judge in TESTED else None,
    )


def load_critic_prompt(config: Config) -> str:
    """The prompt of the task's annotator, without loading the task's data where it is one of ours."""
    ours = {"summarization": "summarization", "qa": "qa", "code": "code", "demo": "code"}
    return ours.get(config.task.name) or load_task(config.task).critic_prompt


def _asker(
    config: Config, questioner: Questioner, journal: Journal, price: Price | None, options: JudgingOptions
) -> Asker:
    endpoint = Endpoint(config.critic.base_url, config.annotate.timeout, asks=options.asks)
    known = journal.notes.get("capability")
    noted = known if isinstance(known, dict) else {}
    same = (noted.get("server"), noted.get("model")) == (endpoint.name, questioner.model)
    capability = noted["is"] if same and noted.get("is") in LADDER else None
    reader = Reader(config.critic.ambiguity, config.annotate.quotes, config.annotate.validation, repair=True)
    return Asker(
        endpoint,
        questioner,
        reader,
        journal,
        Pace(config.critic.concurrency),
        Budget(options.budget_usd, price, journal),
        price,
        config.annotate.retries,
        capability,
        options.again,
    )


def _plan(
    config: Config, questioner: Questioner, items: Items, price: Price | None, place: Path, options: JudgingOptions
) -> dict[str, Any]:
    """What is still to be asked would cost, before a cent is spent. Tokens at 4 characters each of the requests as
    they will be sent; how long answers are is known from those that are there.
    """
    answer, seconds = float(min(GUESSED_ANSWER, config.critic.max_tokens)), GUESSED_SECONDS
    totals, ended = Totals(), dict[str, Slot]()
    if place.is_file() and options.resume:
        with Journal.open(place) as journal:
            totals, ended = journal.totals, journal.slots
    if totals.answers:
        answer, seconds = totals.completion_tokens / totals.answers, totals.seconds / totals.answers
    waiting = {
        question.id: sum(len(message["content"]) for message in question.messages)
        for item in items()
        for question in questioner.questions(item)
        if not is_settled(ended.get(question.id, Slot()).state, options.again)
    }
    requests = len(waiting)
    usage = {
        "prompt_tokens": float(tokens_of(sum(waiting.values()))),
        "completion_tokens": float(round(requests * answer)),
    }
    return {
        "requests": requests,
        "prompt_tokens": int(usage["prompt_tokens"]),
        "completion_tokens": int(usage["completion_tokens"]),
        "usd": round(price.cost(usage), 4) if price else None,
        "usd_batch": round(price.cost(usage, batch=True), 4) if price else None,
        "usd_paid_so_far": round(totals.usd, 6),
        "minutes": round(requests * seconds / config.critic.concurrency / 60, 2),
        "price": "known" if price else unknown_price(config.critic.model, config.annotate.prices),
        "spent_now": 0,
    }


def _noisy(config: Config, records: Iterator[Feedback]) -> Iterator[Feedback]:
    """The records with `critic.noise` in their spans. The journal keeps what was answered."""
    settings, seed = config.critic.noise, config.run.seed
    for record in records:
        spans = noisy_spans(record, settings, seed) if settings else record.spans
        yield record.model_copy(update={"spans": tuple(spans)})


def _write(target: Path, records: Iterator[Feedback]) -> int:
    """Write the records; what the file held about other responses, or from other critics, stays before them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".new")
    about: set[bytes] = set()

    def noted() -> Iterator[Feedback]:
        for record in records:
            about.add(_identity(record))
            yield record

    try:
        count = write_jsonl(fresh, noted())
        if count or target.is_file():
            write_jsonl(target, _kept_and_new(target, fresh, about))
        return count
    finally:
        fresh.unlink(missing_ok=True)


def _kept_and_new(target: Path, fresh: Path, about: set[bytes]) -> Iterable[Feedback]:
    if target.is_file():
        yield from (record for record in read_jsonl(target, Feedback) if _identity(record) not in about)
    yield from read_jsonl(fresh, Feedback)


def _identity(record: Feedback) -> bytes:
    """What a record is about, and the kind of critic: a later judgement of the same takes its place."""
    words = "\0".join((record.source.kind, record.id, record.response))
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _set_aside(place: Path) -> None:
    """Begin anew; answers that were paid for are renamed, never deleted."""
    if place.is_file():
        number = next(n for n in range(1, 1_000_000) if not place.with_name(f"{place.name}.{n}").exists())
        place.rename(place.with_name(f"{place.name}.{number}"))


def _opened(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check the path") from error


def _say(line: str) -> None:
    print(line, file=sys.stderr)
