"""`sft`: fine-tuning on reference answers, and the tiny model made on the spot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from text2grad import wire
from text2grad.config import TINY, Config, RewardModelSettings
from text2grad.critics.prompted import judge_messages
from text2grad.durable.run import CHECKPOINTS, ResumeMode
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
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import REWARD_MODEL_PROMPT
from text2grad.stages.reward_model.data import reward_data, reward_pair
from text2grad.stages.run_folder import BASE, RunFolder
from text2grad.stages.sampling import sample, with_room
from text2grad.stages.training import (
    TrainingStage,
    facts_of_pairs,
    leave_other_engines,
    prepare_training,
    warn_if_loss_flat,
)
from text2grad.tasks.base import Task, environment_of, read_prompt
from text2grad.train.pairs import Pair, updates_of
from text2grad.train.settings import SFTSettings
from text2grad.train.supervised import train_supervised
from text2grad.train.watch.steps import LossFloor

ASKED, LONGEST, LITTLE_LEFT = 32, 128, 0.9
"""Held-out prompts that are asked after SFT, tokens of their references, and the share of
references that it writes word for word from which there is little left to learn."""


@dataclass(frozen=True, kw_only=True)
class SFTSummary(Summary):
    """Examples that were imitated, of how many held-out prompts it writes the reference answer word
    for word, the last metrics, and the policy's folder."""

    examples: int
    heldout: int | None = None
    word_for_word: int | None = None
    metrics: Mapping[str, float] = inlined()
    out: str


def run_sft(config: Config, resume: ResumeMode = "auto") -> SFTSummary:
    """Fine-tune the base model on reference answers; writes `sft`, or resumes an unfinished one."""
    train = loop_of(config)
    stage = prepare_training(config, "sft", "sft", resume, several=config.engine.name == "trl")
    leave_other_engines(stage, "trl" if config.engine.name == "trl" else "local")
    refuse_finished(stage)
    choose_device(config.policy.device)  # before a tiny model is made
    task = stage.folder.task()
    examples = answered(task.examples("sft"))
    with stage.in_turn():
        policy = load_policy(base_policy(stage, task, examples))
        pairs = [Pair(example.id, example.prompt, example.reference) for example in examples]
        run = stage.settle(policy, facts_of_pairs(policy, pairs))
    with run.begin() as options:
        settings = run.config.sft
        floor = LossFloor.of(settings, len(pairs))
        metrics = train(policy, pairs, settings, options, stopping=floor)
    stage.leave_others()
    warn_if_loss_flat(stage.place, "sft", settings.lr)
    say_if_ended("sft", settings, len(pairs), metrics)
    heldout = [] if is_split(policy.model) else task.examples("heldout")
    alike = word_for_word(policy, run.config.generation, heldout, environment_of(task))
    return SFTSummary(
        examples=len(pairs),
        heldout=len(alike) or None,
        word_for_word=sum(alike) if alike else None,
        metrics=metrics,
        out=str(stage.place / "policy"),
    )


def loop_of(config: Config) -> Callable[..., dict[str, float]]:
    """The loop of the engine, with what is passed on to it; verl has none for SFT.

    Raises:
        UserError: TRL is not installed, or a field is not to be passed on.
    """
    if config.engine.name != "trl":
        return train_supervised
    from text2grad.engines.trl.fields import SFT_SET_BY, refuse_fields  # TRL is an extra

    refuse_fields(config.engine.trl, SFT_SET_BY)
    from text2grad.engines.trl.supervised import train_sft_trl

    return partial(train_sft_trl, fields=config.engine.trl)


def say_if_ended(name: str, settings: SFTSettings, examples: int, metrics: Mapping[str, float]) -> None:
    """One line on stderr if the loss was so low that training ended before its last update."""
    planned, done = updates_of(settings, examples), int(metrics.get("steps", 0))
    if 0 < done < planned:
        print(
            f"{name}: ended after {done} of {planned} updates, with a loss below {settings.least_loss:g} nats a"
            " token: after more of them its samples would hardly differ, and leave train little to compare. Where"
            " nothing samples from it, it may answer better after all updates: --sft.least_loss null --restart",
            file=sys.stderr,
        )


def word_for_word(
    policy: Policy,
    generation: GenerationSettings,
    heldout: Sequence[Example],
    environment: MakeEnvironment | None = None,
) -> list[bool]:
    """Whether the likeliest answer to each of the first held-out prompts is its reference answer,
    word for word.

    One line on stderr says of how many. Long answers, which nobody expects word for word, are not
    asked for.
    """
    short = [each for each in heldout if each.reference and _tokens(policy, each) <= LONGEST]
    tokens = max((_tokens(policy, each) for each in short), default=0)
    asked = with_room(policy, short, tokens)[:ASKED]
    if not asked:
        return []
    greedy = generation.model_copy(update={"temperature": 0.0, "max_new_tokens": tokens})
    answers = [text for _, text in sample(policy, asked, greedy, environment)]
    alike = [text.split() == each.reference.split() for text, each in zip(answers, asked, strict=True)]
    kind = "corrections" if all(each.meta.get("corrected") for each in asked) else "reference answers"
    line = f"it writes {sum(alike)} of {len(alike)} held-out {kind} word for word"
    meaning = "; train can hardly gain" if sum(alike) >= LITTLE_LEFT * len(alike) else ""
    print(f"sft: {line}{meaning}", file=sys.stderr)
    return alike


def _tokens(policy: Policy, example: Example) -> int:
    return len(encode_target(policy.tokenizer, example.reference))


def refuse_finished(stage: TrainingStage) -> None:
    """Refuse to train again what is finished: all later stages began from it.

    Raises:
        UserError: there is a policy and no unfinished run.
    """
    policy, checkpoints = stage.place / "policy", stage.place / CHECKPOINTS
    if stage.resume == "auto" and policy.is_dir() and not checkpoints.is_dir():
        cure = "--restart trains it again, another --run.folder beside it"
        raise UserError(f"sft is finished: {policy}", cure)


def answered(examples: Sequence[Example]) -> list[Example]:
    """The examples with a reference answer, which are what is imitated.

    Raises:
        UserError: there are none.
    """
    found = [example for example in examples if example.reference]
    if not found:
        cure = (
            "add 'response' (the answer to imitate) to your questions, or go on without sft: --policy.model MODEL"
        )
        raise UserError(f"{len(examples)} question{'s' * (len(examples) != 1)}, none has a reference answer", cure)
    return found


def base_policy(stage: TrainingStage, task: Task, examples: Sequence[Example]) -> PolicySettings:
    """The model to start from; `tiny` is made on the spot from the task's own training texts."""
    config, run = stage.config, stage.folder
    if run.base.model != TINY:
        return run.base
    folder = run.path / BASE
    texts = [*tiny_texts(examples), *human_texts(run, config.reward_model)]
    tiny, shape = config.tiny, getattr(task, "tiny_model", None)
    make_tiny_model(folder, texts, tiny.vocabulary, shape=shape, seed=config.run.seed)
    make_readable(folder)
    return run.policy(BASE)


def tiny_texts(examples: Sequence[Example]) -> list[str]:
    """What the tokenizer of a tiny model is trained on: training prompts, answers, and the shape of
    z."""
    prompt = read_prompt(REWARD_MODEL_PROMPT)
    texts = [message.content for example in examples for message in example.prompt]
    texts += [example.reference for example in examples]
    for example in examples[:500]:
        whole = example.reference
        spans = within_turns((Span(start=0, end=len(whole), label=1, text=whole),), whole)
        texts += [message.content for message in judge_messages(prompt, example, whole)]
        texts.append(wire.render(Critique(text="Passes the tests.", spans=spans, score=1.0), whole))
        texts.append(wire.render(Critique(text="Fails the tests. `` should be ``.", score=-1.0), whole))
    return texts


def human_texts(run: RunFolder, settings: RewardModelSettings) -> list[str]:
    """What people wrote of training answers, as the reward model will have to read and write it."""
    if not run.feedback_file.is_file():
        return []
    train, _ = reward_data(run)
    pairs = [reward_pair(record, settings) for record in train if record.source.kind == "human"]
    return [text for pair in pairs if pair for text in (pair.prompt[-1].content, pair.target)]
