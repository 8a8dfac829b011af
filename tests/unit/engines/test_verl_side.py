"""Our part inside verl's processes, beside stand-ins of the few lines of verl that it hooks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from text2grad.align import CreditSettings
from text2grad.errors import UserError
from text2grad.feedback import Critic, Environment, Example, Failure, Judgement, Message
from text2grad.policy.encode import encode_prompt
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
from text2grad.train.ppo_settings import PPOSettings
from tiny_runs import Halves, Talker, tiny_model

EXAMPLES = [Example(id=str(n), prompt=(Message(role="user", content=f"write {n}"),)) for n in range(2)]


class Section(dict[str, Any]):
    """A section of verl's configuration."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Queue:
    """verl's store of columns, by key."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        columns = {name: [self.rows[key][name] for key in keys] for name in select_fields}
        nested = {
            name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) if isinstance(rows[0], Tensor) else rows
            for name, rows in columns.items()
        }
        return nested

    def kv_batch_put(self, keys: Sequence[str], partition_id: str, fields: dict[str, Any]) -> Any:
        for name, column in fields.items():
            for key, row in zip(keys, column.unbind(), strict=True):
                self.rows[key][name] = row
        return SimpleNamespace(keys=keys)


class Server:
    """Answers with some ids of the tokenizer, and an end every second time."""

    def __init__(self, end: int) -> None:
        self.end, self.asked = end, 0

    async def generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str) -> Any:
        self.asked += 1
        assert sampling_params["max_tokens"] == 6 and self.end in sampling_params["stop_token_ids"]
        ids = [10 + self.asked] * self.asked + [self.end] * (self.asked % 2)
        return SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids), extra_fields={"global_steps": 1})


class Loop:
    """verl's base of agent loops."""

    def __init__(self, config: Any, server: Server, tokenizer: Any) -> None:
        self.config, self.server_manager, self.tokenizer = config, server, tokenizer
        self.rollout_config = config.actor_rollout_ref.rollout


class Trainer:
    """verl's trainer, as far as ours looks at it."""

    use_critic = False
    use_reference_policy = True

    def __init__(self, config: Any, tokenizer: Any, steps: int) -> None:
        self.config, self.tokenizer, self.global_steps = config, tokenizer, steps
        self.trainer_mode = "of the configuration"

    def init(self) -> None:
        """Loads the checkpoint."""

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any]) -> None:
        metrics |= {"timing_s/gen": 2.0, "timing_s/ref": 1.0}


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    registered = lambda name: lambda made: made  # noqa: E731
    stand_ins: dict[str, dict[str, Any]] = {
        "ray": {},
        "transfer_queue": {},
        "tensordict": {"TensorDict": lambda fields, batch_size: fields},
        "verl": {},
        "verl.experimental": {},
        "verl.experimental.agent_loop": {"AgentLoopBase": Loop, "AgentLoopOutput": SimpleNamespace},
        "verl.trainer": {},
        "verl.trainer.ppo": {},
        "verl.trainer.ppo.core_algos": {"register_adv_est": registered},
        "verl.trainer.ppo.v1": {"PPOTrainerSync": Trainer, "register_trainer": registered},
        "verl.workers": {},
        "verl.workers.utils": {},
        "verl.workers.utils.padding": {"response_from_nested": None},
        "omegaconf": {"OmegaConf": SimpleNamespace(to_container=lambda section, resolve: section)},
    }
    for name, contents in stand_ins.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "text2grad.engines.verl_side", raising=False)
    import text2grad.engines.verl_side as module_under_test

    module_under_test.transfer_queue = Queue()
    module_under_test.get_parts.cache_clear()
    yield module_under_test
    sys.modules.pop("text2grad.engines.verl_side")


class Broken(Halves):
    """Cannot work at all."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        raise UserError("no key", "set one")


class Silent(Halves):
    """Has no word for one prompt."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        none = Failure(kind="refused", message="no word")
        judged = super().critique(examples, responses)
        return [none if each.id == "1" else found for each, found in zip(examples, judged, strict=True)]


def halves(settings: Path, folder: Path) -> Critic:
    kinds = {"broken": Broken, "silent": Silent}
    return next((kinds[name]() for name in kinds if (folder / name).exists()), Halves())


def talker(settings: Path) -> type[Environment]:
    return Talker


@pytest.fixture
def config(tmp_path: Path) -> Section:
    model = tiny_model(tmp_path / "start")
    agent = Section(agent_loop_config_path=str(tmp_path / "loop.yaml"))
    rollout = Section(agent=agent, prompt_length=40, response_length=60)
    ppo = PPOSettings(rollouts=4, samples_per_prompt=2, advantage="group", steps=3, max_kl=None)
    ours = Section(
        folder=str(tmp_path),
        working_folder=str(Path.cwd()),
        critic=f"{__name__}:halves",
        environment="",
        ppo=ppo.model_dump(),
        credit=CreditSettings().model_dump(),
        generation=GenerationSettings(max_new_tokens=6, max_turns=2).model_dump(),
    )
    return Section(actor_rollout_ref=Section(rollout=rollout, model=Section(path=str(model))), text2grad=ours)


def sampled(side: Any, config: Section, count: int = 4) -> list[Any]:
    """What the agent loop makes of a batch."""
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    server = Server(tokenizer.eos_token_id)

    async def one(row: int) -> Any:
        told = {"index": row // 2, "example": EXAMPLES[row // 2].model_dump_json()}
        return await side.CriticLoop(config, server, tokenizer).run({"temperature": 1.0}, extra_info=told)

    async def all_of_them() -> list[Any]:
        return [await one(row) for row in range(count)]

    return asyncio.run(all_of_them())


def stored(side: Any, outputs: Sequence[Any], lost: Sequence[int] = ()) -> Any:
    """Put them into verl's store, as its workers do, with log-probabilities; in another order, with
    padding."""
    generator, rows = torch.Generator().manual_seed(0), side.transfer_queue.rows
    for row, output in enumerate(outputs):
        if row not in lost:
            count = len(output.response_ids)
            rows[f"u{row // 2}_{row % 2}_0"] = {
                "prompts": torch.tensor(output.prompt_ids),
                "responses": torch.tensor(output.response_ids),
                "response_mask": torch.tensor(output.response_mask),
                "old_log_probs": -torch.rand(count, generator=generator),
                "ref_log_prob": -torch.rand(count, generator=generator),
                "entropy": torch.rand(count, generator=generator),
                "extra_fields": output.extra_fields,
            }
    rows["pad_0_0"] = {**next(iter(rows.values()))}
    keys = sorted(rows, reverse=True)
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    return SimpleNamespace(keys=keys, tags=tags, partition_id="train")


def trained(side: Any, config: Section, batch: Any, steps: int = 1) -> Any:
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    trainer = side.Trainer(config, tokenizer, steps)
    trainer.init()
    trainer._compute_advantage(batch, {})
    return trainer


def test_an_answer_is_sampled_and_judged(side: Any, config: Section) -> None:
    first, second, *_ = sampled(side, config)
    prompt = encode_prompt(load_tokenizer(config.actor_rollout_ref.model.path), EXAMPLES[0].prompt)
    assert first.prompt_ids == prompt and first.response_mask == [1] * len(first.response_ids)
    judged = [json.loads(each.extra_fields["text2grad"]) for each in (first, second)]
    assert [each["truncated"] for each in judged] == [False, True]
    assert judged[0]["judgement"]["text"] == "half and half" and judged[0]["number"] == 0


def test_an_episode_is_played(side: Any, config: Section) -> None:
    config["text2grad"]["environment"] = f"{__name__}:talker"
    (output,) = sampled(side, config, 1)
    assert output.response_mask[0] == output.response_mask[-1] == 1 and 0 in output.response_mask
    judged = json.loads(output.extra_fields["text2grad"])
    assert judged["between"][1][0]["content"].startswith("well said") and output.response_logprobs is None


def test_advantages_are_the_local_loops_whatever_the_order(side: Any, config: Section, tmp_path: Path) -> None:
    batch = stored(side, sampled(side, config))
    trained(side, config, batch)
    rows = side.transfer_queue.rows
    assert not rows["pad_0_0"]["advantages"].any() and not rows["pad_0_0"]["loss_mask"].any()
    keys = ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"]
    columns = ("rm_scores", "advantages", "old_log_probs", "ref_log_prob", "loss_mask")
    delta, theirs, logp, ref, mask = (
        torch.nn.utils.rnn.pad_sequence([rows[key][name].float() for key in keys], batch_first=True)
        for name in columns
    )
    scores = [json.loads(rows[key]["extra_fields"]["text2grad"])["judgement"]["score"] for key in keys]
    own, settings = mask.bool(), PPOSettings.model_validate(config["text2grad"]["ppo"])
    words = delta.clone()
    for row, score in enumerate(scores):
        words[row, int(own[row].sum()) - 1] -= score
    nothing = torch.zeros(4)
    kl, beta = (logp - ref) * own, settings.kl_coefficient
    mine = adv.estimate_advantages(
        "group",
        adv.RewardTerms(delta, kl, beta, torch.zeros_like(delta), nothing, own, own),
        gamma=settings.gamma,
        lam=settings.lam,
        normalisation=settings.normalisation,
        group=adv.GroupTerms(torch.tensor(scores), words, 2),
    )
    assert len(set(scores)) > 1 and torch.allclose(mine.advantages, theirs, atol=1e-5, rtol=0)
    strips = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text("utf-8").splitlines()]
    assert [strip["id"] for strip in strips] == ["0", "0", "1", "1"] and strips[0]["step"] == 0


def test_nothing_is_learned_where_the_critique_failed(side: Any, config: Section, tmp_path: Path) -> None:
    (tmp_path / "silent").touch()
    trained(side, config, stored(side, sampled(side, config)))
    rows = side.transfer_queue.rows
    for name in ("loss_mask", "response_mask", "advantages"):
        assert [bool(rows[f"u{n}_0_0"][name].any()) for n in (0, 1)] == [True, False], name


def test_a_lost_answer_leaves_its_group_whole(side: Any, config: Section) -> None:
    batch = stored(side, sampled(side, config), lost=[1])
    trained(side, config, batch)
    assert side.transfer_queue.rows["u1_1_0"]["advantages"].any()


def test_metrics_have_our_names_and_go_on_at_the_checkpoint(side: Any, config: Section, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"step": step, "score": 0.0}) + "\n" for step in range(4))
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": 4', "utf-8")
    trainer = trained(side, config, stored(side, sampled(side, config)), steps=2)
    trainer._compute_metrics(None, metrics := {"actor/pg_loss": 0.5, "actor/grad_norm": float("nan")})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 1], "this step was not in the checkpoint's"
    assert {"score", "delta_sum", "kl", "seconds_generate"} <= rows[-1].keys() and rows[-1]["policy_loss"] == 0.5
    assert "grad_norm" not in rows[-1], "which is no number"
    assert rows[-1]["seconds_score"] == 1.0 and metrics["text2grad/score"] == rows[-1]["score"]


def test_a_mistake_in_a_worker_ends_the_run_with_its_line(side: Any, config: Section, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    side.get_parts.cache_clear()
    with pytest.raises(UserError):
        sampled(side, config, 1)
    assert json.loads((tmp_path / "problem.json").read_text("utf-8")) == {"problem": "no key", "cure": "set one"}
    with pytest.raises(UserError):
        trained(side, config, SimpleNamespace())
    side.get_parts.cache_clear()


def test_verls_own_trainer_is_refused(side: Any) -> None:
    with pytest.raises(UserError) as refused:
        side.refuse_other_trainers(token_level_rewards=None)
    assert "trainer_mode" in str(refused.value)
