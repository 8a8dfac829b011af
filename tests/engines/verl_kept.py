"""Writes what verl's trainer was trained on, for `verl_recipe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transfer_queue
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback


class Kept(CheckpointCallback):
    """Writes what a saved step was trained on: a list for each trajectory and name, in the order of
    the prompts."""

    names = ("responses", "response_mask", "advantages", "token_level_rewards")

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_: Any) -> None:
        keys = [key for key, tag in transfer_queue.kv_list("train")["train"].items() if "seq_len" in tag]
        names = [*self.names, *["values", "last_value"] * trainer.use_critic]
        data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=[*names, "extra_fields"])
        rows = []
        for row, key in enumerate(keys):
            extra = data["extra_fields"][row]
            judged = json.loads(getattr(extra, "data", extra)["text2grad"])
            numbers = {name: data[name][row].tolist() for name in names}
            rows.append({"key": [judged["number"], int(key.rsplit("_", 2)[1])], "judged": judged, **numbers})
        rows.sort(key=lambda each: each["key"])
        place = Path(checkpoint_dir).parents[1] / f"kept_{global_step}.json"
        place.write_text(json.dumps(rows), encoding="utf-8")
