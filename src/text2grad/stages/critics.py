"""The critic that a configuration names. What needs torch is imported only for the critic that needs it."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from text2grad import __version__
from text2grad.chat.client import OpenAIChat
from text2grad.config import Config, CriticKind
from text2grad.critics.noise import NoisyCritic
from text2grad.critics.program import Attempt, ProgramCritic, admission
from text2grad.critics.prompted import Prompt, PromptedCritic, VerdictCritic
from text2grad.critics.reference import ReferenceCritic
from text2grad.critics.scalar import ScalarCritic, Scale
from text2grad.critics.units import UnitCritic
from text2grad.durable.identity import digest_of_texts, flatten, sha256
from text2grad.durable.progress import counting
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, Source, from_json
from text2grad.named import is_own_name, load_named
from text2grad.sandbox import Gate, Runner
from text2grad.stages.results import write_json
from text2grad.tasks.base import Task, load_task, prompt_version, read_prompt

if TYPE_CHECKING:
    from text2grad.policy.model import Policy

REWARD_MODEL_PROMPT = "reward_model"
ADAPTER = "reward_model"
ANCHOR = "anchor"
SCALE_FILE = "scale.json"
"""Beside a scalar reward model: mean and spread of its scores of the answers it was trained on."""
GATES_FILE = "gates.json"
"""In the folder of a run: why a task may not judge a program, "" where it may, by a digest of the task."""
UNITS_FILE = "units.json"
"""Beside a unit model: which units it labels, and its figures on held-out answers."""
TESTED = {"code": "code_tested", "code_plain": "code_plain_tested"}
"""Prompts that show the tests' outcome, by those that do not."""


def runner_of(config: Config) -> Runner:
    """Where programs are run; it starts when the first program comes."""
    settings = config.sandbox
    return Runner(settings.seconds, settings.workers, settings.tier, memory_mb=settings.memory_mb)


@contextmanager
def open_critic(
    config: Config,
    kind: CriticKind,
    task: Task | None,
    runner: Runner,
    policy: Policy | None = None,
    journal: Path | None = None,
) -> Iterator[Critic]:
    """`make_critic`, with an endpoint's answers in its own journal, which is closed at the end."""
    endpoint = kind == "prompted"
    with OpenAIChat(config.critic.prompted, journal) if endpoint else nullcontext() as chat:
        yield make_critic(config, kind, task, runner, policy, chat)


def make_critic(
    config: Config,
    kind: CriticKind,
    task: Task | None,
    runner: Runner,
    policy: Policy | None = None,
    chat: OpenAIChat | None = None,
) -> Critic:
    """The critic named by `kind`, with `critic.noise`. Callers need not tell them apart.

    `task` has the annotator's prompt (None: looked up by `task.name`), `policy` is the one in training, whose base
    weights the reward model may share (`reward_model.shared`), `chat` the endpoint of a prompted critic.
    """
    makers: dict[CriticKind, Callable[[], Critic]] = {
        "human": lambda: human_critic(config),
        "program": lambda: ProgramCritic(runner, **config.critic.program.model_dump()),
        "prompted": lambda: prompted_critic(config, chat or OpenAIChat(config.critic.prompted), task),
        "reference": lambda: ReferenceCritic(**config.critic.reference.model_dump()),
        "reward_model": lambda: reward_model_critic(config, policy),
        "scalar_model": lambda: scalar_model_critic(config),
        "unit_model": lambda: unit_model_critic(config),
    }
    critic = makers[kind]() if kind in makers else own_critic(kind)
    return NoisyCritic(critic, config.critic.noise, config.run.seed) if config.critic.noise else critic


def refuse_unfit(kind: CriticKind, examples: Sequence[Example]) -> None:
    """Refuse a critic that can say nothing of these prompts: not one has what it judges by.

    Raises:
        UserError: `program`, and there are no tests; `reference`, and there are no reference answers.
    """
    needs = {"program": "tests", "reference": "reference answers"}
    if kind not in needs:
        return
    judged = any(each.meta.get("tests") if kind == "program" else each.reference for each in examples)
    if examples and not judged:
        others = ", ".join(each for each in ("reference", "prompted", "reward_model") if each != kind)
        message = f"no prompt has {needs[kind]}, which the {kind} critic judges by"
        raise UserError(message, f"choose another critic ({others}), or data with {needs[kind]}")


def admitted(config: Config, kind: CriticKind, examples: Sequence[Example], runner: Runner) -> list[Example]:
    """The examples whose tests may judge a program, for the critic that judges by tests; one line says how many are
    left out, and why.

    Raises:
        UserError: none is left.
    """
    if kind != "program" or not config.critic.program.gate:
        return list(examples)
    reasons = _reasons(config, examples, runner)
    kept = [each for each, reason in zip(examples, reasons, strict=True) if not reason]
    if len(kept) < len(examples):
        common = ", ".join(f"{count} where {why}" for why, count in Counter(filter(None, reasons)).most_common(3))
        said = (
            f"{len(examples) - len(kept)} of {len(examples)} tasks are left out, their tests tell nothing: {common}"
        )
        if not kept:
            raise UserError(said, "choose data with stricter tests; --critic.program.gate false judges by these")
        print(said, file=sys.stderr)
    return kept


def _reasons(config: Config, examples: Sequence[Example], runner: Runner) -> list[str]:
    """Why each task may not judge a program, "" where it may; kept in the folder of the run."""
    file = config.run.folder / GATES_FILE
    known: dict[str, str] = from_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    judge = (__version__, *flatten({"sandbox.workers"}, sandbox=config.sandbox).values())
    found = []
    try:
        for task in (Attempt(each, "") for each in examples):
            key = digest_of_texts((*judge, task.tests, task.reference, *task.names))
            if key in known:
                runner.gates[task.tests, task.names, task.reference] = Gate(not known[key], known[key])
            elif task.tests:
                known[key] = admission(runner, task).reason
            found.append(known.get(key, ""))
    finally:  # a run that is stopped goes on from here
        if config.run.folder.is_dir():
            write_json(file, known)
    return found


def own_critic(name: str) -> Critic:
    """A critic of the user's own, written as `module:Class`; the class is called without arguments.

    Raises:
        UserError: there is no such module or class, it raises when it is called, or it is not a `Critic`.
    """
    made = load_named("critic", name)
    try:
        critic = made()
    except Exception as error:  # whatever a class of the user's raises
        where = f"line {_last_line(error)}: " if _last_line(error) else ""
        said = " ".join(str(error).split())[:200]
        cure = "it is called without arguments"
        raise UserError(f"critic {name!r} cannot be made: {where}{type(error).__name__}: {said}", cure) from error
    if not callable(getattr(critic, "critique", None)):
        cure = "it needs a method critique(examples, responses), one Critique or Failure for each"
        raise UserError(f"critic {name!r} is not a Critic: it has no method critique", cure)
    if not isinstance(getattr(critic, "source", None), Source):
        raise UserError(f"critic {name!r} is not a Critic: it has no source", 'source = Source(kind="program")')
    return cast(Critic, critic)


def _last_line(error: BaseException) -> int:
    """The line of the user's own module in which an error arose; 0 if it arose in the call itself."""
    trace = traceback.extract_tb(error.__traceback__)
    return (trace[-1].lineno or 0) if len(trace) > 1 else 0


def human_critic(config: Config) -> Critic:
    """What people said, as this run has imported it."""
    from text2grad.critics.human import HumanCritic
    from text2grad.stages.folder import read_feedback

    return HumanCritic(read_feedback(config.run.folder / "feedback.jsonl"))


def prompted_critic(
    config: Config, chat: OpenAIChat, task: Task | None = None, known: bool = False
) -> PromptedCritic:
    """The prompted critic over an endpoint.

    With `known`, what is known about the very responses is used: the outcome of their tests is shown, and where a
    person wrote about one, that feedback is anchored instead of a second opinion.
    """
    settings = config.critic.prompted
    refuse_equal_votes(settings.votes, settings.temperature, "critic.prompted.temperature")
    name = settings.prompt or (task.critic_prompt if task else annotator_prompt(config))
    source = Source(kind="llm", model=settings.model, prompt_version=prompt_version(name))
    tested = TESTED.get(name) if known else None
    return PromptedCritic(
        chat,
        read_prompt(name),
        source,
        settings,
        tested=Prompt(read_prompt(tested), prompt_version(tested)) if tested else None,
        # The version keeps the name the file had at first: the ids of questions that were paid for hold it.
        anchor=Prompt(read_prompt(ANCHOR), prompt_version(ANCHOR).replace(ANCHOR, "ground")) if known else None,
    )


def annotator_prompt(config: Config) -> str:
    """The prompt of the task's annotator, without loading the task's data where it is one of ours."""
    ours = {"summarization": "summarization", "qa": "qa", "code": "code", "demo": "code"}
    return ours.get(config.task.name) or load_task(config.task).critic_prompt


def refuse_equal_votes(votes: int, temperature: float | None, setting: str) -> None:
    """Several greedy critiques are one, paid for several times."""
    if votes > 1 and temperature == 0:
        raise UserError(f"{votes} votes at temperature 0 are the same critique", f"--{setting} 0.7")


def reward_model_folder(config: Config) -> Path:
    """Where the reward model is: the one named, or this run's own."""
    return config.critic.reward_model.folder or config.run.folder / "reward_model" / "policy"


def critic_inputs(config: Config) -> dict[str, str]:
    """What the critic's judgements depend on, by name: its settings, and the files it reads as digests."""
    kinds = ("prompted", "program", "reference", "reward_model", "scalar_model", "unit_model")
    names = ("concurrency", "retries", "most_failures", "timeout", "prices", "budget_usd")
    manner = {f"critic.prompted.{name}" for name in names}
    manner |= {"critic.reward_model.gate"}
    found = flatten({f"critic.{kind}" for kind in kinds}, critic=config.critic)
    if config.critic.kind in kinds:
        found |= flatten(manner, **{f"critic.{config.critic.kind}": getattr(config.critic, config.critic.kind)})
    if is_own_name(config.critic.kind):
        found["the critic"] = _digest_of_module(config.critic.kind)
    if config.critic.kind == "program":
        found |= flatten({"sandbox.workers"}, sandbox=config.sandbox)
    if config.critic.kind == "human":
        found["the feedback"] = sha256(config.run.folder / "feedback.jsonl")
    if config.critic.kind == "reward_model":
        settings = config.reward_model
        found |= flatten((), **{"reward_model.generation": settings.generation})
        found |= {
            "reward_model.grounded": settings.grounded,
            "reward_model.whole_quotes": str(settings.whole_quotes),
        }
        found["the reward model"] = digest_of_folder(reward_model_folder(config))
    if config.critic.kind == "scalar_model":
        found["the scalar reward model"] = digest_of_folder(scalar_model_folder(config))
    if config.critic.kind == "unit_model":
        found["the unit model"] = digest_of_folder(unit_model_folder(config))
    return found


def digest_of_folder(folder: Path) -> str:
    """A digest of all files in a folder and below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest_of_texts(f"{path.name} {sha256(path)}" for path in files)


def _digest_of_module(name: str) -> str:
    """The text of the module that a critic of the user's own is in."""
    place = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    return sha256(Path(place)) if place else ""


def reward_model_critic(config: Config, policy: Policy | None = None) -> Critic:
    """The trained reward model: the prompted critic over a local model, or over an adapter beside `policy`'s.

    Without `critic.reward_model.words` its verdicts alone.
    """
    make = critic_over if config.critic.reward_model.words else verdicts_of
    return make(config, load_reward_model(config, policy), str(reward_model_folder(config)))


def load_reward_model(config: Config, policy: Policy | None = None) -> Policy:
    """The trained reward model, as an adapter beside `policy`'s where the settings say so.

    Raises:
        UserError: there is none, or it cannot stand on the base weights of `policy`.
    """
    from text2grad.policy.adapters import beside
    from text2grad.policy.load import load_frozen
    from text2grad.policy.settings import PolicySettings

    folder = reward_model_folder(config)
    if not folder.is_dir():
        raise UserError(f"no reward model in {folder}", f"text2grad train-reward --run.folder {config.run.folder}")
    if config.reward_model.shared and policy is not None:
        return beside(policy, folder, ADAPTER)
    return load_frozen(PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device))


def critic_over(config: Config, model: Policy, name: str) -> PromptedCritic:
    """A reward model as a critic."""
    from text2grad.policy.generate import LocalChat
    from text2grad.policy.grounded import vocabulary_for

    settings, reading = config.reward_model, config.critic.reward_model
    refuse_equal_votes(reading.votes, settings.generation.temperature, "reward_model.generation.temperature")
    vocabulary = vocabulary_for(model, settings.grounded)
    chat = LocalChat(model, settings.generation, name, vocabulary, settings.whole_quotes, counting("critiques"))
    return PromptedCritic(chat, read_prompt(REWARD_MODEL_PROMPT), _source(name), reading)


def verdicts_of(config: Config, model: Policy, name: str) -> VerdictCritic:
    """A reward model as a critic that gives a verdict and writes nothing.

    Raises:
        UserError: it was trained to write its verdict.
    """
    from text2grad.policy.generate import LocalChat

    if model.score_head is None:
        message = f"the reward model in {name} has no head for verdicts, and critic.reward_model.words is false"
        raise UserError(message, "--critic.reward_model.words true, or train it with --reward_model.verdict head")
    settings = config.reward_model.generation.model_copy(update={"max_new_tokens": 1})
    chat = LocalChat(model, settings, name, counted=counting("verdicts"))
    return VerdictCritic(chat, read_prompt(REWARD_MODEL_PROMPT), _source(name))


def _source(name: str) -> Source:
    """Who speaks where the reward model of this name does."""
    return Source(kind="reward_model", model=name, prompt_version=prompt_version(REWARD_MODEL_PROMPT))


def scalar_model_folder(config: Config) -> Path:
    """Where the scalar reward model is: the one named, or this run's own."""
    return config.critic.scalar_model.folder or config.run.folder / "scalar_model" / "policy"


def scalar_model_critic(config: Config) -> ScalarCritic:
    """The scalar reward model that was trained on preference pairs.

    Raises:
        UserError: there is none, or its training was not finished.
    """
    from text2grad.policy.load import load_frozen
    from text2grad.policy.scores import LocalScorer
    from text2grad.policy.settings import PolicySettings

    folder = scalar_model_folder(config)
    cure = f"text2grad train-reward --pairs FILE --run.folder {config.run.folder}"
    if not (folder / SCALE_FILE).is_file():
        raise UserError(f"no scalar reward model in {folder}", cure)
    scale = Scale(**from_json((folder / SCALE_FILE).read_text(encoding="utf-8")))
    settings = PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    scorer = LocalScorer(load_frozen(settings), config.scalar_model.batch_size)
    return ScalarCritic(scorer, scale, Source(kind="reward_model", model=str(folder), prompt_version="scalar"))


def unit_model_folder(config: Config) -> Path:
    """Where the unit model is: the one named, or this run's own."""
    settings = config.critic.unit_model
    return settings.folder or config.run.folder / "unit_model" / settings.units / "policy"


def unit_model_critic(config: Config) -> UnitCritic:
    """The unit model that was trained on this run's feedback.

    Raises:
        UserError: there is none, its training was not finished, or it labels other units.
    """
    from text2grad.policy.load import load_frozen
    from text2grad.policy.settings import PolicySettings
    from text2grad.policy.units import LocalUnits

    folder, units = unit_model_folder(config), config.critic.unit_model.units
    if not (folder / UNITS_FILE).is_file():
        cure = f"text2grad train-reward --units {units} --run.folder {config.run.folder}"
        raise UserError(f"no unit model of {units} in {folder}", cure)
    found = from_json((folder / UNITS_FILE).read_text(encoding="utf-8"))["units"]
    if found != units:
        raise UserError(f"the unit model in {folder} labels {found}", f"--critic.unit_model.units {found}")
    settings = PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    labeller = LocalUnits(
        load_frozen(settings), config.unit_model.batch_size, config.critic.unit_model.poor_threshold
    )
    return UnitCritic(labeller, units, Source(kind="reward_model", model=str(folder), prompt_version=units))


def judge_of(config: Config) -> Critic | None:
    """The critic of answers to prompts held out, where that is wanted (`evaluate.token_reward`).

    The reward model of this run, if there is one; where a program compares with references, that program.
    """
    if config.critic.kind == "reference":
        return ReferenceCritic() if config.evaluate.token_reward else None
    found = config.critic.reward_model.folder or (config.run.folder / "reward_model" / "policy").is_dir()
    wanted = config.evaluate.token_reward and config.critic.kind == "reward_model"
    return reward_model_critic(config) if wanted and found else None
