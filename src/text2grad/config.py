"""One configuration for every stage: YAML presets, files, and `--section.key value` on top.

Read strictly: an unknown key, a key given twice, a wrong type or a Python tag is an error of one line that
names the key. Importing this module imports no torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from text2grad.align import CreditSettings
from text2grad.critics.noise import NoiseSettings
from text2grad.errors import UsageError, UserError
from text2grad.policy.settings import GenerationSettings, Grounding, PolicySettings, TinySettings
from text2grad.sandbox import SandboxSettings
from text2grad.settings import Settings, YAMLMistakeError, parse_yaml
from text2grad.tasks.base import TaskSettings
from text2grad.train.settings import EarlyStoppingSettings, PPOSettings, SupervisedSettings
from text2grad.wire import QuoteSearch

TINY = "tiny"
PRESETS = Path(__file__).parent / "configs"
RECIPES = PRESETS / "recipes"
BY_TASK = "by_task"
"""The section of a recipe with what it says to one task, by `task.name`."""


class RunSettings(Settings):
    """Where a run is written, and what makes it repeatable."""

    folder: Path = Field(default=Path("runs/default"), description="everything a run writes goes here")
    seed: int = Field(default=0, ge=0, description="of everything that is drawn at random")
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of torch; null: the cores idle at the start, at most 4, shared by the processes",
    )
    parallel: Literal["auto", "ddp", "fsdp"] = Field(
        default="auto",
        description="weights in several processes: ddp: whole in each; fsdp: split; auto: as accelerate's profile"
        " says, else ddp",
    )


class RewardModelSettings(Settings):
    """The reward model: a chat model trained to write the critique and its span map (paper, section 3.4)."""

    policy: PolicySettings | None = Field(default=None, description="null: start from the SFT policy")
    critique: bool = Field(
        default=True, description="z begins with the critique; false: the span map alone (the paper's ablation)"
    )
    reasons: Literal["full", "short", "none"] = Field(
        default="full", description="of each span, in z; short: up to the first colon or stop, at most 4 words"
    )
    repeats: int | None = Field(
        default=None, ge=1, description="train on at most so many records of one response to one prompt; null: all"
    )
    poor_weight: float = Field(
        default=1.0,
        gt=0,
        description="weight of the list of poor spans in the loss: they are the rare class",
    )
    label_weight: float = Field(
        default=0.0,
        ge=0,
        description="of a second loss: the label of every response token, read off a middle layer; it teaches a"
        " small model to look at the response",
    )
    shared: bool = Field(
        default=False,
        description="an adapter beside the policy's: policy, reference, reward model on one set of base weights",
    )
    training: SupervisedSettings = SupervisedSettings()
    early_stopping: EarlyStoppingSettings | None = Field(
        default=None, description="null: all of reward_model.training.epochs"
    )
    generation: GenerationSettings = GenerationSettings(temperature=0.0)
    grounded: Grounding = Field(
        default="auto",
        description="critiques can only quote what stands in the response; auto: if llguidance is installed",
    )
    whole_quotes: bool = Field(
        default=False, description="grounded, the model says whether a quote goes on, the response with which words"
    )


CriticKind = Literal["reward_model", "program", "reference", "prompted", "human"]


class CriticSettings(Settings):
    """Who gives the feedback: while annotating, and in the training loop."""

    kind: CriticKind = Field(
        default="reward_model",
        description="reward_model: trained here; program: runs tests; reference: compares with the reference"
        " answer; prompted: any OpenAI-compatible endpoint",
    )
    model: str = Field(default="", description="name at the endpoint (prompted) or folder (reward_model)")
    base_url: str | None = Field(default=None, description="null: the OpenAI service; the key is in OPENAI_API_KEY")
    votes: int = Field(
        default=1,
        ge=1,
        description="critiques of one response, at a temperature above 0; spans most agree on stay, weighted",
    )
    temperature: float | None = Field(
        default=0.0, ge=0, le=2, description="of the judge (prompted); null: the server's own"
    )
    prompt: str | None = Field(default=None, description="file that replaces the task's critic prompt")
    ambiguity: Literal["first", "all", "skip"] = Field(
        default="skip", description="a quote that occurs more than once and does not say which"
    )
    concurrency: int = Field(default=8, ge=1, description="requests at a time")
    max_tokens: int = Field(default=1024, ge=1, description="of one critique")
    brief: bool = Field(
        default=False,
        description="program: what is wrong without inputs and evidence, as a small reward model can learn to say",
    )
    gate: bool = Field(
        default=True, description="program: no verdict where the tests pass for programs that solve nothing"
    )
    repairs: int = Field(
        default=40, ge=0, description="program: small edits tried to find a fault without a reference; 0: none"
    )
    grounded: bool = Field(
        default=False, description="have the server keep quotes to the response: vLLM with its guidance backend"
    )
    noise: NoiseSettings | None = Field(
        default=None, description="put into the spans of whoever gives the feedback, for studies; null: none"
    )


class AnnotateSettings(Settings):
    """How many responses of the policy are sampled for feedback."""

    critic: CriticKind | None = Field(default=None, description="who annotates; null: critic.kind")
    prompts: int | None = Field(default=None, ge=1, description="null: every training prompt")
    swapped: float = Field(
        default=0.0, ge=0, le=1, description="share shown with the response to a similar prompt: hard negatives"
    )
    samples_per_prompt: int = Field(default=1, ge=1)
    run_tests: bool = Field(
        default=False, description="of sampled programs, before a chat model judges them: it is shown the outcome"
    )
    pairs_per_prompt: int = Field(
        default=4, ge=1, description="with --pairs: at most so many pairs of a passing and a failing program"
    )
    votes: int = Field(
        default=1, ge=1, description="judgements of one response; spans most agree on stay, weighted"
    )
    temperature: float | None = Field(default=0.0, ge=0, le=2, description="of the judge; null: the server's own")
    retries: int = Field(default=5, ge=0, description="of a request that failed in passing")
    timeout: float = Field(
        default=120.0, gt=0, description="seconds without a sign of an answer; a whole request: 5 times as long"
    )
    prices: Path | None = Field(default=None, description="file of prices; null: those that come with text2grad")
    max_characters: int = Field(default=100_000, ge=1, description="of a response; a longer one is refused")
    validation: Literal["keep", "ask", "drop"] = Field(
        default="drop",
        description="quotes that are not in the response: keep the other spans; ask once more, then keep; drop the"
        " record from training if the second answer is no better",
    )
    moved_canaries: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the canaries a judge may misjudge; with more, nothing is asked",
    )
    quotes: QuoteSearch = QuoteSearch()


class EvaluateSettings(Settings):
    """How a policy is measured on the held-out prompts."""

    samples: int = Field(default=4, ge=1, description="sampled answers to a prompt, beside the greedy one")
    limit: int | None = Field(default=None, ge=1, description="held-out prompts; null: all")
    marks: Path | None = Field(
        default=None, description="JSON Lines of people's marks of the reward model's critiques: id, correct"
    )
    judge: str = Field(
        default="", description="chat model that compares the reward model's critiques with others; empty: none"
    )
    judge_url: str | None = Field(default=None, description="of the judge; null: the OpenAI service")
    against: Path | None = Field(
        default=None, description="the others: reward_model.said.jsonl of another run; null: the annotations"
    )
    token_reward: bool = Field(
        default=True, description="have the reward model judge the answers too, where the run has one"
    )


class Config(Settings):
    """All settings of a run, a section for each part."""

    run: RunSettings = RunSettings()
    task: TaskSettings
    policy: PolicySettings
    tiny: TinySettings = TinySettings()
    sft: SupervisedSettings = SupervisedSettings()
    reward_model: RewardModelSettings = RewardModelSettings()
    critic: CriticSettings = CriticSettings()
    credit: CreditSettings = CreditSettings()
    ppo: PPOSettings = PPOSettings()
    generation: GenerationSettings = GenerationSettings()
    annotate: AnnotateSettings = AnnotateSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    sandbox: SandboxSettings = SandboxSettings()


def preset_names() -> list[str]:
    """The presets that come with the package, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def recipe_names() -> list[str]:
    """The recipes that come with the package, sorted: settings to lay over a configuration."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file behind `--config`: the name of a preset (`demo`) or recipe (`paper`), or a path (`mine.yaml`).

    Raises:
        UserError: there is no such file.
        UsageError: there is no such preset.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    found = next((each for folder in (PRESETS, RECIPES) if (each := folder / f"{name}.yaml").is_file()), None)
    if found is None:
        names = [*preset_names(), *recipe_names()]
        raise UsageError(f"no preset {name!r}", suggestion(name, names) or "presets: " + ", ".join(names))
    return found


def load_config(path: Path | Sequence[Path] | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration: the file, or several, each over those before; then the overrides, in their order.

    `overrides` are command-line words: `--ppo.lr 1e-4` as two of them, or `--ppo.lr=1e-4` as one. Values
    are YAML (`--policy.lora null`, `--policy.lora.targets [q_proj]`).

    Raises:
        UserError: the file cannot be read.
        UsageError: not YAML, an unknown key, a key given twice or missing, a value of the wrong type.
    """
    data: dict[str, Any] = {}
    for each in [path] if isinstance(path, Path) else path or ():
        _lay_over(data, _for_task(_read(each), data))
    for key, text in _pairs(overrides):
        _assign(data, key, _value(key, text))
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from error


def laid_over(config: Config, name: str) -> Config:
    """A configuration with a recipe laid over it, as `--config mine.yaml --config NAME` does.

    Raises:
        UsageError: there is no such recipe.
    """
    data = config.model_dump()
    _lay_over(data, _for_task(_read(find_config(name)), data))
    return Config.model_validate(data)


def with_tiny_rates(config: Config) -> Config:
    """The same job with every learning rate times `tiny.learning_rate_factor`, where the policy is tiny."""
    factor = config.tiny.learning_rate_factor
    if config.policy.model != TINY or factor == 1.0:
        return config
    training, ppo = config.reward_model.training, config.ppo
    return config.model_copy(
        update={
            "sft": _scaled(config.sft, factor),
            "reward_model": config.reward_model.model_copy(update={"training": _scaled(training, factor)}),
            "ppo": _scaled(ppo, factor).model_copy(
                update={"value_lr": ppo.value_lr and ppo.value_lr * factor},
            ),
        }
    )


S = TypeVar("S", SupervisedSettings, PPOSettings)


def _scaled(settings: S, factor: float) -> S:
    return settings.model_copy(update={"lr": settings.lr * factor})


def dump_config(config: Config) -> str:
    """The configuration as YAML; `load_config` reads it back equal."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot read the configuration {path}: {error.strerror}",
            f"check the path, or take a preset: {', '.join(preset_names())}",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error
    data = _parse_yaml(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path}: sections are expected, found {data!r:.60}", "write section: {key: value}")
    return data


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except YAMLMistakeError as error:
        line = f":{error.line}" if error.line else ""
        raise UsageError(f"{where}{line}: {error}", "mend the YAML") from error


def _pairs(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = iter(overrides)
    for word in words:
        key, equals, value = word.partition("=")
        if not key.startswith("--") or not key[2:]:
            raise UsageError(f"{word!r} is not a setting", "write --section.key value")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise UsageError(f"{key} needs a value", f"write {key} VALUE or {key}=VALUE")
        yield key[2:], value


def _value(key: str, text: str) -> Any:
    section, _, last = key.rpartition(".")
    model = _section_at(section)
    kinds = _accepts(model.model_fields[last].annotation) if model and last in model.model_fields else set()
    if kinds and kinds <= {str, Path} | ({NoneType} if text not in ("null", "~") else set()):
        return text  # a folder called 2026 is not a number
    return _parse_yaml(text, f"--{key}")


def _for_task(recipe: dict[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe says to the task it is laid over: what it says to all, and its `by_task` section on top."""
    if BY_TASK not in recipe:
        return recipe
    settings = {name: value for name, value in recipe.items() if name != BY_TASK}
    task = recipe.get("task") or under.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    sections = recipe[BY_TASK]
    if not isinstance(sections, Mapping) or not all(isinstance(own, Mapping) for own in sections.values()):
        raise UsageError(f"{BY_TASK}: a section for each task is expected", "write by_task: {code: {ppo: ...}}")
    _lay_over(settings, sections.get(name, {}))
    return settings


def _lay_over(data: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Settings of `other` replace those of `data`; sections are merged."""
    for key, value in other.items():
        here = data.get(key)
        if isinstance(here, dict) and isinstance(value, Mapping):
            _lay_over(here, value)
        else:
            data[key] = value


def _assign(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = data.get(section)
        data[section] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[section]
    data[last] = value


@dataclass(frozen=True)
class Setting:
    """One line of the reference: `ppo.lr`, its type and default in words, and what it means."""

    key: str
    kind: str
    default: str
    meaning: str


def describe_settings(
    model: type[BaseModel] = Config, prefix: str = "", values: BaseModel | None = None
) -> Iterator[Setting]:
    """Every setting there is, in the order of the sections; `values` are the defaults of this one."""
    for name, field in model.model_fields.items():
        default = getattr(values, name) if values else field.get_default(call_default_factory=True)
        section = _section(field)
        if section is None or NoneType in _accepts(field.annotation):
            yield Setting(prefix + name, _kind(field.annotation), _shown(default), _meaning(field))
        if section is not None:
            inner = default if isinstance(default, BaseModel) else None
            yield from describe_settings(section, f"{prefix}{name}.", inner)


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """`did you mean 'x'?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {prefix + near[0]!r}?" if near else ""


def _section_at(key: str) -> type[BaseModel] | None:
    """The model behind a dotted section; the whole configuration is the section without a name."""
    model: type[BaseModel] | None = Config
    for part in filter(None, key.split(".")):
        model = _section(model.model_fields[part]) if model and part in model.model_fields else None
    return model


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kinds = [kind for kind in _accepts(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return kinds[0] if kinds else None


def _accepts(annotation: Any) -> set[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*(_accepts(part) for part in get_args(annotation)))
    return {annotation}


def _kind(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(_kind(part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if get_origin(annotation) is not None:
        return f"list of {_kind(get_args(annotation)[0])}"
    words = {NoneType: "null", str: "text", Path: "path"}
    name = words.get(annotation, annotation.__name__)
    return "section" if isinstance(annotation, type) and issubclass(annotation, BaseModel) else name


def _shown(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return "null" if default is None else "(required)"
    return f"[{', '.join(map(str, default))}]" if isinstance(default, tuple) else str(default)


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("None:", "null:")


def _explain(error: ValidationError) -> UsageError:
    """The first problem as one line: key, value, what is expected, and the likely cure."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return UsageError(f"unknown setting {key!r}", _nearest_setting(key))
    if detail["type"] == "missing":
        return UsageError(f"the setting {key!r} is missing", f"set it in the file or with --{key} VALUE")
    expected = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    known = next((each for each in describe_settings() if each.key == key), None)
    cure = f"{key} is of type {known.kind}, by default {known.default}" if known else ""
    is_section = isinstance(detail["input"], dict)
    value = "" if is_section else f" = {detail['input']!r:.80}"
    return UsageError(f"{key}{value}: {expected}", cure)


def _nearest_setting(key: str) -> str:
    section, _, last = key.rpartition(".")
    siblings = list((_section_at(section) or Config).model_fields)
    if near := suggestion(last, siblings, f"{section}." if section else ""):
        return near
    namesakes = [each.key for each in describe_settings() if each.key.rpartition(".")[2] == last]
    if namesakes:
        return f"did you mean {' or '.join(map(repr, namesakes))}?"
    return f"{section} has {', '.join(siblings)}" if section else f"sections are {', '.join(siblings)}"
