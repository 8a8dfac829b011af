"""The commands of every method, shared commands, and the settings that each command reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from text2grad.config import TINY, Config, with_recipe
from text2grad.config.reference import explain
from text2grad.critics.table import spec_of
from text2grad.errors import UsageError
from text2grad.stages.run_folder import refuse_run_name
from text2grad_lab.baselines.revision import refuse_informed_critic
from text2grad_lab.baselines.steps import is_ultrafeedback

OURS, BASE, REFLECTION = "text2grad", "base", "reflection"


@dataclass(frozen=True)
class Work:
    """One command of a seed.

    Attributes:
        words: the command line.
        recipe: a configuration file that overrides the configuration.
        after: the works that must finish first.
        reads: the sections that it depends on, besides `COMMON` and those of earlier works.
        rate: the setting that is tuned, multiplied by `factor`.
        restart: true if the command has --restart.
        settings: options that override the recipe.
    """

    words: tuple[str, ...]
    recipe: str = ""
    after: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    rate: str = ""
    factor: float = 1.0
    restart: bool = True
    settings: tuple[str, ...] = ()

    def configure(self, config: Config) -> Config:
        """Return the configuration with the work's recipe and settings."""
        return with_recipe(config, self.recipe, self.settings) if self.recipe or self.settings else config

    @property
    def trains_by_sampling(self) -> bool:
        """True for PPO runs, which sample rollouts."""
        return self.words[0] in ("train", "train-sdpo") and "--offline" not in self.words


COMMON = ("run", "task", "policy", "tiny", "generation", "sandbox")
REWARD_MODEL = "reward model"
FEEDBACK, PAIRS, REFINED = "{folder}/feedback.jsonl", "{folder}/pairs.jsonl", "{folder}/refined.jsonl"

SHARED = {
    "sft": Work(("sft",), reads=("sft",)),
    "annotate": Work(("annotate",), "", ("sft",), ("annotate", "critic"), restart=False),
    REWARD_MODEL: Work(("train-reward",), "", ("annotate",), ("reward_model", "critic")),
    "pairs": Work(
        ("export", FEEDBACK, "--as", "preference", "--pairs-per-prompt", "4", "--out", PAIRS),
        after=("annotate",),
        restart=False,
    ),
    "scalar model": Work(("train-scalar", PAIRS), "", ("pairs",), ("extra",), restart=False),
    "step model": Work(("train-units", "steps"), "", ("annotate",), ("reward_model",)),
    "token model": Work(("train-units", "tokens"), "", ("annotate",), ("reward_model",)),
    "refiner": Work(("imitate", FEEDBACK, "--name", "refiner", "--revise"), "", ("annotate",), ("sft", "extra")),
    "refine": Work(
        ("refine", FEEDBACK, "--from", "refiner", "--out", REFINED), "", ("refiner",), ("extra",), restart=False
    ),
}
"""Works that methods share, done once per seed."""
ANNOTATE, IMPORT = "annotate", "import"


def ppo_run(name: str, recipe: str = "") -> Work:
    """Return a PPO run with a recipe."""
    return Work(("train", "--name", name), recipe, ("sft",), ("critic", "credit", "ppo", "extra"), "ppo.lr")


def _imitation(name: str, records: str, after: str) -> Work:
    words = ("imitate", records, "--name", name, "--best")
    return Work(words, after=(after,), reads=("sft",), rate="sft.lr")


PPO = {
    **{name: name for name in ("scalar", "grpo", "paper")},
    **{name: f"text2grad_lab:{name}" for name in ("scalar_rm", "prm", "dense", "grpo_turns")},
}
"""The recipes of PPO runs."""
TRAINED = {
    **{name: ppo_run(name, recipe) for name, recipe in PPO.items()},
    OURS: ppo_run(OURS),
    "sdpo": Work(
        ("train-sdpo", "--name", "sdpo"), "", ("sft",), ("critic", "ppo", "extra"), "ppo.lr", restart=False
    ),
    "dpo": Work(
        ("train-dpo", PAIRS, "--name", "dpo"), "", ("pairs",), ("extra",), "extra.dpo.training.lr", restart=False
    ),
    "offline": Work(
        ("train", "--name", "offline", "--offline", FEEDBACK),
        "",
        ("annotate",),
        ("offline", "credit"),
        "offline.lr",
    ),
    "rejection": _imitation("rejection", FEEDBACK, "annotate"),
    "ilf": _imitation("ilf", REFINED, "refine"),
}
"""The command of each method that trains a policy, which is named after the method. A PPO run also
waits for the model of its critic, if any (`methods_of`)."""
MODELS = {"reward_model": REWARD_MODEL, "scalar_model": "scalar model"}
UNIT_MODELS = {"steps": "step model", "tokens": "token model"}

METHODS = {
    "base": "base model",
    "sft": "SFT",
    "reflection": "SFT + reflection",
    "rejection": "rejection sampling",
    "ilf": "ILF",
    "offline": "offline text2grad",
    "dpo": "DPO",
    "scalar": "scalar PPO",
    "scalar_rm": "PPO on a scalar reward model",
    "prm": "PRM-PPO",
    "dense": "PPO on dense token labels",
    "grpo": "GRPO",
    "grpo_turns": "GRPO with turn scores",
    "sdpo": "SDPO",
    "paper": "text2grad as in the paper",
    "text2grad": "text2grad",
}
"""The methods that `--methods` accepts, in the order of the table, with their titles. `base` is the
model that SFT starts from; `reflection` trains nothing."""
WITHOUT_TRAINING = {"sft": ("sft",), REFLECTION: ("sft", REWARD_MODEL)}
"""Methods that train nothing further, and the shared works that they need."""

METHODS_HELP = f"--methods takes {', '.join(METHODS)}, recipe files (mine.yaml), settings (scalar+ppo.gamma=0.9)"
Methods = Mapping[str, Work]
"""The compared methods in the order of the table, each with its command or `NOTHING`."""
NOTHING = Work(())


def methods_of(names: Sequence[str], config: Config) -> Methods:
    """Return the methods with these names: names in `METHODS` or recipe files, with any settings.

    A recipe file is a PPO run named after the file. `text2grad+ppo.gamma=1` is text2grad with that
    setting.

    Raises:
        UsageError: there is no such method or no name, or the task or model is not supported.
        UserError: a recipe file is not readable.
    """
    if not names:
        raise UsageError("no methods to compare", METHODS_HELP)
    works = dict(method_of(name) for name in names)
    if BASE in works and config.policy.model == TINY:
        raise UsageError("the tiny model is created by sft, so there is no base", "remove base")
    if "prm" in works and is_ultrafeedback(config.task):
        raise UsageError("prm needs answers with steps, and those of UltraFeedback have none", "remove prm")
    if REFLECTION in works:
        refuse_informed_critic(config)
    order = [name for name in {**METHODS, **works} if name in works]
    return {
        name: works[name] if works[name] is NOTHING else with_critic_model(name, works[name], config)
        for name in order
    }


def method_of(method: str) -> tuple[str, Work]:
    """Return the name of a method's run, and its work.

    Raises:
        UsageError: there is no such method, it has settings but trains nothing, or its name is not
            a valid run name.
    """
    base, *settings = method.split("+")
    if base.endswith((".yaml", ".yml")):
        stem = Path(base).stem
        refuse_run_name(stem)
        name, work = stem, ppo_run(stem, base)
    elif base in METHODS:
        name, work = base, TRAINED.get(base, NOTHING)
    else:
        raise UsageError(f"no method {base!r}", METHODS_HELP)
    if not settings:
        return name, work
    if work is NOTHING:
        raise UsageError(f"{base} trains nothing, so {settings[0]!r} changes nothing", "remove it")
    run = "-".join([name, *(re.sub(r"[^A-Za-z0-9._-]+", "-", setting) for setting in settings)])
    words = tuple(run if word == name else word for word in work.words)
    return run, replace(work, words=words, settings=tuple(f"--{setting}" for setting in settings))


def with_critic_model(name: str, work: Work, config: Config) -> Work:
    """Return the work of a method with the model of its critic as a prerequisite.

    Raises:
        UsageError: its recipe does not fit the configuration.
    """
    try:
        settings = work.configure(config)
    except ValidationError as error:
        explained = explain(error)
        raise UsageError(f"{name}: {explained.problem}", explained.cure or "change or remove it") from None
    if not work.trains_by_sampling:
        return work
    if settings.ppo.no_update_reason:
        cure = f"--ppo.value_warmup {settings.ppo.steps // 4}, or more steps"
        raise UsageError(f"{name}: {settings.ppo.no_update_reason}", cure)
    critic = settings.critic
    kind = spec_of(critic.kind).kind
    units = settings.extra.get("unit_model", {}).get("units", "steps")
    model = UNIT_MODELS[units] if kind == "unit_model" else MODELS.get(kind)
    reads = (*work.reads, "reward_model") if model == REWARD_MODEL else work.reads  # for its decoding settings
    return replace(work, after=(model,), reads=reads) if model else work


def works_of(methods: Methods, factors: Mapping[str, float] | None = None) -> dict[str, Work]:
    """Return all works of a seed by name, each after its prerequisites.

    `factors` multiply the rates of methods.
    """
    ordered: dict[str, Work] = {}

    def add(name: str, work: Work) -> None:
        for earlier in work.after:
            add(earlier, SHARED[earlier])
        ordered.setdefault(name, work)

    for method, work in methods.items():
        if work is not NOTHING:
            add(method, replace(work, factor=(factors or {}).get(method, 1.0)))
        for needed in WITHOUT_TRAINING.get(method, ()):
            add(needed, SHARED[needed])
    return {**ordered, **{f"evaluate {method}": evaluation_work(method) for method in methods}}


def is_shared(name: str) -> bool:
    """True if methods share the work with this name."""
    return name in SHARED or name == IMPORT


def with_imported_feedback(works: Mapping[str, Work]) -> dict[str, Work]:
    """Return the works with people's feedback, copied from the run, instead of annotations."""
    copied = Work((IMPORT, "{imported}"), after=("sft",), restart=False)

    def renamed(name: str) -> str:
        return IMPORT if name == ANNOTATE else name

    return {
        renamed(name): copied if name == ANNOTATE else replace(work, after=tuple(map(renamed, work.after)))
        for name, work in works.items()
    }


def tuning_works(methods: Methods, factors: Sequence[float]) -> dict[str, Work]:
    """Return the works of a tuning seed: every method with a rate, at each factor."""
    tuned = tunable(methods)
    ordered = works_of(tuned)
    for factor in factors:  # all methods try a factor before the next, which keeps a tuning fair that is stopped
        for method, work in tuned.items():
            name = run_name(method, factor)
            words = tuple(name if word == method else word for word in work.words)
            ordered[name] = replace(work, words=words, factor=factor)
            ordered[f"evaluate {name}"] = evaluation_work(name)
    return ordered


def tunable(methods: Methods) -> Methods:
    """Return the methods that have a learning rate."""
    return {name: work for name, work in methods.items() if work.rate}


def run_name(method: str, factor: float) -> str:
    """Return the name of a run at a multiple of its method's rate."""
    return method if factor == 1.0 else f"{method}_x" + f"{factor:g}".replace(".", "p")


def evaluation_work(policy: str) -> Work:
    """Return the command that measures a method's policy."""
    reads = ("evaluate", "critic")
    if policy == REFLECTION:
        return Work(("reflect", "sft"), "", (REWARD_MODEL,), (*reads, "extra"), restart=False)
    if policy == BASE:
        return Work(("evaluate", "{model}"), reads=reads, restart=False)
    return Work(("evaluate", policy), after=(policy,), reads=reads, restart=False)
