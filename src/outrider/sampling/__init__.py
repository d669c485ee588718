"""From logits to tokens: processing, position-keyed noise, the choice, log-probabilities."""
