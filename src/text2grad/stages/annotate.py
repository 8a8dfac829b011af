"""`annotate`: the policy answers, a critic judges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from text2grad.annotation.items import Item
from text2grad.annotation.verdicts import state_of
from text2grad.config import Config
from text2grad.critics.program import outcome_counts, preference_pairs, run_outcomes
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean
from text2grad.feedback import (
    DRAFT,
    HUMAN_FEEDBACK,
    Critic,
    Example,
    Feedback,
    Source,
    read_jsonl,
    write_jsonl,
)
from text2grad.journal import STATES
from text2grad.judging import JudgingOptions, judge, left, spent_of
from text2grad.policy.model import Policy, load_policy
from text2grad.sandbox import Runner
from text2grad.stages.critics import make_critic, runner_of
from text2grad.stages.folder import note_settings, prepare, start_policy, task_of
from text2grad.stages.sampling import TOKEN_IDS, sample
from text2grad.tasks.base import conversation_text

SWAP_GROUP = 16


def run_annotate(config: Config, pairs: bool = False) -> dict[str, Any]:
    """Sample the policy and have every response judged; writes `feedback.jsonl` and `feedback_heldout.jsonl`.

    The held-out prompts are annotated too, so that a reward model can be measured on responses to prompts it
    has never seen. With `pairs`, passing and failing programs of one question go into `pairs.jsonl`.
    """
    folder = prepare(config)
    if pairs:
        refuse_pairs(config)
    task = task_of(config)
    policy = load_policy(start_policy(config))
    with runner_of(config) as runner:
        critic = make_critic(config, config.annotate.critic or config.critic.kind, task, runner)
        train = task.examples("train")[: config.annotate.prompts]
        records = sample_feedback(
            policy, train, critic, config, config.annotate.samples_per_prompt, config.annotate.swapped
        )
        heldout = task.examples("heldout")[: config.evaluate.limit]
        held = sample_feedback(policy, heldout, critic, config, min(4, config.annotate.samples_per_prompt))
    note_settings(config, folder)
    kept = other_feedback(folder / "feedback.jsonl", critic.source)
    write_jsonl(folder / "feedback.jsonl", [*kept, *records])
    write_jsonl(folder / "feedback_heldout.jsonl", held)
    ended = Counter(state_of(record.judgement()) for record in [*records, *held])
    return {
        "requested": ended.total(),
        **{state: ended[state] for state in STATES},
        "usd": 0.0,
        "records": len(records),
        "heldout_records": len(held),
        "kept_records": len(kept),
        "spans": sum(len(record.spans) for record in records),
        "failed_records": ended.total() - ended["ok"],
        "mean_score": mean([record.score for record in records if record.score is not None]),
        **({"outcomes": counts} if (counts := outcome_counts([*records, *held])) else {}),
        **(write_pairs(config, records) if pairs else {}),
        "out": str(folder / "feedback.jsonl"),
    }


def judge_sampled(config: Config, out: Path | None, options: JudgingOptions) -> dict[str, Any]:
    """Sample the policy and have an endpoint judge what it says, through the journal (`judging.judge`).

    Held-out prompts are judged into `feedback_heldout.jsonl` beside it, out of the same budget. With `ground`,
    nothing is sampled: the data set's own drafts are taken, and what people wrote about them is grounded.

    Raises:
        UserError: with `ground`, no prompt comes with a draft and feedback on it.
    """
    folder = prepare(config)
    task = task_of(config)
    train = task.examples("train")[: config.annotate.prompts]
    heldout = task.examples("heldout")[: config.evaluate.limit]
    samples = config.annotate.samples_per_prompt
    if options.ground:
        items, held = drafted_items(train)[: options.limit], drafted_items(heldout)[: options.limit]
        if not items:
            cure = "task.data: SLF5K or ILF have some; leave out --ground to sample the policy"
            raise UserError(f"no prompt of task {task.name!r} has a draft with feedback", cure)
    elif options.plan:
        longest = "word " * config.generation.max_new_tokens
        items = [_sampled(example, longest) for example in train * samples]
        held = [_sampled(example, longest) for example in heldout * min(4, samples)]
    else:
        policy = load_policy(start_policy(config))
        items = sampled_items(policy, train, config, samples, config.annotate.swapped)[: options.limit]
        held = sampled_items(policy, heldout, config, min(4, samples))[: options.limit]
        if config.annotate.run_tests:
            with runner_of(config) as runner:
                items, held = tested_items(runner, items), tested_items(runner, held)
    if options.plan:
        return judge(config, lambda: [*items, *held], out, options)
    note_settings(config, folder)
    summary = judge(config, lambda: items, out, options)
    if not held:
        return summary
    place = (out or folder / "feedback.jsonl").with_name("feedback_heldout.jsonl")
    rest = left(options.budget_usd, spent_of(summary) + (summary.get("canaries_usd") or 0.0))
    second = judge(
        config, lambda: held, place, replace(options, budget_usd=rest, canaries=False, add_requests=True)
    )
    added = {name: summary[name] + second[name] for name in (*STATES, "requested", "pending", "sent")}
    usd = None if None in (summary["usd"], second["usd"]) else summary["usd"] + second["usd"]
    worst = max(summary["exit_code"], second["exit_code"])
    return {**summary, **added, "usd": usd, "heldout_records": second["records"], "exit_code": worst}


def sampled_items(
    policy: Policy, examples: Sequence[Example], config: Config, samples: int, swapped: float = 0.0
) -> list[Item]:
    """`samples` responses per example, to be judged; a share of them swapped."""
    repeated = [example for example in examples for _ in range(samples)]
    if not repeated:
        return []
    sampled = sample(policy, repeated, config.generation)
    order = swap_similar(repeated, swapped, config.run.seed)
    return [
        _sampled(_with_ids(example, sampled[index][0]), sampled[index][1])
        for example, index in zip(repeated, order, strict=True)
    ]


def tested_items(runner: Runner, items: Sequence[Item]) -> list[Item]:
    """The items with what came of running their tests, where they have some."""
    found = run_outcomes(runner, [item.example for item in items], [item.response for item in items])
    return [
        replace(item, example=item.example.model_copy(update={"meta": {**item.example.meta, **came}}))
        for item, came in zip(items, found, strict=True)
    ]


def drafted_items(examples: Sequence[Example]) -> list[Item]:
    """The data set's own drafts that people wrote about: only for these do their words hold."""
    drafted = [Item(example, str(example.meta.get(DRAFT, "")), ours=True) for example in examples]
    return [item for item in drafted if DRAFT in item.example.meta and item.human_feedback.strip()]


def refuse_pairs(config: Config) -> None:
    """Pairs need programs that were run, and more than one answer to a question.

    Raises:
        UsageError: the settings can give none.
    """
    if (config.annotate.critic or config.critic.kind) != "program":
        raise UsageError("--pairs needs the verdict of tests", "set --annotate.critic program")
    if config.annotate.samples_per_prompt < 2:
        raise UsageError("--pairs needs several answers to a prompt", "set --annotate.samples_per_prompt 8")


def write_pairs(config: Config, records: Sequence[Feedback]) -> dict[str, Any]:
    """Chosen and rejected programs of the same question, for DPO or a pairwise reward model: `pairs.jsonl`."""
    made = list(preference_pairs(records, config.annotate.pairs_per_prompt))
    path = config.run.folder / "pairs.jsonl"
    write_jsonl(path, made)
    unpaired = len({record.id for record in records}) - len({pair.id for pair in made})
    return {"pairs": len(made), "unpaired_prompts": unpaired, "pairs_out": str(path)}


def other_feedback(path: Path, source: Source) -> list[Feedback]:
    """What the file holds of other critics (people's, say): annotating again replaces only its own records."""
    records = read_jsonl(path, Feedback) if path.is_file() else ()
    return [record for record in records if record.source.kind != source.kind]


def sample_feedback(
    policy: Policy,
    examples: Sequence[Example],
    critic: Critic,
    config: Config,
    samples: int,
    swapped: float = 0.0,
) -> list[Feedback]:
    """`samples` responses per example, each with what the critic says of it; a share of them swapped."""
    if not examples:
        return []
    items = sampled_items(policy, examples, config, samples, swapped)
    judgements = critic.critique([item.example for item in items], [item.response for item in items])
    return [
        Feedback.of(item.example, item.response, judgement, critic.source)
        for item, judgement in zip(items, judgements, strict=True)
    ]


def swap_similar(examples: Sequence[Example], share: float, seed: int) -> list[int]:
    """For each example the index of the response it is shown with; for a `share` of them, one to a similar prompt.

    A reward model that starts from the policy can guess most of a response from its prompt, and then never
    reads the response. Swapped ones cannot be guessed, and similar wording makes them hard to dismiss.
    """
    rng = random.Random(seed)
    order = list(range(len(examples)))
    chosen = rng.sample(order, round(share * len(order)))
    chosen.sort(key=lambda index: conversation_text(examples[index].prompt))
    for start in range(0, len(chosen), SWAP_GROUP):
        group = chosen[start : start + SWAP_GROUP]
        for index, other in zip(group, rng.sample(group, len(group)), strict=True):
            order[index] = other
    return order


def _sampled(example: Example, response: str) -> Item:
    """A sampled response. What a person wrote is about another one, even where the data do not say which, and so
    is what came of tests.
    """
    meta = {name: value for name, value in example.meta.items() if name not in ("outcome", "test_output")}
    unknown = {DRAFT: ""} if HUMAN_FEEDBACK in meta and DRAFT not in meta else {}
    return Item(example.model_copy(update={"meta": {**meta, **unknown}}), response, ours=True)


def _with_ids(example: Example, ids: list[int]) -> Example:
    """The example with the sampled ids noted, so that nobody has to tokenise the response again."""
    return example.model_copy(update={"meta": {**example.meta, TOKEN_IDS: ids}})
