"""Models: loading, KV memory, attention, passes."""

import logging

# transformers imports torchao wherever it is installed, and that import tells of kernels for other
# machines and of its own use of torch: nothing that a user could act on. Set before it happens.
_NOISE = {
    "torchao": "Failed to load",
    "torch.utils._pytree": "register_constant() on Enum subclasses is deprecated",
}


class _Unlike(logging.Filter):
    """Drops messages that hold a text; `name` is that text."""

    def filter(self, record: logging.LogRecord) -> bool:
        return self.name not in str(record.msg)


for _logger, _text in _NOISE.items():
    logging.getLogger(_logger).addFilter(_Unlike(_text))
