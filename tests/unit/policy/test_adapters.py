"""One set of base weights for policy, reference and reward model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from text2grad.align import CreditSettings
from text2grad.critics.prompted import PromptedCritic
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Message, Source
from text2grad.policy.adapters import BASE_DIGEST, beside, digest_of_base
from text2grad.policy.batch import pack
from text2grad.policy.encode import encode_prompt
from text2grad.policy.files.save import write_policy
from text2grad.policy.grounded import vocabulary_for
from text2grad.policy.load import ADAPTER_CONFIG, load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import POLICY_ADAPTER, Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings

NAME = "reward_model"
GREEDY = GenerationSettings(max_new_tokens=72, temperature=0.0, batch_size=4)
CHAT = (Message(role="user", content="Judge it."),)


def loaded(folder: Path, rank: int = 4, targets: Sequence[str] = ("q_proj", "v_proj")) -> Policy:
    return load_policy(PolicySettings(model=str(folder), lora=LoraSettings(r=rank, targets=tuple(targets))))


def shaken(policy: Policy, seed: int) -> Policy:
    """With adapters that change what the model says."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(0.7 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.fixture(scope="module")
def adapter(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model's adapter, of another rank and other layers than the policy's."""
    trained = shaken(loaded(model_folder, 8, ("k_proj", "v_proj", "up_proj")), seed=1)
    folder = tmp_path_factory.mktemp("adapter") / "policy"
    write_policy(trained, folder)
    (folder / BASE_DIGEST).write_text(digest_of_base(trained.model))
    return folder


def critic(model: Policy) -> PromptedCritic:
    chat = LocalChat(model, GREEDY, "reward model", vocabulary_for(model, "on"))
    return PromptedCritic(chat, "Judge {{prompt}} and {{response}}", Source(kind="reward_model"))


def weights(policy: Policy, mark: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in policy.model.named_parameters() if f".{mark}." in name}


def base_pointers(policy: Policy) -> set[int]:
    return {tensor.data_ptr() for name, tensor in policy.model.named_parameters() if "lora_" not in name}


def logits(policy: Policy, reference: bool = False) -> torch.Tensor:
    batch = pack([encode_prompt(policy.tokenizer, CHAT)], [[10, 11, 12]], policy.tokenizer.pad_token_id, "cpu")
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    with policy.evaluating(), policy.model.disable_adapter() if reference else nullcontext():
        found: torch.Tensor = policy.model(**inputs).logits
        return found


def test_three_roles_stand_on_one_set_of_base_weights(model_folder: Path, adapter: Path) -> None:
    policy = shaken(loaded(model_folder), seed=2)
    before = base_pointers(policy)
    said, reference = logits(policy), logits(policy, reference=True)
    view = beside(policy, adapter, NAME)
    assert base_pointers(view) == base_pointers(policy) == before
    base = load_policy(PolicySettings(model=str(model_folder)))
    assert torch.equal(logits(policy), said) and torch.equal(logits(policy, reference=True), reference)
    assert torch.equal(reference, logits(base))
    alone = load_policy(PolicySettings(model=str(adapter)))
    torch.testing.assert_close(logits(view), logits(alone), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(policy), said, rtol=0, atol=0)
    assert not torch.allclose(logits(view), said, atol=0.1)


def test_its_critiques_are_those_of_the_reward_model_loaded_alone(model_folder: Path, adapter: Path) -> None:
    policy = shaken(loaded(model_folder), seed=2)
    shared = critic(beside(policy, adapter, NAME))
    alone = critic(load_policy(PolicySettings(model=str(adapter))))
    other = critic(policy)
    asked = [Example(id=str(n), prompt=CHAT) for n in range(4)]
    texts = ["the cat sat on the mat", "x = x + 1", "He said so.", "naïve façade"]
    critiques = shared.critique(asked, texts)
    assert critiques == alone.critique(asked, texts)
    assert any(isinstance(judgement, Critique) and judgement.text for judgement in critiques)
    assert critiques != other.critique(asked, texts), "the policy itself would say something else"


def test_training_moves_the_policys_adapter_and_not_a_bit_of_the_other(
    model_folder: Path, adapter: Path, tmp_path: Path
) -> None:
    policy = loaded(model_folder)
    with torch.no_grad():
        policy.value_head.outer.weight.fill_(0.1)
    shared = critic(beside(policy, adapter, NAME))
    assert weights(policy, NAME) and not any(tensor.requires_grad for tensor in weights(policy, NAME).values())
    trained = [parameter for parameter in policy.policy_parameters()]
    assert {id(each) for each in trained} == {id(each) for each in weights(policy, POLICY_ADAPTER).values()}
    before = copy.deepcopy({mark: weights(policy, mark) for mark in (NAME, POLICY_ADAPTER)})
    settings = PPOSettings(advantage="gae", steps=2, rollouts=4, lr=1e-2, value_warmup=0, max_failed=1.0)
    generation = GenerationSettings(max_new_tokens=6, batch_size=4)
    asked = [Example(id=str(n), prompt=CHAT) for n in range(4)]
    credit = CreditSettings(outcome_weight=1.0)
    train_ppo(policy, asked, shared, settings, credit, generation, RunOptions(tmp_path / "run", "ppo"))
    now = {mark: weights(policy, mark) for mark in (NAME, POLICY_ADAPTER)}
    assert all(torch.equal(now[NAME][name], tensor) for name, tensor in before[NAME].items())
    assert any(not torch.equal(now[POLICY_ADAPTER][name], t) for name, t in before[POLICY_ADAPTER].items())
    saved = tmp_path / "run" / "policy"
    assert (saved / ADAPTER_CONFIG).is_file() and not [path for path in saved.iterdir() if path.is_dir()]
    again = load_policy(PolicySettings(model=str(saved)))
    torch.testing.assert_close(logits(again), logits(policy), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_shared_is_refused(model_folder: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trains them \(set policy\.lora\)"):
        beside(load_policy(PolicySettings(model=str(model_folder))), adapter, NAME)
    with pytest.raises(UserError, match=f"it lacks {ADAPTER_CONFIG} .*shared true"):
        beside(loaded(model_folder), model_folder, NAME)
    other = loaded(model_folder)
    with torch.no_grad():
        other.model.get_input_embeddings().weight[0, 0] += 1e-3
    with pytest.raises(UserError, match="trained on another base model"):
        beside(other, adapter, NAME)
