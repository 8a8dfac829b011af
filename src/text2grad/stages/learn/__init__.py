"""Training: `sft`, `train-reward`, `train`, and the data that they train on."""
