"""What a run depends on is every setting but those that say of themselves that they may change."""

from __future__ import annotations

from text2grad.config import load_config
from text2grad.durable.identity import describe_changes, flatten
from text2grad.settings import Settings, value_at

MAY_CHANGE = {
    "run": {"folder", "loggers", "parallel"},
    "policy": {"model"},
    "ppo": {"max_failed", "max_unmatched", "max_kl", "heldout_every", "keep_every"},
    **dict.fromkeys(
        ("training", "sft", "offline", "credit", "generation", "reward_model.training"), frozenset[str]()
    ),
}


def test_a_run_depends_on_every_setting_but_those_that_may_change() -> None:
    config = load_config(None, ["--task.name", "demo", "--policy.model", "tiny"])
    for section, free in MAY_CHANGE.items():
        settings: Settings = value_at(config, section)
        known = flatten(**{section: settings})
        assert known.keys() == {f"{section}.{key}" for key in type(settings).model_fields.keys() - free}
        assert flatten({f"{section}.lr"}, **{section: settings}).keys() == known.keys() - {f"{section}.lr"}


def test_a_section_in_a_section_is_part_of_what_a_run_depends_on() -> None:
    words = ["--task.name", "demo", "--policy.model", "tiny"]
    one, other = (load_config(None, [*words, "--policy.lora.r", rank]) for rank in ("4", "8"))
    (line,) = describe_changes(flatten(policy=one.policy), flatten(policy=other.policy))
    assert line.split()[0] == "policy.lora"
