"""SkyRL's wheel, read as text: it needs Python 3.12 and a GPU to run. A canary on what the plug-in relies on."""

from __future__ import annotations

import ast
import re

import pytest
from engine_files import source_of


def body_of(path: str, name: str) -> ast.AST:
    """A class or a function of a file of the wheel."""
    found = [each for each in ast.walk(ast.parse(source_of("skyrl", path))) if getattr(each, "name", "") == name]
    assert len(found) == 1, f"{path} has {len(found)} of {name}"
    return found[0]


def test_the_fields_of_an_output_are_those_that_were_read() -> None:
    output = body_of("skyrl/train/generators/base.py", "GeneratorOutput")
    fields = {
        each.target.id: ast.unparse(each.annotation) for each in ast.walk(output) if isinstance(each, ast.AnnAssign)
    }
    assert fields["rewards"] == "Union[List[float], List[List[float]]]"
    assert fields["response_ids"] == fields["loss_masks"] == "List[List[int]]"
    assert fields["rollout_metrics"] == "Optional[Dict[str, Any]]"
    asked = ast.unparse(body_of("skyrl/train/generators/base.py", "GeneratorInput"))
    assert "prompts: List[ConversationType]" in asked and "env_extras: Optional[List[Dict[str, Any]]]" in asked


def test_a_generator_is_made_where_the_page_says() -> None:
    made = ast.unparse(body_of("skyrl/train/entrypoints/main_base.py", "get_generator"))
    assert made.startswith("def get_generator(self, cfg, tokenizer, inference_engine_client)")
    asked = ast.unparse(body_of("skyrl/train/generators/base.py", "GeneratorInterface"))
    assert "async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput" in asked


def test_lists_of_rewards_are_taken_as_token_rewards() -> None:
    text = source_of("skyrl", "skyrl/train/trainer.py")
    assert "if rewards and isinstance(rewards[0], list):" in text and "per_token_rewards = rewards" in text


@pytest.mark.parametrize(
    ("name", "keeps"), [("gae", True), ("reinforce++", True), ("grpo", False), ("rloo", False)]
)
def test_which_estimators_add_up(name: str, keeps: bool) -> None:
    text = source_of("skyrl", "skyrl/backends/skyrl_train/utils/ppo_utils.py")
    members = dict(re.findall(r'^    ([A-Z_]+) = "([^"]+)"', text, re.MULTILINE))
    (member,) = [key for key, value in members.items() if value == name]
    code = text.split(f"@register_advantage_estimator(AdvantageEstimator.{member})")[1].split("\n@register")[0]
    assert ("token_level_rewards.sum(dim=-1)" in code) != keeps
