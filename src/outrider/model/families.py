"""Families of models that are known by more than what transformers says of them."""

# Their layers are: norm, attention with whole-head rotation, norm, silu-gated products.
FUSED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
