"""Every template begins answers in its own way: what is sampled and trained stands behind what it
writes itself."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from chat_templates import EMPTY, SHAPES, tokenizer_of
from text2grad.align import TokenTable
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Example, Message
from text2grad.policy.encode import encode_prompt, encode_target, end_of_turn
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.sampling import sample
from text2grad.train.pairs import Pair, encode_pairs

MADE: dict[str, Any] = {name: tokenizer_of(shape) for name, shape in SHAPES.items()}


def turns(*contents: str, system: str | None = None) -> tuple[Message, ...]:
    told = [Message(role="system", content=system)] if system else []
    roles = ("user", "assistant")
    return (*told, *(Message(role=roles[i % 2], content=text) for i, text in enumerate(contents)))


CONVERSATIONS = {
    "one turn": turns("Say it."),
    "three turns": turns("Say it.", "No.", "Why not?"),
    "a system turn": turns("Say it.", system="Be brief."),
    "reasoning before": turns("Say it.", "<think>\nHm.\n</think>\n\nNo.", "Why not?"),
}
ANSWERS = ("yes", "It is not.\n\nThat is all.", '{"a": 1}', "日本", "1")


def finished(name: str, prompt: tuple[Message, ...], answer: str) -> str:
    """The conversation with its answer, as the template writes it, up to the token that ends the
    answer."""
    chat = [message.model_dump() for message in (*prompt, Message(role="assistant", content=answer))]
    whole = str(MADE[name].apply_chat_template(chat, tokenize=False))
    before, _, after = whole.rpartition(answer)
    assert after.startswith(SHAPES[name].end) or not after, "these templates write nothing between the two"
    return before + answer + SHAPES[name].end


@pytest.mark.parametrize("name", SHAPES)
def test_prompt_and_answer_are_the_finished_conversation(name: str) -> None:
    made = MADE[name]
    kinds = [kind for kind in CONVERSATIONS if SHAPES[name].system or "system" not in kind]
    for kind, answer in zip(itertools.cycle(kinds), ANSWERS):
        prompt = CONVERSATIONS[kind]
        ids = [*encode_prompt(made, prompt), *encode_target(made, answer)]
        whole = finished(name, prompt, answer)
        assert made.decode(ids, skip_special_tokens=False) == whole
        assert ids == made(whole, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", SHAPES)
def test_what_the_template_begins_an_answer_with_is_neither_learned_nor_judged(name: str) -> None:
    """White space at its ends is the answer's own: what was sampled is trained as it was
    sampled."""
    made = MADE[name]
    assert end_of_turn(made) == SHAPES[name].end
    prompt = made.decode(encode_prompt(made, turns("Say it.")), skip_special_tokens=False)
    assert prompt.endswith(SHAPES[name].begins)
    assert prompt.count("<think>") == SHAPES[name].begins.count("<think>")
    for answer in ("It is not.", "    return total\n", "\n\nyes", "yes  "):
        assert TokenTable(made).align(encode_target(made, answer)).text in (answer, " " + answer)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-2507-thinking", "qwq", "deepseek-r1", "glm-4.5", "gpt-oss"])
def test_an_answer_is_sampled_behind_the_ids_it_was_trained_behind(name: str) -> None:
    made = MADE[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(made), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    policy = Policy(LlamaForCausalLM(config).eval(), made)
    (trained,) = encode_pairs(policy, [Pair("a", turns("Say it."), "yes")])
    read: list[int] = []

    def keep(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        read.extend(inputs["input_ids"].flatten().tolist() if not read else [])

    policy.model.register_forward_pre_hook(keep, with_kwargs=True)
    sample(policy, [Example(id="a", prompt=turns("Say it."))], GenerationSettings(max_new_tokens=1))
    assert read == trained.prompt


REASONED = ("<think>\nHm.\n</think>\n\nyes", "<think>\n\n</think>\n\nyes", "Hm.\n</think>\n\nyes")


@pytest.mark.parametrize(
    ("name", "answer"),
    [*zip(["qwen3", "qwq", "deepseek-r1", "deepseek-v3.1", "glm-4.5"], itertools.cycle(REASONED))],
)
def test_an_answer_that_the_template_would_take_apart_is_refused_with_a_cure(name: str, answer: str) -> None:
    with pytest.raises(UserError, match=r"rewrites the answer that begins .*--policy\.chat_template FILE\.jinja"):
        encode_target(MADE[name], answer)
    cured = copy.deepcopy(MADE[name])
    cured.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    assert TokenTable(cured).align(encode_target(cured, answer)).text.strip() == answer


def test_a_system_turn_that_only_an_open_conversation_has_is_kept() -> None:
    made, prompt = MADE["mistral"], CONVERSATIONS["a system turn"]
    read = made.decode([*encode_prompt(made, prompt), *encode_target(made, "yes")], skip_special_tokens=False)
    assert read == "<bos>[INST] Be brief.\n\nSay it.[/INST] yes<eos>"


ALPACA = "### Instruction:\n{{ messages[0].content }}\n\n### Response:{{ '\n' }}"


def test_a_template_without_answers_writes_prompts_and_drops_no_turn() -> None:
    made = copy.deepcopy(MADE["llama-2"])
    made.chat_template = ALPACA
    ids = [*encode_prompt(made, turns("Say it.")), *encode_target(made, "yes")]
    assert made.decode(ids) == "### Instruction:\nSay it.\n\n### Response:\nyes<eos>"
    with pytest.raises(UserError, match=r"drops the assistant turn \(--policy\.chat_template FILE\.jinja\)"):
        encode_prompt(made, turns("Say it.", "No.", "Why not?"))


def test_what_a_template_changes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for name, prompt, change in (
        ("qwq", CONVERSATIONS["reasoning before"], "leaves the reasoning out of earlier answers"),
        ("smollm3", turns("Say it.", system="Be /no_think brief."), "changes the text of system turns"),
    ):
        warn_once.cache_clear()
        encode_prompt(MADE[name], prompt)
        assert f"the chat template {change}" in capsys.readouterr().err


def test_a_day_that_ends_between_two_answers_refuses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = copy.deepcopy(MADE["llama-3.1"])
    day = "{{ '<|header|>system<|close|>\\n\\nToday Date: ' + "
    made.chat_template = made.chat_template.replace("strftime_now('%d %b %Y')", "today")
    assert day in made.chat_template
    own = made.apply_chat_template
    monkeypatch.setattr(made, "apply_chat_template", lambda chat, **more: own(chat, today=clock[0], **more))
    clock = ["31 Dec"]
    first = encode_target(made, "yes")
    clock[0] = "01 Jan"
    assert encode_target(made, "yes") == first
    assert "01 Jan" in made.decode(encode_prompt(made, turns("Say it.")))


BEFORE_ANSWERS = {
    "qwen3": (repr(EMPTY), "enable_thinking"),
    "qwen3-2507-thinking": (repr("\n</think>\n\n"), "to serve the policy, use the same text"),
    "deepseek-r1": (repr("<think>\n"), "to serve the policy, use the same text"),
    "glm-4.7": ("'</think>'", "'<think>'", "enable_thinking"),
    **dict.fromkeys(("llama-2", "phi-4", "smollm3"), ()),
}


@pytest.mark.parametrize("name", BEFORE_ANSWERS)
def test_loading_says_what_the_template_writes_before_an_answer(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MADE[name].save_pretrained(tmp_path)
    load_tokenizer(str(tmp_path))
    err = capsys.readouterr().err
    assert all(part in err for part in BEFORE_ANSWERS[name]) and bool(err) == bool(BEFORE_ANSWERS[name]), err
