"""The policy: padding, log-probabilities and values, sampling, saving, adapters, and refused
folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from text2grad.chat import Completion
from text2grad.errors import UserError
from text2grad.feedback import Failure, Message
from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.encode import encode_prompt
from text2grad.policy.files.save import VALUE_FILE, VALUE_TRUNK, write_policy
from text2grad.policy.files.tokenizer import load_tokenizer, refuse_missing_folder
from text2grad.policy.generate import generate
from text2grad.policy.load import load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy, avoid_cudnn_attention
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.policy.tiny import make_tiny_model, make_tokenizer
from text2grad.rl import advantage as adv
from text2grad.settings import TinyShape
from tiny_runs import whole_logits

CHAT = (Message(role="user", content="Say it."),)
GENERATION = GenerationSettings(max_new_tokens=12, batch_size=2)
LORA = LoraSettings(r=4, dropout=0.0)


def load(model: Path | str, **settings: Any) -> Policy:
    return load_policy(PolicySettings(model=str(model), **settings))


def batch_of(policy: Policy) -> TokenBatch:
    prompts = [encode_prompt(policy.tokenizer, CHAT), [5, 6, 7]]
    return pack(prompts, [[10, 11, 12], [13]], policy.tokenizer.pad_token_id, policy.device)


def logits_of(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return whole_logits(policy.model, batch_of(policy))


def kl_of(policy: Policy) -> torch.Tensor:
    """Of the policy to its reference, at the tokens of both responses."""
    batch = batch_of(policy)
    with policy.evaluating():
        kl = policy(batch, kl="full").kl
    assert kl is not None
    return kl[batch.mask]


def shake(policy: Policy) -> Policy:
    """Move every trained weight, as training would."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in [*policy.policy_parameters(), *policy.value_parameters()]:
            parameter.add_(0.05 * torch.randn_like(parameter))
    return policy


# Words to ids.


def test_without_phrases_a_quote_has_the_tokens_it_has_in_the_answer() -> None:
    answer = "the old queen took the old road, and the old queen came back by the old road"
    quote = '["old queen took the old road"]'

    def pieces(phrases: bool) -> tuple[list[str], list[str]]:
        made = make_tokenizer([answer] * 50, 340, phrases=phrases)
        return made.tokenize(answer), [token for token in made.tokenize(quote) if token.strip('["]')]

    whole, quoted = pieces(phrases=False)
    assert any(whole[i : i + len(quoted)] == quoted for i in range(len(whole)))
    whole, quoted = pieces(phrases=True)
    assert not any(whole[i : i + len(quoted)] == quoted for i in range(len(whole)))


# Ids to numbers.


def test_prompts_are_padded_left_and_responses_right_and_a_part_is_trimmed_to_its_longest_rows() -> None:
    batch = pack([[5], [6, 7, 8], [6, 7]], [[10, 11, 12], [13], [14, 15]], pad=0, device="cpu")
    assert batch.input_ids[:2].tolist() == [[0, 0, 5, 10, 11, 12], [6, 7, 8, 13, 0, 0]]
    assert batch.position_ids[:2].tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]]
    assert batch.mask[:2].tolist() == [[True, True, True], [True, False, False]] and batch.width == 3
    part = batch.rows(torch.tensor([0, 2])).trimmed()
    assert part.input_ids.tolist() == [[0, 5, 10, 11, 12], [6, 7, 14, 15, 0]]
    assert part.attention_mask.tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert part.position_ids.tolist() == [[0, 0, 1, 2, 3], [0, 1, 2, 3, 3]]
    assert part.response_ids.tolist() == [[10, 11, 12], [14, 15, 0]]
    alone = batch.rows(slice(1, 2)).trimmed()
    assert alone.input_ids.tolist() == [[6, 7, 8, 13]] and alone.mask.tolist() == [[True]]


def test_rows_of_similar_length_or_of_one_prompt_share_a_pass() -> None:
    prompts, responses = [[1] * n for n in (2, 30, 3, 31)], [[1] * n for n in (4, 1, 5, 2)]
    batch = pack(prompts, responses, pad=0, device="cpu")
    passes = [rows.tolist() for rows in batch.passes(torch.tensor([3, 0, 1, 2]), 2)]
    assert passes == [[0, 2], [1, 3]]
    assert sorted(row for rows in batch.passes(torch.tensor([3, 0, 2]), 2) for row in rows.tolist()) == [0, 2, 3]
    prompts = [[5, 6, 7], [8, 9, 10], [11]] * 2
    given = pack(prompts, [[20, 21], [22], [23, 24, 25], [26], [27, 28, 29], [30]], pad=0, device="cpu")
    first, *others = (set(rows.tolist()) for rows in given.passes(torch.arange(6), 2, grouped=True))
    assert first == {2, 5} and sorted(map(sorted, others)) == [[0, 3], [1, 4]]


def test_log_probabilities_and_values_stand_before_the_token_they_belong_to(model_folder: Path) -> None:
    policy = shake(load(model_folder))
    batch = batch_of(policy)
    first = batch.input_ids.shape[1] - batch.width
    with policy.evaluating():
        output = policy(batch)
    expected = adv.token_logps(logits_of(policy), batch.response_ids).masked_fill(~batch.mask, 0.0)
    torch.testing.assert_close(output.logp, expected)
    torch.testing.assert_close(policy(batch, valued=False).logp, expected)
    assert output.values.shape == batch.mask.shape
    alone = pack([batch.input_ids[0, :first].tolist()], [[10, 11]], 0, policy.device)
    with policy.evaluating():
        shorter = policy(alone)
    torch.testing.assert_close(shorter.last_value[0], output.values[0, 2], rtol=1e-4, atol=1e-6)


def test_a_new_value_head_says_zero_and_only_a_shared_one_moves_the_policy(model_folder: Path) -> None:
    for kind in ("shared", "detached", "separate"):
        policy = load(model_folder, value_head=kind)
        with policy.evaluating():
            assert policy(batch_of(policy)).values.abs().max() == 0
        torch.nn.init.ones_(policy.value_head.outer.weight)
        policy(batch_of(policy)).values.sum().backward()
        moved = any(p.grad is not None and p.grad.abs().max() > 0 for p in policy.policy_parameters())
        assert moved is (kind == "shared")
        assert all(p.grad is not None for p in policy.value_head.parameters())


# Sampling.


def test_samples_hold_the_sampled_ids_end_token_included(model_folder: Path) -> None:
    policy = load(model_folder)
    end = policy.stop_ids[0]
    likelier = torch.zeros(policy.model.config.vocab_size).index_fill_(0, torch.tensor(end), 4.0)
    policy.model.lm_head.register_forward_hook(lambda module, given, logits: logits + likelier)
    torch.manual_seed(0)
    samples = generate(policy, [[5, 6, 7], [8], [9, 10], [11] * 6] * 8, GENERATION)
    assert {sample.truncated for sample in samples} == {True, False}
    for sample in samples:
        assert sample.truncated == (sample.ids[-1] != end)
        assert end not in sample.ids[:-1]
        assert len(sample.ids) == 12 if sample.truncated else len(sample.ids) <= 12


def test_sampling_ignores_the_defaults_of_a_model(model_folder: Path, tmp_path: Path) -> None:
    made = shutil.copytree(model_folder, tmp_path / "opinionated")
    (made / "generation_config.json").write_text(json.dumps({"top_k": 1, "do_sample": True, "temperature": 0.1}))
    sampled = []
    for folder in (model_folder, made):
        torch.manual_seed(0)
        sampled.append(generate(load(folder), [[5, 6]] * 6, GENERATION))
    assert sampled[0] == sampled[1]
    assert len({tuple(sample.ids) for sample in sampled[0]}) > 1  # top_k 1 would make them equal


def test_a_local_model_is_a_chat_endpoint(model_folder: Path) -> None:
    reached: list[tuple[int, int]] = []
    settings = GENERATION.model_copy(update={"batch_size": 1})
    policy = load(model_folder)
    chat = LocalChat(policy, settings, "critic", make_progress=lambda total: lambda n: reached.append((n, total)))
    long = Message(role="user", content="far too long " * 200)
    first, refused, third = chat.complete([CHAT, (long,), CHAT])
    assert isinstance(refused, Failure) and refused.kind == "unsupported" and "512" in refused.message
    for answer in (first, third):
        assert isinstance(answer, Completion)
        assert answer.truncated or answer.usage["output_tokens"] < 12
        assert answer.usage["input_tokens"] == len(encode_prompt(policy.tokenizer, CHAT))
        assert "<|im_end|>" not in answer.text
    assert reached == [(1, 2), (2, 2)]
    assert chat.complete([]) == []


# Saving and loading.


@pytest.mark.parametrize(("lora", "value_head"), [(None, "shared"), (None, "separate"), (LORA, "separate")])
def test_a_saved_policy_loads_equal_value_function_included(
    model_folder: Path, tmp_path: Path, lora: LoraSettings | None, value_head: str
) -> None:
    policy = load(model_folder, value_head=value_head, lora=lora)
    torch.nn.init.ones_(policy.value_head.outer.weight)
    shake(policy)
    write_policy(policy, tmp_path)
    again = load(tmp_path, value_head=value_head, lora=lora)
    with policy.evaluating(), again.evaluating():
        before, after = policy(batch_of(policy)), again(batch_of(again))
    assert torch.equal(before.logp, after.logp) and torch.equal(before.values, after.values)
    assert before.values.abs().max() > 0
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    weights = "adapter_model.safetensors" if lora else "model.safetensors"
    trunk = {f"{VALUE_TRUNK}/{weights}"} if value_head == "separate" else set()
    assert {name for name in names if name.endswith(".safetensors")} == {weights, VALUE_FILE} | trunk
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_reference_is_the_policy_before_training(model_folder: Path, lora: LoraSettings | None) -> None:
    """A frozen copy; with a new adapter the model without it."""
    policy = load(model_folder, lora=lora)
    base = logits_of(policy)
    with pytest.raises(RuntimeError, match="freeze_reference"):
        kl_of(policy)
    policy.freeze_reference()
    assert kl_of(policy).abs().max() < 1e-6
    shake(policy)
    expected = adv.kl_full(logits_of(policy), base)[batch_of(policy).mask]
    assert expected.min() > 1e-6 and (logits_of(policy) - base).abs().max() > 1e-3
    torch.testing.assert_close(kl_of(policy), expected, rtol=1e-4, atol=1e-6)
    trained = sum(parameter.numel() for parameter in policy.policy_parameters())
    assert (trained < 0.1 * sum(parameter.numel() for parameter in policy.model.parameters())) is bool(lora)


# Refused folders and settings.


def test_a_folder_without_a_part_names_the_part(model_folder: Path, tmp_path: Path) -> None:
    parts = {
        "tokenizer.json": ["tokenizer.json"],
        "tokenizer.json ": ["tokenizer.json", "tokenizer_config.json"],
        "policy.chat_template": ["chat_template.jinja"],
        "model": ["model.safetensors"],
        "no model": ["config.json"],
    }
    for name, missing in parts.items():
        place = shutil.copytree(model_folder, tmp_path / name, ignore=shutil.ignore_patterns(*missing))
        with pytest.raises(UserError, match=name.strip()):
            load(place)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("weights", ["adapter_model", "model"])
def test_no_pickle_is_ever_loaded(model_folder: Path, tmp_path: Path, weights: str) -> None:
    mark, place = tmp_path / "it ran", tmp_path / "pickled"
    write_policy(load(model_folder, lora=LORA if "adapter" in weights else None), place)
    (place / f"{weights}.safetensors").unlink()
    (place / VALUE_FILE).unlink()
    torch.save({"weight": Bomb(mark)}, place / f"{'pytorch_model' if weights == 'model' else weights}.bin")
    with pytest.raises(UserError, match=r"pickled.*convert them to safetensors"):
        load(place)
    assert not mark.exists()


def test_a_path_device_or_target_that_does_not_exist(model_folder: Path, tmp_path: Path) -> None:
    for name in ("/no/such/folder", "./no-such", "~/no-such", "runs/a/policy", f"{tmp_path}/mine"):
        with pytest.raises(UserError, match="no model folder"):
            refuse_missing_folder(name)  # and it is not looked for on the hub
    for name in ("Qwen/Qwen2.5-0.5B-Instruct", "gpt2", str(tmp_path)):
        refuse_missing_folder(name)
    for device in ("gpu", "cuda:99"):
        with pytest.raises(UserError, match=r"device.*policy\.device"):
            load(model_folder, device=device)
    with pytest.raises(UserError, match=r"policy\.lora\.targets"):
        load(model_folder, lora=LoraSettings(targets=("attention",)))


def test_a_chat_template_of_ones_own(model_folder: Path, tmp_path: Path) -> None:
    template, folder = tmp_path / "mine.jinja", str(tmp_path / "copy")
    shutil.copytree(model_folder, folder, ignore=shutil.ignore_patterns("chat_template.jinja"))
    template.write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    made = load_tokenizer(folder, str(template))
    assert made.decode(encode_prompt(made, CHAT)) == "Say it.<|im_end|>"
    with pytest.raises(UserError, match="cannot read chat template"):
        load_tokenizer(folder, str(tmp_path / "none.jinja"))
    for content, reason in ((b"\xff\xfe", "not UTF-8"), (b"{% for x in %}", "chat template")):
        template.write_bytes(content)
        with pytest.raises(UserError, match=reason):
            encode_prompt(load_tokenizer(folder, str(template)), CHAT)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_attention_is_not_left_to_cudnn(device: str) -> None:
    """Its gradients can be NaN in half precision."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        avoid_cudnn_attention(SimpleNamespace(device=torch.device(device)))
        assert torch.backends.cuda.cudnn_sdp_enabled() == (device == "cpu")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("hidden", "heads"), [(7, 4), (20, 4)])
def test_heads_that_do_not_share_a_tiny_model_evenly_are_refused(hidden: int, heads: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(hidden)):
        make_tiny_model(tmp_path / "m", ["a b"], 300, shape=TinyShape(hidden=hidden, heads=heads))
    assert not (tmp_path / "m").exists()
