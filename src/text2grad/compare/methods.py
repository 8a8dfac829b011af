"""What is compared: the commands of every method, what methods share, and which settings each command reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from text2grad.config import TINY, Config, laid_over
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Example
from text2grad.stages.evaluate import mean_scores
from text2grad.stages.prompts import task_of
from text2grad.stages.reflect import refuse_knowing_critic
from text2grad.stages.results import main_measure, refuse_run_name
from text2grad.tasks.base import Task
from text2grad.tasks.qa import is_ultrafeedback

OURS, BASE, REFLECTION = "text2grad", "base", "reflection"
METRICS = {
    "pass": "held-out pass@1",
    "rouge_l": "held-out ROUGE-L",
    "rouge_l_unicode": "held-out ROUGE-L, all scripts",
}


@dataclass(frozen=True)
class Work:
    """One command of a seed: its words, the recipe laid over the configuration, and the works it waits for.

    `reads`: the sections of the configuration that it depends on beside `COMMON` and those of the works before it.
    `rate`: the setting that is tuned, and `factor` what it is multiplied by. `restart`: whether the command can be
    told to start over, where its result stands without a note. `threads`: of torch; None: the cores that are idle.
    `verdict_alone`: a critic that is paid for its verdict alone writes no words, where it can.
    """

    words: tuple[str, ...]
    recipe: str = ""
    after: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    rate: str = ""
    factor: float = 1.0
    restart: bool = True
    threads: int | None = 1
    verdict_alone: bool = False

    @property
    def trains_by_sampling(self) -> bool:
        """Whether it is a run of PPO, which takes rollouts."""
        return self.words[0] == "train" and not {"--pairs", "--offline"} & set(self.words)

    @property
    def sort(self) -> tuple[str, bool]:
        """Works of one sort take times of one order."""
        return self.words[0], self.trains_by_sampling


COMMON = ("run", "task", "policy", "tiny", "generation", "sandbox")
REWARD_MODEL = "reward model"
FEEDBACK, PAIRS, REFINED = "{folder}/feedback.jsonl", "{folder}/pairs.jsonl", "{folder}/refined.jsonl"

SHARED = {
    "sft": Work(("sft",), reads=("sft",)),
    "annotate": Work(("annotate",), after=("sft",), reads=("annotate", "critic"), restart=False),
    REWARD_MODEL: Work(("train-reward",), after=("annotate",), reads=("reward_model", "critic")),
    "pairs": Work(
        ("export", FEEDBACK, "--as", "preference", "--pairs-per-prompt", "4", "--out", PAIRS),
        after=("annotate",),
        restart=False,
    ),
    "scalar model": Work(("train-reward", "--pairs", PAIRS), after=("pairs",), reads=("scalar_model",)),
    "step model": Work(("train-reward", "--units", "steps"), after=("annotate",), reads=("unit_model",)),
    "token model": Work(("train-reward", "--units", "tokens"), after=("annotate",), reads=("unit_model",)),
    "refiner": Work(
        ("sft", "--name", "refiner", "--records", FEEDBACK, "--revise"),
        after=("annotate",),
        reads=("sft", "refine"),
    ),
    "refine": Work(
        ("refine", FEEDBACK, "--from", "refiner", "--out", REFINED),
        after=("refiner",),
        reads=("refine",),
        restart=False,
    ),
}
"""What methods share, once a seed."""
ANNOTATE, IMPORT = "annotate", "import"


def ppo_run(name: str, recipe: str = "") -> Work:
    """A run of PPO with this recipe."""
    return Work(("train", "--name", name), recipe, ("sft",), ("critic", "credit", "ppo"), "ppo.lr")


def _imitating(name: str, records: str, after: str) -> Work:
    words = ("sft", "--name", name, "--records", records, "--best")
    return Work(words, after=(after,), reads=("sft",), rate="sft.lr")


OWN = {
    "scalar": ppo_run("scalar", "scalar"),
    "grpo": ppo_run("grpo", "grpo"),
    "sdpo": ppo_run("sdpo", "sdpo"),
    "rlsd": ppo_run("rlsd", "rlsd"),
    "routed": ppo_run("routed", "routed"),
    "paper": ppo_run("paper", "paper"),
    "text2grad": ppo_run("text2grad"),
    "scalar_rm": ppo_run("scalar_rm", "scalar_rm"),
    "prm": ppo_run("prm", "prm"),
    "dense": ppo_run("dense", "dense"),
    "dpo": Work(
        ("train", "--name", "dpo", "--pairs", PAIRS), after=("pairs",), reads=("dpo",), rate="dpo.training.lr"
    ),
    "offline": Work(
        ("train", "--name", "offline", "--offline", FEEDBACK),
        after=("annotate",),
        reads=("offline", "credit"),
        rate="offline.lr",
    ),
    "rejection": _imitating("rejection", FEEDBACK, "annotate"),
    "ilf": _imitating("ilf", REFINED, "refine"),
}
"""What a method does alone, by the name of the method: it trains the policy of that name. A run of PPO waits for
the model that its critic is, where it is one (`methods_of`)."""
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
    "sdpo": "SDPO",
    "rlsd": "RLSD",
    "routed": "span routing",
    "paper": "text2grad as in the paper",
    "text2grad": "text2grad",
}
"""Everything that `--methods` takes by name, in the order of the table, with its title there. `base` is the model
that SFT starts from; `reflection` trains nothing."""
WITHOUT_TRAINING = {"sft": ("sft",), REFLECTION: ("sft", REWARD_MODEL)}
"""What methods need that train nothing of their own."""

Methods = Mapping[str, Work]
"""The methods that are compared, in the order of the table, each with what it does alone; `NOTHING` if nothing."""
NOTHING = Work(())


def methods_of(names: Sequence[str], config: Config) -> Methods:
    """The methods of these names: of `METHODS`, or recipe files, each a run of PPO called as its file.

    Raises:
        UsageError: there is no such method, or none, or one that this task or model cannot serve.
        UserError: a recipe file cannot be read.
    """
    known = f"--methods takes {', '.join(METHODS)}, and recipe files (mine.yaml)"
    if unknown := [name for name in names if name not in METHODS and not _is_recipe(name)]:
        raise UsageError(f"no method {unknown[0]!r}", known)
    if not names:
        raise UsageError("nothing to compare", known)
    for name in filter(_is_recipe, names):
        refuse_run_name(Path(name).stem)
    if BASE in names and config.policy.model == TINY:
        raise UsageError("the tiny model is made by sft, so it has no base", "leave base out")
    if "prm" in names and is_ultrafeedback(config.task):
        raise UsageError("prm needs answers with steps, and those of UltraFeedback have none", "leave it out")
    if REFLECTION in names:
        refuse_knowing_critic(config)
    own = OWN | {Path(name).stem: ppo_run(Path(name).stem, name) for name in names if _is_recipe(name)}
    wanted = {Path(name).stem if _is_recipe(name) else name: None for name in names}
    order = [name for name in METHODS if name in wanted] + [name for name in wanted if name not in METHODS]
    return {name: fitted(name, own[name], config) if name in own else NOTHING for name in order}


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def fitted(name: str, work: Work, config: Config) -> Work:
    """The work of a method, after the model that its critic is; refused where its recipe does not fit."""
    try:
        settings = laid_over(config, work.recipe) if work.recipe else config
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name} does not fit these settings: {problem}", "change them, or leave it out") from None
    if not work.trains_by_sampling:
        return work
    if settings.ppo.still:
        cure = f"--ppo.value_warmup {settings.ppo.steps // 4}, or more steps"
        raise UsageError(f"{name}: {settings.ppo.still}", cure)
    critic = settings.critic
    model = UNIT_MODELS[critic.unit_model.units] if critic.kind == "unit_model" else MODELS.get(critic.kind)
    reads = (*work.reads, "reward_model") if model == REWARD_MODEL else work.reads  # how it is grounded
    return replace(work, after=(model,), reads=reads) if model else work


def measure_of(config: Config, wanted: str | None = None) -> str:
    """What policies are compared by: the measure that is `wanted`, else the share that pass their tests, ROUGE-L,
    or the first that a task of the user's own has. The measures are those of the reference answers.

    Raises:
        UserError: no held-out problem has a measure.
        UsageError: the task has no such measure.
    """
    task = task_of(config)
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError("no held-out problems to measure on", "raise task.heldout_share")
    names = _measures(task, heldout)
    if not names:
        cure = "give its scores() a measure; text2grad sft, annotate, train-reward and train run any task"
        raise UserError(f"task {config.task.name!r} measures nothing: no tests, no references, no scores", cure)
    if wanted is not None and wanted not in names:
        raise UsageError(f"task {config.task.name!r} has no measure {wanted!r}", f"--measure {' or '.join(names)}")
    return wanted or main_measure(names)


def _measures(task: Task, heldout: Sequence[Example]) -> dict[str, float]:
    """The measures of a task, each with what the reference answers have of it."""
    if heldout[0].meta.get("tests"):
        return {"pass": 1.0}
    return mean_scores([{"scores": task.scores(each, each.reference)} for each in heldout])


def title_of(measure: str) -> str:
    """What a measure is called in a table."""
    return METRICS.get(measure, f"held-out {measure}")


def works_of(methods: Methods, factors: Mapping[str, float] | None = None) -> dict[str, Work]:
    """All commands of a seed by name, each after those that it waits for.

    `factors`: what the rate of a method is multiplied by, where it is not 1.
    """
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
    """The same works where all methods learn from people's feedback: it is copied from the run, not asked for."""
    copied = Work((IMPORT, "{imported}"), after=("sft",), restart=False)

    def renamed(name: str) -> str:
        return IMPORT if name == ANNOTATE else name

    return {
        renamed(name): copied if name == ANNOTATE else replace(work, after=tuple(map(renamed, work.after)))
        for name, work in works.items()
    }


def trying(methods: Methods, factors: Sequence[float]) -> dict[str, Work]:
    """The commands of a seed on which rates are chosen: every method that has one, at all factors of it."""
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
    """What a run of a method at a multiple of its rate is called."""
    return method if factor == 1.0 else f"{method}_x{factor:g}".replace(".", "p")


def measuring(policy: str) -> Work:
    """The command that measures the policy of a method."""
    reads = ("evaluate", "critic")
    if policy == REFLECTION:
        return Work(("evaluate", "sft", "--reflect", "1"), "", (REWARD_MODEL,), (*reads, "refine"), restart=False)
    if policy == BASE:
        return Work(("evaluate", "{model}"), reads=reads, restart=False)
    return Work(("evaluate", policy), after=(policy,), reads=reads, restart=False)
