"""The stages of a run. Between them there are only files: JSON Lines, checkpoints, metrics.

Each stage takes a `Config`, reads what earlier stages left in `run.folder`, writes its own part, and returns
a plain summary. Nothing here computes: it opens files, builds the parts and hands them to the layer below.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from text2grad import wire
from text2grad.align import Aligned, TokenTable
from text2grad.config import TINY, Config, CriticKind, dump_config, with_tiny_rates
from text2grad.critics.program import ProgramCritic, extract_program
from text2grad.critics.prompted import PromptedCritic, judge_messages
from text2grad.errors import UserError
from text2grad.eval.rewards import reward_report
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
from text2grad.policy.encode import check_lengths, encode_prompt, encode_target
from text2grad.policy.generate import LocalChat, generate
from text2grad.policy.grounded import vocabulary_for
from text2grad.policy.model import Policy, load_policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import make_tiny_model
from text2grad.report.viewer import build_report
from text2grad.sandbox.runner import Runner
from text2grad.tasks.base import (
    Task,
    conversation_text,
    load_task,
    prompt_version,
    question_of,
    read_prompt,
    split_of,
    words_of,
)
from text2grad.train.ppo import train_ppo
from text2grad.train.run import save_policy, seed_everything
from text2grad.train.supervised import Pair, train_supervised

REWARD_MODEL_PROMPT = "reward_model"
TOKEN_IDS = "token_ids"
SWAP_GROUP = 16
IMPORTED = "imported"
ANSWERS = ".answers.json"
TITLES = {"sft": "SFT", "scalar_ppo": "scalar PPO"}


def prepare(config: Config) -> Path:
    """Set threads, seeds and logging; nothing is written yet, so that a stage that cannot start leaves no trace.

    Raises:
        UserError: nothing can be written to the run folder.
    """
    torch.set_num_threads(config.run.threads)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    seed_everything(config.run.seed)
    folder = config.run.folder
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise UserError(f"cannot write to {folder}: {place} is no folder to write to", "set --run.folder FOLDER")
    return folder


def note_settings(config: Config, folder: Path, begins: bool = False) -> None:
    """Leave the settings beside what they made; when a stage only `begins`, not over those of a complete one."""
    if begins and (folder / "config.yaml").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "config.yaml.partial"
    partial.write_text(dump_config(config), encoding="utf-8")
    os.replace(partial, folder / "config.yaml")


def run_import(config: Config, source: Path, kind: str, out: Path | None) -> dict[str, Any]:
    """Add people's feedback to our records; say what was found, and what the file holds of each data set.

    Without `out` the figures are left in `evaluation/import_<data set>.json` as well, for the report.
    """
    from text2grad.critics.human import import_feedback, merged, reports_by_data_set

    imported = import_feedback(source, kind, config.task.context_characters)
    target = out or config.run.folder / "feedback.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    existing = list(read_jsonl(target, Feedback)) if target.is_file() else []
    records = merged(existing, imported.records)
    write_jsonl(target, records)
    added = len(records) - len(existing)
    held = reports_by_data_set(records)
    for name, report in held.items() if out is None else ():
        figures = report.model_dump(exclude={"source"})
        write_json(config.run.folder / "evaluation" / f"import_{name}.json", figures)
    return {
        **imported.report.model_dump(),
        "added": added,
        "replaced": imported.report.records - added,
        "file_holds": {name: report.records for name, report in held.items()},
        "out": str(target),
    }


def task_of(config: Config) -> Task:
    """The task of a run. With `task.data: imported` its prompts are those of the imported feedback."""
    if config.task.data != IMPORTED:
        return load_task(config.task)
    path = config.run.folder / "feedback.jsonl"
    if not path.is_file():
        raise UserError(f"no feedback in {path}", "text2grad import FILE --config NAME|FILE first")
    return load_task(config.task.model_copy(update={"data": str(path)}))


def run_sft(config: Config) -> dict[str, Any]:
    """Fine-tune the base model on reference answers; writes `sft/policy`."""
    folder = prepare(config)
    task = task_of(config)
    examples = [example for example in task.examples("sft") if example.reference]
    policy = load_policy(base_policy(config, task, examples))
    pairs = [Pair(example.id, example.prompt, example.reference) for example in examples]
    note_settings(config, folder, begins=True)
    metrics = train_supervised(policy, pairs, with_tiny_rates(config).sft, folder / "sft", config.run.seed, "sft")
    save_policy(policy, folder / "sft" / "policy")
    note_settings(config, folder)
    return {"examples": len(pairs), **metrics, "out": str(folder / "sft" / "policy")}


def base_policy(config: Config, task: Task, examples: Sequence[Example]) -> PolicySettings:
    """The model to start from; `tiny` is made on the spot from the task's own training texts."""
    if config.policy.model != TINY:
        return config.policy
    folder = config.run.folder / "base"
    texts = [*tiny_texts(examples), *human_texts(config)]
    make_tiny_model(folder, texts, config.tiny, config.run.seed)
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


def human_texts(config: Config) -> list[str]:
    """What people wrote of training answers, as the reward model will have to read and write it."""
    path = config.run.folder / "feedback.jsonl"
    if not path.is_file():
        return []
    train, _ = reward_data(config)
    pairs = [reward_pair(record) for record in train if record.source.kind == "human"]
    return [text for pair in pairs if pair for text in (pair.prompt[-1].content, pair.target)]


def run_annotate(config: Config) -> dict[str, Any]:
    """Sample the policy and have every response judged; writes `feedback.jsonl` and `feedback_heldout.jsonl`.

    The held-out prompts are annotated too, so that a reward model can be measured on responses to prompts it
    has never seen.
    """
    folder = prepare(config)
    task = task_of(config)
    policy = load_policy(start_policy(config))
    with Runner() as runner:
        critic = make_critic(config, config.annotate.critic or config.critic.kind, task, runner)
        train = task.examples("train")[: config.annotate.prompts]
        records = sample_feedback(
            policy, train, critic, config, config.annotate.samples_per_prompt, config.annotate.swapped
        )
        heldout = task.examples("heldout")[: config.evaluate.limit]
        held = sample_feedback(policy, heldout, critic, config, min(4, config.annotate.samples_per_prompt))
    note_settings(config, folder)
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
    policy: Policy,
    examples: Sequence[Example],
    critic: Critic,
    config: Config,
    samples: int,
    swapped: float = 0.0,
) -> list[Feedback]:
    """`samples` responses per example, each with what the critic says of it; a share of them swapped."""
    repeated = [example for example in examples for _ in range(samples)]
    if not repeated:
        return []
    sampled = sample(policy, repeated, config.generation)
    order = swap_similar(repeated, swapped, config.run.seed)
    sampled = [sampled[index] for index in order]
    judgements = critic.critique(repeated, [text for _, text in sampled])
    return [
        Feedback.of(_with_ids(example, ids), text, judgement, critic.source)
        for example, (ids, text), judgement in zip(repeated, sampled, judgements, strict=True)
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


def sample(
    policy: Policy, examples: Sequence[Example], generation: GenerationSettings
) -> list[tuple[list[int], str]]:
    """One response per example: the sampled ids, and the text read off them."""
    table = TokenTable(policy.tokenizer)
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in examples]
    named = [(example.id, ids) for example, ids in zip(examples, prompts, strict=True)]
    check_lengths(named, policy.context, generation.max_new_tokens)
    return [(item.ids, table.align(item.ids).text) for item in generate(policy, prompts, generation)]


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
    folder = Path(config.critic.model) if config.critic.model else config.run.folder / "reward_model" / "policy"
    if not folder.is_dir():
        raise UserError(f"no reward model in {folder}", f"text2grad train-reward --run.folder {config.run.folder}")
    model = load_policy(PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device))
    vocabulary = vocabulary_for(model, config.reward_model.grounded)
    chat = LocalChat(model, config.reward_model.generation, str(folder), vocabulary)
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
    training = with_tiny_rates(config).reward_model.training
    pairs = [pair for _, pair in fitting(policy, train, training.max_length)]
    note_settings(config, folder, begins=True)
    metrics = train_supervised(policy, pairs, training, folder / "reward_model", config.run.seed, "reward model")
    save_policy(policy, folder / "reward_model" / "policy")
    note_settings(config, folder)
    quality = evaluate_reward_model(config)
    counts = {"records": len(train), "trained_on": len(pairs)}
    return {**counts, **metrics, **quality, "out": str(folder / "reward_model" / "policy")}


def fitting(policy: Policy, records: Sequence[Feedback], max_length: int | None) -> list[tuple[Feedback, Pair]]:
    """The readable records with their training pairs, as far as they fit the model whole.

    The others are left out with a line that says so: half a critique would teach to stop half-way.
    """
    readable = [(record, pair) for record in records if (pair := reward_pair(record)) is not None]
    limit = min((length for length in (policy.context, max_length) if length is not None), default=None)
    kept = [(r, pair) for r, pair in readable if limit is None or pair_length(policy, pair) <= limit]
    if len(kept) < len(readable):
        count, whole = len(readable) - len(kept), len(readable)
        line = f"{count} of {whole} critiques are left out: with their prompt they exceed {limit} tokens"
        print(line, file=sys.stderr)
    return kept


def pair_length(policy: Policy, pair: Pair) -> int:
    """Tokens of a training pair, prompt and target together."""
    return len(encode_prompt(policy.tokenizer, pair.prompt)) + len(encode_target(policy.tokenizer, pair.target))


def reward_data(config: Config) -> tuple[list[Feedback], list[Feedback]]:
    """Training and held-out records: no question is in both, and none held out by the task is trained on.

    What `annotate` sampled was split by the task already; what people wrote is split here, by the same rule.
    """
    folder = config.run.folder
    records = read_feedback(folder / "feedback.jsonl")
    beside = folder / "feedback_heldout.jsonl"
    heldout = list(read_jsonl(beside, Feedback)) if beside.is_file() else []
    asked = {words_of(question_of(record)) for record in heldout}
    train: list[Feedback] = []
    for record in records:
        question = question_of(record)
        by_words = split_of(question, config.task) if record.source.kind == "human" or not heldout else "train"
        kept_out = by_words == "heldout" or words_of(question) in asked
        (heldout if kept_out else train).append(record)
    return train, heldout


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
    policy = load_policy(start_policy(config))
    gold = [record for record, _ in fitting(policy, heldout, config.reward_model.training.max_length)]
    if not gold:
        return {}
    critic = reward_model_critic(config)
    table = TokenTable(policy.tokenizer)
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
    task = task_of(config)
    policy = load_policy(start_policy(config))
    seed_everything(config.run.seed)
    with Runner() as runner:
        critic = make_critic(config, config.critic.kind, task, runner)
        for place in (folder, folder / "ppo" / name):
            note_settings(config, place, begins=True)
        train_ppo(
            policy,
            task.examples("train"),
            critic,
            with_tiny_rates(config).ppo,
            config.credit,
            config.generation,
            folder / "ppo" / name,
            config.run.seed,
            name,
        )
    note_settings(config, folder / "ppo" / name)
    return {"steps": config.ppo.steps, "out": str(folder / "ppo" / name / "policy")}


def run_evaluate(config: Config, target: str, which: str) -> dict[str, Any]:
    """Measure a policy (a name of this run, or a folder) or the reward model on held-out prompts."""
    folder = prepare(config)
    if which == "reward-model":
        return evaluate_reward_model(config)
    task = task_of(config)
    settings = config.policy.model_copy(update={"model": str(find_policy(config, target)), "lora": None})
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    policy = load_policy(settings)
    critic = judge_of(config)
    with Runner() as runner:
        measured = evaluate_policy(policy, heldout, config, measure_with(task, runner), critic)
    name = target if target.isidentifier() else Path(target).name
    write_json(folder / "evaluation" / f"{name}.json", measured["summary"])
    write_json(folder / "evaluation" / f"{name}{ANSWERS}", measured["answers"])
    write_before_after(folder, heldout)
    return dict(measured["summary"])


def judge_of(config: Config) -> Critic | None:
    """The reward model of this run, if there is one and it is wanted for measuring (`evaluate.token_reward`)."""
    folder = config.run.folder / "reward_model" / "policy"
    wanted = config.evaluate.token_reward and (folder.is_dir() or config.critic.model)
    return reward_model_critic(config) if wanted and config.critic.kind == "reward_model" else None


def write_before_after(folder: Path, heldout: Sequence[Example]) -> None:
    """Greedy answers of every policy measured so far side by side, SFT first, for the report."""
    files = {file.name.removesuffix(ANSWERS): file for file in sorted((folder / "evaluation").glob(f"*{ANSWERS}"))}
    answers = {
        TITLES.get(name, name): {row["id"]: row for row in json.loads(files[name].read_text(encoding="utf-8"))}
        for name in sorted(files, key="sft".__ne__)
    }
    records: list[dict[str, Any]] = [
        {
            "id": example.id,
            "prompt": [message.model_dump() for message in example.prompt],
            "reference": example.reference,
            "answers": [
                {"name": title, "response": rows[example.id]["response"], "scores": rows[example.id]["scores"]}
                for title, rows in answers.items()
                if example.id in rows
            ],
        }
        for example in heldout
    ]
    # Those that changed first: the report shows the first few dozen.
    records.sort(key=lambda record: len({answer["response"] for answer in record["answers"]}) == 1)
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    (folder / "before_after.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def find_policy(config: Config, target: str) -> Path:
    """`sft`, the name of a PPO run, or a model folder."""
    run = config.run.folder
    for place in (run / target / "policy", run / "ppo" / target / "policy", Path(target)):
        if place.is_dir() and (place / "tokenizer_config.json").is_file():
            return place
    known = sorted(path.parent.name for path in run.glob("ppo/*/policy"))
    raise UserError(f"no policy {target!r} in {run}", f"known: {', '.join(['sft', *known])}, or a model folder")


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
    policy: Policy, heldout: Sequence[Example], config: Config, measure: Measure, critic: Critic | None = None
) -> dict[str, Any]:
    """Greedy once and sampled `evaluate.samples` times; the mean of every measure, and the greedy answers.

    With a critic (the run's reward model) its token reward is measured on the same answers.
    """
    seed_everything(config.run.seed)
    repeated = [example for example in heldout for _ in range(config.evaluate.samples)]
    greedy_settings = config.generation.model_copy(update={"temperature": 0.0})
    ways = {"greedy": (heldout, greedy_settings), "sampled": (repeated, config.generation)}
    summary = {"prompts": float(len(heldout)), "samples": float(config.evaluate.samples)}
    rows: dict[str, list[dict[str, Any]]] = {}
    for way, (examples, generation) in ways.items():
        answers = sample(policy, examples, generation)
        rows[way] = [
            {"id": example.id, "response": text, "scores": measure(example, text)}
            for example, (_, text) in zip(examples, answers, strict=True)
        ]
        figures = mean_scores(rows[way])
        if critic is not None:
            figures |= judged(critic, examples, answers, TokenTable(policy.tokenizer), config)
        summary |= {f"{way}_{name}": value for name, value in figures.items()}
    return {"summary": summary, "answers": rows["greedy"]}


def mean_scores(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean of every measure over the answers that have it."""
    names = sorted({name for row in rows for name in row["scores"]})
    return {name: _mean([row["scores"][name] for row in rows if name in row["scores"]]) for name in names}


def judged(
    critic: Critic,
    examples: Sequence[Example],
    answers: Sequence[tuple[list[int], str]],
    table: TokenTable,
    config: Config,
) -> dict[str, float]:
    """The critic's token reward on sampled answers, by the credit settings of the run."""
    judgements = critic.critique(list(examples), [text for _, text in answers])
    return reward_report(judgements, [table.align(ids) for ids, _ in answers], config.credit)


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
