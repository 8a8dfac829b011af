"""`sft`: fine-tuning on reference answers; creates the tiny model where it is the base."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from text2grad import wire
from text2grad.config import TINY, Config, RewardModelSettings
from text2grad.critics.prompted import judge_messages
from text2grad.durable.run import CHECKPOINTS, OnStep, ResumeMode
from text2grad.engines.processes import is_split
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Span, within_turns
from text2grad.policy.encode import encode_target
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.files.save import make_readable
from text2grad.policy.load import choose_device, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import make_tiny_model
from text2grad.stages.critics import REWARD_MODEL_PROMPT
from text2grad.stages.reward_model.data import reward_data, reward_pair
from text2grad.stages.run_folder import BASE, RunFolder
from text2grad.stages.sampling import sample, with_room
from text2grad.stages.training import (
    TrainingStage,
    facts_of_pairs,
    prepare_training,
    refuse_other_engines,
)
from text2grad.tasks.base import Task, get_environment_factory, read_prompt
from text2grad.train.pairs import Pair, count_updates
from text2grad.train.settings import SFTSettings
from text2grad.train.supervised import train_supervised
from text2grad.train.watch.steps import LossFloor

MOST_PROMPTS, MOST_TOKENS, MEMORISED_SHARE = 32, 128, 0.9
"""The check of held-out prompts after SFT: the number of prompts, the length of their references in
tokens, and the share of references written word for word above which training can gain little."""


def run_sft(config: Config, resume: ResumeMode = "auto", on_step: OnStep | None = None) -> dict[str, Any]:
    """Fine-tune the base model on reference answers: start or resume `sft`.

    `on_step` is called after each update, as in `RunOptions`.

    Returns:
        The number of examples, the last metrics, and the policy's folder. `word_for_word` of
        `heldout` checked prompts were answered with exactly the reference answer.

    Raises:
        UserError: `sft` is finished, or no example has a reference answer.
    """
    train = training_loop(config)
    stage = prepare_training(config, "sft", "sft", resume, engines=("local", "trl"))
    refuse_other_engines(stage)
    if resume == "auto" and is_finished(stage.folder):
        cure = "--restart trains it again, another --run.folder trains a second one"
        raise UserError(f"sft is finished: {stage.folder / 'policy'}", cure)
    choose_device(config.policy.device)  # before a tiny model is made
    task = stage.run.task()
    examples = select_with_reference(task.examples("sft"))
    with stage.main_process_first():
        policy = load_policy(base_policy(stage, task, examples))
        pairs = [Pair(example.id, example.prompt, example.reference) for example in examples]
        run = stage.finalise(policy, facts_of_pairs(policy, pairs))
    with run.begin(on_step=on_step) as options:
        settings = run.config.sft
        floor = LossFloor.of(settings, len(pairs))
        metrics = train(policy, pairs, settings, options, stopping=floor)
    stage.exit_other_processes()
    report_early_end("sft", settings, len(pairs), metrics)
    heldout = [] if is_split(policy.model) else task.examples("heldout")
    matches = match_references(policy, run.config.generation, heldout, get_environment_factory(task))
    return {
        "examples": len(pairs),
        **({"heldout": len(matches), "word_for_word": sum(matches)} if matches else {}),
        **metrics,
        "out": str(stage.folder / "policy"),
    }


def is_finished(folder: Path) -> bool:
    """Return True if the folder of a stage has a trained policy and nothing to resume."""
    return (folder / "policy").is_dir() and not (folder / CHECKPOINTS).is_dir()


def training_loop(config: Config) -> Callable[..., dict[str, float]]:
    """Return the SFT loop of the engine `trl`, else the local one.

    Raises:
        UserError: TRL is not installed, or a field in `engine.trl` is not supported.
    """
    if config.engine.name != "trl":
        return train_supervised
    from text2grad.engines.trl.fields import SFT_SET_BY, refuse_fields  # TRL is an extra

    refuse_fields(config.engine.trl, SFT_SET_BY)
    from text2grad.engines.trl.supervised import train_sft_trl

    return partial(train_sft_trl, fields=config.engine.trl)


def report_early_end(name: str, settings: SFTSettings, examples: int, metrics: Mapping[str, float]) -> None:
    """Print a line on stderr if the loss was so low that training ended before its last update."""
    planned, done = count_updates(settings, examples), int(metrics.get("steps", 0))
    if 0 < done < planned:
        print(
            f"{name}: ended after {done} of {planned} updates, when the loss fell below"
            f" {settings.least_loss:g} nats per token. With more updates its samples would hardly differ, and"
            " train would have little to compare. A policy that is not trained further may answer better after"
            " all updates: --sft.least_loss null --restart",
            file=sys.stderr,
        )


def match_references(
    policy: Policy,
    generation: GenerationSettings,
    heldout: Sequence[Example],
    environment: MakeEnvironment | None = None,
) -> list[bool]:
    """Return whether the greedy answers to the first held-out prompts equal their references.

    Whitespace is ignored, and prompts with long references are skipped. Prints the number of
    matches on stderr.
    """
    references = [example for example in heldout if example.reference]
    lengths = [len(encode_target(policy.tokenizer, example.reference)) for example in references]
    short = [example for example, length in zip(references, lengths, strict=True) if length <= MOST_TOKENS]
    tokens = max((length for length in lengths if length <= MOST_TOKENS), default=0)
    examples = with_room(policy, short, tokens)[:MOST_PROMPTS]
    if not examples:
        return []
    greedy = generation.model_copy(update={"temperature": 0.0, "max_new_tokens": tokens})
    answers = [text for _, text in sample(policy, examples, greedy, environment)]
    matches = [
        answer.split() == example.reference.split() for answer, example in zip(answers, examples, strict=True)
    ]
    kind = "corrections" if all(example.meta.get("corrected") for example in examples) else "reference answers"
    line = f"the policy reproduces {sum(matches)} of {len(matches)} held-out {kind} word for word"
    meaning = "; train can gain little" if sum(matches) >= MEMORISED_SHARE * len(matches) else ""
    print(f"sft: {line}{meaning}", file=sys.stderr)
    return matches


def select_with_reference(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with a reference answer, which SFT imitates.

    Raises:
        UserError: no example has a reference answer.
    """
    selected = [example for example in examples if example.reference]
    if not selected:
        problem = f"{len(examples)} question{'s' * (len(examples) != 1)}, none has a reference answer"
        cure = "add 'response' (the answer to imitate) to them, or skip sft with --policy.model MODEL"
        raise UserError(problem, cure)
    return selected


def base_policy(stage: TrainingStage, task: Task, examples: Sequence[Example]) -> PolicySettings:
    """Return the model to start from; `tiny` is created from the task's training texts."""
    config, run = stage.config, stage.run
    if run.base.model != TINY:
        return run.base
    folder = run.path / BASE
    texts = [*tiny_texts(examples), *human_texts(run, config.reward_model)]
    tiny, shape = config.tiny, getattr(task, "tiny_model", None)
    make_tiny_model(folder, texts, tiny.vocabulary, shape=shape, seed=config.run.seed)
    make_readable(folder)
    return run.policy(BASE)


def tiny_texts(examples: Sequence[Example]) -> list[str]:
    """Return the texts that a tiny model's tokenizer is trained on: prompts, answers, critiques."""
    prompt = read_prompt(REWARD_MODEL_PROMPT)
    texts = [message.content for example in examples for message in example.prompt]
    texts += [example.reference for example in examples]
    for example in examples[:500]:
        answer = example.reference
        spans = within_turns((Span(start=0, end=len(answer), label=1, text=answer),), answer)
        texts += [message.content for message in judge_messages(prompt, example, answer)]
        texts.append(wire.render(Critique(text="Passes the tests.", spans=spans, score=1.0), answer))
        texts.append(wire.render(Critique(text="Fails the tests. `` should be ``.", score=-1.0), answer))
    return texts


def human_texts(run: RunFolder, settings: RewardModelSettings) -> list[str]:
    """Return people's critiques of training answers, as the reward model reads and writes them."""
    if not run.feedback_file.is_file():
        return []
    train, _ = reward_data(run)
    pairs = [reward_pair(record, settings) for record in train if record.source.kind == "human"]
    return [text for pair in pairs if pair for text in (pair.prompt[-1].content, pair.target)]
