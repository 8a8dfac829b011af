"""What every stage needs: the run folder, its prompts, samples, settings and summaries; and `merge`."""
