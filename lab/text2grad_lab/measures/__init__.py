"""Models that read finished answers: BERTScore and perplexity."""
