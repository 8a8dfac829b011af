"""Create the configured critic. Torch is imported for trained models only."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from text2grad.chat.client import OpenAIChat
from text2grad.chat.settings import EndpointSettings
from text2grad.config import Config, CriticKind, RewardModelSettings, extra_settings, load_config
from text2grad.critics.program import Attempt, check_tests
from text2grad.critics.prompted import PLACES, Prompt, PromptedCritic, TaggerCritic
from text2grad.critics.prompted.settings import PromptedSettings
from text2grad.critics.spec import CriticSpec, Ready
from text2grad.critics.table import CRITICS, spec_of
from text2grad.durable.identity import flatten, hash_custom_code, hash_texts
from text2grad.durable.machine import count_cores
from text2grad.durable.progress import progress_reporter
from text2grad.errors import UserError
from text2grad.feedback import Critic, Environment, Example, Message, Source
from text2grad.json_text import from_json
from text2grad.named import is_import_path, load_named
from text2grad.policy.files.manifest import sha256
from text2grad.policy.settings import SamplingSettings
from text2grad.sandbox import Gate, Runner, SandboxSettings
from text2grad.settings import Settings
from text2grad.stages.run_folder import RunFolder, write_json
from text2grad.tasks.base import Task, TaskSettings, get_environment_factory, load_task, prompt_version, read_prompt
from text2grad.tasks.prompt_files import format_version

if TYPE_CHECKING:
    from text2grad.policy.model import Policy

REWARD_MODEL_PROMPT = "reward_model"
ADAPTER = "reward_model"
ANCHOR = "anchor"
SERVED_NAMES = {
    "critic.prompted.model": "critic.reward_model.folder",
    "critic.prompted.base_url": "critic.reward_model.base_url",
    "critic.prompted.max_tokens": "reward_model.max_new_tokens",
}
"""Settings of a served reward model, by the prompted critic's settings in endpoint errors."""
MOST_PROGRAMS = 8
"""The maximum number of programs at a time: each has two processes of up to 1 GiB."""
GATES_FILE = "gates.json"
"""The file in a run's folder with the reason why a task's tests must not judge a program, by digest
of the task; "" if they may."""
TASK_PROMPTS = {"summarization": "summarization", "qa": "qa", "code": "code", "demo": "code"}
"""Critic prompts of the built-in tasks."""
TESTED = {"code": "code_tested", "code_plain": "code_plain_tested"}
"""Prompts that include the outcome of the tests, by the prompts that do not."""


def make_runner(settings: SandboxSettings) -> Runner:
    """Return a sandbox that runs one program per core; workers start with the first program."""
    return Runner(settings.seconds, min(MOST_PROGRAMS, count_cores()), settings.tier)


@contextmanager
def renamed_in_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Replace names of settings in the messages of `UserError`s raised inside.

    Raises:
        UserError: the error with the new names; other errors pass unchanged.
    """
    try:
        yield
    except UserError as error:
        line = str(error)
        for name, new in names.items():
            line = line.replace(name, new)
        if line == str(error):
            raise
        raise UserError(line, exit_code=error.exit_code) from error


@contextmanager
def critic_factory(config: Config, kind: CriticKind | None = None) -> Iterator[CriticFactory]:
    """Open the factory of a critic, by default the configured one, with its sandbox."""
    with make_runner(config.sandbox) as runner:
        yield CriticFactory(config, kind or config.critic.kind, runner)


_OPEN = ExitStack()
"""The critic of an engine's worker and its locks, open until the worker ends."""


def critic_of_worker(settings: Path, folder: Path) -> Critic:
    """Return the critic of a settings file, open until this process, an engine's worker, ends.

    Its journal is in the first `critic.NUMBER` of the folder that no other worker has locked.
    """
    from text2grad.durable.guard import lock_folder  # needs torch, which annotate does without

    atexit.register(_OPEN.close)
    factory = _OPEN.enter_context(critic_factory(load_config(settings)))
    for number in count():
        place = folder / f"critic.{number}"
        with suppress(UserError):  # another worker has locked it
            _OPEN.enter_context(lock_folder(place))
            break
    return _OPEN.enter_context(factory.open(journal=place / "critic.journal"))


def environment_of_worker(settings: Path) -> Callable[[], Environment] | None:
    """Return the function that makes an episode's environment in an engine's worker."""
    return get_environment_factory(RunFolder.of(load_config(settings)).task())


@dataclass(frozen=True)
class CriticFactory:
    """A factory of the critic `kind` of a run, with one interface for all critics."""

    config: Config
    kind: CriticKind
    runner: Runner

    @property
    def run(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder.of(self.config)

    @property
    def spec(self) -> CriticSpec:
        """The spec of the critic."""
        return spec_of(self.kind)

    @contextmanager
    def open(
        self, task: Task | None = None, policy: Policy | None = None, journal: Path | None = None
    ) -> Iterator[Critic]:
        """Open the critic, with a `journal` for the answers of a chat model.

        The prompt of a chat model is that of `task`, if loaded. A reward model may share the base
        weights of `policy` (`reward_model.shared`).
        """
        if self.spec.kind == "reward_model":
            with self._reward_model(policy, journal) as critic:
                yield self._make(critic)
        elif self.spec.kind == "prompted":
            settings = self.config.critic.prompted
            with OpenAIChat(settings, journal) as chat:
                yield self._make(prompted_critic(chat, prompt_name(settings, self.config.task, task)))
        else:
            yield self._make(None)

    @contextmanager
    def heldout_critic(self) -> Iterator[Critic | None]:
        """Open the critic that judges held-out answers; None without `evaluate.token_reward`."""
        measures_with, settings = self.spec.measures_with, self.config.critic.reward_model
        if measures_with is None or not self.config.evaluate.token_reward:
            yield None
        elif self.spec.kind != "reward_model":
            yield measures_with(self._ready(None))
        elif settings.folder or settings.base_url or self.run.reward_model_folder.is_dir():
            with self._reward_model() as critic:
                yield measures_with(self._ready(critic))
        else:
            yield None

    def _make(self, critic: Critic | None) -> Critic:
        return self.spec.make(critic_settings(self.config, self.spec), self._ready(critic))

    def _ready(self, critic: Critic | None) -> Ready:
        return Ready(self.run, self.config.run.seed, self.runner, critic)

    @contextmanager
    def _reward_model(self, policy: Policy | None = None, journal: Path | None = None) -> Iterator[Critic]:
        trained = replace(RewardModel.of(self.config), by_score=self.config.credit.by_score)
        if url := self.config.critic.reward_model.base_url:
            with (
                renamed_in_errors(SERVED_NAMES),
                OpenAIChat(trained.endpoint(url), journal, excess=trained.excess()) as chat,
            ):
                yield PromptedCritic(chat, *trained.prompt_and_source)
        else:
            yield trained.over(trained.load(policy if trained.settings.shared else None))

    def refuse_unfit(self, examples: Sequence[Example]) -> None:
        """Refuse prompts that the critic is unable to judge.

        Raises:
            UserError: no prompt has what the critic needs.
        """
        needs = self.spec.needs
        if not needs or not examples or any(map(needs.has, examples)):
            return
        others = ", ".join(kind for kind in ("reference", "prompted", "reward_model") if kind != self.spec.kind)
        message = f"no prompt has {needs.what}, which the {self.kind} critic needs"
        raise UserError(message, f"choose another critic ({others}), or data with {needs.what}")

    def admitted(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples without those whose tests are too weak to judge a program.

        Prints how many are left out, and why.

        Raises:
            UserError: all are left out.
        """
        if self.spec.kind != "program" or not self.config.critic.program.gate:
            return list(examples)
        reasons = self._gate_reasons(examples)
        admitted = [example for example, reason in zip(examples, reasons, strict=True) if not reason]
        if len(admitted) < len(examples):
            counts = Counter(filter(None, reasons)).most_common(3)
            common = ", ".join(f"{count} where {why}" for why, count in counts)
            excluded = f"{len(examples) - len(admitted)} of {len(examples)} tasks are left out"
            problem = f"{excluded} because their tests do not judge a program: {common}"
            if not admitted:
                cure = "choose data with stricter tests, or --critic.program.gate false to use these"
                raise UserError(problem, cure)
            print(problem, file=sys.stderr)
        return admitted

    def _gate_reasons(self, examples: Sequence[Example]) -> list[str]:
        """Return why the tests of each task must not judge a program, "" if they may.

        The reasons are stored in the run's folder.
        """
        file, runner = self.config.run.folder / GATES_FILE, self.runner
        stored: dict[str, str] = {}
        try:
            stored = from_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError:
            print(f"{file} is damaged; checking the tests of each task again", file=sys.stderr)
        judge = (version("text2grad"), *flatten(sandbox=self.config.sandbox).values())
        reasons: list[str] = []
        progress, stored_before = progress_reporter("checking the tests of each task")(len(examples)), len(stored)
        try:
            for task in (Attempt(example, "") for example in examples):
                key = hash_texts((*judge, task.tests, task.reference, *task.names))
                if key in stored:
                    runner.gates[task.tests, task.names, task.reference] = Gate(not stored[key], stored[key])
                elif task.tests:
                    stored[key] = check_tests(runner, task).reason
                reasons.append(stored.get(key, ""))
                progress(len(reasons))
        finally:  # a stopped run resumes from here
            if len(stored) > stored_before:
                write_json(file, stored)
        return reasons


def critic_settings(config: Config, spec: CriticSpec) -> Settings | None:
    """Return the settings of a critic: `critic.<kind>`, or `extra.<kind>` for a user's critic.

    Raises:
        UsageError: `extra.<kind>` does not fit the class that the spec names.
    """
    settings: Settings | None = getattr(config.critic, spec.kind, None)
    if settings is None and spec.settings is not None:
        settings = extra_settings(config, spec.kind, spec.settings)
    return settings


def critic_inputs(config: Config, critic: Critic | None = None) -> dict[str, str]:
    """Return the inputs that a critic's judgements depend on, by name.

    They are its settings, digests of the files that it reads, and its code. A served critic is
    known by its address alone; with `critic`, the source that its server reports is an input too.
    """
    spec = spec_of(config.critic.kind)
    settings = critic_settings(config, spec)
    inputs = flatten({f"critic.{kind}" for kind in CRITICS}, critic=config.critic)
    if settings is not None:
        section = f"critic.{spec.kind}" if hasattr(config.critic, spec.kind) else f"extra.{spec.kind}"
        inputs |= flatten({f"{section}.{key}" for key in spec.operational}, **{section: settings})
    for name in spec.reads:
        value = attrgetter(name)(config)
        inputs |= flatten(**{name: value}) if isinstance(value, BaseModel) else {name: str(value)}
    files = spec.files(settings, config.run.folder)
    digests = {name: digest_of_path(path) for name, path in files.items()}
    prompt = (config.critic.prompted.prompt or "") if spec.kind == "prompted" else ""
    code = hash_custom_code("the critic", config.critic.kind) | hash_custom_code("the critic's prompt", prompt)
    source = critic.source.model_dump(mode="json") if critic and spec.kind == "served" else {}
    served = {f"critic.source.{name}": str(value) for name, value in source.items()}
    return {**inputs, **code, **digests, **served}


def digest_of_path(path: Path) -> str:
    """Return a digest of a file, or of all files in a folder and its subfolders."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return hash_texts(f"{file.name} {sha256(file)}" for file in files)


def prompt_name(critic: PromptedSettings, settings: TaskSettings, task: Task | None = None) -> str:
    """Return the name of an annotator's prompt: from its settings, else that of the task.

    A built-in task is not loaded for this, since loading reads its data.
    """
    built_in = task.critic_prompt if task else TASK_PROMPTS.get(settings.name, "")
    return critic.prompt or built_in or load_task(settings).critic_prompt


def load_prompt(name: str) -> Prompt:
    """Return a critic's prompt: a file by its stem or path, or a `Prompt` as `module:NAME`.

    Raises:
        UserError: there is no such prompt.
    """
    if not is_import_path(name):
        return Prompt(read_prompt(name), prompt_version(name))
    prompt: Prompt = load_named("prompt", name, kinds=(Prompt,))
    version = prompt.version or format_version(name.rpartition(":")[2], prompt.text)
    return replace(prompt, version=version)


def prompted_critic(chat: OpenAIChat, prompt: str, use_evidence: bool = False) -> PromptedCritic:
    """Return the prompted critic over an endpoint, with a prompt by name (`load_prompt`).

    With `use_evidence` the prompt includes the outcome of a response's tests, and a person's
    comment on a response is anchored to its words instead of asking for a second opinion.
    """
    main, anchor = load_prompt(prompt), load_prompt(ANCHOR)
    # The ids of paid questions contain the file's first name, which the version keeps.
    anchor = replace(anchor, version=anchor.version.replace(ANCHOR, "ground"), format=PLACES)
    tested = TESTED.get(prompt) if use_evidence else None
    return PromptedCritic(
        chat,
        main,
        Source(kind="llm", model=chat.name, prompt_version=main.version),
        annotator=True,
        tested=load_prompt(tested) if tested else None,
        anchor=anchor if use_evidence else None,
    )


@dataclass(frozen=True)
class RewardModel:
    """The trained reward model of a run, which judges `batch_size` answers at a time.

    With `by_score` only the score is rewarded, and a model with a score head generates no text.
    """

    run: RunFolder
    settings: RewardModelSettings
    batch_size: int
    by_score: bool = False

    @staticmethod
    def of(config: Config) -> RewardModel:
        """Return the reward model of a configuration, with the batch size of the policy."""
        return RewardModel(RunFolder.of(config), config.reward_model, config.generation.batch_size)

    def load(self, shared: Policy | None = None) -> Policy:
        """Load the model, or add it to `shared` as a second adapter.

        Raises:
            UserError: there is no reward model, or its base weights differ from those of `shared`.
        """
        from text2grad.policy.adapters import load_second_adapter

        folder = self.run.reward_model()
        return self.run.load_model(folder) if shared is None else load_second_adapter(shared, folder, ADAPTER)

    @property
    def prompt_and_source(self) -> tuple[str, Source]:
        """The model's training prompt, and the source of its critiques."""
        version = prompt_version(REWARD_MODEL_PROMPT)
        source = Source(kind="reward_model", model=str(self.run.reward_model_folder), prompt_version=version)
        return read_prompt(REWARD_MODEL_PROMPT), source

    def endpoint(self, url: str) -> EndpointSettings:
        """Return the endpoint settings of an OpenAI-compatible server of the model.

        The model's name there is its folder.

        Raises:
            UserError: the model has a head, which such a server does not load, or
                `reward_model.grounded` is on.
        """
        from text2grad.policy.files.save import head_files

        settings, folder = self.settings, self.run.reward_model_folder
        if settings.tags or settings.score_head or head_files(folder):
            problem = "an OpenAI-compatible server does not support taggers and score heads"
            cure = f"run text2grad serve {self.run.path}, and set --critic.kind to the address that it prints"
            raise UserError(f"critic.reward_model.base_url: {problem}", cure)
        if settings.grounded == "on":
            problem = "reward_model.grounded on: a server does not restrict quotes to the response"
            raise UserError(problem, "--reward_model.grounded auto counts quotes that do not match instead")
        return EndpointSettings(
            model=str(folder),
            base_url=url,
            max_tokens=settings.max_new_tokens,
            concurrency=self.batch_size,
        )

    def excess(self) -> Callable[[Sequence[Message]], int]:
        """Return a function that counts the tokens by which a conversation is too long.

        It returns 0 if the model's folder is on another machine.
        """
        from text2grad.policy.encode import count_excess
        from text2grad.policy.files.tokenizer import load_tokenizer
        from text2grad.policy.files.weights import read_config

        folder = self.run.reward_model_folder
        if not (folder / "config.json").is_file():
            return lambda conversation: 0
        tokenizer, config = load_tokenizer(str(folder)), read_config(str(folder)).get_text_config()
        limit, room = getattr(config, "max_position_embeddings", None), self.settings.max_new_tokens
        return lambda conversation: count_excess(tokenizer, conversation, limit, room)

    def over(self, model: Policy) -> PromptedCritic | TaggerCritic:
        """Return the critic over the loaded model: it writes z or only the verdict, or tags tokens.

        Raises:
            UserError: the model was trained as the other kind.
        """
        from text2grad.policy.grounded import make_vocabulary
        from text2grad.policy.heads.tagger import Tagger
        from text2grad.policy.local_chat import LocalChat

        settings, name = self.settings, str(self.run.reward_model_folder)
        kind = "generative" if model.span_head is None else "tagger"
        if settings.kind != kind:
            problem = f"the reward model in {name} was trained as {kind}"
            raise UserError(problem, f"--reward_model.kind {kind}, or run train-reward again")
        prompt, source = self.prompt_and_source
        if settings.tags:
            return TaggerCritic(Tagger(model, self.batch_size), prompt, source)
        verdict_only = self.by_score and model.score_head is not None
        tokens = 1 if verdict_only else settings.max_new_tokens
        greedy = SamplingSettings(max_new_tokens=tokens, temperature=0.0, batch_size=self.batch_size)
        vocabulary = None if verdict_only else make_vocabulary(model, settings.grounded)
        progress = progress_reporter("verdicts" if verdict_only else "critiques")
        chat = LocalChat(model, greedy, name, vocabulary, progress)
        return PromptedCritic(chat, prompt, source, verdict_only=verdict_only)
