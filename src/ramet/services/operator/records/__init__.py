"""Views of records that operators look at rarely: diffs, boards, kernels, keys."""
