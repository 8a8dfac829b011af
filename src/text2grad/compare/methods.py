"""What is compared: the commands of every method, what methods share, and which settings each command reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from text2grad.config import TINY, Config, laid_over
from text2grad.errors import UsageError, UserError
from text2grad.stages.reflect import refuse_knowing_critic
from text2grad.tasks.base import load_task
from text2grad.tasks.qa import is_ultrafeedback

OURS, BASE, REFLECTION = "text2grad", "base", "reflection"
METRICS = {"pass": "held-out pass@1", "rouge_l": "held-out ROUGE-L"}


@dataclass(frozen=True)
class Work:
    """One command of a seed: its words, the recipe laid over the configuration, and the works it waits for.

    `reads`: the sections of the configuration that it depends on beside `COMMON` and those of the works before it.
    `rate`: the setting that is tuned, and `factor` what it is multiplied by. `restart`: whether the command can be
    told to start over, where its result stands without a note.
    """

    words: tuple[str, ...]
    recipe: str = ""
    after: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    rate: str = ""
    factor: float = 1.0
    restart: bool = True

    @property
    def trains_by_sampling(self) -> bool:
        """Whether it is a run of PPO, which takes rollouts."""
        return self.words[0] == "train" and not {"--pairs", "--offline"} & set(self.words)


COMMON = ("run", "task", "policy", "tiny", "generation", "sandbox")
FEEDBACK, PAIRS, REFINED = "{folder}/feedback.jsonl", "{folder}/pairs.jsonl", "{folder}/refined.jsonl"

SHARED = {
    "sft": Work(("sft",), reads=("sft",)),
    "annotate": Work(("annotate",), after=("sft",), reads=("annotate", "critic"), restart=False),
    "reward model": Work(("train-reward",), after=("annotate",), reads=("reward_model", "critic")),
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


def _ppo(name: str, recipe: str = "", after: str = "reward model") -> Work:
    return Work(("train", "--name", name), recipe, (after,), ("critic", "credit", "ppo"), "ppo.lr")


def _imitating(name: str, records: str, after: str) -> Work:
    words = ("sft", "--name", name, "--records", records, "--best")
    return Work(words, after=(after,), reads=("sft",), rate="sft.lr")


OWN = {
    "scalar": _ppo("scalar", "scalar"),
    "grpo": _ppo("grpo", "grpo"),
    "sdpo": _ppo("sdpo", "sdpo"),
    "rlsd": _ppo("rlsd", "rlsd"),
    "routed": _ppo("routed", "routed"),
    "paper": _ppo("paper", "paper"),
    "text2grad": _ppo("text2grad"),
    "scalar_rm": _ppo("scalar_rm", "scalar_rm", "scalar model"),
    "prm": _ppo("prm", "prm", "step model"),
    "dense": _ppo("dense", "dense", "token model"),
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
"""What a method does alone, by the name of the method: it trains the policy of that name."""

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
"""Everything that `--methods` takes, in the order of the table, with its title there. `base` is the model that SFT
starts from; `reflection` trains nothing."""


def methods_of(names: Sequence[str], config: Config) -> list[str]:
    """The methods to compare, in the order of the table.

    Raises:
        UsageError: there is no such method, or none, or one that this task or model cannot serve.
    """
    if unknown := [name for name in names if name not in METHODS]:
        raise UsageError(f"no method {unknown[0]!r}", f"--methods takes {', '.join(METHODS)}")
    if not names:
        raise UsageError("nothing to compare", f"--methods takes {', '.join(METHODS)}")
    if BASE in names and config.policy.model == TINY:
        raise UsageError("the tiny model is made by sft, so it has no base", "leave base out")
    if "prm" in names and is_ultrafeedback(config.task):
        raise UsageError("prm needs answers with steps, and those of UltraFeedback have none", "leave it out")
    if REFLECTION in names:
        refuse_knowing_critic(config)
    for name in names:
        if name in OWN and (recipe := OWN[name].recipe):
            _refuse_unfit(config, name, recipe)
    return [name for name in METHODS if name in names]


def _refuse_unfit(config: Config, name: str, recipe: str) -> None:
    try:
        laid_over(config, recipe)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name} does not fit these settings: {problem}", "change them, or leave it out") from None


def measure_of(config: Config) -> str:
    """What policies are compared by: the share that pass their tests, or ROUGE-L.

    Raises:
        UserError: the task cannot be measured by tests or by references.
    """
    heldout = load_task(config.task).examples("heldout")
    if not heldout:
        raise UserError("no held-out problems to measure on", "set task.heldout_share above 0")
    if heldout[0].meta.get("tests"):
        return "pass"
    if not heldout[0].reference:
        cure = "text2grad sft, annotate, train-reward, train and evaluate run any task"
        raise UserError(f"task {config.task.name!r} has neither tests nor references to measure by", cure)
    return "rouge_l"


def works_of(methods: Sequence[str], factors: Mapping[str, float] | None = None) -> dict[str, Work]:
    """All commands of a seed by name, each after those that it waits for.

    `factors`: what the rate of a method is multiplied by, where it is not 1.
    """
    ordered: dict[str, Work] = {}

    def add(name: str, work: Work) -> None:
        for earlier in work.after:
            add(earlier, OWN.get(earlier) or SHARED[earlier])
        ordered.setdefault(name, work)

    for method in methods:
        if method in SHARED:
            add(method, SHARED[method])
        elif method in OWN:
            add(method, replace(OWN[method], factor=(factors or {}).get(method, 1.0)))
        elif method == REFLECTION:
            for needed in ("sft", "reward model"):
                add(needed, SHARED[needed])
    return {**ordered, **{f"evaluate {method}": _measuring(method) for method in methods}}


def trying(methods: Sequence[str], factors: Sequence[float]) -> dict[str, Work]:
    """The commands of a seed on which rates are chosen: every method that has one, at all factors of it."""
    tuned = tunable(methods)
    ordered = works_of(tuned)
    for method in tuned:
        for factor in factors:
            name, own = run_name(method, factor), ordered[method]
            words = tuple(name if word == method else word for word in own.words)
            ordered[name] = replace(own, words=words, factor=factor)
            ordered[f"evaluate {name}"] = _measuring(name)
    return ordered


def tunable(methods: Sequence[str]) -> list[str]:
    """The methods that have a rate of their own."""
    return [name for name in methods if name in OWN and OWN[name].rate]


def run_name(method: str, factor: float) -> str:
    """What a run of a method at a multiple of its rate is called."""
    return method if factor == 1.0 else f"{method}_x{factor:g}".replace(".", "p")


def _measuring(policy: str) -> Work:
    reads = ("evaluate", "critic")
    if policy == REFLECTION:
        return Work(("evaluate", "sft", "--reflect", "1"), "", ("reward model",), (*reads, "refine"), restart=False)
    if policy == BASE:
        return Work(("evaluate", "{model}"), reads=reads, restart=False)
    return Work(("evaluate", policy), after=(policy,), reads=reads, restart=False)
