"""The commands of every method, the commands that methods share, and the settings that each command
reads."""

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
    """One command of a seed: its words, what is laid over the configuration, and the works it waits
    for.

    `reads`: the sections of the configuration that it depends on, beside `COMMON` and those of the
    works before it. `rate`: the setting that is tuned, multiplied by `factor`. `restart`: whether
    the command has --restart.
    """

    words: tuple[str, ...]
    recipe: str = ""
    after: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    rate: str = ""
    factor: float = 1.0
    restart: bool = True
    settings: tuple[str, ...] = ()

    def laid_over(self, config: Config) -> Config:
        """Return the configuration with the recipe and the settings of this work."""
        return with_recipe(config, self.recipe, self.settings) if self.recipe or self.settings else config

    @property
    def trains_by_sampling(self) -> bool:
        """Whether it is a run of PPO, which takes rollouts."""
        return self.words[0] == "train" and "--offline" not in self.words


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
"""Works that methods share, made once per seed."""
ANNOTATE, IMPORT = "annotate", "import"


def ppo_run(name: str, recipe: str = "") -> Work:
    """A run of PPO with this recipe."""
    return Work(("train", "--name", name), recipe, ("sft",), ("critic", "credit", "ppo", "extra"), "ppo.lr")


def _imitating(name: str, records: str, after: str) -> Work:
    words = ("imitate", records, "--name", name, "--best")
    return Work(words, after=(after,), reads=("sft",), rate="sft.lr")


PPO = {
    **{name: name for name in ("scalar", "grpo", "paper")},
    **{name: f"text2grad_lab:{name}" for name in ("scalar_rm", "prm", "dense")},
}
"""The recipes of runs of PPO."""
OWN = {
    **{name: ppo_run(name, recipe) for name, recipe in PPO.items()},
    OURS: ppo_run(OURS),
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
    "rejection": _imitating("rejection", FEEDBACK, "annotate"),
    "ilf": _imitating("ilf", REFINED, "refine"),
}
"""The command of each method that trains a policy, which has the name of the method. A run of PPO
waits for the model that its critic is, where it is one (`methods_of`)."""
MODELS = {"reward_model": REWARD_MODEL, "scalar_model": "scalar model"}
UNIT_MODELS = {"steps": "step model", "tokens": "token model"}

METHODS = {
    "base": "as it came",
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
    "paper": "text2grad as in the paper",
    "text2grad": "text2grad",
}
"""The names that `--methods` takes, in the order of the table, with its titles. `base` is the model
that SFT starts from; `reflection` trains nothing."""
WITHOUT_TRAINING = {"sft": ("sft",), REFLECTION: ("sft", REWARD_MODEL)}
"""Methods without a command of their own, and the shared ones that they need."""

KNOWN = f"--methods takes {', '.join(METHODS)}, recipe files (mine.yaml), and settings (scalar+ppo.gamma=0.9)"
Methods = Mapping[str, Work]
"""The methods that are compared, in the order of the table, each with its own command, or
`NOTHING`."""
NOTHING = Work(())


def methods_of(names: Sequence[str], config: Config) -> Methods:
    """Return the methods with these names: of `METHODS`, recipe files, or either with settings of
    their own.

    A recipe file is a run of PPO named after its file. `text2grad+ppo.gamma=1` is text2grad with
    that setting.

    Raises:
        UsageError: there is no such method, or none, or one that this task or model cannot serve.
        UserError: a recipe file cannot be read.
    """
    if not names:
        raise UsageError("nothing to compare", KNOWN)
    works = dict(method_of(name) for name in names)
    if BASE in works and config.policy.model == TINY:
        raise UsageError("the tiny model is made by sft, so it has no base", "leave base out")
    if "prm" in works and is_ultrafeedback(config.task):
        raise UsageError("prm needs answers with steps, and those of UltraFeedback have none", "leave it out")
    if REFLECTION in works:
        refuse_informed_critic(config)
    order = [name for name in {**METHODS, **works} if name in works]
    return {name: works[name] if works[name] is NOTHING else fitted(name, works[name], config) for name in order}


def method_of(given: str) -> tuple[str, Work]:
    """Return the name of a method, which its run has too, and its work.

    Raises:
        UsageError: there is no such method, it trains nothing that settings could change, or its
            name cannot name a run.
    """
    base, *settings = given.split("+")
    if base.endswith((".yaml", ".yml")):
        stem = Path(base).stem
        refuse_run_name(stem)
        name, work = stem, ppo_run(stem, base)
    elif base in METHODS:
        name, work = base, OWN.get(base, NOTHING)
    else:
        raise UsageError(f"no method {base!r}", KNOWN)
    if not settings:
        return name, work
    if work is NOTHING:
        raise UsageError(f"{base} trains nothing, so {settings[0]!r} changes nothing", "leave it out")
    run = "-".join([name, *(re.sub(r"[^A-Za-z0-9._-]+", "-", setting) for setting in settings)])
    words = tuple(run if word == name else word for word in work.words)
    return run, replace(work, words=words, settings=tuple(f"--{setting}" for setting in settings))


def fitted(name: str, work: Work, config: Config) -> Work:
    """The work of a method, after the model that its critic is.

    Raises:
        UsageError: its recipe does not fit the configuration.
    """
    try:
        settings = work.laid_over(config)
    except ValidationError as error:
        explained = explain(error)
        raise UsageError(f"{name}: {explained.problem}", explained.cure or "change it, or leave it out") from None
    if not work.trains_by_sampling:
        return work
    if settings.ppo.no_update_reason:
        cure = f"--ppo.value_warmup {settings.ppo.steps // 4}, or more steps"
        raise UsageError(f"{name}: {settings.ppo.no_update_reason}", cure)
    critic = settings.critic
    kind = spec_of(critic.kind).kind
    units = settings.extra.get("unit_model", {}).get("units", "steps")
    model = UNIT_MODELS[units] if kind == "unit_model" else MODELS.get(kind)
    reads = (*work.reads, "reward_model") if model == REWARD_MODEL else work.reads  # its decoding is set there
    return replace(work, after=(model,), reads=reads) if model else work


def works_of(methods: Methods, factors: Mapping[str, float] | None = None) -> dict[str, Work]:
    """All commands of a seed by name, each after those that it waits for; `factors` are of the
    methods' rates."""
    ordered: dict[str, Work] = {}

    def add(name: str, work: Work) -> None:
        for earlier in work.after:
            add(earlier, SHARED[earlier])
        ordered.setdefault(name, work)

    for method, own in methods.items():
        if own is not NOTHING:
            add(method, replace(own, factor=(factors or {}).get(method, 1.0)))
        for needed in WITHOUT_TRAINING.get(method, ()):
            add(needed, SHARED[needed])
    return {**ordered, **{f"evaluate {method}": measuring(method) for method in methods}}


def is_shared(name: str) -> bool:
    """Whether methods share a work of this name."""
    return name in SHARED or name == IMPORT


def on_imported(works: Mapping[str, Work]) -> dict[str, Work]:
    """The same works with people's feedback, which is copied from the run, in the place of
    annotations."""
    copied = Work((IMPORT, "{imported}"), after=("sft",), restart=False)

    def renamed(name: str) -> str:
        return IMPORT if name == ANNOTATE else name

    return {
        renamed(name): copied if name == ANNOTATE else replace(work, after=tuple(map(renamed, work.after)))
        for name, work in works.items()
    }


def trying(methods: Methods, factors: Sequence[float]) -> dict[str, Work]:
    """The commands of a tuning seed: every method that has a rate, at each of the factors."""
    tuned = tunable(methods)
    ordered = works_of(tuned)
    for method, own in tuned.items():
        for factor in factors:
            name = run_name(method, factor)
            words = tuple(name if word == method else word for word in own.words)
            ordered[name] = replace(own, words=words, factor=factor)
            ordered[f"evaluate {name}"] = measuring(name)
    return ordered


def tunable(methods: Methods) -> Methods:
    """The methods that have a rate of their own."""
    return {name: own for name, own in methods.items() if own.rate}


def run_name(method: str, factor: float) -> str:
    """The name of a run at a multiple of its method's rate."""
    return method if factor == 1.0 else f"{method}_x" + f"{factor:g}".replace(".", "p")


def measuring(policy: str) -> Work:
    """The command that measures the policy of a method."""
    reads = ("evaluate", "critic")
    if policy == REFLECTION:
        return Work(("reflect", "sft"), "", (REWARD_MODEL,), (*reads, "extra"), restart=False)
    if policy == BASE:
        return Work(("evaluate", "{model}"), reads=reads, restart=False)
    return Work(("evaluate", policy), after=(policy,), reads=reads, restart=False)
