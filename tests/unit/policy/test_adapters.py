"""What was trained is what the next stage gets, in half precision too: adapters are handed over as
they are."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from text2grad.align import CreditSettings
from text2grad.critics.prompted import PromptedCritic
from text2grad.durable.identity import hash_starting_weights
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Example, Message, Source
from text2grad.policy.adapters import BASE_DIGEST, hash_base_weights, load_second_adapter
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import encode_prompt
from text2grad.policy.files.save import write_policy
from text2grad.policy.generate import generate
from text2grad.policy.grounded import make_vocabulary
from text2grad.policy.load import ADAPTER_CONFIG, ADAPTER_FILE, load_frozen, load_policy, merge_layers
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import POLICY_ADAPTER, REFERENCE_ADAPTER, Policy, Reference
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.train.pairs import Pair
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import train_supervised
from tiny_runs import TEXTS, tiny_model

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = LoraSettings(r=4, dropout=0.0, targets=LINEAR)
SMALL = 1e-4
"""How far training moves a weight of an adapter: far less than a bfloat16 weight of the base can
show."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are stored in bfloat16."""
    folder = tiny_model(tmp_path_factory.mktemp("base") / "tiny")
    load_frozen(settings(folder, None)).model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sft(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that was trained a little."""
    folder = tmp_path_factory.mktemp("sft") / "policy"
    write_policy(began(base), folder)
    return folder


def settings(model: Path, lora: LoraSettings | None = LORA, dtype: str = "bfloat16", **more: str) -> PolicySettings:
    return PolicySettings.model_validate({"model": str(model), "lora": lora, "dtype": dtype, **more})


def moved(policy: Policy, seed: int, by: float = SMALL) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return policy


def began(base: Path) -> Policy:
    """A base model with a new adapter, after a little training."""
    torch.manual_seed(0)
    return moved(load_policy(settings(base)), 1)


def batch_of(policy: Policy) -> TokenBatch:
    return policy.pack([policy.tokenizer.encode(text) for text in TEXTS], [[40, 41, 42, 43]] * len(TEXTS))


def logp_of(policy: Policy) -> Tensor:
    with policy.evaluating():
        return policy(batch_of(policy), valued=False).logp


def reference_logp(policy: Policy) -> Tensor:
    """The log-probabilities of the reference, by its own reading."""
    assert policy.reference is not None
    batch = batch_of(policy)
    view = policy.reference.view(batch)
    logits = view.head(view.states).float()
    ids = batch.response_ids[batch.mask]
    return logits.log_softmax(-1).gather(1, ids[:, None]).squeeze(1)


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings")
@pytest.mark.parametrize(("targets", "switches"), [(["q_proj"], 1), (["q_proj", "lm_head"], 3)])
def test_adapters_are_switched_for_the_head_only_if_it_has_one(
    base: Path, monkeypatch: pytest.MonkeyPatch, targets: list[str], switches: int
) -> None:
    """Each switch visits every module, and the head reads a chunk of tokens at a time."""
    policy = load_policy(settings(base, LoraSettings(r=2, targets=targets)))
    policy.freeze_reference()
    reference, count, activate = policy.reference, [], Reference.activate
    assert reference is not None
    monkeypatch.setattr(Reference, "activate", lambda self: count.append(1) or activate(self))
    view = reference.view(batch_of(policy))
    for chunk in view.states.split(4)[:2]:
        view.head(chunk)
    assert len(count) == switches


def held(policy: Policy, name: str = POLICY_ADAPTER) -> dict[str, Tensor]:
    return {
        key.replace(f".{name}.", "."): tensor.detach().clone()
        for key, tensor in policy.model.named_parameters()
        if f".{name}." in key
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_an_adapter_is_loaded_as_it_was_saved_and_trained_further(base: Path, sft: Path, tmp_path: Path) -> None:
    expected = began(base)
    policy = load_policy(settings(sft))
    assert same(held(policy), held(expected)), "to the bit: nothing was merged"
    assert {tensor.dtype for tensor in held(policy).values()} == {torch.float32}
    assert {id(p) for p in policy.policy_parameters()} == {
        id(p) for name, p in policy.model.named_parameters() if "lora_" in name
    }
    assert torch.equal(logp_of(policy), logp_of(expected))
    policy.freeze_reference()
    start = reference_logp(policy)
    batch = batch_of(policy)
    with policy.evaluating():
        assert policy(batch, kl="full").kl.abs().max() == 0, "the reference is what was loaded, exactly"
    policy(batch, kl="full").logp.sum().backward()
    reached = {name for name, p in policy.model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached and all(f".{POLICY_ADAPTER}." in name for name in reached)
    moved(policy, 2, 0.1)
    assert not torch.equal(logp_of(policy), logp_of(expected))
    assert torch.equal(reference_logp(policy), start), "the reference stays"
    assert same(held(policy, REFERENCE_ADAPTER), held(expected))
    assert policy.trainable_parameters().keys() == load_policy(settings(base)).trainable_parameters().keys()
    write_policy(policy, tmp_path / "ppo")
    assert set(load_file(tmp_path / "ppo" / ADAPTER_FILE)) == set(load_file(sft / ADAPTER_FILE))
    assert json.loads((tmp_path / "ppo" / ADAPTER_CONFIG).read_text())["base_model_name_or_path"] == str(base)
    assert not (tmp_path / "ppo" / "model.safetensors").exists()
    assert same(held(load_policy(settings(tmp_path / "ppo"))), held(policy))
    policy.freeze_reference()  # again: today's weights, in the adapter that is there
    assert same(held(policy, REFERENCE_ADAPTER), held(policy))


def test_an_adapter_trained_in_this_process_is_a_start_like_one_that_was_loaded(base: Path, tmp_path: Path) -> None:
    policy = load_policy(settings(base))
    pairs = [Pair(str(n), (Message(role="user", content=text),), text) for n, text in enumerate(TEXTS)]
    train_supervised(policy, pairs, SupervisedSettings(epochs=1, lr=1e-2), RunOptions(tmp_path / "sft", "sft"))
    policy.freeze_reference()
    start = logp_of(policy)
    with policy.evaluating():
        assert policy(batch_of(policy), kl="full").kl.abs().max() == 0
    assert not torch.equal(start, logp_of(load_frozen(settings(base))))
    assert torch.equal(start, logp_of(load_frozen(settings(tmp_path / "sft" / "policy"))))


def test_the_starting_adapter_is_part_of_what_a_run_starts_from(base: Path, sft: Path, tmp_path: Path) -> None:
    write_policy(moved(load_policy(settings(sft)), 5), tmp_path / "other")
    starts = (base, base, sft, sft, tmp_path / "other")
    hashes = (hash_starting_weights(load_policy(settings(start))) for start in starts)
    fresh, again, begun, same_start, other = hashes
    assert fresh == again, "a new adapter is drawn at random"
    assert begun == same_start and len({fresh, begun, other}) == 3


def test_the_shape_of_an_adapter_stays_and_its_dropout_is_that_of_the_settings(sft: Path) -> None:
    for other in ({"r": 8}, {"targets": ("q_proj",)}):
        asked = LORA.model_copy(update=other)
        with pytest.raises(UserError, match=rf"has r 4, targets down_proj.*ask for r {asked.r}.*text2grad merge"):
            load_policy(settings(sft, asked))
    policy = load_policy(settings(sft, LORA.model_copy(update={"dropout": 0.5})))
    dropouts = {name for name, module in policy.model.named_modules() if isinstance(module, torch.nn.Dropout)}
    assert any(name.endswith(f"lora_dropout.{POLICY_ADAPTER}") for name in dropouts)
    assert torch.equal(logp_of(policy), logp_of(load_frozen(settings(sft))))


def test_without_targets_all_linear_layers_get_adapters_or_those_that_have_them(
    base: Path, sft: Path, tmp_path: Path
) -> None:
    unsaid = LORA.model_copy(update={"targets": None})
    write_policy(load_policy(settings(base, unsaid)), tmp_path / "new")
    found = json.loads((tmp_path / "new" / "adapter_config.json").read_text())["target_modules"]
    assert sorted(found) == sorted(LINEAR), "all but the output layer"
    few = LORA.model_copy(update={"targets": ("q_proj",)})
    write_policy(load_policy(settings(base, few)), tmp_path / "few")
    again = load_policy(settings(tmp_path / "few", unsaid))
    adapted = {name.rpartition(".lora_A")[0] for name, _ in again.model.named_parameters() if ".lora_A" in name}
    assert adapted and all(name.endswith("q_proj") for name in adapted)


def test_where_all_weights_are_trained_an_adapter_is_merged_in_float32(base: Path, sft: Path) -> None:
    plain, adapted = load_frozen(settings(base, None)), load_frozen(settings(sft))
    policy = load_policy(settings(sft, None))
    assert not isinstance(policy.model, PeftModel)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
    assert len(policy.trainable_parameters()) == len(list(policy.model.parameters())) + 4
    changed = {
        f"model.{name}.weight": layer.get_delta_weight(POLICY_ADAPTER).float()
        for name, layer in adapted.model.get_base_model().named_modules()
        if hasattr(layer, "get_delta_weight")
    }
    assert policy.exact.keys() == changed.keys() and len(changed) == 2 * len(LINEAR)
    for name, change in changed.items():
        before = plain.get_parameter(name).float()
        torch.testing.assert_close(policy.exact[name], before + change, rtol=0, atol=1e-7)
        assert torch.equal(policy.get_parameter(name), policy.exact[name].bfloat16())
    rotary, exact = (each.model.model.rotary_emb.inv_freq for each in (policy, plain))
    assert rotary.dtype == torch.float32 and torch.equal(rotary, exact), "frequencies are not weights"
    whole = load_policy(settings(sft, None, "float32"))
    assert not whole.exact and torch.equal(whole.get_parameter(name), policy.exact[name])


def test_a_damaged_adapter_is_one_line(sft: Path, base: Path, tmp_path: Path) -> None:
    write_policy(load_policy(settings(sft)), tmp_path / "half")
    weights = load_file(sft / ADAPTER_FILE)
    save_file({name: t for name, t in weights.items() if "q_proj" not in name}, tmp_path / "half" / ADAPTER_FILE)
    with pytest.raises(UserError, match="does not fit its base") as told:
        load_frozen(settings(tmp_path / "half"))
    assert "\n" not in str(told.value)
    tokens = {"base_model.model.model.embed_tokens.weight": torch.zeros(7, 8)}
    save_file({**weights, **tokens}, tmp_path / "half" / ADAPTER_FILE)
    with pytest.raises(UserError, match="trained with 7 tokens"):
        load_frozen(settings(tmp_path / "half"))
    (tmp_path / "half" / "tokenizer.json").unlink()
    (tmp_path / "half" / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"the adapter in .* has no tokenizer"):
        load_frozen(settings(tmp_path / "half"))


@pytest.mark.parametrize("config", [{}, {"base_model_name_or_path": ""}, {"base_model_name_or_path": None}])
def test_an_adapter_without_a_base_takes_no_model_of_the_current_folder(
    config: dict[str, object], base: Path, sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(load_policy(settings(sft)), tmp_path / "adapter")
    (tmp_path / "adapter" / ADAPTER_CONFIG).write_text(json.dumps(config))
    monkeypatch.chdir(base)
    with pytest.raises(UserError, match="names no base_model_name_or_path"):
        load_policy(settings(tmp_path / "adapter"))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_merging_refuses_weights_that_two_layers_share(base: Path, tmp_path: Path) -> None:
    tied = copy.deepcopy(load_frozen(settings(base, None)))
    tied.model.config.tie_word_embeddings = True
    tied.model.tie_weights()
    tied.model.save_pretrained(tmp_path / "tied")
    tied.tokenizer.save_pretrained(tmp_path / "tied")
    policy = load_policy(settings(tmp_path / "tied", LORA.model_copy(update={"targets": ("lm_head",)})))
    with pytest.raises(UserError, match=r"cannot be merged"):
        list(merge_layers(policy.model))


# A reward model on the base weights of the policy.


@pytest.fixture(scope="module")
def reward_model(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of another rank and other layers than the policy's."""
    lora = LoraSettings(r=8, dropout=0.0, targets=("k_proj", "v_proj", "up_proj"))
    learned = moved(load_policy(settings(base, lora)), 3, 0.3)
    folder = tmp_path_factory.mktemp("reward") / "policy"
    write_policy(learned, folder)
    (folder / BASE_DIGEST).write_text(hash_base_weights(learned.model))
    return folder


def test_a_reward_model_stands_on_the_base_weights_of_a_policy(base: Path, sft: Path, reward_model: Path) -> None:
    alone = load_frozen(settings(reward_model))
    prompts = [policy_prompt(alone, text) for text in TEXTS]
    greedy = GenerationSettings(max_new_tokens=8, temperature=0.0)
    for start in (base, sft):
        policy = load_policy(settings(start))
        before, base_weights = logp_of(policy), base_pointers(policy)
        view = load_second_adapter(policy, reward_model, "reward_model")
        policy.freeze_reference()
        assert base_pointers(view) == base_pointers(policy) == base_weights
        assert torch.equal(logp_of(policy), before)
        with policy.evaluating():
            assert policy(batch_of(policy), kl="full").kl.abs().max() == 0
        moved(policy, 4, 0.1)
        assert torch.equal(logp_of(view), logp_of(alone)) and not torch.equal(logp_of(policy), before)
        assert generate(view, prompts, greedy) == generate(alone, prompts, greedy)


def policy_prompt(policy: Policy, text: str) -> list[int]:
    return encode_prompt(policy.tokenizer, [Message(role="user", content=text)])


def base_pointers(policy: Policy) -> set[int]:
    return {tensor.data_ptr() for name, tensor in policy.model.named_parameters() if "lora_" not in name}


def test_training_moves_the_policys_adapter_and_not_a_bit_of_the_other(
    base: Path, reward_model: Path, tmp_path: Path
) -> None:
    policy = load_policy(settings(base, value_head="shared"))
    with torch.no_grad():
        policy.value_head.outer.weight.fill_(0.1)
    view = load_second_adapter(policy, reward_model, "reward_model")
    chat = LocalChat(
        view, GenerationSettings(max_new_tokens=72, temperature=0.0), "judge", make_vocabulary(view, "on")
    )
    critic = PromptedCritic(chat, "Judge {{prompt}} and {{response}}", Source(kind="reward_model"))
    before = {name: held(policy, name) for name in ("reward_model", POLICY_ADAPTER)}
    trained = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert trained and all(f".{POLICY_ADAPTER}." in name for name in trained)
    ppo = PPOSettings(advantage="gae", steps=2, rollouts=4, lr=1e-2, value_warmup=0, max_failed=1.0)
    asked = [Example(id=str(n), prompt=(Message(role="user", content="Judge it."),)) for n in range(4)]
    speech, credit = GenerationSettings(max_new_tokens=6), CreditSettings(outcome_weight=1.0)
    train_ppo(policy, asked, critic, ppo, credit, speech, RunOptions(tmp_path, "ppo"))
    assert same(held(policy, "reward_model"), before["reward_model"])
    assert not same(held(policy), before[POLICY_ADAPTER])
    assert not [path for path in (tmp_path / "policy").iterdir() if path.is_dir()]
    assert same(held(load_policy(settings(tmp_path / "policy"))), held(policy))


def test_what_cannot_be_shared_is_refused(base: Path, reward_model: Path) -> None:
    other = load_policy(settings(base))
    with torch.no_grad():
        other.model.get_input_embeddings().weight[0, 0] += 1
    cases = {
        r"set policy\.lora": (load_policy(settings(base, None)), reward_model),
        f"{ADAPTER_CONFIG} .*shared true": (load_policy(settings(base)), base),
        "trained on another base model": (other, reward_model),
    }
    for reason, (policy, folder) in cases.items():
        with pytest.raises(UserError, match=reason):
            load_second_adapter(policy, folder, "reward_model")
