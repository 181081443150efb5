"""The rewrite of FX graphs: what counts as an MLP, the search, the reasons, the surgery. Start from `rewrite`."""

from fmlp_op.graph.report import Decision, RewriteReport
from fmlp_op.graph.rewrite import find, rewrite

__all__ = ["Decision", "RewriteReport", "find", "rewrite"]
