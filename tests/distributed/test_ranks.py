"""How work is shared out, and what the environment of a launcher means; no second process."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from text2grad.commands.console import run_stage
from text2grad.config import find_config, load_config
from text2grad.durable.launch import joined, profile_shards
from text2grad.durable.processes import Ranks, _buckets, is_lost
from text2grad.errors import UserError
from text2grad.policy.generate import _choose
from text2grad.stages.annotate import run_annotate
from text2grad.train.rollout import draws_of

PROFILES = Path(__file__).parents[2] / "configs" / "accelerate"


@pytest.mark.parametrize(("length", "count", "size"), [(7, 2, 3), (64, 3, 8), (3, 3, 64), (5, 4, 1), (9, 1, 4)])
def test_shares_are_the_whole_and_nobody_makes_more_passes(length: int, count: int, size: int) -> None:
    ranks = [Ranks(rank, count) for rank in range(count)]
    shares = [list(range(length))[each.share(length)] for each in ranks]
    assert [row for share in shares for row in share] == list(range(length))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1 and min(map(len, shares)) > 0
    needed = [-(-len(share) // size) for share in shares]
    assert {each.passes(length, size) for each in ranks} == {max(needed)}


def test_gradients_go_in_buckets_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2grad.durable.processes.BUCKET", 40)
    sizes = [(4, torch.float32), (3, torch.bfloat16), (5, torch.float32), (6, torch.float32), (99, torch.float32)]
    found = list(_buckets([torch.zeros(size, dtype=kind) for size, kind in sizes]))
    assert [[len(each) for each in bucket] for bucket in found] == [[4, 5], [6], [99], [3]]
    assert list(_buckets([])) == []


def test_draws_belong_to_a_row_and_choose_by_share() -> None:
    whole = draws_of(5, 2, slice(0, 6), 9)
    assert torch.equal(whole[2:5], draws_of(5, 2, slice(2, 5), 9))
    assert whole.unique().numel() == 54
    assert not torch.equal(whole, draws_of(5, 3, slice(0, 6), 9))
    assert not torch.equal(whole, draws_of(6, 2, slice(0, 6), 9))
    shares = torch.tensor([0.0, 0.25, 0.0, 0.75])
    scores = shares.log().expand(4, 4)
    draws = torch.tensor([0.0, 0.2499, 0.2501, 1 - 2**-53], dtype=torch.float64)
    assert _choose(scores, 1.0, draws).tolist() == [1, 1, 3, 3]
    many = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = _choose(scores[:1].expand(20_000, 4), 0.5, many).bincount(minlength=4) / 20_000
    assert counts.tolist() == pytest.approx([0, 0.1, 0, 0.9], abs=0.01)  # squares: temperature 0.5
    with pytest.raises(FloatingPointError, match="not finite"):
        _choose(torch.full((1, 4), float("nan")), 1.0, draws[:1])


def test_alone_draws_are_torchs_and_an_error_stays_what_it_is() -> None:
    """What one process samples must not change because several can be started."""
    assert [ranks.by_row for ranks in (Ranks(), Ranks(0, 2), Ranks(by_row=True))] == [False, True, True]
    with pytest.raises(ValueError, match="mine"), Ranks().barrier():
        raise ValueError("mine")
    assert is_lost(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"))
    assert not is_lost(RuntimeError("size mismatch")) and not is_lost(None)


def test_an_incomplete_environment_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    words = r"WORLD_SIZE is 2, and LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set \(start with torchrun"
    with pytest.raises(UserError, match=words), joined(False):
        pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined(True) as ranks:
        assert (ranks.rank, ranks.count, ranks.sharded) == (0, 1, False)


def test_a_command_of_one_process_refuses_several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = load_config(find_config("demo"), ("--run.folder", str(tmp_path / "run")))
    with pytest.raises(UserError, match=r"2 processes were started, and this command is one process \(sft, train"):
        run_annotate(config)
    assert not (tmp_path / "run").exists()


def test_only_the_first_process_prints_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, expected in (("1", ""), ("0", '{"steps": 3}\n')):
        monkeypatch.setenv("RANK", rank)
        run_stage(lambda: {"steps": 3}, as_json=True)
        assert capsys.readouterr().out == expected


def launched(profile: Path, *words: str) -> Any:
    """The arguments of `accelerate launch` with a profile, as it reads them."""
    arguments = ["--config_file", str(profile), *words, "-m", "text2grad.cli", "train"]
    return _validate_launch_command(launch_command_parser().parse_args(arguments))[0]


@pytest.mark.parametrize(("name", "sharded"), [("ddp", False), ("fsdp2", True), ("deepspeed_zero3", True)])
def test_every_profile_says_how_weights_lie(name: str, sharded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through accelerate's own reader and launcher, up to the environment that a process would get."""
    monkeypatch.setattr(sys, "argv", ["accelerate"])
    arguments = launched(PROFILES / f"{name}.yaml", "--num_processes", "3")
    assert arguments.num_processes == 3
    if arguments.use_deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ""
        _, environment = prepare_deepspeed_cmd_env(arguments)
    else:
        environment = prepare_multi_gpu_env(arguments)
    for key, value in environment.items():
        if key.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.setenv(key, value)
    assert profile_shards() is sharded
    assert {path.stem for path in PROFILES.iterdir()} == {"ddp", "fsdp2", "deepspeed_zero3"}


def test_the_deepspeed_profile_has_keys_of_accelerate_and_no_offload(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it goes without DeepSpeed: accelerate reads the file, and its plug-in knows every key."""
    path = PROFILES / "deepspeed_zero3.yaml"
    profile = load_config_from_file(str(path)).deepspeed_config
    assert profile == yaml.safe_load(path.read_text("utf-8"))["deepspeed_config"]
    assert profile.keys() <= {field.name for field in dataclasses.fields(DeepSpeedPlugin)}
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "0")
    assert profile_shards() is False
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu")
    with pytest.raises(UserError, match="offload, which is not done here"):
        profile_shards()
