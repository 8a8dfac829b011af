"""What the plug-ins share: packages that are missing, prompts of engines, and verdicts that are
compared once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from absent import hiding
from places import ROOT
from text2grad.align.credit import CreditSettings
from text2grad.align.rewards import TokenCredit
from text2grad.errors import UserError
from text2grad.feedback import turns_of
from text2grad.plugins.credit import compute_advantages, make_example
from text2grad.plugins.landing import LandingCritic, landing_cases

sys.path.insert(0, str(ROOT / "benchmarks"))

import plugins

IMPORTS = """
import importlib
for name in {names}:
    try:
        importlib.import_module(f"text2grad.plugins.{{name}}")
    except Exception as error:
        print(name, type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("hidden", "names", "extra"),
    [("torch", plugins.ENGINES, "train"), ("trl", ["trl"], "trl"), ("verl", ["verl"], "verl")],
)
def test_without_a_package_one_line_names_the_extra(hidden: str, names: Sequence[str], extra: str) -> None:
    code = hiding([hidden]) + IMPORTS.format(names=[*names])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cure = f"MissingPackageError this needs {hidden}: pip install 'text2grad[{extra}]'"
    assert [cure in line for line in done.stdout.splitlines()] == [True] * len(names), done.stdout


def test_a_step_moves_what_was_paid_as_it_was_paid() -> None:
    assert plugins.tokens_moved_as_paid() == 1.0


CALL = {"id": "c", "type": "function", "function": {"name": "route", "arguments": '{"to": "Bern"}'}}
ROUTE = '<tool_call>\n{"name": "route", "arguments": {"to": "Bern"}}\n</tool_call>'
TURNS: list[tuple[Any, str, str]] = [
    ({"role": "developer", "content": "Be brief."}, "system", "Be brief."),
    ({"role": "user", "content": ["How ", {"type": "text", "text": "far?"}]}, "user", "How far?"),
    ({"role": "user", "content": "far", "name": "Ann"}, "user", "far"),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, "assistant", ROUTE),
    ({"role": "tool", "content": "95", "tool_call_id": "c"}, "tool", "95"),
]
NO_TURNS: list[tuple[Any, str]] = [
    ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}, "user has a part 'image'"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "user has a part 'image_url'"),
    ({"role": "user", "content": {"text": "a"}}, "user has an object as content"),
    ({"role": "user", "content": 7}, "has '7' in place of text"),
    ({"role": "narrator", "content": "a"}, "not a message: {'role': 'narrator', 'content': 'a'}"),
    ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "a tool call has no name"),
]


def test_what_is_text_in_a_prompt_reaches_the_critic_and_what_is_not_is_one_line() -> None:
    for turn, role, text in TURNS:
        (message,) = make_example([turn], {}).prompt
        assert (message.role, message.content) == (role, text)
    for turn, problem in NO_TURNS:
        with pytest.raises(UserError, match=rf"^[^\n]*{problem}[^\n]* .[^\n]+.$"):
            make_example([{"role": "system", "content": "s"}, turn], {})
    example = make_example("How far?", {"id": 7, "reference": None, "level": 2})
    assert [(turn.role, turn.content) for turn in example.prompt] == [("user", "How far?")]
    assert (example.id, example.reference, example.meta) == ("7", "", {"reference": None, "level": 2})


@pytest.mark.parametrize("scheme", ["spans", "last_token", "spread_score"])
def test_a_group_compares_each_verdict_once(scheme: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Verdicts on turns beside one on the whole are no second payment, and no words."""
    batch = [case.trajectory for case in landing_cases(tokenizer)[:4]]

    class Judges(LandingCritic):
        turns = False

        def critique(self, examples: Any, responses: Any) -> Any:
            said = super().critique(examples, responses)
            scores = [(1.0, -1.0, 0.5)[: len(turns_of(text))] if self.turns else () for text in responses]
            return [each.model_copy(update={"turn_scores": s}) for each, s in zip(said, scores, strict=True)]

    critic = Judges()
    credit = TokenCredit(critic, tokenizer, CreditSettings(scheme=scheme))
    whole = credit.score_batch(batch)
    critic.turns = True
    both = credit.score_batch(batch)
    for now, before in zip(*(compute_advantages(said, [0] * 4, batch) for said in (both, whole)), strict=True):
        assert now == pytest.approx(before, abs=1e-6)
    one, several = ([list(said[at].rewards) for said in (both, whole)] for at in (0, 2))  # type: ignore[arg-type]
    assert one[0] == one[1] and several[0] != several[1]
