"""The stages of a run. Between them there are only files: JSON Lines, checkpoints, metrics.

Each stage takes a `Config`, reads what earlier stages left in `run.folder`, writes its own part, and returns
a plain summary. Nothing here computes: it opens files, builds the parts and hands them to the layer below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from text2grad import wire
from text2grad.align import Aligned, TokenTable
from text2grad.config import Config, CriticKind, dump_config
from text2grad.critics.program import ProgramCritic, extract_program
from text2grad.critics.prompted import PromptedCritic, judge_messages
from text2grad.errors import UserError
from text2grad.eval.spans import SpanCase, span_report
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Feedback,
    Source,
    Span,
    read_jsonl,
    write_jsonl,
)
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import LocalChat, generate
from text2grad.policy.model import Policy, load_policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import TinySettings, make_tiny_model
from text2grad.report.viewer import build_report
from text2grad.sandbox.runner import Runner
from text2grad.tasks.base import Task, load_task, prompt_version, question_of, read_prompt, split_of
from text2grad.train.ppo import train_ppo
from text2grad.train.run import save_policy, seed_everything
from text2grad.train.supervised import Pair, train_supervised

TINY = "tiny"
REWARD_MODEL_PROMPT = "reward_model"
TOKEN_IDS = "token_ids"


def prepare(config: Config) -> Path:
    """Set threads, seeds and logging, and make the run folder with the settings that made it."""
    torch.set_num_threads(config.run.threads)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    seed_everything(config.run.seed)
    folder = config.run.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    return folder


def run_import(config: Config, source: Path, kind: str, out: Path | None) -> dict[str, Any]:
    """Read people's feedback into our records, and say what was found."""
    from text2grad.critics.human import import_feedback

    imported = import_feedback(source, kind, config.task.context_characters)
    target = out or config.run.folder / "feedback.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(target, imported.records)
    return {**imported.report.model_dump(), "out": str(target)}


def run_sft(config: Config) -> dict[str, Any]:
    """Fine-tune the base model on reference answers; writes `sft/policy`."""
    folder = prepare(config)
    task = load_task(config.task)
    examples = [example for example in task.examples("sft") if example.reference]
    policy = load_policy(base_policy(config, task, examples))
    pairs = [Pair(example.id, example.prompt, example.reference) for example in examples]
    metrics = train_supervised(policy, pairs, config.sft, folder / "sft", config.run.seed, "sft")
    save_policy(policy, folder / "sft" / "policy")
    return {"examples": len(pairs), **metrics, "out": str(folder / "sft" / "policy")}


def base_policy(config: Config, task: Task, examples: Sequence[Example]) -> PolicySettings:
    """The model to start from; `tiny` is made on the spot from the task's own training texts."""
    if config.policy.model != TINY:
        return config.policy
    folder = config.run.folder / "base"
    make_tiny_model(folder, tiny_texts(examples), config.tiny, config.run.seed)
    return config.policy.model_copy(update={"model": str(folder)})


def tiny_texts(examples: Sequence[Example]) -> list[str]:
    """What the tokenizer of a tiny model is trained on: training prompts, answers, and the shape of z."""
    prompt = read_prompt(REWARD_MODEL_PROMPT)
    texts = [message.content for example in examples for message in example.prompt]
    texts += [example.reference for example in examples]
    for example in examples[:500]:
        whole = example.reference
        spans = (Span(start=0, end=len(whole), label=1, text=whole),)
        texts += [message.content for message in judge_messages(prompt, example, whole)]
        texts.append(wire.render(Critique(text="Passes the tests.", spans=spans, score=1.0), whole))
        texts.append(wire.render(Critique(text="Fails the tests. `` should be ``.", score=-1.0), whole))
    return texts


def run_annotate(config: Config) -> dict[str, Any]:
    """Sample the policy and have every response judged; writes `feedback.jsonl` and `feedback_heldout.jsonl`.

    The held-out prompts are annotated too, so that a reward model can be measured on responses to prompts it
    has never seen.
    """
    folder = prepare(config)
    task = load_task(config.task)
    policy = load_policy(start_policy(config))
    with Runner() as runner:
        critic = make_critic(config, config.annotate.critic or config.critic.kind, task, runner)
        train = task.examples("train")[: config.annotate.prompts]
        records = sample_feedback(policy, train, critic, config, config.annotate.samples_per_prompt)
        heldout = task.examples("heldout")[: config.evaluate.limit]
        held = sample_feedback(policy, heldout, critic, config, 1)
    write_jsonl(folder / "feedback.jsonl", records)
    write_jsonl(folder / "feedback_heldout.jsonl", held)
    failed = sum(record.error is not None for record in [*records, *held])
    return {
        "records": len(records),
        "heldout_records": len(held),
        "spans": sum(len(record.spans) for record in records),
        "failed_records": failed,
        "mean_score": _mean([record.score for record in records if record.score is not None]),
        "out": str(folder / "feedback.jsonl"),
    }


def sample_feedback(
    policy: Policy, examples: Sequence[Example], critic: Critic, config: Config, samples: int
) -> list[Feedback]:
    """`samples` responses per example, each with what the critic says of it."""
    repeated = [example for example in examples for _ in range(samples)]
    if not repeated:
        return []
    sampled = sample(policy, repeated, config.generation)
    judgements = critic.critique(repeated, [text for _, text in sampled])
    return [
        Feedback.of(_with_ids(example, ids), text, judgement, critic.source)
        for example, (ids, text), judgement in zip(repeated, sampled, judgements, strict=True)
    ]


def _with_ids(example: Example, ids: list[int]) -> Example:
    """The example with the sampled ids noted, so that nobody has to tokenise the response again."""
    return example.model_copy(update={"meta": {**example.meta, TOKEN_IDS: ids}})


def sample(
    policy: Policy, examples: Sequence[Example], generation: GenerationSettings
) -> list[tuple[list[int], str]]:
    """One response per example: the sampled ids, and the text read off them."""
    table = TokenTable(policy.tokenizer)
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in examples]
    return [(item.ids, table.align(item.ids).text) for item in generate(policy, prompts, generation)]


def answer(policy: Policy, examples: Sequence[Example], generation: GenerationSettings) -> list[str]:
    """The text of one response per example."""
    return [text for _, text in sample(policy, examples, generation)]


def start_policy(config: Config) -> PolicySettings:
    """The SFT policy of this run if there is one, else the model of the config."""
    folder = config.run.folder / "sft" / "policy"
    if folder.is_dir():
        return config.policy.model_copy(update={"model": str(folder)})
    if config.policy.model == TINY:
        raise UserError(f"no policy in {folder}", f"text2grad sft --run.folder {config.run.folder}")
    return config.policy


def make_critic(config: Config, kind: CriticKind, task: Task, runner: Runner) -> Critic:
    """The critic named by `kind`. All of them are the same to whoever calls them."""
    if kind == "program":
        return ProgramCritic(runner, brief=True)
    if kind == "human":
        from text2grad.critics.human import HumanCritic

        return HumanCritic(read_feedback(config.run.folder / "feedback.jsonl"))
    if kind == "reward_model":
        return reward_model_critic(config)
    from text2grad.chat import OpenAIChat

    prompt = read_prompt(config.critic.prompt or task.critic_prompt)
    chat = OpenAIChat(
        config.critic.model,
        base_url=config.critic.base_url,
        max_tokens=config.critic.max_tokens,
        concurrency=config.critic.concurrency,
    )
    version = prompt_version(config.critic.prompt or task.critic_prompt)
    source = Source(kind="llm", model=config.critic.model, prompt_version=version)
    return PromptedCritic(chat, prompt, source, config.critic.ambiguity)


def reward_model_critic(config: Config) -> PromptedCritic:
    """The trained reward model: the prompted critic over a local model."""
    folder = (
        Path(config.critic.model) if config.critic.model else config.run.folder / "reward_model" / "policy"
    )
    if not folder.is_dir():
        raise UserError(
            f"no reward model in {folder}", f"text2grad train-reward --run.folder {config.run.folder}"
        )
    model = load_policy(
        PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    )
    chat = LocalChat(model, config.reward_model.generation, name=str(folder))
    prompt = read_prompt(REWARD_MODEL_PROMPT)
    version = prompt_version(REWARD_MODEL_PROMPT)
    source = Source(kind="reward_model", model=str(folder), prompt_version=version)
    return PromptedCritic(chat, prompt, source, config.critic.ambiguity)


def read_feedback(path: Path) -> list[Feedback]:
    """All records of a feedback file; refuses an empty one."""
    if not path.is_file():
        raise UserError(f"no feedback in {path}", "text2grad annotate, or text2grad import, first")
    records = list(read_jsonl(path, Feedback))
    if not records:
        raise UserError(f"{path} holds no records", "text2grad annotate, or text2grad import, first")
    return records


def run_train_reward(config: Config) -> dict[str, Any]:
    """Train the reward model on z; writes `reward_model/policy` and `evaluation/reward_model.json`."""
    folder = prepare(config)
    train, _ = reward_data(config)
    policy = load_policy(config.reward_model.policy or start_policy(config))
    pairs = [pair for record in train if (pair := reward_pair(record)) is not None]
    training = config.reward_model.training
    metrics = train_supervised(
        policy, pairs, training, folder / "reward_model", config.run.seed, "reward model"
    )
    save_policy(policy, folder / "reward_model" / "policy")
    quality = evaluate_reward_model(config)
    return {"records": len(train), **metrics, **quality, "out": str(folder / "reward_model" / "policy")}


def reward_data(config: Config) -> tuple[list[Feedback], list[Feedback]]:
    """Training and held-out records. Without a held-out file, the split is by question: none is in both."""
    folder = config.run.folder
    records = read_feedback(folder / "feedback.jsonl")
    heldout = folder / "feedback_heldout.jsonl"
    if heldout.is_file():
        return records, list(read_jsonl(heldout, Feedback))
    split = config.task.model_copy(update={"heldout_share": config.reward_model.heldout_share})
    names = [split_of(question_of(record), split) for record in records]
    train = [record for record, name in zip(records, names, strict=True) if name == "train"]
    return train, [record for record, name in zip(records, names, strict=True) if name == "heldout"]


def reward_pair(record: Feedback) -> Pair | None:
    """(judge's conversation, z) of one record; None for a failed critique, which teaches nothing."""
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return None
    example = Example(id=record.id, prompt=record.prompt)
    messages = judge_messages(read_prompt(REWARD_MODEL_PROMPT), example, record.response)
    return Pair(record.id, tuple(messages), wire.render(judgement, record.response))


def evaluate_reward_model(config: Config) -> dict[str, Any]:
    """Compare the reward model with the annotations of held-out prompts, token by token."""
    _, heldout = reward_data(config)
    gold = [record for record in heldout if record.error is None]
    if not gold:
        return {}
    critic = reward_model_critic(config)
    table = TokenTable(load_policy(start_policy(config)).tokenizer)
    examples = [Example(id=record.id, prompt=record.prompt) for record in gold]
    predicted = critic.critique(examples, [record.response for record in gold])
    cases = [
        SpanCase(_critique(record), judgement, _aligned(record, table))
        for record, judgement in zip(gold, predicted, strict=True)
    ]
    report = span_report(cases)
    write_json(config.run.folder / "evaluation" / "reward_model.json", report)
    return report


def _aligned(record: Feedback, table: TokenTable) -> Aligned:
    """By the ids the policy sampled; a response that people wrote about elsewhere has none."""
    ids = record.meta.get(TOKEN_IDS)
    return table.align(ids) if ids else table.align_text(record.response)


def _critique(record: Feedback) -> Critique:
    judgement = record.judgement()
    assert isinstance(judgement, Critique)
    return judgement


def run_train(config: Config, name: str) -> dict[str, Any]:
    """NL-gradient PPO against the critic; writes `ppo/<name>`."""
    folder = prepare(config)
    task = load_task(config.task)
    policy = load_policy(start_policy(config))
    seed_everything(config.run.seed)
    with Runner() as runner:
        critic = make_critic(config, config.critic.kind, task, runner)
        train_ppo(
            policy,
            task.examples("train"),
            critic,
            config.ppo,
            config.credit,
            config.generation,
            folder / "ppo" / name,
            config.run.seed,
            name,
        )
    return {"steps": config.ppo.steps, "out": str(folder / "ppo" / name / "policy")}


def run_evaluate(config: Config, target: str, which: str) -> dict[str, Any]:
    """Measure a policy (a name of this run, or a folder) or the reward model on held-out prompts."""
    folder = prepare(config)
    if which == "reward-model":
        return evaluate_reward_model(config)
    task = load_task(config.task)
    settings = config.policy.model_copy(update={"model": str(find_policy(config, target)), "lora": None})
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    policy = load_policy(settings)
    with Runner() as runner:
        measured = evaluate_policy(policy, heldout, config, measure_with(task, runner))
    name = target if target.isidentifier() else Path(target).name
    write_json(folder / "evaluation" / f"{name}.json", measured["summary"])
    write_json(folder / "evaluation" / f"{name}.answers.json", measured["answers"])
    return dict(measured["summary"])


def find_policy(config: Config, target: str) -> Path:
    """`sft`, the name of a PPO run, or a model folder."""
    run = config.run.folder
    for place in (run / target / "policy", run / "ppo" / target / "policy", Path(target)):
        if place.is_dir() and (place / "tokenizer_config.json").is_file():
            return place
    known = sorted(path.parent.name for path in run.glob("ppo/*/policy"))
    raise UserError(
        f"no policy {target!r} in {run}", f"known: {', '.join(['sft', *known])}, or a model folder"
    )


Measure = Callable[[Example, str], dict[str, float]]


def measure_with(task: Task, runner: Runner) -> Measure:
    """How an answer is measured: by running its tests where it has some, else by the task's own scores."""

    def measure(example: Example, response: str) -> dict[str, float]:
        tests = example.meta.get("tests")
        if not tests:
            return task.scores(example, response)
        return {"pass": float(runner.run(extract_program(response).code, str(tests)).passed)}

    return measure


def evaluate_policy(
    policy: Policy, heldout: Sequence[Example], config: Config, measure: Measure
) -> dict[str, Any]:
    """Greedy once and sampled `evaluate.samples` times; the mean of every measure, and the greedy answers."""
    seed_everything(config.run.seed)
    greedy_settings = config.generation.model_copy(update={"temperature": 0.0})
    greedy = answer(policy, heldout, greedy_settings)
    scores = [measure(example, response) for example, response in zip(heldout, greedy, strict=True)]
    repeated = [example for example in heldout for _ in range(config.evaluate.samples)]
    sampled = answer(policy, repeated, config.generation)
    sampled_scores = [measure(example, text) for example, text in zip(repeated, sampled, strict=True)]
    names = sorted(scores[0])
    summary = {"prompts": float(len(heldout)), "samples": float(config.evaluate.samples)}
    for name in names:
        summary[f"greedy_{name}"] = _mean([score[name] for score in scores])
        summary[f"sampled_{name}"] = _mean([score[name] for score in sampled_scores])
    answers = [
        {"id": example.id, "response": response, "scores": score}
        for example, response, score in zip(heldout, greedy, scores, strict=True)
    ]
    return {"summary": summary, "answers": answers}


def run_report(folder: Path) -> dict[str, Any]:
    """Write the page that shows a run."""
    return {"out": str(build_report(folder))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def write_json(path: Path, data: object) -> None:
    """Write one JSON file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)
