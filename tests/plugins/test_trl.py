"""TRL's own trainer with credit for words: what lands, what does not, and what its gradient is."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from versions import Listening, version_of

from made_tokenizers import CHATML
from page import shown_on_page
from text2grad.align.rewards import TokenCredit
from text2grad.errors import CritiquesFailed, UserError
from text2grad.feedback import Critique, Example, Failure, Judgement, Source, Span, conversation_of
from text2grad.plugins.landing import Case, Row, check_landing, landing_cases
from tiny_runs import SHAPE

trl = pytest.importorskip("trl", reason="the plug-in's engine: pip install 'text2grad[trl]'")
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
PADDING_ROWS = 40
"""Rows of the output layer beyond the vocabulary: real models sample such ids."""
PROMPTS = ["Say it.", "Say it again, and at some length, please.", "Now!", "Why not?"]


@pytest.fixture(scope="module")
def speaking(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = CHATML
    if copied.pad_token_id is None:
        copied.pad_token = copied.eos_token
    return copied


@pytest.fixture
def model(speaking: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    ends = {"eos_token_id": speaking.eos_token_id, "pad_token_id": speaking.pad_token_id}
    shape = {**SHAPE, "max_position_embeddings": 4096, "bos_token_id": None, **ends}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(speaking) + PADDING_ROWS, **shape))


class BlamesLetter:
    """Blames every `a`; the verdict is 1 without one and falls with their number."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Judgement:
        places = [place for place, character in enumerate(text) if character == "a"]
        spans = [Span(start=place, end=place + 1, label=-1, text="a") for place in places]
        return Critique(text="", spans=tuple(spans), score=1 / (1 + len(places)))


class FailsOnSecond(BlamesLetter):
    """Fails on the second response of every batch."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        said = super().critique(examples, responses)
        return [*said[:1], Failure(kind="truncated", message="cut"), *said[2:]]


Make = Callable[..., Any]


@pytest.fixture
def make(model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path) -> Make:
    """Make a trainer of TRL's with the plug-in, over the tiny model."""

    def made(
        critic: Any = None,
        rollout: Any = None,
        weight: float = 1.0,
        tokenizer: Any = speaking,
        more: dict[str, Any] | None = None,
        **args: Any,
    ) -> Any:
        from text2grad.plugins.trl import TokenCreditTrainer

        rows = [{"prompt": [{"role": "user", "content": text}], "reference": "b"} for text in PROMPTS]
        sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12}
        common = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no"}
        config = trl.GRPOConfig(output_dir=str(tmp_path), beta=0.0, max_steps=1, **common, **{**sizes, **args})
        return TokenCreditTrainer(
            model,
            **{"credit": TokenCredit(critic or BlamesLetter(), tokenizer), **(more or {})},
            words_weight=weight,
            args=config,
            processing_class=tokenizer,
            train_dataset=datasets.Dataset.from_list(rows),
            rollout_func=rollout,
        )

    return made


def landed(trainer: Any) -> dict[str, Any]:
    """One batch as TRL would train on it."""
    trainer.model.train()
    trainer._signature_columns = None
    rows = [dict(row) for row in trainer.train_dataset for _ in range(4)][:8]
    made: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return made


def cases_as_rollouts(speaking: PreTrainedTokenizerFast) -> Any:
    """The trajectories of `check_landing` as a `rollout_func` returns them."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        cases = landing_cases(speaking)
        ids = [list(case.trajectory.ids) for case in cases]
        masks = [list(case.trajectory.mask or []) for case in cases]
        prompt_ids = [list(case.prompt) for case in cases]
        logps = [[0.0] * len(each) for each in ids]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logps, "env_mask": masks}

    return rollout


def of_samples(verdicts: Any) -> Any:
    """TRL divides by the spread of a sample."""
    return (verdicts - verdicts.mean()) / (verdicts.std(ddof=1) + 1e-4)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_words_land_on_their_tokens(padding_side: str, make: Make, speaking: PreTrainedTokenizerFast) -> None:
    def land(credit: TokenCredit, cases: Sequence[Case]) -> list[Row]:
        trainer = make(rollout=cases_as_rollouts(speaking), tokenizer=copy.deepcopy(speaking))
        trainer.processing_class.padding_side = padding_side
        trainer.credit = credit
        out = landed(trainer)
        own = out["completion_mask"] * out["tool_mask"]
        assert out["num_items_in_batch"] == own.sum()
        assert trainer._metrics["train"]["text2grad/failed"] == [1 / len(cases)]
        return [Row(*each) for each in zip(out["completion_ids"], out["advantages"], own, strict=True)]

    assert check_landing(land, speaking, outcome=of_samples) >= 8


def look(key: str) -> str:
    """Look a thing up.

    Args:
        key: What to look up.
    """
    return f"wrong {key} " * 20


class Shelf:
    """An environment of TRL's: its public methods are tools."""

    def reset(self, **row: Any) -> str:
        return "wrong from the start"

    def look(self, key: str) -> str:
        """Look a thing up.

        Args:
            key: What to look up.
        """
        return look(key)


@pytest.mark.parametrize("kind", ["tools", "environment_factory"])
def test_what_tools_say_is_paid_nothing(kind: str, make: Make, speaking: PreTrainedTokenizerFast) -> None:
    """TRL's own tool loop; only the sampling of the tiny model, which could not call a tool, is
    scripted."""
    tokenizer = copy.deepcopy(speaking)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    ids_of = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    call = ids_of('<tool_call>\n{"name": "look", "arguments": {"key": "me up"}}\n</tool_call><|im_end|>')
    answer = [ids_of("so it is "), ids_of("wrong"), ids_of(" then<|im_end|>")]
    turns = [call, [index for ids in answer for index in ids]]
    written = [index for ids in turns for index in ids]
    more = {kind: [look] if kind == "tools" else Shelf}
    critic = Listening()
    trainer = make(critic, tokenizer=tokenizer, more=more, max_completion_length=900)

    def scripted(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        turn = turns.pop(0)
        return [list(turn) for _ in prompt_ids], None

    trainer._generate_single_turn = scripted
    out = landed(trainer)
    own = (out["completion_mask"] * out["tool_mask"]).bool()
    expected = torch.tensor([0.0] * (len(call) + len(answer[0])) + [-1.0] * len(answer[1]) + [0.0] * len(answer[2]))
    for ids, mine, paid, mask in zip(
        out["completion_ids"], own, out["advantages"], out["completion_mask"].bool(), strict=True
    ):
        assert ids[mine].tolist() == written and torch.equal(paid[mine], expected)
        said = tokenizer.decode(ids[mask & ~mine])
        assert said.count("wrong me up") == 20 and not paid[~mine].any()
    heard = [message for response in critic.responses for message in conversation_of(response)]
    tools = [message.content for message in heard if message.role == "tool"]
    assert len(tools) == len(own) and set(tools) == {look("me up")}  # nothing of the template with it


def test_the_gradient_is_minus_advantage_over_the_tokens(
    make: Make, speaking: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(FailsOnSecond(), cases_as_rollouts(speaking), loss_type="dapo")
    out = landed(trainer)
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    logps = torch.randn(out["completion_ids"].shape, requires_grad=True)
    monkeypatch.setattr(
        trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (logps, torch.zeros_like(logps), None)
    )
    trainer._compute_loss(trainer.model, out).backward()
    own = out["completion_mask"] * out["tool_mask"]
    assert not own[1].any() and own[0].any() and trainer._outcomes[1].score is None
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, -out["advantages"] * own / own.sum(), atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("loss_type", ["grpo", "sapo", "dr_grpo", "dapo"])
def test_a_failed_row_is_in_no_denominator(loss_type: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubling a batch by failed rows changes no gradient."""
    trainer = make(loss_type=loss_type)
    out = landed(trainer)
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    half = out["completion_ids"].shape[0] // 2
    logps = torch.randn(out["completion_ids"].shape)

    def gradient(rows: int, judged: torch.Tensor) -> torch.Tensor:
        batch = {name: value[:rows] if value.ndim else value for name, value in out.items()}
        batch["tool_mask"] = batch["tool_mask"] * judged.view(-1, 1)
        batch["num_items_in_batch"] = (batch["completion_mask"] * batch["tool_mask"]).sum()
        batch["judged_share"] = judged.float().mean()
        leaf = logps[:rows].clone().requires_grad_()
        monkeypatch.setattr(
            trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (leaf, torch.zeros_like(leaf), None)
        )
        trainer._compute_loss(trainer.model, batch).backward()
        assert leaf.grad is not None
        return leaf.grad[:half]

    alone = gradient(half, torch.ones(half))
    doubled = gradient(2 * half, torch.tensor([1] * half + [0] * half))
    assert alone.any()
    torch.testing.assert_close(doubled, alone)


def test_a_failed_critique_is_in_no_baseline_whatever_else_rewards_it(
    make: Make, speaking: PreTrainedTokenizerFast
) -> None:
    def constant(completions: Any, **_: Any) -> list[float]:
        return [5.0] * len(completions)

    def verdict_parts(more: dict[str, Any]) -> Any:
        trainer = make(FailsOnSecond(), cases_as_rollouts(speaking), weight=0.0, more=more)
        return landed(trainer)["advantages"]

    alone = verdict_parts({})
    assert alone.any()
    torch.testing.assert_close(verdict_parts({"reward_funcs": (constant,)}), alone, atol=1e-5, rtol=1e-5)


def test_a_step_trains_and_counts_failures(make: Make, model: LlamaForCausalLM) -> None:
    trainer = make(FailsOnSecond(), logging_steps=1)
    before = model.lm_head.weight.detach().clone()
    trainer.train()
    logged = next(row for row in trainer.state.log_history if "text2grad/failed" in row)
    assert logged["text2grad/failed"] == pytest.approx(1 / 8)
    assert {"text2grad/paid_share", "text2grad/words_mean", "text2grad/lost_quotes"} <= logged.keys()
    assert trainer.credit.output_size == model.config.vocab_size
    assert [len(words or []) for words in trainer._logs["extra"]["words"]][1] == 0
    assert (model.lm_head.weight != before).any()


class Fails(BlamesLetter):
    """A critic that is down."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        raise ConnectionError("no route to it")


def test_too_many_failures_stop_the_run(make: Make) -> None:
    with pytest.raises(CritiquesFailed, match=r"^8 of the last 8 critiques failed[^\n]*no route[^\n]*$"):
        make(Fails()).train()


def test_without_words_it_is_their_grpo(make: Make) -> None:
    out = landed(make(weight=0.0))
    own = out["completion_mask"].bool()
    for row, mask in zip(out["advantages"], own, strict=True):
        assert row[mask].unique().numel() <= 1


def test_the_page_shows_what_runs(make: Make, model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast) -> None:
    built = make()
    space = {"critic": BlamesLetter(), "tokenizer": speaking, "model": model}
    exec(shown_on_page("plugins.trl"), space | {"args": built.args, "rows": built.train_dataset})


def test_losses_of_whole_sequences_and_other_versions_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("loss_type", "luspo"), ("importance_sampling_level", "sequence")):
        with pytest.raises(UserError, match=f"{value}.*whole sequences"):
            make(**{name: value})
    version_of(monkeypatch, "1.17.0")
    with pytest.raises(UserError, match=r"^trl 1\.17\.0: the plug-in is written for 1\.16 \(pip install 'text"):
        make()


def test_mistakes_of_the_call_are_named(
    make: Make, model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast
) -> None:
    from text2grad.plugins.trl import TokenCreditTrainer

    other = copy.deepcopy(speaking)
    other.add_tokens(["another"])
    with pytest.raises(UserError, match="not the trainer's"):
        make(more={"credit": TokenCredit(BlamesLetter(), other)})
    with pytest.raises(UserError, match="BlamesLetter, not a TokenCredit"):
        TokenCreditTrainer(model, credit=BlamesLetter())
    with pytest.raises(UserError, match="words_weight is nan"):
        make(weight=float("nan"))
    with pytest.raises(UserError, match="reward_weights has 1 entries for 2"):
        make(more={"reward_funcs": len}, reward_weights=[1.0])


def test_the_methods_that_are_hooked_are_those_that_were_read() -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    hooked = {"_generate": ["prompts"], "_generate_and_score_completions": ["inputs"]}
    found = {name: list(inspect.signature(getattr(GRPOTrainer, name)).parameters)[1:] for name in hooked}
    assert found == hooked
    returned = inspect.getsource(GRPOTrainer._generate).rstrip().rpartition("return ")[2].split(", ")
    assert [returned[place] for place in (1, 2, 5)] == ["completion_ids", "tool_mask", "extra_fields"]
    assert len(returned) == 8
