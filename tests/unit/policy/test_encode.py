"""Conversations to ids: the end of a turn, text that spells control tokens, and answers behind
their prompt."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from chat_templates import SHAPES, tokenizer_of
from made_tokenizers import TEXTS, byte_fallback_tokenizer, byte_level_tokenizer
from text2grad.align import TokenTable
from text2grad.errors import UserError
from text2grad.feedback import Message
from text2grad.policy.encode import chat_format, check_lengths, encode_prompt, encode_target, end_of_turn, stop_ids
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.generate import generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import make_tokenizer

GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def with_controls(
    base: PreTrainedTokenizerFast, template: str, names: list[str], strips: bool = False
) -> PreTrainedTokenizerFast:
    """A copy of a tokenizer whose control tokens are added tokens alone, as on the hub."""
    core = copy.deepcopy(base.backend_tokenizer)
    core.add_special_tokens(["<bos>", "<eos>"])
    core.add_special_tokens([AddedToken(name, special=True, rstrip=strips) for name in names])
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>")
    made.chat_template = template
    return made


def metaspace_tokenizer(scheme: str, template: str) -> PreTrainedTokenizerFast:
    """SentencePiece of newer conversions: the space comes before the first piece, or before every
    one."""
    made = copy.deepcopy(byte_fallback_tokenizer())
    made.backend_tokenizer.normalizer = None
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.chat_template = template
    return made


TOKENIZERS: dict[str, PreTrainedTokenizerFast] = {
    # Its control tokens take the whitespace behind them.
    "phi-3": with_controls(
        byte_level_tokenizer(), PHI3, ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"], strips=True
    ),
    "gemma-3": with_controls(byte_fallback_tokenizer(), GEMMA, ["<start_of_turn>", "<end_of_turn>"]),
    "llama-3": tokenizer_of(SHAPES["llama-3.1"]),
    "phi-4": tokenizer_of(SHAPES["phi-4"]),
    "chatml": byte_level_tokenizer(),
    "tiny": make_tokenizer(TEXTS, 400),
    "inst": byte_fallback_tokenizer(),
    "first": metaspace_tokenizer("first", SHAPES["llama-2"].template),
    "always": metaspace_tokenizer("always", ZEPHYR),
}


# The end of a turn.


def test_the_end_of_turn_may_be_an_added_token_alone(tmp_path: Path) -> None:
    ends = {"phi-3": "<|end|>", "gemma-3": "<end_of_turn>", "llama-3": "<|eot|>", "phi-4": "<|im_end|>"}
    for kind, end in ends.items():
        TOKENIZERS[kind].save_pretrained(tmp_path / kind)
        for made in (TOKENIZERS[kind], load_tokenizer(str(tmp_path / kind))):
            assert end not in made.all_special_tokens
            assert end_of_turn(made) == end
            assert stop_ids(made) == sorted([made.convert_tokens_to_ids(end), made.eos_token_id])
            assert encode_target(made, "yes")[-1] == made.convert_tokens_to_ids(end)
            assert encode_prompt(made, user(f"a{end}b")) == encode_prompt(TOKENIZERS[kind], user(f"a{end}b"))


@pytest.mark.parametrize(("after", "end"), [("\n<|im_end|>\n", "<|im_end|>"), ("", "<|pad|>"), ("\n\n", "<|pad|>")])
def test_a_template_may_write_space_or_nothing_after_an_answer(after: str, end: str) -> None:
    core = byte_level_tokenizer().backend_tokenizer
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|pad|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    made.chat_template = "{% for m in messages %}{{ m.content }}" + after + "{% endfor %}"
    assert end_of_turn(made) == end


def test_a_models_generation_config_ends_answers_too(tmp_path: Path) -> None:
    """Its special tokens do; another word of the vocabulary is a default of the model's class."""
    made = TOKENIZERS["phi-4"]
    config = LlamaConfig(
        vocab_size=len(made), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    start, end = made.convert_tokens_to_ids(["<|im_start|>", "<|pad|>"])
    usual = {made.convert_tokens_to_ids("<|im_end|>"), made.eos_token_id}
    for listed, stops in ((None, usual), (start, usual | {start}), ([start, made.eos_token_id], usual | {start})):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
        assert load_policy(PolicySettings(model=str(tmp_path))).stop_ids == sorted(stops)
    policy = Policy(LlamaForCausalLM(config).eval(), made)
    policy.model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor(end), 1e4))
    settings = GenerationSettings(max_new_tokens=4, temperature=0.0)
    assert generate(policy, [[5, 6]], settings)[0].truncated
    policy.model.generation_config = GenerationConfig(eos_token_id=[end, 7])  # type: ignore[no-untyped-call]
    (sample,) = generate(policy, [[5, 6]], settings)
    assert sample.ids == [end] and not sample.truncated and 7 not in policy.stop_ids


# Text that spells control tokens.


def texts_with(names: list[str]) -> st.SearchStrategy[str]:
    pieces = st.sampled_from([*names, *(name[:-1] for name in names), *TEXTS, " ", "\n", "<", "x", "日", "<think>"])
    return st.lists(pieces, min_size=1, max_size=6).map("".join)


SPECIAL = {
    kind: sorted(t.content for t in made.added_tokens_decoder.values() if t.special)
    for kind, made in TOKENIZERS.items()
}
ROWS = st.sampled_from(sorted(TOKENIZERS)).flatmap(lambda kind: st.tuples(st.just(kind), texts_with(SPECIAL[kind])))


@given(ROWS)
def test_content_writes_no_control_token_and_loses_no_character(row: tuple[str, str]) -> None:
    kind, text = row
    made = TOKENIZERS[kind]
    special = {made.convert_tokens_to_ids(name) for name in SPECIAL[kind]} - {made.unk_token_id}

    def control(ids: list[int]) -> list[int]:
        return [index for index in ids if index in special]

    text = f"({text})"  # templates trim, and so do control tokens of some kinds
    ids = encode_prompt(made, user(text))
    assert control(ids) == control(encode_prompt(made, user("(calm)")))
    if made.unk_token_id not in ids:
        assert text in TokenTable(made).align(ids).text
    target = encode_target(made, text)
    assert control(target) == [made.convert_tokens_to_ids(end_of_turn(made))] == target[-1:]
    if made.unk_token_id not in target:
        assert TokenTable(made).align(target).text.strip() == text.strip()


@given(ROWS)
def test_text_without_special_tokens_is_encoded_as_the_tokenizer_does(row: tuple[str, str]) -> None:
    """Also by the twin, which reads texts that spell special tokens."""
    kind, text = row
    made = TOKENIZERS[kind]
    for name in SPECIAL[kind]:
        text = text.replace(name, "")
    assume(not any(name in text for name in SPECIAL[kind]))
    rendered = str(
        made.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
    )
    expected = made(rendered, add_special_tokens=False)["input_ids"]
    assert encode_prompt(made, user(text)) == expected
    assert chat_format(made).encode_with_twin(rendered) == expected


# Targets stand where they would be sampled.


ANSWERS = ("yes", "It is not.", "    return total", "\n\nno", " so", "", '{"a": 1}', "日本")


@pytest.mark.parametrize(("kind", "answer"), [*zip(itertools.cycle(TOKENIZERS), 2 * ANSWERS)])
def test_a_target_continues_its_prompt(kind: str, answer: str) -> None:
    made = TOKENIZERS[kind]
    table = TokenTable(made)
    prompt, target = encode_prompt(made, user("Say it.")), encode_target(made, answer)
    text = table.align([*prompt, *target]).text
    assert target[-1] == made.convert_tokens_to_ids(end_of_turn(made))
    if made.unk_token_id not in target:
        read = text.removeprefix(table.align(prompt).text).removesuffix(" ")
        assert read in (answer, " " + answer, (" " if kind == "first" else "") + answer)


def test_a_tokenizers_own_space_is_no_part_of_a_target_and_a_templates_is() -> None:
    """Without such a space a target is encoded as if alone."""
    made = TOKENIZERS["always"]
    alone = made("yes", add_special_tokens=False)["input_ids"]
    assert made.convert_ids_to_tokens(alone)[0].startswith("▁")
    target, header = encode_target(made, "yes"), "<|user|>\nx</s>\n<|assistant|>\n"
    assert TokenTable(made).align(target).text == "yes"
    together = made(header + "yes</s>", add_special_tokens=False)["input_ids"]
    assert [*made(header, add_special_tokens=False)["input_ids"], *target] == together
    first = TOKENIZERS["first"]
    assert TokenTable(first).align(encode_target(first, "yes")).text == " yes"
    for kind in ("chatml", "tiny", "phi-4", "llama-3", "phi-3"):
        for answer in [*TEXTS, "\n\nno", "  x", " x"]:
            alone = TOKENIZERS[kind](answer, add_special_tokens=False)["input_ids"]
            assert encode_target(TOKENIZERS[kind], answer)[:-1] == alone, (kind, answer)


# Refusals.


def test_a_template_that_fails_or_has_no_system_turn_is_one_line_with_the_cure() -> None:
    turns = [Message(role="system", content="Be brief."), *user("Say it.")]
    silent = copy.deepcopy(TOKENIZERS["first"])
    silent.chat_template = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    for made, reason in ((TOKENIZERS["gemma-3"], "not supported"), (silent, "drops the system turn")):
        with pytest.raises(UserError, match=rf"{reason}.*first user turn.*--policy\.chat_template"):
            encode_prompt(made, turns)
    made = copy.deepcopy(TOKENIZERS["chatml"])
    wide, long = "{% for i in range(10000000) %}x{% endfor %}", "{{ 'x' * 10 ** 15 }}"
    for template in (wide, long, "{{ range('a') }}", "{{ 1 // 0 }}"):
        made.chat_template = template
        with pytest.raises(UserError, match=r"refuses the turns .*policy\.chat_template"):
            encode_prompt(made, user("Say it."))
    made.chat_template = "{% for i in range(messages|length - 1, -1, -1) %}{{ messages[i].content }}{% endfor %}"
    assert made.decode(encode_prompt(made, user("Say it."))) == "Say it."


def test_a_prompt_that_leaves_no_room_is_refused_by_name() -> None:
    prompts = [("short", [1] * 10), ("long", [1] * 11), ("longer", [1] * 90)]
    check_lengths(prompts, 100, 10)
    check_lengths(prompts, None, 10_000)
    with pytest.raises(UserError, match=r"2 of 3 .*'long' has 11 tokens.* 10 .* 20"):
        check_lengths(prompts, 20, 10)
