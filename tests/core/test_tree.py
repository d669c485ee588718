"""Trees of tokens: what is derived from `parents`, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.tree import ROOT, TokenTree, ancestor_mask

# Parents come first: node i hangs below the root or below one of the i nodes before it.
parent_lists = st.integers(0, 12).flatmap(
    lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))).map(list)
)


def make_tree(parents: list[int]) -> TokenTree:
    return TokenTree([100 + i for i in range(len(parents))], parents, source="test")


@given(parent_lists)
def test_a_path_leads_from_a_child_of_the_root_to_the_node(parents):
    tree = make_tree(parents)
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[-1] == node
        assert [parents[step] for step in path] == [ROOT, *path[:-1]]
        assert tree.path_tokens(node) == [100 + step for step in path]
        assert tree.depths[node] == len(path)


@given(parent_lists)
def test_children_list_every_node_once_in_draw_order(parents):
    children = make_tree(parents).children
    assert sorted(node for nodes in children.values() for node in nodes) == list(
        range(len(parents))
    )
    for parent, nodes in children.items():
        assert nodes == sorted(nodes)
        assert all(parents[node] == parent for node in nodes)


@given(parent_lists)
def test_the_mask_shows_each_node_its_ancestors_and_itself(parents):
    tree, mask = make_tree(parents), ancestor_mask(parents)
    assert mask.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        assert mask[node].nonzero().flatten().tolist() == tree.path(node)


def test_the_root_has_an_empty_path():
    assert make_tree([-1, 0]).path(ROOT) == []


def test_a_chain_is_a_tree_with_one_branch():
    tree = TokenTree.chain([5, 6, 7], source="ngram")
    assert tree.parents == [-1, 0, 1]
    assert tree.depths == [1, 2, 3]
    assert tree.path_tokens(2) == [5, 6, 7]
    assert ancestor_mask(tree.parents).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_a_chain_does_not_share_the_list_it_was_made_from():
    tokens = [5, 6]
    tree = TokenTree.chain(tokens, source="ngram")
    tokens.append(7)
    assert len(tree) == 2


def test_no_nodes_at_all_is_plain_decoding():
    tree = TokenTree.empty()
    assert len(tree) == 0
    assert tree.children == {}
    assert ancestor_mask(tree.parents).shape == (0, 0)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2], [-1, 0, -3]])
def test_a_parent_that_does_not_come_first_is_refused(parents):
    with pytest.raises(ValueError, match="parents must come first"):
        make_tree(parents)


@pytest.mark.parametrize("parents", [[], [-1, 0]])
def test_tokens_and_parents_must_be_as_many(parents):
    with pytest.raises(ValueError, match=f"1 tokens but {len(parents)} parents"):
        TokenTree([5], parents, source="test")
