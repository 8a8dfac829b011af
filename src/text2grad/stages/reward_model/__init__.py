"""The reward model of a run: its data, its training, the gate behind it."""
