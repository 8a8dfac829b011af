"""Adapters stay adapters through every stage of a run: no stage writes the model they stand on."""

from __future__ import annotations

from pathlib import Path

from commands import TOY, Command

LORA = ("--policy.lora.r", "2", "--sft.epochs", "4", "--ppo.steps", "1")
STAGES = (
    ("sft",),
    ("annotate",),
    ("train-reward",),
    ("train",),
    ("train", "--offline", "{run}/feedback.jsonl"),
)


def weights(folder: Path) -> dict[str, int]:
    """Files of weights below a folder, with their bytes."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.safetensors")}


def test_no_stage_writes_a_whole_model_and_merge_makes_one(
    command: Command, finished: Path, tmp_path: Path
) -> None:
    """The base is the SFT policy of another run, a plain model folder as any pretrained one."""
    base, run = finished / "sft" / "policy", tmp_path / "run"
    whole = (base / "model.safetensors").stat().st_size
    words = ("--run.folder", run, *TOY, "--policy.model", base, *LORA)
    for stage in STAGES:
        ended = command(*(word.format(run=run) for word in stage), *words)
        assert ended.code in (0, 3), ended.err
    found = weights(run)
    adapters = {name for name in found if name.endswith("adapter_model.safetensors")}
    places = {"sft", "reward_model", "ppo/text2grad", "ppo/offline"}
    assert adapters == {f"{place}/policy/adapter_model.safetensors" for place in places}
    rest = {Path(name).name for name in found.keys() - adapters}
    assert rest <= {"value_head.safetensors"}
    assert max(found[name] for name in adapters) < whole / 4
    assert command("merge", "text2grad", "--out", tmp_path / "merged", *words).code == 0
    assert weights(tmp_path / "merged")["model.safetensors"] >= 0.9 * whole
