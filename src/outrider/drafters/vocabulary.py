"""Whether two models mean the same by the same token id."""

from outrider.core.errors import ConfigError
from outrider.model.loading import LoadedModel


def check_same_vocabulary(
    target: LoadedModel, draft: LoadedModel, target_width: int, draft_width: int
) -> None:
    """Equal sizes prove nothing, so the entries are compared. Padding at the end is allowed."""
    if target.tokenizer is None or draft.tokenizer is None:
        if target_width != draft_width:
            raise ConfigError(
                f"draft model {draft.name} has {draft_width} token ids and {target.name} "
                f"{target_width}, and without both tokenizers they cannot be matched; "
                "use a drafter of the same family"
            )
        return
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    differing = [token for token, i in ours.items() if theirs.get(token) != i]
    differing += [token for token in theirs if token not in ours]
    if differing:
        raise ConfigError(
            f"draft model {draft.name} has another vocabulary than {target.name}: {len(differing)} "
            f"entries differ, e.g. {differing[0]!r}; use a drafter with the same tokenizer"
        )
