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
from text2grad.critics.program import outcome_counts, preference_pairs
from text2grad.errors import UsageError
from text2grad.eval.metrics import mean
from text2grad.feedback import Critic, Example, Feedback, Source, read_jsonl, write_jsonl
from text2grad.journal import STATES
from text2grad.judging import JudgingOptions, judge, left
from text2grad.policy.model import Policy, load_policy
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

    Held-out prompts are judged into `feedback_heldout.jsonl` beside it, out of the same budget.
    """
    folder = prepare(config)
    task = task_of(config)
    train = task.examples("train")[: config.annotate.prompts]
    heldout = task.examples("heldout")[: config.evaluate.limit]
    samples = config.annotate.samples_per_prompt
    if options.plan:
        repeated = [*train * samples, *heldout * min(4, samples)]
        longest = "word " * config.generation.max_new_tokens
        return judge(config, lambda: (Item(example, longest, ours=True) for example in repeated), out, options)
    policy = load_policy(start_policy(config))
    items = sampled_items(policy, train, config, samples, config.annotate.swapped)[: options.limit]
    held = sampled_items(policy, heldout, config, min(4, samples))[: options.limit]
    note_settings(config, folder)
    summary = judge(config, lambda: items, out, options)
    if not held:
        return summary
    place = (out or folder / "feedback.jsonl").with_name("feedback_heldout.jsonl")
    rest = left(options.budget_usd, (summary["usd"] or 0.0) + (summary.get("canaries_usd") or 0.0))
    second = judge(config, lambda: held, place, replace(options, budget_usd=rest, canaries=False))
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
        Item(_with_ids(example, sampled[index][0]), sampled[index][1], ours=True)
        for example, index in zip(repeated, order, strict=True)
    ]


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


def _with_ids(example: Example, ids: list[int]) -> Example:
    """The example with the sampled ids noted, so that nobody has to tokenise the response again."""
    return example.model_copy(update={"meta": {**example.meta, TOKEN_IDS: ids}})
