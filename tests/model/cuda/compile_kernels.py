"""Compiles every kernel for a Hopper GPU, which needs none: `python compile_kernels.py`.

A program of its own, because Triton decides at import whether it compiles or interprets.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.model.cuda import (
    choice,
    cut_bounds,
    cut_search,
    feature_rows,
    follow,
    guess,
    invariant_attention,
    linear,
    projection,
    row_kernels,
    text_attention,
    tree_attention,
    truncation,
)

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    "packed": "*i64", "previous": "*i64", "choices": "*i64", "table": "*i32", "arrived": "*i32",
    "squares": "*fp32", "parts": "*fp32", "part_out": "*fp32", "part_weight": "*fp32",
    "part_value": "*fp32", "part_token": "*fp32", "part_sum": "*fp32", "sure": "*fp32",
    "epsilon": "fp32", "token_epsilon": "fp32", "feature_epsilon": "fp32", "scale": "fp32",
    "cuts": "*fp32", "counts": "*i32", "tops": "*fp32", "masses": "*fp64", "bounds": "*fp64",
    "scores": "*fp32", "weights": "*i64", "found": "*i32", "above": "*i64",
    "guesses": "*fp64", "tiles": "*i64", "slots": "*i64",
}  # fmt: skip
NUMBERS = ("rows", "texts", "outer", "heads", "most_parts", "table_stride")
STRIDES = ("_row", "_head", "_slot")


def compile_kernel(
    kernel: triton.JITFunction, dtype: str, options: dict, **constants: object
) -> None:
    """Parameters in capitals are constants; the others are pointers to `dtype`, unless known."""
    names = kernel.arg_names
    signature = {}
    for name in names:
        number = name in NUMBERS or name.endswith(STRIDES)
        known = POINTERS.get(name, "i32" if number else f"*{dtype}")
        signature[name] = "constexpr" if name.isupper() else known
    source = ASTSource(
        kernel, signature, {(names.index(name),): value for name, value in constants.items()}
    )
    triton.compile(source, target=TARGET, options=options)


def main() -> None:
    product = {"INNER": 1536, "PARTS": 96}
    for dtype, chained in (("bf16", True), ("bf16", False), ("fp32", True)):
        compile_kernel(
            linear._linear, dtype, {"num_warps": 2, "num_stages": 5}, **product, CHAINED=chained,
            ROWS=16, LINES=16, BLOCK=64, SPLITS=4, BIAS=True, NORM=False, GATED=False, ADD=True,
            WIDE=False,
        )  # fmt: skip
    for rows in (16, 64):
        compile_kernel(
            projection._project, "bf16", {"num_warps": 4, "num_stages": 4}, **product, CHAINED=True,
            ROWS=rows, LINES=64, BLOCK=128, SPLITS=3, BIAS=True, HEADS=12, KV_HEADS=2,
            HEAD_SIZE=128, WIDE=True,
        )  # fmt: skip
    for dtype, rows, block in (("bf16", 32, 64), ("bf16", 64, 64), ("fp32", 64, 32)):
        wide = {"num_warps": 4, "num_stages": 4}
        compile_kernel(
            linear._linear, dtype, wide, **product, CHAINED=True, ROWS=rows, LINES=32, BLOCK=block,
            SPLITS=1, BIAS=False, NORM=True, GATED=True, ADD=False, WIDE=True,
        )  # fmt: skip
        compile_kernel(
            linear._linear, dtype, wide, **product, CHAINED=True, ROWS=rows, LINES=64,
            BLOCK=2 * block, SPLITS=5, BIAS=True, NORM=False, GATED=False, ADD=True, WIDE=True,
        )  # fmt: skip
    compile_kernel(linear._gate, "bf16", {"num_warps": 4}, INNER=8960, BLOCK=1024)
    for dtype in ("bf16", "fp32"):
        compile_kernel(
            row_kernels._embed, dtype, {"num_warps": 4},
            SPARE_UPDATES=16, WIDTH=576, BLOCK=1024, PARTS=36, FIELDS=17, CHAINED=True,
        )  # fmt: skip
        compile_kernel(
            feature_rows._join_features, dtype, {"num_warps": 8},
            WIDTH=1536, BLOCK=2048, RESIDUAL=True, CHAINED=True,
        )  # fmt: skip
        compile_kernel(
            row_kernels._rotate, dtype, {"num_warps": 1},
            HEADS=12, KV_HEADS=2, SIZE=80, HALF=64, NORM=True, CHAINED=True,
        )  # fmt: skip
        compile_kernel(
            tree_attention._join, dtype, {"num_warps": 2},
            VALUE_SIZE=80, FEWEST_KEYS=32, JOINED=64, MANY_JOINED=256, SIZE=32, CHAINED=True,
        )  # fmt: skip
        for sums in (False, True):
            compile_kernel(
                choice._choose_part, dtype, {"num_warps": 8},
                VOCABULARY=151936, GROUPS=64, AT_ONCE=16, CUTS=not sums, SUMS=sums, CHAINED=True,
            )  # fmt: skip
        row = {"VOCABULARY": 151936, "CHUNK": truncation.CHUNK, "CHUNKS": 38, "CHAINED": True}
        compile_kernel(
            cut_bounds.survey, dtype, {"num_warps": 8}, **row,
            PADDED=64, BINS=truncation.BINS, STEPS=truncation.STEPS,
        )  # fmt: skip
        compile_kernel(
            cut_search.settle, dtype, {"num_warps": 8}, **row,
            CAPACITY=truncation.CAPACITY, BLOCK=truncation.BLOCK, ONE=truncation.unit(151936),
        )  # fmt: skip
    for dtype, tile, sinks in (("bf16", 16, False), ("bf16", 128, True), ("fp32", 16, True)):
        compile_kernel(
            tree_attention._attend, dtype,
            {"num_warps": 8 if tile > 64 else 4, "num_stages": tree_attention.STAGES},
            WINDOW=70 if sinks else 0, SOFTCAP=3.0 if sinks else 0.0, SINKS=sinks, GROUP=6,
            SIZE=80, PADDED_SIZE=128, VALUE_SIZE=80, PADDED_VALUE_SIZE=128,
            FEWEST_KEYS=32, TILE=tile, KEYS=32, SPREAD=tile == 16, CHAINED=True,
        )  # fmt: skip
        compile_kernel(
            text_attention._attend_texts, dtype,
            {"num_warps": text_attention.WARPS, "num_stages": text_attention.STAGES},
            WINDOW=70 if sinks else 0, SOFTCAP=3.0 if sinks else 0.0, SINKS=sinks, GROUP=6,
            SIZE=80, PADDED_SIZE=128, VALUE_SIZE=80, PADDED_VALUE_SIZE=128, TILE=64,
            KEYS=text_attention.keys_of(128, 2 if dtype == "bf16" else 4),
        )  # fmt: skip
        compile_kernel(
            invariant_attention._attend_path, dtype, {"num_warps": invariant_attention.WARPS},
            WINDOW=70 if sinks else 0, SOFTCAP=3.0 if sinks else 0.0, SINKS=sinks, GROUP=6,
            SIZE=80, PADDED_SIZE=128, VALUE_SIZE=80, PADDED_VALUE_SIZE=128, FEWEST_KEYS=64,
            MOST_PARTS=64, NODES=64, TILE=16, KEYS=32, CHAINED=True,
        )  # fmt: skip
        compile_kernel(
            invariant_attention._join_path, dtype, {"num_warps": 2}, WINDOW=70 if sinks else 0,
            VALUE_SIZE=80, FEWEST_KEYS=64, MOST_PARTS=64, SIZE=32, CHAINED=True,
        )  # fmt: skip
    compile_kernel(
        choice._choose_best, "fp32", {"num_warps": 1}, CHUNKS=38, PADDED=64, CHAINED=True
    )
    for sure in (False, True):
        compile_kernel(
            guess._move_on, "fp64", {"num_warps": 1}, SURE=sure, CHUNKS=38, PADDED=64
        )  # fmt: skip
    compile_kernel(
        follow._settle, "i64", {"num_warps": 1}, FIRST=1, TILE=5, MOST_ROWS=follow.MOST_ROWS
    )
    compile_kernel(follow._aim, "i64", {"num_warps": 1}, MOST_ROWS=follow.MOST_ROWS)
    print("all kernels compile")


if __name__ == "__main__":
    main()
