"""Looking on while a run trains: at its steps, and at prompts that it answers anew."""
