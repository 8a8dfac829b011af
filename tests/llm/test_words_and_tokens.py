"""The real tokenizer and template, and the alignment of a thousand sampled answers."""

from __future__ import annotations

import pytest
import torch
from prompts import ask

from text2grad.align import TokenTable
from text2grad.policy.encode import stop_ids
from text2grad.policy.forward.prefix import share_prefixes
from text2grad.policy.generate import generate
from text2grad.policy.heads.head import SCORE, Head
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
TEXTS = (
    "In 1984, 12345 people paid 3.14 each",
    "def f(x):\n\treturn x[0] if x else None  # no\r\n",
    "日本語の文章です。 Привет, мир! naïve façade 🙂 👩‍💻 ไทย ٣٤ ½",
    " leading, trailing \n\n  ",
)
BEGINNINGS = (
    *("The summary of", "1984, 1985,", "def main(", "Once upon a", "日本語", "🙂🙂", "Привет", "x = [1, 2"),
    *("naïve façade", "| a | b |\n", "<p>", '{"name": "', "ไทย", "\\frac{1}{", "- item\n- ", "SELECT * FROM"),
)


def test_a_prompt_is_written_as_chatml(policy: Policy) -> None:
    asked = SYSTEM + "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    ids = ask(policy, "Who?")
    tokenizer = policy.tokenizer
    start, end = 1, 2
    assert tokenizer.convert_ids_to_tokens([start, end]) == ["<|im_start|>", "<|im_end|>"]
    assert tokenizer.decode(ids) == asked
    assert ids == tokenizer(asked, add_special_tokens=False)["input_ids"]
    assert (ids.count(start), ids.count(end)) == (3, 2)
    assert stop_ids(tokenizer) == [end]
    assert tokenizer.pad_token_id == end


def test_a_greedy_answer_names_paris_and_ends(policy: Policy) -> None:
    greedy = GenerationSettings(max_new_tokens=24, temperature=0.0)
    (answer,) = generate(policy, [ask(policy, "What is the capital of France?")], greedy)
    assert policy.tokenizer.decode(answer.ids) == "The capital of France is Paris.<|im_end|>"
    assert not answer.truncated


def test_questions_that_begin_alike_are_answered_as_they_are_alone(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: half precision rounds more than the likeliest first words are apart."""
    policy = load_policy(PolicySettings(model=folder, device="cpu"))
    asked = [ask(policy, f"What is the capital of {country}?") for country in ("France", "Italy", "Japan", "Peru")]
    asked += [ask(policy, f"How many legs does {animal} have?") for animal in ("a spider", "a dog", "an ostrich")]
    shared = share_prefixes([tuple(each) for each in asked])
    assert shared is not None and len(shared.prefixes) < 3
    monkeypatch.setattr(policy, "score_head", Head(policy.hidden_size, SCORE))
    torch.manual_seed(0)
    torch.nn.init.normal_(policy.score_head.map.weight, std=0.02)  # type: ignore[union-attr]
    greedy = GenerationSettings(max_new_tokens=10, temperature=0.0)
    alone = [generate(policy, [each], greedy)[0] for each in asked]
    together = generate(policy, asked, greedy)
    verdicts = [sample.verdict for sample in alone]
    assert [sample.verdict for sample in together] == pytest.approx(verdicts, abs=0.05)
    assert max(verdicts) - min(verdicts) > 0.3  # type: ignore[operator, type-var]
    told = [policy.tokenizer.decode(sample.ids) for sample in together]
    assert told[:4] == [policy.tokenizer.decode(sample.ids) for sample in alone[:4]]
    assert "Paris" in told[0]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_read_and_written_alike(policy: Policy, text: str) -> None:
    ids = policy.tokenizer(text)["input_ids"]
    assert policy.tokenizer.decode(ids) == text
    tokens = policy.tokenizer.convert_ids_to_tokens(ids)
    assert all(len(token) == 1 for token in tokens if any(letter.isdigit() for letter in token if letter.isascii()))


@pytest.mark.parametrize("seed", range(4))
def test_every_token_of_an_answer_knows_its_characters(policy: Policy, seed: int) -> None:
    """A thousand answers, 250 a seed, and no character of them is written by no token or out of
    turn."""
    torch.manual_seed(seed)
    prompts = [policy.tokenizer(BEGINNINGS[index % len(BEGINNINGS)])["input_ids"] for index in range(250)]
    samples = generate(policy, prompts, GenerationSettings(max_new_tokens=16, temperature=1.0, batch_size=125))
    table = TokenTable(policy.tokenizer)
    assert table.exact_bytes
    shared = 0
    for sample in samples:
        aligned = table.align(sample.ids)
        assert len(aligned) == len(sample.ids)
        assert aligned.text == policy.tokenizer.decode(sample.ids, skip_special_tokens=True)
        written = 0
        for start, end in zip(aligned.starts.tolist(), aligned.ends.tolist(), strict=True):
            inside = start == written - 1 and not aligned.text[start].isascii()  # of a character begun before
            assert start == written or inside, (aligned.text, sample.ids)
            assert end >= written
            shared += inside
            written = end
        assert written == len(aligned.text)
    assert len({tuple(sample.ids) for sample in samples}) > 200
    assert shared > 20  # characters of several tokens did occur
